"""MULTI and AUTO, the devices that give each request to one of several devices. Light: imported when MULTI or AUTO is first
needed."""

from __future__ import annotations

from typing import Any

from hetero_core.hookspecs import hookimpl

requires_api = (1, 2)
kind = "composer"


@hookimpl
def create_device(core: Any, name: str) -> object:
    """Returns the device; it keeps the Core, and asks and loads further devices through it."""
    if name == "AUTO":
        from hetero_auto.auto import AutoDevice  # keeps `import hetero_auto` free of everything

        return AutoDevice(core)
    from hetero_auto.multi import MultiDevice  # as above

    return MultiDevice(core)
