"""BATCH, the device that runs several requests as a batch of its child device. Light: imported when BATCH is first needed."""

from __future__ import annotations

from typing import Any

from hetero_core.hookspecs import hookimpl

requires_api = (1, 0)
kind = "composer"


@hookimpl
def create_device(core: Any) -> object:
    """Returns the device; it keeps the Core, and queries and loads through it."""
    from hetero_batch.device import BatchDevice  # keeps `import hetero_batch` free of everything

    return BatchDevice(core)
