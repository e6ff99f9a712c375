"""BatchExecutable: requests of a network run together on a device, each with its own part of the inputs and outputs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_batch.axes import BatchAxes
from hetero_batch.gathering import BatchTicket, Gatherer
from hetero_core import ExecutableNetwork
from hetero_core.composing.properties import PROPERTIES_KEY, describe_properties
from hetero_core.composing.runs import start_child
from hetero_core.contract import CancelToken, Done, Executable, RunContext
from hetero_core.errors import InferenceError, RequestCancelledError
from hetero_core.executed import ExecutedNode, place_executed
from hetero_core.network.types import ValueSpec
from hetero_core.profile import Profile


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
            "EXECUTION_DEVICES": self.child.get_metric("EXECUTION_DEVICES"),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.size * self.slots,
            "OPTIMAL_BATCH_SIZE": self.size,
            PROPERTIES_KEY: lambda: describe_properties([self.child]),
            "BATCHES_OF_SIZES": dict(sorted(self.gatherer.batches.items())),
            "REFERENCE_NODES": self.child.get_metric("REFERENCE_NODES"),
            "SLOW_NODES": self.child.get_metric("SLOW_NODES"),
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
