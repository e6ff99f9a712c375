"""Calls that may hang: made on a thread of their own while the caller waits so long and no longer.

Python cannot stop a thread. A call that takes too long is set aside: its caller goes on with an error, its thread, a daemon with a name,
goes on by itself, and what it may return one day is handed to `on_return`. Nothing waits for such a thread, the interpreter's exit
neither. `on_set_aside` is called first, while the call cannot return, so that what the two keep count of is right. A thread costs some
50 to 100 microseconds, so that only calls with a time limit are made in this way.

`Patience` limits the questions to a plugin (configuration keys, metrics, being created and closed) to the Core's `device_timeout`. A
question goes to a thread of its own the first time; later ones are asked directly. Query, load and import have no limit but DEADLINE.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from time import monotonic
from typing import Any, TypeVar

from hetero_core.contract import DeviceName
from hetero_core.devices.provenance import Provenance
from hetero_core.errors import DeadlineExceededError, DeviceTimeoutError

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

    Raises: DeadlineExceededError if the thread was set aside, so that it stops at the next call of the core.
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


logger = logging.getLogger(__name__)

_QUESTIONS = frozenset(("config_keys", "metrics", "close_device"))


class Patience:
    """The time limits of one created plugin. Safe for threads."""

    def __init__(self, provenance: Provenance, timeout: float | None) -> None:
        self._provenance = provenance
        self._timeout = timeout
        self._answered: set[tuple[str, str]] = set()
        self._hangs_in: str | None = None
        self.late_calls = LateCalls()
        """The queries, loads and imports that ran out of DEADLINE and have not returned yet."""

    @property
    def is_exhausted(self) -> bool:
        """Says whether a question is still without an answer."""
        return self._hangs_in is not None

    def call(self, hook: str, device: DeviceName, call: Callable[[], Result]) -> Result:
        """Returns what a hook returns. Raises: DeviceTimeoutError."""
        if hook in _QUESTIONS:
            return self.ask(hook, device, call)
        self._require_answers(device)
        # For the message of a load that runs out of time; without a limit nobody reads it.
        if not is_watched():
            return call()
        with note_place(f"{hook} of {self._provenance} for device {device}"):
            return call()

    def ask(self, question: str, device: DeviceName, call: Callable[[], Result]) -> Result:
        """Returns the answer to a question. Raises: DeviceTimeoutError."""
        self._require_answers(device)
        key = (question, device.id)
        if self._timeout is None or key in self._answered:
            return call()

        def give_up() -> None:
            self._hangs_in = question

        def come_back(result: Any, error: BaseException | None) -> None:
            self._hangs_in = None
            logger.info("%s has returned from %s after all", self._provenance, question)

        answer = ask_within(
            self._timeout, call, question=question, provenance=self._provenance, on_set_aside=give_up, on_return=come_back
        )
        self._answered.add(key)
        return answer

    def _require_answers(self, device: DeviceName) -> None:
        if self._hangs_in is not None:
            raise describe_hanging(self._provenance, self._hangs_in, self._timeout, is_known=True)


def ask_within(
    seconds: float,
    call: Callable[[], Result],
    *,
    question: str,
    provenance: Provenance,
    on_set_aside: Callable[[], None],
    on_return: OnReturn,
) -> Result:
    """Returns the answer to one question. Raises: DeviceTimeoutError that names plugin and question."""
    try:
        with note_place(f"{question} of {provenance}"):
            return call_within(
                seconds, call, thread=f"hetero-{provenance.device} {question}", on_set_aside=on_set_aside, on_return=on_return
            )
    except OutOfTimeError:
        raise describe_hanging(provenance, question, seconds, is_known=False) from None


def describe_hanging(provenance: Provenance, question: str, seconds: float | None, *, is_known: bool) -> DeviceTimeoutError:
    """Returns the error for a plugin that does not answer; one that is known not to is not asked again."""
    since = "has not answered before and is not asked again until it does" if is_known else "was set aside, its thread goes on"
    return DeviceTimeoutError(
        f"device {provenance.device} hangs: {provenance} has not returned from {question} within {seconds:g} s; it {since}. Other devices "
        "are not affected. Look at its driver and hardware, update or uninstall the plugin, or give it more time with "
        "Core(device_timeout=...)"
    )
