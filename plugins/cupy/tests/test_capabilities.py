"""The capabilities of GPU's cards."""

from __future__ import annotations

from hetero_cupy.device import find_capabilities


def test_capabilities_follow_the_card() -> None:
    assert find_capabilities("9.0") == find_capabilities("10.3") == ("FP32", "FP64", "FP16", "TF32", "INT8")
    assert find_capabilities("7.5") == ("FP32", "FP64", "FP16", "INT8")
