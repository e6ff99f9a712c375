"""TEMPLATE, the plugin to copy. This file stays light: it is imported when TEMPLATE is first needed.

To make a device of your own, copy this folder, rename `hetero_template` and TEMPLATE, and go through `device.py` hook by hook.
"""

from __future__ import annotations

from hetero_core.hookspecs import hookimpl

requires_api = (1, 2)
kind = "interpreter"


@hookimpl
def create_device(name: str) -> object:
    """Returns the device. Drivers are imported here, not above, so that listing the plugins costs nothing."""
    from hetero_template.device import TemplateDevice  # imports NumPy and the kernels toolkit

    return TemplateDevice(name)
