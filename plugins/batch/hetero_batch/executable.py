"""Requests of a network run together on a device, each with its own part of the inputs and outputs.

A batch begins when it is full, when its first request has waited for the timeout, or when no further request can come because all
existing requests wait in it. While the device is busy, requests gather. After a failed batch, its requests run again separately, so
that only the request that caused the failure fails. A timer watches the time while requests wait.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from hetero_batch.axes import BatchAxes
from hetero_core import ExecutableNetwork
from hetero_core.composing.properties import describe_parts
from hetero_core.composing.runs import start_child
from hetero_core.contract import CancelToken, Done, Executable, RunContext
from hetero_core.errors import ClosedError, InferenceError, RequestCancelledError
from hetero_core.executed import ExecutedNode, place_executed
from hetero_core.network.types import ValueSpec
from hetero_core.profile import Profile


@dataclass(eq=False)
class BatchTicket:
    """A waiting request, or a request of a running batch. `key` is the same for requests that fit into a batch."""

    inputs: tuple[Any, ...]
    context: RunContext
    done: Done
    rows: int
    key: Hashable


@dataclass
class _Group:
    """Compatible requests, and the time until which the first of them waits."""

    expires: float
    tickets: list[BatchTicket] = field(default_factory=list)

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
        self._here = threading.local()
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
                group = self._groups.setdefault(ticket.key, _Group(monotonic() + self._seconds))
                group.tickets.append(ticket)
        self._advance()

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
        if getattr(self._here, "is_beginning", False):
            return
        self._here.is_beginning = True
        try:
            while (batch := self._take_batch()) is not None:
                end = partial(self._end, batch)
                try:
                    self._begin(batch, end)
                except BaseException as error:  # noqa: BLE001  # the holders of the requests get the error
                    end(None, error)
        finally:
            self._here.is_beginning = False

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


class _Request:
    """Stands for a request for as long as it has working memory."""


class BatchExecutable(Executable):
    """Gathers requests, runs them as a batch of the child, and gives each its part of the outputs.

    A request with tensors in the memory of a device is a batch of its own.
    """

    takes_tensors = True

    def __init__(
        self,
        inputs: tuple[ValueSpec, ...],
        outputs: tuple[ValueSpec, ...],
        child: ExecutableNetwork,
        axes: BatchAxes,
        *,
        size: int,
        seconds: float,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.child = child
        self.axes = axes
        self.slots = max(int(child.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")), 1)
        self.size = size
        self.pipeline_depth = size * self.slots
        self._runner = _Runner(child, axes)
        self.gatherer = Gatherer(self._runner.begin, size=size, slots=self.slots, seconds=seconds, title=str(child.device))

    def find_part(self, name: str) -> ExecutableNetwork:
        """Returns the network of the device."""
        return self.child

    def create_state(self) -> object:
        """Returns a token that counts the request as expected."""
        request = _Request()
        self.gatherer.know(request)
        return request

    def create_spare(self, state: object) -> object:
        """Returns the same: a request with states is a single request, and its results are its own."""
        return state

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Adds a request to the gatherer."""
        rows, key = (1, None) if context.tensors else _describe(inputs, self.axes.inputs)
        self.gatherer.add(BatchTicket(inputs, context, done, rows=max(rows, 1), key=key), alone=key is None)

    def metrics(self) -> Mapping[str, Any]:
        """The child's devices, and the limit and the actual sizes of batches."""
        return {
            **describe_parts([self.child]),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.size * self.slots,
            "OPTIMAL_BATCH_SIZE": self.size,
            "BATCHES_OF_SIZES": dict(sorted(self.gatherer.batches.items())),
        }

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of a batch."""
        return place_executed(self.child.list_executed(), str(self.child.device), 0)

    def close(self) -> None:
        """Ends the waiting requests, and closes the child."""
        self.gatherer.close()
        self.child.close()


def _describe(inputs: Sequence[Any], axes: Sequence[int | None]) -> tuple[int, Hashable | None]:
    """Returns the number of images of a request and the key of its batch; None if it must run alone."""
    rows: int | None = None
    key: list[Hashable] = []
    for value, axis in zip(inputs, axes, strict=True):
        if not isinstance(value, np.ndarray):
            return 1, None
        if axis is None:
            # Requests share a batch only if their inputs without images are equal.
            if value.dtype.kind == "O":
                return 1, None
            key.append((value.shape, value.tobytes()))
            continue
        own = value.shape[axis]
        if own == 0 or rows not in (None, own):
            return 1, None
        rows = own
        key.append((*value.shape[:axis], *value.shape[axis + 1 :]))
    return (1, None) if rows is None else (rows, tuple(key))


class _Runner:
    """Runs batches of the child. A working memory is used by a single batch at a time."""

    def __init__(self, child: ExecutableNetwork, axes: BatchAxes) -> None:
        self._child = child
        self._axes = axes
        self._free: list[object] = []
        places = zip(child.all_inputs, axes.inputs, strict=True)
        sizes = {spec.shape[axis] for spec, axis in places if axis is not None and spec.shape is not None}
        fixed = [size for size in sizes if isinstance(size, int)]
        self._fixed = fixed[0] if fixed else None

    def begin(self, batch: Sequence[BatchTicket], done: Done) -> None:
        """Starts a run of these requests; cancelled requests run, too, and their results are dropped."""
        child = self._child
        if all(ticket.context.token.is_set for ticket in batch):
            raise RequestCancelledError("the requests of the batch were cancelled before it began")
        try:
            state = self._free.pop()
        except IndexError:
            state = child.create_state()
        profile = None if batch[0].context.profile is None else Profile(str(child.device))
        parts = [None if entry.context.profile is None else entry.context.profile.of_part(str(child.device), 0) for entry in batch]
        token = batch[0].context.token if len(batch) == 1 else CancelToken()
        context = batch[0].context.derive(state, profile=profile, token=token, limits=child.create_limits(), outputs=None)
        rows = sum(ticket.rows for ticket in batch)

        def end(outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
            split: list[list[Any]] | None = None
            if error is None and outputs is not None:
                try:
                    split = [
                        self._split(value, axis, batch, spec.name)
                        for value, axis, spec in zip(outputs, self._axes.outputs, child.all_outputs, strict=True)
                    ]
                except Exception as wrong:  # noqa: BLE001  # the holders of the requests get the error
                    error = wrong
            if error is None:
                # The memory of a run that failed, or was set aside, is not used again.
                self._free.append(state)
            for part in parts:
                if part is not None and profile is not None:
                    part.add_shared(profile)
                    part.end_part(tuple(spec.name for spec in child.all_inputs), tuple(spec.name for spec in child.all_outputs))
            done(split, error)  # type: ignore[arg-type]  # by output, of each a list by request

        start_child(child, self._join(batch, rows), context, end)

    def _join(self, batch: Sequence[BatchTicket], rows: int) -> tuple[Any, ...]:
        """Returns the inputs of the batch; for a fixed size of the batch the last image is repeated."""
        joined = []
        for place, axis in enumerate(self._axes.inputs):
            values = [ticket.inputs[place] for ticket in batch]
            if axis is None or batch[0].key is None:
                joined.append(values[0])
                continue
            missing = 0 if self._fixed is None else self._fixed - rows
            if missing > 0:
                last = values[-1].take([-1], axis=axis)
                values += [last] * missing
            joined.append(values[0] if len(values) == 1 else np.ascontiguousarray(np.concatenate(values, axis=axis)))
        return tuple(joined)

    def _split(self, value: Any, axis: int | None, batch: Sequence[BatchTicket], name: str) -> list[Any]:
        """Returns the part of an output for each request: arrays of its own, as the device's may be written again."""
        if axis is None or batch[0].key is None:
            return [np.array(value) if isinstance(value, np.ndarray) else value for _ in batch]
        rows = sum(ticket.rows for ticket in batch)
        if value.shape[axis] != (rows if self._fixed is None else max(rows, self._fixed)):
            raise InferenceError(
                f"device {self._child.device} returned shape {list(value.shape)} for '{name}' of a batch of {rows} images; "
                f"expected {rows} on axis {axis}"
            )
        parts, begin = [], 0
        for ticket in batch:
            index = (slice(None),) * axis + (slice(begin, begin + ticket.rows),)
            parts.append(np.array(value[index], order="C"))
            begin += ticket.rows
        return parts
