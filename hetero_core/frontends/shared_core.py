"""The Core that the doors of a process share, because their applications open none."""

from __future__ import annotations

import atexit
import logging
from threading import Lock

from hetero_core.core import Core
from hetero_core.devices.processors import count_processors
from hetero_core.runtime.executors import call_in_child, retain

logger = logging.getLogger(__name__)

_lock = Lock()
_core: Core | None = None
_reported: set[str] = set()


def find_core() -> Core:
    """Returns the Core of this process: the first call opens it. A forked child gets one of its own."""
    global _core
    with _lock:
        if _core is None:
            _core = Core()
            atexit.register(_core.close)
        return _core


def limit_threads(number: int, *, where: str) -> int:
    """Returns the number of threads, at most one for each processor, with a warning in the log once if there are more.

    The engines take any number, and applications ask for more than a small machine has.
    """
    processors = count_processors()
    if number > processors:
        report_once(f"{where}: {number} threads were asked for; {processors} run, one for each processor")
    return min(number, processors)


def report_once(text: str) -> None:
    """Logs a warning, once in a process."""
    if text not in _reported:
        _reported.add(text)
        logger.warning("hetero: %s", text)


def forget_core() -> None:
    """Closes the Core of this process, and with it all networks of the doors."""
    global _core
    core, _core = find_core(), None
    core.close()


def _begin_child() -> None:
    global _core, _lock
    retain(_core)
    _core, _lock = None, Lock()


call_in_child(_begin_child)
