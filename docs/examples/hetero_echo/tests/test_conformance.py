"""ECHO keeps the contract of every device."""

import hetero_echo

from hetero_core.conformance.suite import DeviceConformance


class TestEcho(DeviceConformance):
    device, plugin = "ECHO", hetero_echo
