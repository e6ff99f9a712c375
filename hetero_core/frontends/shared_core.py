"""The Core that the doors of a process share when the application opens none."""

from __future__ import annotations

import atexit
import os
from threading import Lock

from hetero_core.core import Core

_lock = Lock()
_core_of_process: dict[int, Core] = {}


def get_core() -> Core:
    """Returns the Core of this process: the first call opens it, the end of the program closes it. A forked child opens another."""
    with _lock:
        core = _core_of_process.get(os.getpid())
        if core is None:
            _core_of_process.clear()
            core = _core_of_process[os.getpid()] = Core()
            atexit.register(core.close)
    return core
