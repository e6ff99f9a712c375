"""CPU, the NumPy device. Light: imported when CPU is first needed."""

from __future__ import annotations

from hetero_core.hookspecs import hookimpl

requires_api = (1, 2)
kind = "processor"


@hookimpl
def create_device(name: str) -> object:
    """Returns the device."""
    from hetero_cpu.device import CpuDevice  # imports the kernels

    return CpuDevice(name)
