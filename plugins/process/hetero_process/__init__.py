"""PROCESS: a device in a process of its own; and arrays that it reads without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetero_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from hetero_core import Core
    from hetero_process.segments import create_shared_array

kind = "composer"
__all__ = ["create_device", "create_shared_array"]


def __getattr__(name: str) -> Any:
    """Returns `create_shared_array`; imports its module on first use."""
    if name == "create_shared_array":
        from hetero_process.segments import create_shared_array

        return create_shared_array
    raise AttributeError(f"module {__name__} has no attribute {name!r}")


@hookimpl
def create_device(core: Core, name: str) -> object:
    """Returns the device; a process starts with the first question about the device behind the colon.

    Raises: DeviceUnavailableError on systems without the kernel's means.
    """
    from hetero_process.device import ProcessDevice

    return ProcessDevice(name)
