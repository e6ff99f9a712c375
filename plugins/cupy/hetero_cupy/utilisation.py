"""The load of a card, from NVIDIA's management library where nvidia-ml-py and a driver are there. CuPy does not say it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec


def read_utilisation(bus_id: str) -> int | None:
    """Returns the recent load, in per cent, of the card at a bus address ("0000:3B:00.0"); None if unknown."""
    if find_spec("pynvml") is None:
        return None
    library = import_module("pynvml")
    try:
        # Counted by the library: as often as it was opened it has to be closed.
        library.nvmlInit()
        try:
            return int(library.nvmlDeviceGetUtilizationRates(library.nvmlDeviceGetHandleByPciBusId(bus_id.encode())).gpu)
        finally:
            library.nvmlShutdown()
    except library.NVMLError:
        return None
