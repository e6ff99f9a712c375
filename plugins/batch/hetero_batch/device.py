"""The BATCH device: the network gets an open batch size, is loaded on the device of the list, and runs in batches.

A batch begins when it is full, when its first request has waited for the timeout, or when no further request can come because all
existing requests wait in it. While the device is busy, requests gather. After a failed batch, its requests run again separately, so
that only the request that caused the failure fails. A timer watches the time while requests wait.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np

from hetero_batch.axes import BatchAxes, find_batch_axes
from hetero_core import ExecutableNetwork
from hetero_core.composing.blobs import export_part, import_part, pack_index, read_index
from hetero_core.composing.composer import Composer
from hetero_core.composing.properties import PROPERTIES_KEY, configure_children, describe_parts, share_processors
from hetero_core.composing.runs import start_child
from hetero_core.contract import (
    CancelToken,
    ConfigKey,
    DeviceName,
    Done,
    Executable,
    Extension,
    Payload,
    QueryResult,
    RunContext,
    freeze_mapping,
)
from hetero_core.devices.names import ListedDevice
from hetero_core.devices.query import answer_query, require_all_supported
from hetero_core.errors import (
    ClosedError,
    DeviceNameError,
    InferenceError,
    InvalidNetworkError,
    NotImplementedByDeviceError,
    RequestCancelledError,
)
from hetero_core.executed import ExecutedNode, place_executed
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec
from hetero_core.profile import Profile
from hetero_core.transforms.reshaping import rebatch_network


@dataclass(eq=False)
class BatchTicket:
    """A waiting request, or a request of a running batch. Requests with the same `key` fit into one batch; a request with the key
    None runs alone.
    """

    inputs: tuple[Any, ...]
    context: RunContext
    done: Done
    rows: int
    key: Hashable


class _Request:
    """Stands for a request for as long as it has working memory."""


class BatchExecutable(Executable):
    """Gathers requests, runs them as a batch of the child, and gives each its part of the outputs. Safe for threads; calls nothing of a
    device while its lock is held.

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
        """`size` in images, `seconds` is the timeout; as many batches run at once as the child's requests."""
        self.inputs, self.outputs = inputs, outputs
        self.child, self.axes, self.size = child, axes, size
        # A working memory is used by a single batch at a time.
        self._free: list[object] = []
        places = zip(child.all_inputs, axes.inputs, strict=True)
        sizes = (spec.shape[axis] for spec, axis in places if axis is not None and spec.shape is not None)
        self._fixed = next((images for images in sizes if isinstance(images, int)), None)
        self._slots = max(int(child.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")), 1)
        self.pipeline_depth = size * self._slots
        self._seconds = seconds
        self._title = str(child.device)
        self._lock = threading.Lock()
        # Requests that fit into one batch, and the time until which the first of them waits.
        self._groups: dict[Hashable, tuple[float, list[BatchTicket]]] = {}
        self._running = 0
        self._requests: weakref.WeakSet[object] = weakref.WeakSet()
        self._timer: threading.Timer | None = None
        self._is_closed = False
        self._here = threading.local()
        self._batches: dict[int, int] = {}

    def find_part(self, name: str) -> ExecutableNetwork:
        """Returns the network of the device."""
        return self.child

    def create_state(self) -> object:
        """Returns a token by which the request is expected, for as long as it is alive."""
        request = _Request()
        with self._lock:
            self._requests.add(request)
        return request

    def create_spare(self, state: object) -> object:
        """Returns the same: a request with states is a single request, and its results are its own."""
        return state

    def start(self, inputs: tuple[Any, ...], context: RunContext, done: Done) -> None:
        """Adds a request to those that wait for a batch. Raises: ClosedError."""
        rows, key = (1, None) if context.tensors else _describe(inputs, self.axes.inputs)
        ticket = BatchTicket(inputs, context, done, rows=max(rows, 1), key=key)
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"{self._title}: the network is closed; load it again")
            group = ticket if key is None else key
            self._groups.setdefault(group, (0.0 if key is None else monotonic() + self._seconds, []))[1].append(ticket)
        self._advance()

    def metrics(self) -> Mapping[str, Any]:
        """The child's devices, and the limit and the actual sizes of batches."""
        return {
            **describe_parts([self.child]),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.pipeline_depth,
            "OPTIMAL_BATCH_SIZE": self.size,
            "BATCHES_OF_SIZES": dict(sorted(self._batches.items())),
        }

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of a batch."""
        return place_executed(self.child.list_executed(), str(self.child.device), 0)

    def close(self) -> None:
        """Ends the waiting requests as cancelled, and closes the child."""
        with self._lock:
            self._is_closed = True
            dropped = [ticket for _, tickets in self._groups.values() for ticket in tickets]
            self._groups.clear()
        for ticket in dropped:
            ticket.done(None, RequestCancelledError(f"{self._title}: the network was closed before the request began"))
        self.child.close()

    def _advance(self) -> None:
        """Starts all batches that are ready. A run that ends during its start is left to the loop that started it."""
        if getattr(self._here, "is_beginning", False):
            return
        self._here.is_beginning = True
        try:
            while (batch := self._take_batch()) is not None:
                try:
                    self._begin(batch)
                except BaseException as error:  # noqa: BLE001  # the holders of the requests get the error
                    self._end(batch, [], error)
        finally:
            self._here.is_beginning = False

    def _begin(self, batch: Sequence[BatchTicket]) -> None:
        """Starts a run of these requests; cancelled requests run, too, and their results are dropped."""
        child, first = self.child, batch[0].context
        if all(ticket.context.token.is_set for ticket in batch):
            raise RequestCancelledError("the requests of the batch were cancelled before it began")
        try:
            state = self._free.pop()
        except IndexError:
            state = child.create_state()
        parts = [whole.of_part(self._title, 0) for entry in batch if (whole := entry.context.profile) is not None]
        profile = Profile(self._title) if parts else None
        token = first.token if len(batch) == 1 else CancelToken()
        context = first.derive(state, profile=profile, token=token, limits=child.create_limits(), outputs=None)

        def end(outputs: tuple[Any, ...] | None, error: BaseException | None) -> None:
            split: list[list[Any]] = []
            if error is None and outputs is not None:
                try:
                    split = [
                        self._split(value, axis, batch, spec.name)
                        for value, axis, spec in zip(outputs, self.axes.outputs, child.all_outputs, strict=True)
                    ]
                except Exception as wrong:  # noqa: BLE001  # the holders of the requests get the error
                    error = wrong
            if error is None:
                # The memory of a run that failed, or was set aside, is not used again.
                self._free.append(state)
            for part in parts:
                assert profile is not None, "the batch is measured if one of its requests is"
                part.add_shared(profile)
                part.end_part(tuple(spec.name for spec in child.all_inputs), tuple(spec.name for spec in child.all_outputs))
            self._end(batch, split, error)

        start_child(child, self._join(batch), context, end)

    def _join(self, batch: Sequence[BatchTicket]) -> tuple[Any, ...]:
        """Returns the inputs of the batch; for a fixed size of the batch the last image is repeated."""
        joined = []
        for place, axis in enumerate(self.axes.inputs):
            values = [ticket.inputs[place] for ticket in batch]
            if axis is None or batch[0].key is None:
                joined.append(values[0])
                continue
            missing = 0 if self._fixed is None else self._fixed - _count_rows(batch)
            if missing > 0:
                last = values[-1].take([-1], axis=axis)
                values += [last] * missing
            joined.append(values[0] if len(values) == 1 else np.ascontiguousarray(np.concatenate(values, axis=axis)))
        return tuple(joined)

    def _split(self, value: Any, axis: int | None, batch: Sequence[BatchTicket], name: str) -> list[Any]:
        """Returns the part of an output for each request: arrays of its own, as the device's may be written again."""
        if axis is None or batch[0].key is None:
            return [np.array(value) if isinstance(value, np.ndarray) else value for _ in batch]
        rows = _count_rows(batch)
        if value.shape[axis] != (rows if self._fixed is None else max(rows, self._fixed)):
            raise InferenceError(
                f"device {self.child.device} returned shape {list(value.shape)} for '{name}' of a batch of {rows} images; "
                f"expected {rows} on axis {axis}"
            )
        parts, begin = [], 0
        for ticket in batch:
            index = (slice(None),) * axis + (slice(begin, begin + ticket.rows),)
            parts.append(np.array(value[index], order="C"))
            begin += ticket.rows
        return parts

    def _take_batch(self) -> list[BatchTicket] | None:
        """Returns the requests of the next batch, at most `size` images unless a single request has more; None before a batch is ready."""
        with self._lock:
            if self._running >= self._slots:
                return None
            waiting = sum(len(tickets) for _, tickets in self._groups.values())
            nobody_else = self._running == 0 and waiting >= len(self._requests)
            now = monotonic()
            for key, (expires, tickets) in self._groups.items():
                if not (nobody_else or expires <= now or _count_rows(tickets) >= self.size):
                    continue
                batch = [tickets.pop(0)]
                rows = batch[0].rows
                while tickets and rows + tickets[0].rows <= self.size:
                    rows += tickets[0].rows
                    batch.append(tickets.pop(0))
                if not tickets:
                    del self._groups[key]
                self._running += 1
                self._batches[rows] = self._batches.get(rows, 0) + 1
                return batch
            self._watch()
            return None

    def _watch(self) -> None:
        """Starts a timer for the request that waits longest; a timer that runs already ends before."""
        if self._groups and self._timer is None:
            seconds = min(expires for expires, _ in self._groups.values()) - monotonic()
            self._timer = threading.Timer(min(max(seconds, 0), threading.TIMEOUT_MAX), self._end_wait)
            self._timer.name, self._timer.daemon = f"hetero-{self._title} timeout", True
            self._timer.start()

    def _end_wait(self) -> None:
        with self._lock:
            self._timer = None
        self._advance()

    def _end(self, batch: Sequence[BatchTicket], split: Sequence[Sequence[Any]], error: BaseException | None) -> None:
        """Gives each request its outputs, which are in `split` by output; the requests of a failed batch run again separately."""
        again = error is not None and len(batch) > 1 and isinstance(error, Exception)
        with self._lock:
            self._running -= 1
            again = again and not self._is_closed
            # A group for each, which does not wait.
            self._groups |= {ticket: (0.0, [ticket]) for ticket in batch if again}
        self._advance()
        for place, ticket in enumerate(() if again else batch):
            ticket.done(None if error is not None else tuple(values[place] for values in split), error)


def _count_rows(tickets: Iterable[BatchTicket]) -> int:
    return sum(ticket.rows for ticket in tickets)


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


DEVICE_KEY = "AUTO_BATCH_DEVICE_CONFIG"
TIMEOUT_KEY = "AUTO_BATCH_TIMEOUT"
DEFAULT_SIZE = 8


class BatchDevice(Composer):
    """Runs the requests of a network together, as a batch of the device of the list."""

    title = "BATCH: several requests as one batch"
    own_keys = freeze_mapping(
        {
            DEVICE_KEY: ConfigKey(
                str,
                None,
                "The device and how many images it gets at once, as behind the colon of BATCH:GPU(16).",
                is_arguments=True,
                aliases=("MULTI_DEVICE_PRIORITIES",),
            ),
            TIMEOUT_KEY: ConfigKey(
                int, 20, "The milliseconds that a request waits for others, where there are others.", runtime=True, least=0
            ),
            PROPERTIES_KEY: ConfigKey(dict, None, "Keys for the device of the list alone: {device: {key: value}}."),
        }
    )
    example = "BATCH:GPU(16)"
    purpose = "gather requests for"
    takes_counts = True

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """The nodes that the device of the list takes, apart from nodes that mix images."""
        result, _, _, _ = self._examine(device, network, config)
        return result

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """Loads the network with an open batch size."""
        result, answer, opened, axes = self._examine(device, network, config)
        require_all_supported(device, network, result)
        entry, name, own = self._require_entry(device, config)
        threads = share_processors(self._core, name, config, own, sharers=1, requests=None)
        child = self._core.load_network(opened, name, {**own, **threads}, query=answer)
        return BatchExecutable(
            network.inputs, network.outputs, child, axes, size=self._find_size(device, entry), seconds=config[TIMEOUT_KEY] / 1000
        )

    @hookimpl
    def export_network(self, executable: BatchExecutable) -> Payload:
        """The blob of the device, and the batch axes."""
        sections: dict[str, Any] = {}
        row = export_part(executable.child, None, "device", sections)
        fields = {"axes": [executable.axes.inputs, executable.axes.outputs], "size": executable.size, "device": row}
        return pack_index(executable.inputs, executable.outputs, fields, sections)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """Imports the network on the device of the list."""
        _, name, own = self._require_entry(device, config)

        def read(fields: Mapping[str, Any]) -> tuple[BatchAxes, int, dict[str, Any]]:
            axes_in, axes_out = (tuple(None if axis is None else int(axis) for axis in side) for side in fields["axes"])
            size, row = int(fields["size"]), dict(fields["device"])
            counts = len(fields["inputs"]), len(fields["outputs"])
            if (len(axes_in), len(axes_out)) != counts or size < 1 or row["device"] != name:
                raise ValueError("numbers or a device that do not fit together")
            return BatchAxes(axes_in, axes_out, {}), size, row

        inputs, outputs, (axes, size, row) = read_index(payload, read, owner="BATCH")
        threads = share_processors(self._core, name, config, own, sharers=1, requests=None)
        child, _ = import_part(self._core, row, "device", payload.sections, config, own, threads, owner=device.name)
        return BatchExecutable(inputs, outputs, child, axes, size=size, seconds=config[TIMEOUT_KEY] / 1000)

    @hookimpl
    def add_extension(self, device: DeviceName, extension: Extension) -> bool:
        """Refuses, since a function may mix images."""
        raise NotImplementedByDeviceError(
            f"device {device} takes no extensions, as nothing says that {extension.op_type} keeps the images of a batch apart; "
            "give it to the device of the list and put BATCH around the rest, as in 'HETERO:(BATCH:GPU),GPU'"
        )

    def _require_entry(self, device: DeviceName, config: Mapping[str, Any]) -> tuple[ListedDevice, str, dict[str, Any]]:
        """Returns the only entry of the list, and the name and configuration of its device. Raises: DeviceNameError."""
        names = self.require_children(device)
        entries = self.list_entries(device)
        if len(entries) > 1:
            raise DeviceNameError(
                f"device {device} has {len(entries)} devices in its list; BATCH has one, as in '{self.example}'. "
                f"Use BATCH:(MULTI:{device.arguments}) for batches on several"
            )
        return entries[0], names[0], configure_children(self._core, device, names, config)[names[0]]

    def _find_size(self, device: DeviceName, entry: ListedDevice) -> int:
        """Returns the largest number of images in a batch. Raises: DeviceNameError for more than the device takes."""
        most = int(self._core.get_metric(str(entry.device), "MAX_BATCH_SIZE"))
        if most and entry.count is not None and entry.count > most:
            raise DeviceNameError(
                f"device {device} asks for batches of {entry.count} images; {entry.device} takes {most} at most (MAX_BATCH_SIZE)"
            )
        size = DEFAULT_SIZE if entry.count is None else entry.count
        return min(size, most) if most else size

    def _examine(
        self, device: DeviceName, network: Network, config: Mapping[str, Any]
    ) -> tuple[QueryResult, QueryResult, Network, BatchAxes]:
        """Returns the answer of BATCH, the answer of its device, the network to load, and its batch axes.

        The batch size of the network is open. If the device refuses an open size, the network has the size in the list, and smaller
        batches are padded.
        """
        entry, name, own = self._require_entry(device, config)
        axes = find_batch_axes(network)
        opened, reason = network, ""
        if not axes.refused:
            try:
                places = zip(network.inputs, axes.inputs, strict=True)
                is_fixed = any(axis is not None and spec.shape and isinstance(spec.shape[axis], int) for spec, axis in places)
                opened = _rebatch(network, axes, "batch_of_requests") if is_fixed else network
            except InvalidNetworkError as error:
                reason = f"the batch size cannot be left open: {error}"
        answer = self._core.query_network(opened, name, own)
        if answer.refused and not axes.refused and not reason and any(axis is not None for axis in axes.inputs):
            fixed = _rebatch(network, axes, self._find_size(device, entry))
            answer_fixed = self._core.query_network(fixed, name, own)
            if len(answer_fixed.refused) < len(answer.refused):
                opened, answer = fixed, answer_fixed
        others = dict.fromkeys(network.index_of_node, reason) if reason else {}
        mixing = {node: f"it mixes the images of a batch: {why}" for node, why in axes.refused.items()}
        return answer_query(device, network, {**others, **answer.refused, **mixing}), answer, opened, axes


def _rebatch(network: Network, axes: BatchAxes, size: int | str) -> Network:
    """Returns the network with this size on its batch axes. Raises: InvalidNetworkError."""
    # Only those inputs: a size that is equal by chance does not belong to the batch.
    layouts = {
        spec.name: "".join("N" if place == axis else "." for place in range(len(spec.shape or ())))
        for spec, axis in zip(network.inputs, axes.inputs, strict=True)
    }
    bordered = replace(network, border=replace(network.border, layouts=freeze_mapping(layouts)))
    return replace(rebatch_network(bordered, size), border=network.border)
