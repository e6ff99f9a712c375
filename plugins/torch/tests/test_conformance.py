"""TORCH does what every device owes, on the processor."""

from __future__ import annotations

from hetero_core.conformance.suite import DeviceConformance


class TestTorch(DeviceConformance):
    device = "TORCH"
