"""PROCESS: a device in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from hetero_core.core import Core


kind = "composer"


@hookimpl
def create_device(core: Core, name: str) -> object:
    """Returns the device; a process starts with the first question about what stands behind the colon.

    Raises: DeviceUnavailableError on systems without the kernel's means.
    """
    from hetero_process.device import ProcessDevice

    return ProcessDevice(name)
