"""The checks on the device that `--hetero-device` names, for `pytest --pyargs hetero_core.conformance`."""

from __future__ import annotations

from hetero_core.conformance.suite import DeviceConformance


class TestDevice(DeviceConformance):
    """Every check, on the device named on the command line."""
