"""The Core that the doors of a process share, because their applications open none."""

from __future__ import annotations

import atexit
import os
from threading import Lock

from hetero_core.core import Core
from hetero_core.runtime.executors import call_in_child, retain

_lock = Lock()
_core: Core | None = None
_process = 0


def find_core() -> Core:
    """Returns the Core of this process: the first call opens it. A forked child gets one of its own."""
    global _core, _process
    with _lock:
        if _process != os.getpid():
            retain(_core)
            _core = None
        if _core is None:
            _core, _process = Core(), os.getpid()
            atexit.register(_core.close)
        return _core


def forget_core() -> None:
    """Closes the Core of this process, and with it all networks of the doors."""
    global _core
    core, _core = find_core(), None
    core.close()


def _renew_lock() -> None:
    global _lock
    _lock = Lock()


call_in_child(_renew_lock)
