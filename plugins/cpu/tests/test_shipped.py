"""Kernels that come with the package: made by the code that is here, right, and used where they may be."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hetero_cpu.machine import compiler, shipped, translation
from hetero_cpu.machine.image import load_image
from hetero_cpu.machine.shipped import FLAGS, FOLDER, LEVELS, ShippedKernels, open_shipped, write_shipped
from hetero_cpu.machine.sources import digest_emitters
from hetero_cpu.operators.winograd.kernel import WinogradShape, make_whole

IMAGES = {"first": b"\x7fELF first", "second": b"\x7fELF the second"}
FIRST_RUNS = """
import sys
import numpy as np
import onnxruntime as ort
from hetero_cpu.machine import compiler, shipped, translation
compiler._describe_processor = lambda: " ".join(shipped.FLAGS[sys.argv[2]])
from hetero_cpu.machine.translator import TRANSLATOR
from hetero_core import Core
from hetero_tests import open_models

assert shipped.LEVELS[compiler.find_width()] == sys.argv[2]
random, name = np.random.default_rng(7), sys.argv[1]
model = getattr(open_models, f"make_{name}")()
# Each set of sizes twice; large ones and small ones.
if name == "detector":
    sizes = [(1, 96, 104), (2, 64, 72), (1, 96, 104), (1, 200, 136), (1, 33, 47), (1, 33, 47)]
    feeds = [{"image": random.standard_normal((batch, 3, *size)).astype(np.float32)} for batch, *size in sizes]
elif name == "encoder":
    sizes = [(2, 40), (3, 9), (2, 40), (1, 100), (3, 9)]
    feeds = [{"tokens": random.integers(0, 1000, size), "mask": np.ones(size, np.int64)} for size in sizes]
else:
    feeds = []
    for past, steps in ((0, 30), (30, 1), (31, 1), (0, 30), (32, 5), (200, 1)):
        shapes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in model.graph.input}
        caches = {
            name: random.standard_normal((1, shape[1], past, shape[3])).astype(np.float32)
            for name, shape in shapes.items()
            if len(shape) == 4
        }
        feeds.append({"tokens": random.integers(0, 1000, (1, steps)), **caches})
network = Core().load_network(model, "CPU", {"INFERENCE_NUM_THREADS": int(sys.argv[3])})
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession(model.SerializeToString(), options)
for inputs in feeds:
    expected = dict(zip([output.name for output in model.graph.output], session.run(None, inputs)))
    for name, value in network.infer(inputs).items():
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-4 * scale, err_msg=name)
    assert TRANSLATOR._process is None, "LLVM's process was started"
assert network.get_metric("CPU_KERNELS_READY")
assert network.get_metric("CPU_NATIVE_STEPS")
assert not network.get_metric("CPU_REFUTED")
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


@pytest.mark.parametrize("feature", ["AVX2", "FMA3"])
def test_vectors_that_the_processor_denies_get_no_machine_code(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/cpuinfo of an emulator is that of its host."""
    from numpy._core._multiarray_umath import __cpu_features__

    for name in (feature, "AVX512F"):
        monkeypatch.setitem(__cpu_features__, name, False)
    monkeypatch.setattr(compiler, "_describe_processor", compiler._describe_processor.__wrapped__)
    assert not any(flag.startswith("avx512") for flag in compiler._describe_processor().split())
    assert compiler.find_width.__wrapped__() == 0


def is_of_level(level: str) -> bool:
    return compiler.find_width() > 0 and set(compiler._describe_processor().split()) >= FLAGS[level]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", FLAGS)
@pytest.mark.parametrize("name", ["detector", "encoder", "decoder"])
def test_first_process_needs_no_compiler_and_shipped_kernels_answer_as_onnxruntime_does(
    name: str, level: str, threads: int, tmp_path: Path
) -> None:
    if not is_of_level(level):
        pytest.skip(f"the processor is not of level {level}")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", FIRST_RUNS, name, level, str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
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


def test_sums_of_winograd_stay_in_the_registers_of_avx512() -> None:
    kernel = make_whole(WinogradShape(4, 14, False, 2, 2, 4, False, ()))
    text, level = kernel.emit(kernel.name, 16).take_text(), "x86-64-v4"
    assembly: str = translation._open_target(level).emit_assembly(translation.optimize(text, level))
    # By LLVM's model of the level there are 140.
    assert sum("%zmm" in line and "%rsp" in line for line in assembly.splitlines()) < 40
    assert assembly.count("vfmadd") > 200
