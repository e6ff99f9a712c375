"""The first runs of a process: work in the background waits for them, because it would take processors and the interpreter's lock.

An application often runs several networks in turn, as one that finds lines of text and then reads them. So work waits until no first run
is under way and none has begun for a moment, but never beyond a time of its own: an application may go on without a pause.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep
from weakref import WeakSet

from hetero_core.runtime.executors import call_in_child

LONGEST_GAP = 0.1
"""Seconds after a first run in which that of another network may follow."""


class FirstRuns:
    """First runs that are under way. Safe for threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Starts anew, in a forked child: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()
        # Weak: a network may be given up in its first run.
        self._ends: WeakSet[threading.Event] = WeakSet()
        self._expected = -LONGEST_GAP

    def expect(self, end: threading.Event) -> None:
        """Tells that a first run begins; `end` is set when it ends."""
        with self._lock:
            self._ends.add(end)
            self._expected = monotonic()

    def wait(self, latest: float, is_over: Callable[[], bool]) -> None:
        """Waits until first runs have ended and none has begun for LONGEST_GAP seconds, but not beyond a time of the monotonic clock, and
        not when the work is not needed any more.
        """
        ended = -LONGEST_GAP
        while (now := monotonic()) < latest and not is_over():
            with self._lock:
                self._ends = WeakSet(end for end in self._ends if not end.is_set())
                pending, quiet = next(iter(self._ends), None), now - max(self._expected, ended)
            if pending is not None:
                pending.wait(min(LONGEST_GAP, latest - now))
                ended = monotonic()
            elif quiet < LONGEST_GAP:
                sleep(min(LONGEST_GAP - quiet, latest - now))
            else:
                return


FIRST_RUNS = FirstRuns()
"""Those of the process."""

call_in_child(FIRST_RUNS.forget)
