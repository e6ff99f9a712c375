"""GPU, the CuPy device. Light: imported when GPU is first needed; CuPy is imported when the device is created."""

from __future__ import annotations

from hetero_core.hookspecs import hookimpl

requires_api = (1, 2)
kind = "accelerator"


@hookimpl
def create_device(name: str) -> object:
    """Returns the device, after one tiny kernel has run on a card.

    Raises: DeviceUnavailableError that says what is missing, and the cure.
    """
    from hetero_cupy.cupy_runtime import open_cupy  # imports CuPy
    from hetero_cupy.device import GpuDevice  # imports the kernels

    return GpuDevice(name, open_cupy(name))
