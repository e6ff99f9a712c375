"""GPU on a card of make-believe does what every device owes."""

from __future__ import annotations

from hetero_cupy.device import GpuDevice
from hetero_tests.fake_runtime import FakeRuntime

from hetero_core import hookimpl
from hetero_core.conformance.suite import DeviceConformance


class MakeBelieve:
    """The plugin with cards of make-believe in the place of CuPy's."""

    @hookimpl
    def create_device(self, name: str) -> object:
        return GpuDevice(name, FakeRuntime())


class TestGpu(DeviceConformance):
    device, plugin = "CARD", MakeBelieve()
