"""The message if CuPy cannot work: a sentence with the cure for each missing part."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hetero_cupy.cupy_runtime import explain_import, find_fault

from hetero_core import Core


def test_missing_and_broken_cupy_are_told_apart() -> None:
    assert explain_import(ModuleNotFoundError("No module named 'cupy'", name="cupy")).startswith(
        "CuPy is not installed; pip install"
    )
    broken = explain_import(ImportError("libcublas.so.12: cannot open\nshared object file"))
    assert broken.startswith(
        "CuPy is installed and cannot be imported (libcublas.so.12: cannot open shared object file); uninstall"
    )


def make_library(driver: int, count: Any, nvrtc: Any) -> Any:
    """Returns a fake CuPy module with the answers of another machine."""
    runtime = SimpleNamespace(driverGetVersion=lambda: driver, runtimeGetVersion=lambda: 12090, getDeviceCount=count)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getVersion=nvrtc)))


def fail(text: str) -> Any:
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("driver", "texts", "reason", "cure"),
    [
        (0, "abc", "CuPy finds no NVIDIA driver", "docker run --gpus all"),
        (11080, "abc", "the driver is too old: it is for CUDA 11.8 and this CuPy for CUDA 12.9", "hetero-cupy[cuda12]"),
        (12080, "abc", "no card (RuntimeError: a)", "CUDA_VISIBLE_DEVICES"),
        (12080, " bc", "NVRTC, with which CuPy compiles kernels, cannot be loaded (RuntimeError: b)", "nvidia-cuda-nvrtc-cu12"),
        (12080, "  c", "the card did not run a first kernel (RuntimeError: c)", "nvidia-smi"),
    ],
)
def test_first_missing_part_has_its_sentence(driver: int, texts: str, reason: str, cure: str) -> None:
    """A letter in `texts` is the error of the number of cards, NVRTC or the first kernel; a blank stands for success."""
    count, nvrtc, kernel = (lambda text=text: 1 if text == " " else fail(text) for text in texts)
    text = find_fault(make_library(driver, count, nvrtc), kernel)
    assert text is not None
    assert reason in text
    assert cure in text


def test_nothing_missing_says_nothing() -> None:
    # A driver serves a runtime of the same major and a later minor version.
    for driver in (12020, 13000):
        assert find_fault(make_library(driver, lambda: 2, lambda: (12, 9)), lambda: None) is None
    assert "no card;" in str(find_fault(make_library(12020, lambda: 0, lambda: (12, 9)), lambda: None))


ASK = """
import hetero_cupy, os, sys
from hetero_core import Core
from hetero_core.errors import DeviceUnavailableError
with Core() as core:
    if "GPU" in core.device_names:
        core.unregister_plugin("GPU")
    core.register_plugin("GPU", hetero_cupy)
    try:
        core.get_metric("GPU", "FULL_DEVICE_NAME")
    except DeviceUnavailableError as error:
        sys.stdout.write(str(error) + "\\n" + os.environ["CUPY_CACHE_DIR"])
"""


def ask_device(home: Any) -> list[str]:
    """Returns the output of a fresh process: the device's reason, and the folder of its kernels."""
    environment = {key: value for key, value in os.environ.items() if key != "CUPY_CACHE_DIR"}
    ended = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**environment, "XDG_CACHE_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    return ended.stdout.splitlines()


def test_device_names_the_missing_part(tmp_path: Any) -> None:
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    reason, folder = ask_device(tmp_path)
    assert reason.startswith("device GPU is not available: CuPy is not installed; pip install 'hetero-cupy[cuda12]'")
    assert folder == str(tmp_path / "hetero" / "cupy-kernels")


def test_real_cupy_without_a_driver_says_so(tmp_path: Any) -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("there is a driver")
    reason, folder = ask_device(tmp_path)
    assert reason.startswith("device GPU is not available: CuPy finds no NVIDIA driver; install the driver of the card")
    assert folder == str(tmp_path / "hetero" / "cupy-kernels")


def test_list_continues_without_the_card_on_request() -> None:
    import hetero_cupy
    import onnx.parser

    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }')
    with Core() as core:
        core.register_plugin("NOCARD", hetero_cupy)
        loaded = core.load_network(model, "HETERO:NOCARD,CPU", {"HETERO_FALLBACK": "NEXT"})
        assert loaded.get_metric("EXECUTION_DEVICES") == ("CPU",)
        ((reason,),) = [refusals.values() for refusals in loaded.get_metric("HETERO_PLAN").refusals.values()]
    assert reason.startswith("cannot be used: device NOCARD is not available: CuPy is not installed; pip install")
