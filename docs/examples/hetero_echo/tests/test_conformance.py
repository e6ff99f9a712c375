"""ECHO does what every device owes."""

import hetero_echo

from hetero_core.conformance.suite import DeviceConformance


class TestEcho(DeviceConformance):
    device, plugin = "ECHO", hetero_echo
