"""Placement by memory: a network that no single device holds, cut into a pipeline of parts that each fit.

Before anything is loaded, each part is estimated: its constants, the network's inputs and outputs that it reads and makes (among them
the states of a decoder, which so stay with their stage), and the most that is alive between its nodes at once. Parts follow one another
in topological order, as the devices do in the list. With limits alone each device is filled before the next device; a pipeline uses
all devices, such that the fullest of them holds as little of its limit as possible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from hetero_core.devices.names import parse_device_name
from hetero_core.devices.processors import TOTAL_MEMORY
from hetero_core.errors import ConfigValueError, DeviceMemoryError, InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType
from hetero_core.plan import HeldMemory
from hetero_hetero.affinity import SplitTask
from hetero_hetero.placement.choice import MEMORY_KEY
from hetero_hetero.placement.segments import FORBIDDEN, measure_widths

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_STEPS = 40
"""Halvings in the search for the least load of the fullest device."""


@dataclass
class _Part:
    """A part that grows by one node at a time: its bytes of constants and of inputs and outputs, and the bytes that are alive
    behind its last node."""

    weights: int = 0
    border: int = 0
    live: int = 0
    peak: int = 0
    held: set[str] = field(default_factory=set)
    last_reader: dict[int, list[int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.weights + self.border + self.peak


def read_limits(texts: Mapping[str, object], devices: Sequence[str]) -> dict[str, int]:
    """Returns device -> bytes for {"GPU.0": "8GB"}; GB is 10^9 and GiB 2^30 bytes, a number alone is bytes.

    Raises: ConfigValueError for a device that is not in the list, and for a text that is no size.
    """
    limits = {}
    for name, text in texts.items():
        device = str(parse_device_name(name))
        if device not in devices:
            hint = suggest(device, devices) or ";"
            raise ConfigValueError(
                f"configuration key {MEMORY_KEY} names '{name}', which is not in the list{hint} the list is {enumerate_choices(devices)}"
            )
        number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)?\s*", str(text).upper())
        if number is None:
            raise ConfigValueError(
                f"configuration key {MEMORY_KEY}: expected a size as 8GB, 512MiB or a number of bytes for {device}, got {text!r}"
            )
        limits[device] = int(float(number[1]) * _UNITS[number[2] or ""])
    return limits


def place_by_memory(
    task: SplitTask, limits: Mapping[str, int], *, is_balanced: bool
) -> tuple[dict[str, str], tuple[HeldMemory, ...]]:
    """Returns node -> device, and the bytes that each device will hold; a device without a limit has as much as it states, if
    anything.

    `is_balanced` divides the bytes over all devices of the list; else each is filled before the next device.

    Raises: DeviceMemoryError with the numbers if the network does not fit.
    """
    planner, devices = _Planner(task, limits), tuple(task.configs)
    ends = planner.balance(devices) if is_balanced else planner.fill(devices, 1.0)
    if ends is None:
        raise planner.refuse(devices)
    return planner.describe(devices, ends)


class _Planner:
    def __init__(self, task: SplitTask, limits: Mapping[str, int]) -> None:
        self.task, self.network, self.limits = task, task.network, limits
        # The memory that a device states bounds its part; only the limits of the user weigh the parts against each other.
        stating = [device for device in task.configs if TOTAL_MEMORY in task.core.get_metric(device, "SUPPORTED_METRICS")]
        capacities = {device: int(task.core.get_metric(device, TOTAL_MEMORY)) for device in stating}
        self.ceilings = {**capacities, **limits}
        self.may_end = [width < FORBIDDEN for width in measure_widths(self.network, task.units)]
        if self.may_end:
            self.may_end[-1] = True
        self.takers = {
            device: task.core.query_network(self.network, device, config).supported for device, config in task.configs.items()
        }
        largest = _grow_to_bounds(self.network)
        values = dict.fromkeys(value for node in self.network.nodes for value in (*node.reads, *node.writes))
        self.bytes_of_value = {value: _count_bytes(largest, value) for value in values}

    def balance(self, devices: Sequence[str]) -> list[int] | None:
        """Returns the end of each device's part that minimizes the fullest device's load; None if the network does not fit."""
        ends = self.fill(devices, 1.0)
        if ends is None or len(devices) == 1:
            return ends
        low, high = 0.0, 1.0
        total = self._measure(0, len(self.network.nodes)).total
        bound = max((self.limits.get(device, total) for device in devices), default=total) or 1
        for _ in range(_STEPS):
            share = (low + high) / 2
            emptier = self.fill(devices, share, unlimited=bound)
            if emptier is None:
                low = share
            else:
                high, ends = share, emptier
        return ends

    def fill(self, devices: Sequence[str], share: float, *, unlimited: int | None = None) -> list[int] | None:
        """Returns the ends of parts that use at most a share of each device's limit, each as long as it can be."""
        start, ends = 0, []
        for device in devices:
            limit, ceiling = self.limits.get(device, unlimited), self.ceilings.get(device)
            rooms = [room for room in (None if limit is None else limit * share, ceiling) if room is not None]
            start = self._extend(start, device, min(rooms, default=None))
            ends.append(start)
        return ends if start == len(self.network.nodes) else None

    def _extend(self, start: int, device: str, room: float | None) -> int:
        """Returns the end of the longest part that begins at `start`, that the device takes, and that fits into the room."""
        part, end = _Part(), start
        for index in range(start, len(self.network.nodes)):
            node = self.network.nodes[index]
            if node.name not in self.takers[device] or self.task.network.affinity.get(node.name, device) != device:
                break
            self._add(part, index)
            if room is not None and part.total > room:
                break
            if self.may_end[index]:
                end = index + 1
        return end

    def _measure(self, start: int, end: int) -> _Part:
        part = _Part()
        for index in range(start, end):
            self._add(part, index)
        return part

    def _add(self, part: _Part, index: int) -> None:
        network = self.network
        node = network.nodes[index]
        for value in (*node.reads, *node.writes):
            if value in part.held:
                continue
            part.held.add(value)
            if value in network.initializers:
                part.weights += self.bytes_of_value[value]
            elif value in network.index_of_input or value in network.names_of_outputs:
                part.border += self.bytes_of_value[value]
            else:
                part.live += self.bytes_of_value[value]
                last = max(network.index_of_consumers.get(value, ()), default=index)
                part.last_reader.setdefault(last, []).append(self.bytes_of_value[value])
        part.peak = max(part.peak, part.live)
        part.live -= sum(part.last_reader.pop(index, ()))

    def describe(self, devices: Sequence[str], ends: Sequence[int]) -> tuple[dict[str, str], tuple[HeldMemory, ...]]:
        """Returns node -> device and the bytes that each device with nodes will hold."""
        device_of_node: dict[str, str] = {}
        memories, start = [], 0
        for device, end in zip(devices, ends, strict=True):
            part = self._measure(start, end)
            if end > start:
                memories.append(HeldMemory(device, part.weights, part.border, part.peak, self.ceilings.get(device)))
            device_of_node |= {node.name: device for node in self.network.nodes[start:end]}
            start = end
        return device_of_node, tuple(memories)

    def refuse(self, devices: Sequence[str]) -> DeviceMemoryError:
        """Returns the error for a network that does not fit, with the bytes that it needs and the node at which filling the devices
        in order ends."""
        whole = self._measure(0, len(self.network.nodes))
        start = 0
        rows = []
        for device in devices:
            limit = self.ceilings.get(device)
            end = self._extend(start, device, limit)
            used = self._measure(start, end).total
            rows.append(f"{device} takes {end - start} nodes, {used} of {'unlimited' if limit is None else limit} bytes")
            start = end
        node = self.network.nodes[start] if start < len(self.network.nodes) else self.network.nodes[-1]
        free = sum(self.ceilings.get(device, 0) for device in devices)
        return DeviceMemoryError(
            f"network '{self.network.name}' does not fit: it needs {whole.total} bytes (constants {whole.weights}, inputs and outputs "
            f"{whole.border}, inner values {whole.peak}); {'; '.join(rows)}; no device is left for node {node.label}. Raise "
            f"{MEMORY_KEY}, or add a device to the list",
            needed=whole.total,
            free=free,
        )


def _grow_to_bounds(network: Network) -> Network:
    """Returns the network with every bounded size at its largest, so that the types of inner values follow from these sizes."""
    largest = {name: most for name, (_, most) in network.border.bounds.items()}
    if not largest:
        return network
    from hetero_core.transforms.reshaping import reshape_network  # imports onnx, for inference

    try:
        return reshape_network(network, largest)
    except InvalidNetworkError:
        # Not every size may be at its largest in one run.
        return network


def _count_bytes(network: Network, value: str) -> int:
    """Returns the bytes of a value; an open size counts as its bound in the network, else as 1."""
    constant = network.initializers.get(value)
    known = constant.type if constant is not None else network.type_of(value)
    if not isinstance(known, TensorType) or known.shape is None:
        return 0
    bounds = network.border.bounds
    sizes = [size if isinstance(size, int) else bounds.get(size or "", (1, 1))[1] for size in known.shape]
    element = TensorType(known.dtype, ()).nbytes or 0
    return prod(sizes) * element
