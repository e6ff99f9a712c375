"""Calls that may hang: made on a thread of their own while the caller waits so long and no longer.

Python cannot stop a thread. A call that takes too long is set aside: its caller goes on with an error, its thread, a daemon with a name,
goes on by itself, and what it may return one day is handed to `on_return`. Nothing waits for such a thread, the interpreter's exit
neither. `on_set_aside` is called first, while the call cannot return, so that what the two keep count of is right. A thread costs some
50 to 100 microseconds, so that only calls with a time limit are made in this way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from time import monotonic
from typing import Any, TypeVar

from hetero_core.errors import DeadlineExceededError

Result = TypeVar("Result")
OnReturn = Callable[[Any, BaseException | None], None]

LONGEST_WAIT = threading.TIMEOUT_MAX
"""Seconds, the most that Python waits for anything; a limit above it is none."""


class OutOfTimeError(Exception):
    """A call was set aside; `place` says where it was, as far as anything inside of it has told."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class LateCalls:
    """Counts the calls that are over for their callers, but have not returned. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def add(self, change: int) -> None:
        """Counts one more, or with -1 one less."""
        with self._lock:
            self.count += change


class Watch:
    """One such call, as the calls within it see it."""

    __slots__ = (
        "_lock",
        "_on_return",
        "_on_set_aside",
        "deadline",
        "done",
        "end_of_wait",
        "error",
        "inner",
        "is_set_aside",
        "outer",
        "place",
        "result",
    )

    def __init__(
        self,
        outer: Watch | None,
        end_of_wait: float,
        on_set_aside: Callable[[], None] | None,
        on_return: OnReturn | None,
        *,
        is_budget: bool,
    ) -> None:
        self.outer = outer
        self.end_of_wait = end_of_wait
        self.deadline = end_of_wait if is_budget else None
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.inner = 0
        self.place = ""
        self.is_set_aside = False
        self._lock = threading.Lock()
        self._on_set_aside = on_set_aside
        self._on_return = on_return

    def end(self, result: Any, error: BaseException | None) -> None:
        """Keeps the outcome of the call for its caller; calls `on_return` where the caller no longer waits."""
        with self._lock:
            if not self.is_set_aside:
                self.result, self.error = result, error
                self.done.set()
                return
        if self._on_return is not None:
            self._on_return(result, error)

    def set_aside(self) -> bool:
        """Abandons the call and returns True; returns False if the call has just ended."""
        with self._lock:
            self.is_set_aside = not self.done.is_set()
            if self.is_set_aside and self._on_set_aside is not None:
                self._on_set_aside()
            return self.is_set_aside


_current: ContextVar[Watch | None] = ContextVar("hetero_watch", default=None)


def call_within(
    seconds: float,
    call: Callable[[], Result],
    *,
    thread: str,
    is_budget: bool = False,
    on_set_aside: Callable[[], None] | None = None,
    on_return: OnReturn | None = None,
) -> Result:
    """Returns what a call returns, made on a daemon thread of this name with the caller's context.

    A budget holds for all that the call does. Any other limit is for one plugin: its clock stands still while the call waits for
    another one with a limit of its own, so that of several it is the innermost that is blamed. `on_return` is called with result and
    error when a call that was set aside returns after all.

    Raises: OutOfTimeError after so many seconds; what the call raises.
    """
    outer = _current.get()
    watch = Watch(outer, monotonic() + seconds, on_set_aside, on_return, is_budget=is_budget)

    def work() -> None:
        _current.set(watch)
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # raised to whoever waits, interrupts and exits, too
            watch.end(None, error)
        else:
            watch.end(result, None)

    if outer is not None:
        outer.inner += 1
    try:
        threading.Thread(target=copy_context().run, args=(work,), name=thread, daemon=True).start()
        while not watch.done.wait(min(seconds, LONGEST_WAIT)):
            if (is_budget or not watch.inner) and watch.set_aside():
                raise OutOfTimeError(watch.place)
    finally:
        if outer is not None:
            outer.inner -= 1
    if watch.error is not None:
        raise watch.error
    return watch.result  # type: ignore[no-any-return]  # end keeps it as it came


@contextmanager
def note_place(place: str) -> Iterator[None]:
    """Says where the calls that this thread is in are at the moment, for the message of one that is set aside."""
    watches = []
    watch = _current.get()
    while watch is not None:
        watches.append((watch, watch.place))
        watch.place = place
        watch = watch.outer
    try:
        yield
    finally:
        for entry, before in watches:
            entry.place = before


def is_watched() -> bool:
    """Says whether this thread works for a call with a time limit."""
    return _current.get() is not None


def find_deadline() -> float | None:
    """Returns the earliest end of the budgets that this thread works in, on the clock of `time.monotonic`.

    Raises: DeadlineExceededError where the thread was set aside, so that it stops at the next call of the core.
    """
    deadline: float | None = None
    watch = _current.get()
    while watch is not None:
        if watch.is_set_aside:
            raise DeadlineExceededError("nobody waits any more for what this thread does; it was set aside when its time was over")
        if watch.deadline is not None:
            deadline = watch.deadline if deadline is None else min(deadline, watch.deadline)
        watch = watch.outer
    return deadline


def find_end_of_wait() -> float | None:
    """Returns when nobody waits any more for what this thread does: the end of the innermost limit, or of a budget around it; None for
    never. For a device that can end what hangs.

    Raises: as `find_deadline`.
    """
    deadline, watch = find_deadline(), _current.get()
    if watch is None:
        return deadline
    return watch.end_of_wait if deadline is None else min(deadline, watch.end_of_wait)
