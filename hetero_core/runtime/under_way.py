"""Runs that are in a device at this moment, so that nothing is closed under them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from hetero_core.contract import RunContext

CLOSE_SECONDS = 10.0
"""Seconds that closing a network waits for its runs before it cancels them."""
CANCEL_SECONDS = 1.0
"""Seconds that it then waits for devices that ask whether they are cancelled."""

End = Callable[[], None]


class RunsUnderWay:
    """The runs of one network that its device has not ended. Entering and leaving take no lock: each is one operation of a dict.

    `runs` holds, by context, the number of the thread that computes a run, or a function that ends one that the device has started by
    itself. Whoever begins a run enters it there.
    """

    def __init__(self) -> None:
        self.runs: dict[RunContext, int | End] = {}
        self._changed = threading.Event()
        self._is_draining = False

    def leave(self, context: RunContext) -> None:
        """Takes a run away, if it is still there."""
        self.runs.pop(context, None)
        # Asked after the run was taken away, and set before the runs are listed; an event costs more than the rest.
        if self._is_draining:
            self._changed.set()

    def drain(self) -> int:
        """Waits for all runs but those of the calling thread, cancels those that take too long; returns how many are left.

        Runs that a device has started and not ended after all that are ended here, for whoever waits for them.
        """
        self._is_draining = True
        if self._wait(CLOSE_SECONDS):
            return 0
        for context in self._list_others():
            context.token.is_set = True
        if self._wait(CANCEL_SECONDS):
            return 0
        others = self._list_others()
        for context in others:
            end = self.runs.get(context)
            if callable(end):
                end()
        return len(others)

    def _wait(self, seconds: float) -> bool:
        """Says whether no other run is left within the time."""
        deadline = monotonic() + seconds
        while self._list_others():
            self._changed.clear()
            if self._list_others() and not self._changed.wait(max(deadline - monotonic(), 0)):
                return False
        return True

    def _list_others(self) -> list[RunContext]:
        here = threading.get_ident()
        return [context for context, end in list(self.runs.items()) if end != here]
