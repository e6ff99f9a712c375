"""The front end in the place of ONNX Runtime: in an installed one, as a stand-in for a missing one, and behind the runner."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import hetero_core.frontends.onnxruntime as frontend
from hetero_core.frontends.onnxruntime import replace_onnxruntime
from hetero_core.frontends.shared_core import forget_core

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
).SerializeToString()
X = np.array([1, -2], np.float32)


@pytest.fixture(scope="module", autouse=True)
def closed_core() -> Iterator[None]:
    yield
    forget_core()


def run_neg(module: Any, device: str) -> list[float]:
    session = module.InferenceSession(MODEL, providers=[("HeteroExecutionProvider", {"device": device})])
    assert type(session).__module__.startswith("hetero_core.")
    outputs: list[float] = session.run(None, {"x": X})[0].tolist()
    return outputs


def test_installed_module_gets_and_loses_the_names() -> None:
    import onnxruntime

    before = {name: getattr(onnxruntime, name) for name in frontend.PUT_NAMES}
    with replace_onnxruntime():
        import onnxruntime.quantization
        from onnxruntime.capi import _pybind_state
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

        assert onnxruntime.InferenceSession is frontend.InferenceSession
        assert onnxruntime.__version__ != ""
        assert importlib.import_module("onnxruntime") is onnxruntime
        assert importlib.util.find_spec("onnxruntime").origin == onnxruntime.__file__  # type: ignore[union-attr]  # it is found
        assert _pybind_state.SessionOptions is not onnxruntime.SessionOptions
        with pytest.raises(InvalidArgument):
            onnxruntime.InferenceSession(MODEL).run(None, {"x": X[:1]})
        with replace_onnxruntime():
            assert onnxruntime.InferenceSession is frontend.InferenceSession
        assert onnxruntime.InferenceSession is frontend.InferenceSession
    assert {name: getattr(onnxruntime, name) for name in frontend.PUT_NAMES} == before


@pytest.mark.parametrize("device", ["ORT", "HETERO:ORT,CPU", "CPU"])
def test_device_ort_keeps_the_engines_own_classes(device: str) -> None:
    with replace_onnxruntime():
        import onnxruntime

        forget_core()  # so that the device is created now
        assert run_neg(onnxruntime, device) == [-1, 2]


def test_device_of_the_block_is_that_of_its_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setenv("HETERO_DEVICE", "CPU")
    with replace_onnxruntime("TEMPLATE"):
        session: Any = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
        assert str(session.network.device) == "TEMPLATE"
    assert os.environ["HETERO_DEVICE"] == "CPU"


class Hiding:
    """Finds all modules except ONNX Runtime, as if it were not installed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        from importlib.machinery import PathFinder

        return None if name.partition(".")[0] == "onnxruntime" else PathFinder.find_spec(name, path, target)


@pytest.fixture
def without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.machinery import PathFinder

    for name in [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(
        sys, "meta_path", [Hiding if finder is PathFinder else finder for finder in sys.meta_path if "editable" not in str(finder)]
    )


@pytest.mark.usefixtures("without_onnxruntime")
def test_stand_in_for_a_missing_module() -> None:
    assert importlib.util.find_spec("onnxruntime") is None
    with replace_onnxruntime():
        spec = importlib.util.find_spec("onnxruntime")
        assert spec is not None
        module = importlib.import_module("onnxruntime")
        assert importlib.util.find_spec("onnxruntime") is module.__spec__
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        collection = importlib.import_module("onnxruntime.capi.onnxruntime_inference_collection")
        assert collection.InferenceSession is module.InferenceSession is frontend.InferenceSession
        assert importlib.util.find_spec("onnxruntime.quantization") is None
        assert run_neg(module, "CPU") == [-1, 2]
        with pytest.raises(state.InvalidArgument, match="expected shape"):
            module.InferenceSession(MODEL, providers=[("HeteroExecutionProvider", {"device": "CPU"})]).run(None, {"x": X[:1]})
        with pytest.raises(state.NoSuchFile):
            module.InferenceSession("/nowhere.onnx")
        module.preload_dlls(cuda=False)
        module.disable_telemetry_events()
        module.set_default_logger_severity(3)
        assert module.__version__.startswith("1.")
        assert (module.get_version_string(), "Build Info" in module.get_build_info()) == (module.__version__, True)
        assert module.get_available_providers() == ["HeteroExecutionProvider", "CPUExecutionProvider"]
        assert module.get_device() == "CPU"
    assert importlib.util.find_spec("onnxruntime") is None


PROGRAM = """
import json, multiprocessing, sys
import helper_of_the_program

def describe(_):
    import onnxruntime
    import numpy as np
    session = onnxruntime.InferenceSession(bytes.fromhex(sys.argv[1]) if len(sys.argv) > 1 else helper_of_the_program.MODEL)
    return [type(session).__module__, str(getattr(session, "network", None)), session.run(None, {"x": np.ones(2, np.float32)})[0].tolist()]

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(json.dumps([sys.argv[2:], describe(0), *pool.map(describe, [1]), "own" in sys.modules]))
"""


def run_program(folder: Path, *words: str, device: str = "") -> Any:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "helper_of_the_program.py").write_text(f"MODEL = {MODEL!r}")
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text("import sys; sys.modules['own'] = None")
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), **({"HETERO_DEVICE": device} if device else {})}
    run = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("words", [("-d", "CPU", "program.py"), ("-m", "program")])
def test_runner_reaches_the_program_and_its_workers(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Arguments arrive, another `sitecustomize` of the path runs as well, and spawned workers get the front end, too."""
    answers = run_program(tmp_path, "-m", "hetero_core.frontends.onnxruntime", *words, MODEL.hex(), "--more", device="CPU")
    expected = ["hetero_core.frontends.onnxruntime.session", "ExecutableNetwork('g' on CPU)", [-1, -1]]
    assert answers == [["--more"], expected, expected, True]


def test_program_without_the_runner_is_untouched(tmp_path: Path) -> None:
    answers = run_program(tmp_path, "program.py", MODEL.hex())
    assert answers[1][0].startswith("onnxruntime.")
