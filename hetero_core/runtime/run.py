"""One run of a request while it is in flight: its inputs, its waiting callers, its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Array, Done, RunContext
from hetero_core.runtime.forks import call_in_child
from hetero_core.started import read_end

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)
NO_STATE: Any = object()
"""Stands for working memory that the device has yet to make."""
Start = Callable[[tuple[Array, ...], RunContext, Done], None]
Outcome = tuple[tuple[Any, ...], BaseException | None]


_events = threading.Lock()
"""Held while a latch makes its event or is set, never while one waits."""


def _renew_events() -> None:
    global _events
    _events = threading.Lock()


call_in_child(_renew_events)


class Latch:
    """Opens once, for any number of threads that wait. Its event is made when the first one waits: making it takes 1.3 us."""

    is_open = False
    _event: threading.Event | None = None

    def open(self) -> None:
        """Wakes every thread that waits; later waits return at once."""
        with _events:
            self.is_open = True
            event = self._event
        if event is not None:
            event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is open; False where `timeout` seconds pass before."""
        with _events:
            if self.is_open:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(timeout)


class Run(Latch):
    """One run in flight: its inputs and its end. It is a latch that opens when the run has ended.

    `is_detached` says that nobody is given the error when the run ends: it is called back, and `wait` raises it. `wake` is for an event
    loop. What most runs never set has its first value from the class: 1 us less for each run.
    """

    outputs: dict[str, Any]
    """The outputs by name; present once the run has ended without an error."""
    is_over = False
    is_detached = False
    error: BaseException | None = None
    wake: Callable[[], None] | None = None
    # Of runs with DEADLINE: whether the device is in it, whether it still is after the end, and what ends it in time.
    is_at_work = False
    is_late = False
    timer: threading.Timer | None = None

    def __init__(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        self.inputs = inputs
        self.context = context


def wake_loop(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    """Tells an event loop, from any thread, that a run has ended."""
    try:
        loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))
    except RuntimeError:
        # A closed loop has nobody left who awaits.
        if not loop.is_closed():
            raise


def tell_end(run: Run, call_back: Callable[[], None], network: str) -> None:
    """Calls the caller's own function when a run has ended; its exception becomes the run's error, so that waiting threads go on."""
    try:
        call_back()
    except BaseException as error:  # noqa: BLE001  # an exit or an interrupt within a callback, too: it is raised in `wait`
        error.add_note(f"raised by the callback of a request on network '{network}'")
        error.__context__ = run.error
        run.error = error


def end_once(done: Done, take_home: Callable[[Any], Any] | None, leave: Callable[[], None], *, where: str) -> Done:
    """Returns what a device is given to call at the end of a run: brings outputs to the host, and takes the first call only.

    A second call is ignored with a warning: the request may be in its next run by then. `where` names the plugin and the network, and
    `leave` says that the run is over for the device.
    """
    first = threading.Lock()

    def end(*told: Any) -> None:
        if not first.acquire(blocking=False):
            logger.warning("%s called `done` a second time for one run; the call is ignored", where)
            return
        outputs, error = read_end(told, where=where)
        if error is None and take_home is not None:
            try:
                outputs = take_home(outputs)
            except BaseException as failure:  # noqa: BLE001  # told to whoever waits, as an error of the run
                outputs, error = None, failure
        # Over for the device: whoever is told may close the network.
        leave()
        done(outputs, error)

    return end


def measure_start(start: Start) -> Start:
    """Returns the start of a device that works by itself; of a run that is measured it records the begin and the end."""

    def start_measured(inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        profile = context.profile
        if profile is None:
            start(inputs, context, done)
            return

        def end_run(outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
            profile.end_run()
            done(outputs, error)

        profile.begin_run()
        start(inputs, context, end_run)

    return start_measured
