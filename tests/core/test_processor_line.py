"""The line of a test report that names the processor, and the CPUID flags."""

from __future__ import annotations

import pytest
from hetero_tests.processor import describe_processor

from hetero_core.devices.processors import grants_flag, read_processor_flags


@pytest.mark.skipif("sse2" not in read_processor_flags(), reason="the system does not list the flags of an x86-64 processor")
def test_line_names_the_processor_and_its_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMULATED_PROCESSOR", "Nehalem")
    assert describe_processor(lambda flag: flag == "sse2") == "processor: x86-64 Nehalem, no AVX2, without VNNI"


@pytest.mark.parametrize(
    ("flag", "feature"),
    [("avx2", "AVX2"), ("fma", "FMA3"), ("avx512f", "AVX512F"), ("avx512_vnni", "AVX512F"), ("avx_vnni", "GFNI")],
)
@pytest.mark.parametrize("has_it", [False, True])
def test_flag_is_granted_if_the_processor_has_the_feature(
    flag: str, feature: str, has_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numpy._core._multiarray_umath import __cpu_features__

    monkeypatch.setitem(__cpu_features__, feature, has_it)
    assert grants_flag(flag) == has_it
    assert grants_flag("sse2")
