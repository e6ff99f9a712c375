"""PROCESS:CPU against the whole conformance kit; `nox -s process` runs it, as it takes minutes."""

from __future__ import annotations

from hetero_core.conformance.suite import DeviceConformance


class TestProcess(DeviceConformance):
    device = "PROCESS:CPU"
