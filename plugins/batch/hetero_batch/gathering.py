"""The gatherer: holds waiting requests, and starts compatible requests as a batch.

A batch begins when it is full, when its first request has waited for the timeout, or when no further request can come because all
existing requests wait in it. While the device is busy, requests gather. After a failed batch, its requests run again separately, so
that only the request that caused the failure fails. A timer watches the time while requests wait.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Any

from hetero_core.contract import Done, RunContext
from hetero_core.errors import ClosedError, RequestCancelledError


class BatchTicket:
    """A waiting request, or a request of a running batch. `key` is the same for requests that fit into a batch."""

    def __init__(self, inputs: tuple[Any, ...], context: RunContext, done: Done, *, rows: int, key: Hashable) -> None:
        self.inputs = inputs
        self.context = context
        self.done = done
        self.rows = rows
        self.key = key


class _Group:
    """Compatible requests, and the time since which the first of them waits."""

    def __init__(self, expires: float) -> None:
        self.tickets: list[BatchTicket] = []
        self.expires = expires

    @property
    def rows(self) -> int:
        return sum(ticket.rows for ticket in self.tickets)


Begin = Callable[[Sequence[BatchTicket], Done], None]
"""Starts a run of these requests together and returns; `done` is called with the outputs by position, of each a list by request."""


class Gatherer:
    """Gathers requests into batches. Safe for threads; calls nothing of a device while its lock is held."""

    def __init__(self, begin: Begin, *, size: int, slots: int, seconds: float, title: str) -> None:
        """`size` in images, `slots` is how many batches run at once, `seconds` is the timeout."""
        self._begin = begin
        self.size = size
        self.slots = slots
        self._seconds = seconds
        self._title = title
        self._lock = threading.Lock()
        self._groups: dict[Hashable, _Group] = {}
        self._single: deque[BatchTicket] = deque()
        self._running = 0
        self._requests: weakref.WeakSet[object] = weakref.WeakSet()
        self._timer: threading.Timer | None = None
        self._is_closed = False
        self._here = _BeginningFlag()
        self.batches: dict[int, int] = {}

    def know(self, request: object) -> None:
        """Counts a request as expected, for as long as it is alive."""
        with self._lock:
            self._requests.add(request)

    def add(self, ticket: BatchTicket, *, alone: bool = False) -> None:
        """Takes a request; with `alone` it is run by itself. Raises: ClosedError."""
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"{self._title}: the network is closed; load it again")
            if alone:
                self._single.append(ticket)
            else:
                self._gather(ticket)
        self._advance()

    def _gather(self, ticket: BatchTicket) -> None:
        group = self._groups.get(ticket.key)
        if group is None:
            group = self._groups[ticket.key] = _Group(monotonic() + self._seconds)
        group.tickets.append(ticket)

    def close(self) -> None:
        """Takes no more requests; waiting requests end as cancelled."""
        with self._lock:
            self._is_closed = True
            dropped = [*self._single, *(ticket for group in self._groups.values() for ticket in group.tickets)]
            self._single.clear()
            self._groups.clear()
        for ticket in dropped:
            ticket.done(None, RequestCancelledError(f"{self._title}: the network was closed before the request began"))

    def _advance(self) -> None:
        """Starts all batches that are ready. A run that ends during its start is left to the loop that started it."""
        if self._here.is_beginning:
            return
        self._here.is_beginning = True
        try:
            while (batch := self._take_batch()) is not None:
                self._start(batch)
        finally:
            self._here.is_beginning = False

    def _start(self, batch: list[BatchTicket]) -> None:
        def end(outputs: Any, error: BaseException | None) -> None:
            self._end(batch, outputs, error)

        try:
            self._begin(batch, end)
        except BaseException as error:  # noqa: BLE001  # the holders of the requests get the error
            end(None, error)

    def _take_batch(self) -> list[BatchTicket] | None:
        with self._lock:
            if self._running >= self.slots:
                return None
            batch = [self._single.popleft()] if self._single else self._take_group()
            if batch is None:
                self._watch()
                return None
            self._running += 1
            rows = sum(ticket.rows for ticket in batch)
            self.batches[rows] = self.batches.get(rows, 0) + 1
            return batch

    def _take_group(self) -> list[BatchTicket] | None:
        """Returns the requests of the next batch, at most `size` images unless a single request has more."""
        waiting = sum(len(group.tickets) for group in self._groups.values())
        nobody_else = self._running == 0 and waiting >= len(self._requests)
        now = monotonic()
        for key, group in self._groups.items():
            if not (nobody_else or group.rows >= self.size or group.expires <= now):
                continue
            batch = [group.tickets.pop(0)]
            rows = batch[0].rows
            while group.tickets and rows + group.tickets[0].rows <= self.size:
                rows += group.tickets[0].rows
                batch.append(group.tickets.pop(0))
            if not group.tickets:
                del self._groups[key]
            return batch
        return None

    def _watch(self) -> None:
        """Starts a timer for the request that waits longest; a timer that runs already ends before."""
        if self._groups and self._timer is None:
            seconds = min(group.expires for group in self._groups.values()) - monotonic()
            self._timer = threading.Timer(min(max(seconds, 0), threading.TIMEOUT_MAX), self._end_wait)
            self._timer.name, self._timer.daemon = f"hetero-{self._title} timeout", True
            self._timer.start()

    def _end_wait(self) -> None:
        with self._lock:
            self._timer = None
        self._advance()

    def _end(self, batch: list[BatchTicket], outputs: Any, error: BaseException | None) -> None:
        again = error is not None and len(batch) > 1 and isinstance(error, Exception)
        with self._lock:
            self._running -= 1
            again = again and not self._is_closed
            if again:
                self._single.extend(batch)
        self._advance()
        if again:
            return
        for place, ticket in enumerate(batch):
            ticket.done(None if error is not None else tuple(values[place] for values in outputs), error)


class _BeginningFlag(threading.local):
    """A flag of each thread: true while it begins batches."""

    is_beginning = False
