"""Calls with a time limit: each is made on a thread of its own, and its caller waits no longer than the limit.

Python cannot stop a thread. A call that takes too long is set aside: its caller gets an error, its daemon thread goes on, and
`on_late_result` gets the late result. A thread costs 50 to 100 microseconds, so only calls with a limit are made this way.

`Patience` limits the questions to a plugin (configuration keys, metrics, create, close) to the Core's `device_timeout`. A question goes
to a thread of its own the first time; later questions are asked directly. Query, load and import have no limit but DEADLINE.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from hetero_core.contract import DeviceName
from hetero_core.devices.provenance import Provenance
from hetero_core.errors import DeadlineExceededError, DeviceTimeoutError

Result = TypeVar("Result")

LONGEST_WAIT = threading.TIMEOUT_MAX
"""Seconds, the longest wait that Python supports; a longer limit counts as no limit."""
_POLL_SECONDS, _CLOSING_SECONDS = 0.1, 10.0
"""Seconds between two looks whether a result is still needed, and seconds that the call has at most once it is not."""


class OutOfTimeError(Exception):
    """A call was set aside; `place` is the innermost plugin call that had begun, "" if no call had begun."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


@dataclass(slots=True)
class Watch:
    """A call with a limit. `outer` is the watched call that has made it, `inner` the number of watched calls that it waits for."""

    outer: Watch | None
    seconds: float
    end_of_wait: float
    is_budget: bool
    # Cancelled if the call is set aside.
    answer: Future[Any] = field(default_factory=Future)
    lock: threading.Lock = field(default_factory=threading.Lock)
    inner: int = 0
    inner_since: float = 0.0
    place: str = ""

    def count_inner(self, change: int) -> None:
        """Counts a watched call that begins (1) or has ended (-1); a limit of a single plugin ends later by the time in between."""
        with self.lock:
            if not self.inner:
                self.inner_since = monotonic()
            self.inner += change
            if not self.inner and not self.is_budget:
                self.end_of_wait += monotonic() - self.inner_since

    def find_remaining(self) -> float:
        """Returns how many seconds to wait before looking again; not above 0 if the time of the call is over."""
        with self.lock:
            stands_still = self.inner and not self.is_budget
            return min(self.seconds if stands_still else self.end_of_wait - monotonic(), LONGEST_WAIT)


_current: ContextVar[Watch | None] = ContextVar("hetero_watch", default=None)


def call_within(
    seconds: float,
    call: Callable[[], Result],
    *,
    thread: str,
    is_budget: bool = False,
    is_over: Callable[[], bool] | None = None,
    on_late_result: Callable[[Result], None] | None = None,
) -> Result:
    """Returns the result of a call on a daemon thread of this name, with the caller's context. It gets less time once `is_over`
    says that nothing needs it any more; devices do not see such a limit, since the result of a slow call is still welcome.

    A budget covers the whole call. Any other limit is for a single plugin: its clock stands still while the call waits for
    another watched call, so that the innermost plugin is blamed.

    Raises: OutOfTimeError after so many seconds; errors of the call.
    """
    outer = _current.get()
    watch = Watch(outer, seconds, monotonic() + seconds, is_budget)
    answer: Future[Result] = watch.answer

    def work() -> None:
        # A device would end its process, which other networks share, at a limit that it sees.
        if is_over is None:
            _current.set(watch)
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # raised on the thread that waits, interrupts and exits, too
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
            return
        if answer.set_running_or_notify_cancel():
            answer.set_result(result)
        elif on_late_result is not None:
            on_late_result(result)

    if outer is not None:
        outer.count_inner(1)
    try:
        threading.Thread(target=copy_context().run, args=(work,), name=thread, daemon=True).start()
        while wait([answer], watch.find_remaining() if is_over is None else _POLL_SECONDS).not_done:
            if is_over is not None and is_over():
                watch.end_of_wait = min(watch.end_of_wait, monotonic() + _CLOSING_SECONDS)
            if watch.find_remaining() <= 0 and answer.cancel():
                raise OutOfTimeError(watch.place)
    finally:
        if outer is not None:
            outer.count_inner(-1)
    return answer.result()


def _list_watches() -> Iterator[Watch]:
    """Yields the watched calls that this thread works for, the innermost first."""
    watch = _current.get()
    while watch is not None:
        yield watch
        watch = watch.outer


@contextmanager
def note_place(place: str) -> Iterator[None]:
    """Names the plugin call that begins on this thread, for the message of a watched call that is set aside."""
    places = [(watch, watch.place) for watch in _list_watches()]
    for watch, _ in places:
        watch.place = place
    try:
        yield
    finally:
        for watch, before in places:
            watch.place = before


def find_deadline() -> float | None:
    """Returns the earliest end of the budgets that this thread works in, on the clock of `time.monotonic`.

    Raises: DeadlineExceededError if the thread was set aside, so that it stops at the next call of the core.
    """
    watches = list(_list_watches())
    if any(watch.answer.cancelled() for watch in watches):
        raise DeadlineExceededError("nobody waits any more for what this thread does; it was set aside when its time was over")
    return min((watch.end_of_wait for watch in watches if watch.is_budget), default=None)


def find_end_of_wait() -> float | None:
    """Returns the end of the innermost limit, or of a budget around it, if that is earlier; None if there is no limit.

    For a device that can end a call that hangs. Raises: as `find_deadline`.
    """
    deadline, watch = find_deadline(), _current.get()
    if watch is None:
        return deadline
    return watch.end_of_wait if deadline is None else min(deadline, watch.end_of_wait)


_QUESTIONS = frozenset(("config_keys", "metrics", "close_device"))


class Patience:
    """The time limits of a plugin. Safe for threads. A plugin that has not answered a question in time is not asked again."""

    def __init__(self, provenance: Provenance, timeout: float | None) -> None:
        self._provenance = provenance
        self._timeout = timeout
        self._answered: set[tuple[str, str]] = set()
        self._unanswered = ""

    @property
    def is_exhausted(self) -> bool:
        """Says whether the plugin has left a question unanswered."""
        return bool(self._unanswered)

    def call(self, hook: str, device: DeviceName, call: Callable[[], Result]) -> Result:
        """Returns the result of a hook. Raises: DeviceTimeoutError."""
        if hook in _QUESTIONS:
            return self.ask(hook, device.id, call)
        self._require_answers()
        # For the message of a load that runs out of time; unused without a limit.
        if _current.get() is None:
            return call()
        with note_place(f"{hook} of {self._provenance} for device {device}"):
            return call()

    def ask(self, question: str, device_id: str, call: Callable[[], Result]) -> Result:
        """Returns the answer to a question. Raises: DeviceTimeoutError."""
        self._require_answers()
        if self._timeout is None or (question, device_id) in self._answered:
            return call()
        try:
            with note_place(f"{question} of {self._provenance}"):
                answer = call_within(self._timeout, call, thread=f"hetero-{self._provenance.device} {question}")
        except OutOfTimeError:
            self._unanswered = question
            raise self._describe("was set aside, its thread goes on") from None
        self._answered.add((question, device_id))
        return answer

    def _require_answers(self) -> None:
        if self._unanswered:
            raise self._describe("has not answered before and is not asked again")

    def _describe(self, state: str) -> DeviceTimeoutError:
        return DeviceTimeoutError(
            f"device {self._provenance.device} hangs: {self._provenance} has not returned from {self._unanswered} within "
            f"{self._timeout:g} s; it {state}. Other devices are not affected. Look at its driver and hardware, update or uninstall the "
            "plugin, or give it more time with Core(device_timeout=...)"
        )
