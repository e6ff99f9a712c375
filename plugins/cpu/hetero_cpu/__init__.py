"""CPU, the NumPy device. Light: imported when CPU is first needed."""

from __future__ import annotations

from hetero_core.hookspecs import hookimpl

requires_api = (1, 2)
kind = "processor"
quick_weights = 2 << 20
"""The toolkit, which answers until machine code is compiled, takes longer for more quantized weights than an engine takes to start."""


@hookimpl
def create_device(name: str) -> object:
    """Returns the device."""
    from hetero_cpu.device import CpuDevice  # imports the kernels

    return CpuDevice(name)
