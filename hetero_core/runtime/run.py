"""One run of a request while it is in flight: what it was given, who waits for it, how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext

if TYPE_CHECKING:
    import asyncio

NO_STATE: Any = object()
"""Stands for working memory that the device has yet to make."""
Outcome = tuple[tuple[Any, ...], BaseException | None]


class Run:
    """One run in flight: what it needs, how it ended.

    `is_detached` says that nobody is given the error when the run ends: it is called back, and `wait` raises it. `wake` is for an event
    loop.
    """

    __slots__ = (
        "context",
        "done",
        "error",
        "inputs",
        "is_at_work",
        "is_detached",
        "is_late",
        "is_over",
        "outputs",
        "timer",
        "wake",
    )

    def __init__(self, inputs: tuple[Any, ...], context: RunContext) -> None:
        self.inputs = inputs
        self.context = context
        self.done = threading.Event()
        self.is_over = False
        self.is_detached = False
        self.outputs: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.wake: Callable[[], None] | None = None
        # Of runs with DEADLINE: whether the device is in it, whether it still is after the end, and what ends it in time.
        self.is_at_work = False
        self.is_late = False
        self.timer: threading.Timer | None = None


def wake_loop(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    """Tells an event loop, from any thread, that a run has ended."""
    try:
        loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))
    except RuntimeError:
        # A closed loop has nobody left who awaits.
        if not loop.is_closed():
            raise
