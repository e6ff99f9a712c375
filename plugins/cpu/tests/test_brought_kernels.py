"""Kernels that a wheel brings along: used by processors of their level and found by their text."""

from __future__ import annotations

import pytest
from hetero_cpu.machine import compiler, translation
from hetero_cpu.operators.winograd.kernel import WinogradShape, make_whole


@pytest.mark.parametrize("feature", ["AVX2", "FMA3"])
def test_vectors_that_the_processor_denies_get_no_machine_code(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/cpuinfo of an emulator is that of its host."""
    from numpy._core._multiarray_umath import __cpu_features__

    for name in (feature, "AVX512F"):
        monkeypatch.setitem(__cpu_features__, name, False)
    monkeypatch.setattr(compiler, "_describe_processor", compiler._describe_processor.__wrapped__)
    assert not any(flag.startswith("avx512") for flag in compiler._describe_processor().split())
    assert compiler.find_width.__wrapped__() == 0


def test_sums_of_winograd_stay_in_the_registers_of_avx512() -> None:
    pytest.importorskip("llvmlite", reason="machine code needs llvmlite")
    kernel = make_whole(WinogradShape(4, 14, False, 2, 2, 4, False, ()))
    assert kernel.emit is not None
    text, level = kernel.emit(kernel.name, 16).take_text(), "x86-64-v4"
    assembly: str = translation._open_target(level).emit_assembly(translation.optimize(text, level))
    # By LLVM's model of the level there are 140.
    assert sum("%zmm" in line and "%rsp" in line for line in assembly.splitlines()) < 40
    assert assembly.count("vfmadd") > 200
