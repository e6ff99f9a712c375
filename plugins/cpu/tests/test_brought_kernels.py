"""Kernels shipped in a wheel: their list, the processors that use them, and their lookup by source text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

from hetero_cpu.machine import compiler, translation
from hetero_cpu.machine.compiler import FLAGS, Compiler, Kernel
from hetero_cpu.machine.translator import TRANSLATOR
from hetero_cpu.operators.winograd import WinogradShape, make_kernel

from hetero_core.blobs.store import FOLDER, write_entry

from .test_jit_image import EXPECTED, NAME, emit, run_at

LISTS = """
import sys
sys.path.insert(0, sys.argv[1])
import common_layers
common_layers.IMAGES = common_layers.IMAGES[::2]
from hetero_core.network.reader import read_network
from hetero_core.testing.models import light_model
common_layers.list_models = lambda: iter([
    common_layers.make_convolutions("", common_layers.OUTPUTS),
    common_layers.make_convolutions("Relu", common_layers.OUTPUTS),
    common_layers.make_others(),
])
brought = common_layers.list_texts(sys.argv[2])
from hetero_cpu.plan.passes import transform_network
from hetero_cpu.plan.passes import join_network, specialize_network
from hetero_cpu.plan.planner import build_plan
from hetero_cpu.operators.weights import PackedWeights
network = transform_network(read_network(light_model("resnet50")))
special = specialize_network(network, tuple(spec.shape for spec in network.inputs))
plan = build_plan(join_network(special), PackedWeights(), {}, workers=2)
print(len(plan.kernels), [kernel.name for kernel in plan.kernels if kernel.name not in brought])
"""


@pytest.mark.parametrize("level", ["x86-64-v3"])
def test_resnet_needs_no_kernel_that_a_wheel_does_not_bring(level: str) -> None:
    command = [sys.executable, "-c", LISTS, str(Path(__file__).parents[1]), level]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    count, missing = done.stdout.split(maxsplit=1)
    assert int(count) > 10
    assert missing.strip() == "[]"


def test_kernel_of_a_wheel_is_found_by_its_text_and_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = {16: "x86-64-v4", 8: "x86-64-v3"}.get(compiler.find_width())
    if level is None or not set(compiler._describe_processor().split()) >= FLAGS[level]:
        pytest.skip("the processor is of no level that wheels have kernels for")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "BROUGHT", str(tmp_path))
    monkeypatch.setattr(compiler, "find_level", lambda: level)
    text = emit(NAME, compiler.find_width()).take_text()
    write_entry(str(tmp_path / compiler.name_brought(text, level)), translation.translate(text, level))
    monkeypatch.setattr(TRANSLATOR, "translate", lambda text, name: pytest.fail(f"{name} was compiled"))
    own = Compiler()
    assert own.load_stored(Kernel(NAME, emit))
    assert run_at(own.compile(Kernel(NAME, emit))) == EXPECTED * compiler.find_width()
    # A later process emits no code.
    assert [path.name.partition("-")[0] for path in (tmp_path / "cache" / "hetero" / FOLDER).iterdir()] == ["name"]
    assert Compiler().load_stored(Kernel(NAME, None))


def test_processor_without_a_flag_of_the_level_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "BROUGHT", str(tmp_path))
    for width, level in ((16, "x86-64-v4"), (8, "x86-64-v3")):
        monkeypatch.setattr(compiler, "find_width", lambda width=width: width)
        for flag in ["", *FLAGS[level]]:
            flags = " ".join(FLAGS[level] - {flag})
            monkeypatch.setattr(compiler, "_describe_processor", lambda flags=flags: flags)
            assert compiler.find_level.__wrapped__() == ("" if flag else level)


@pytest.mark.parametrize("feature", ["AVX2", "FMA3"])
def test_vectors_that_the_processor_denies_get_no_machine_code(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator shows the /proc/cpuinfo of its host, which may list vectors that the emulated processor lacks."""
    from numpy._core._multiarray_umath import __cpu_features__

    for name in (feature, "AVX512F"):
        monkeypatch.setitem(__cpu_features__, name, False)
    monkeypatch.setattr(compiler, "_describe_processor", compiler._describe_processor.__wrapped__)
    assert not any(flag.startswith("avx512") for flag in compiler._describe_processor().split())
    assert compiler.find_width.__wrapped__() == 0


def test_sums_of_winograd_stay_in_the_registers_of_avx512() -> None:
    kernel = make_kernel(WinogradShape(4, 14, False, 2, 2, 4, False, ()), "whole")
    assert kernel.emit is not None
    text, level = kernel.emit(kernel.name, 16).take_text(), "x86-64-v4"
    assembly: str = translation._open_target(level).emit_assembly(translation.optimize(text, level))
    # With LLVM's own processor model for this level, 140 lines spill to the stack.
    assert sum("%zmm" in line and "%rsp" in line for line in assembly.splitlines()) < 40
    assert assembly.count("vfmadd") > 200
