"""PROCESS:CPU against the conformance kit."""

from __future__ import annotations

from hetero_core.conformance.suite import DeviceConformance


class TestProcess(DeviceConformance):
    device = "PROCESS:CPU"
