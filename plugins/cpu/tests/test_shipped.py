"""Kernels that come with the package: made by the code that is here, right, and used where they may be."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hetero_cpu.machine import compiler, shipped
from hetero_cpu.machine.image import load_image
from hetero_cpu.machine.shipped import FLAGS, FOLDER, LEVELS, ShippedKernels, open_shipped, write_shipped
from hetero_cpu.machine.sources import digest_emitters

IMAGES = {"first": b"\x7fELF first", "second": b"\x7fELF the second"}
FIRST_RUNS = """
import numpy as np
from hetero_cpu.machine.translator import TRANSLATOR
from hetero_core import Core
from hetero_tests.open_models import make_detector

network = Core().load_network(make_detector(), "CPU", {"INFERENCE_NUM_THREADS": 1})
plain = Core().load_network(make_detector(), "CPU", {"CPU_KERNELS": "NUMPY"})
for size in range(64, 264, 40):
    image = np.random.default_rng(size).standard_normal((1, 3, size, size + 8)).astype(np.float32)
    (result,), (expected,) = network.infer({"image": image}).values(), plain.infer({"image": image}).values()
    assert np.allclose(result, expected, rtol=1e-4, atol=1e-5), size
    assert TRANSLATOR._process is None, "LLVM's process was started"
assert network.get_metric("CPU_KERNELS_READY")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two kernels for each level, in the place of the one that is shipped."""
    for level in LEVELS.values():
        write_shipped(str(tmp_path / f"{level}.kernels"), IMAGES)
    (tmp_path / shipped.DIGEST_FILE).write_text(f"{digest_emitters()}\n")
    monkeypatch.setattr(shipped, "FOLDER", str(tmp_path))
    return tmp_path


def test_kernels_were_made_by_the_code_that_is_here() -> None:
    made_by = Path(FOLDER, shipped.DIGEST_FILE).read_text().strip()
    assert made_by == digest_emitters(), "the code that emits has changed: run nox -s kernels"


@pytest.mark.parametrize("width", LEVELS)
def test_each_level_has_the_kernels_of_common_layers(width: int) -> None:
    kernels = open_shipped(width, FLAGS[LEVELS[width]])
    assert kernels is not None
    names = kernels.list_names()
    assert {"interpreter_alone", "interpreter_together", "interpreter_helper", "elementwise_vv_Addo0o1"} <= set(names)
    for family in ("product", "winograd_whole", "windows_depthwise", "windows_max", "attention", "normalize"):
        assert sum(name.startswith(family) for name in names) >= 2, family
    for name in names:
        image = kernels.read(name)
        assert image is not None
        load_image(image, name)


@pytest.mark.skipif(compiler.find_shipped() is None, reason="no kernels are shipped for this processor")
def test_first_runs_of_a_first_process_need_no_compiler(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", FIRST_RUNS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "hetero" / compiler.FOLDER).glob("*.o"))


def test_what_was_written_is_read(folder: Path) -> None:
    kernels = open_shipped(8, FLAGS["x86-64-v3"])
    assert kernels is not None
    assert {name: kernels.read(name) for name in kernels.list_names()} == IMAGES
    assert kernels.read("third") is None


def test_processor_without_a_flag_of_the_level_gets_none(folder: Path) -> None:
    for width, level in LEVELS.items():
        for flag in FLAGS[level]:
            assert open_shipped(width, FLAGS[level] - {flag}) is None
    assert open_shipped(0, frozenset()) is None


def test_kernels_of_other_code_are_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / shipped.DIGEST_FILE).write_text("0123\n")
    with caplog.at_level(logging.INFO):
        assert open_shipped(8, FLAGS["x86-64-v3"]) is None
    assert "other code made them" in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"hetero_cpu kernels 1\n", b"hetero_cpu kernels 1\n" + bytes([4, *[0] * 7]) + b"{{{{", b"text"]
)
def test_file_that_holds_none_is_told_and_not_used(folder: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "x86-64-v3.kernels").write_bytes(content)
    assert open_shipped(8, FLAGS["x86-64-v3"]) is None
    assert "shipped kernels are not used" in caplog.text


def test_missing_folder_is_told_and_nothing_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", str(tmp_path / "none"))
    assert open_shipped(8, FLAGS["x86-64-v3"]) is None
    assert "shipped kernels are not used" in caplog.text


def test_damaged_kernel_is_compiled(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "x86-64-v3.kernels"
    path.write_bytes(path.read_bytes().replace(b"the second", b"The second"))
    kernels = ShippedKernels(str(path))
    assert kernels.read("second") is None
    assert "is damaged; kernel second is compiled" in caplog.text
    assert kernels.read("first") == IMAGES["first"]
