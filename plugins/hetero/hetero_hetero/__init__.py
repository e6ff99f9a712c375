"""HETERO, the device that splits a network over other devices. Light: imported when HETERO is first needed."""

from __future__ import annotations

from typing import Any

from hetero_core.hookspecs import hookimpl

requires_api = (1, 2)
kind = "composer"


@hookimpl
def create_device(core: Any) -> object:
    """Returns the device; it keeps the Core, and asks and loads further devices through it."""
    from hetero_hetero.device import HeteroDevice  # keeps `import hetero_hetero` free of everything

    return HeteroDevice(core)
