"""Placement by memory: a network that no single device holds, cut into a pipeline of parts that each fit.

Before anything is loaded, each part is estimated: its constants, the network's inputs and outputs that it reads and makes (among them
the states of a decoder, which so stay with their stage), and the most that is alive between its nodes at once. Parts follow one another
in topological order, as the devices do in the list. A limit of AUTO is a share of what the device has free. With limits alone each
device is filled before the next device; a pipeline uses all devices, such that the fullest of them holds as little of its limit as
possible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from hetero_core.composing.properties import computes_on_host
from hetero_core.core import Core
from hetero_core.devices.names import parse_device_name
from hetero_core.devices.processors import FREE_MEMORY, TOTAL_MEMORY
from hetero_core.devices.threads import AUTO
from hetero_core.errors import ConfigValueError, DeviceMemoryError, InvalidNetworkError, enumerate_choices, suggest
from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType
from hetero_core.plan import HeldMemory, Plan
from hetero_hetero.affinity import SplitTask
from hetero_hetero.placement.choice import MEMORY_KEY, SIZES_KEY
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
_SHARE_OF_MARGIN = 10
"""The part of its free memory that a device keeps is one of so many."""
_STEPS = 40
"""Halvings in the search for the least load of the fullest device."""


@dataclass
class _Part:
    """A part that grows by one node at a time: its bytes of constants and of inputs and outputs, and the bytes that are alive
    behind its last node. `largest` is its largest constant."""

    weights: int = 0
    largest: int = 0
    border: int = 0
    live: int = 0
    peak: int = 0
    held: set[str] = field(default_factory=set)
    last_reader: dict[int, list[int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.weights + self.border + self.peak


def read_limits(texts: Mapping[str, object] | str, devices: Sequence[str]) -> dict[str, int | None]:
    """Returns device -> bytes for {"GPU.0": "8GB"}; GB is 10^9 and GiB 2^30 bytes, a number alone is bytes. None stands for AUTO.

    Raises: ConfigValueError for a device that is not in the list, and for a text that is no size.
    """
    limits: dict[str, int | None] = {}
    for name, text in (dict.fromkeys(devices, AUTO) if isinstance(texts, str) else texts).items():
        device = str(parse_device_name(name))
        if device not in devices:
            hint = suggest(device, devices) or ";"
            raise ConfigValueError(
                f"configuration key {MEMORY_KEY} names '{name}', which is not in the list{hint} the list is {enumerate_choices(devices)}"
            )
        if str(text).strip().upper() == AUTO:
            limits[device] = None
            continue
        number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)?\s*", str(text).upper())
        if number is None:
            raise ConfigValueError(
                f"configuration key {MEMORY_KEY}: expected a size as 8GB, 512MiB, a number of bytes or AUTO for {device}, got {text!r}"
            )
        limits[device] = int(float(number[1]) * _UNITS[number[2] or ""])
    return limits


def place_by_memory(
    task: SplitTask, limits: Mapping[str, int | None], sizes: Mapping[str, Any], *, is_balanced: bool
) -> tuple[dict[str, str], tuple[HeldMemory, ...]]:
    """Returns node -> device, and the bytes that each device will hold; a device without a limit has as much as it states, if
    anything. `sizes` are the largest of open inputs, by the name of a size or of an input.

    `is_balanced` divides the bytes over all devices of the list; else each is filled before the next device.

    Raises: DeviceMemoryError with the numbers if the network does not fit; ConfigValueError for sizes that the network does not take,
    and for an open size without a bound if the free memory of a device is its limit.
    """
    planner, devices = _Planner(task, limits, sizes), tuple(task.configs)
    ends = planner.balance(devices) if is_balanced else planner.fill(devices, 1.0)
    if ends is None:
        raise planner.refuse(devices)
    return planner.describe(devices, ends)


def find_free_bytes(core: Core, device: str) -> int | None:
    """Returns the bytes that a device may use of those that it has free now; None if it does not state them."""
    if FREE_MEMORY not in core.get_metric(device, "SUPPORTED_METRICS"):
        return None
    free = int(core.get_metric(device, FREE_MEMORY))
    return free - free // _SHARE_OF_MARGIN


def require_free(core: Core, plan: Plan, texts: Mapping[str, object] | str) -> None:
    """Raises DeviceMemoryError if a device whose limit is AUTO no longer has the bytes free that a plan needs."""
    limits = read_limits(texts, plan.priorities)
    used_on_host = 0
    for held in plan.memory:
        free = find_free_bytes(core, held.device) if limits.get(held.device, 0) is None else None
        if free is None:
            continue
        is_sharing = computes_on_host(core, held.device)
        needed = held.total + (used_on_host if is_sharing else 0)
        if needed > free:
            raise DeviceMemoryError(
                f"{held.device} may use {free} bytes of those that it has free, and its part of network '{plan.network}' needs {needed}; "
                "load the network instead of the blob, and it is split anew",
                needed=needed,
                free=free,
            )
        used_on_host = needed if is_sharing else used_on_host


class _Planner:
    def __init__(self, task: SplitTask, limits: Mapping[str, int | None], sizes: Mapping[str, Any]) -> None:
        core = task.core
        self.task, self.network = task, task.network
        # Only the limits of the user weigh the parts against each other.
        self.limits = {device: limit for device, limit in limits.items() if limit is not None}
        stating = [device for device in task.configs if TOTAL_MEMORY in core.get_metric(device, "SUPPORTED_METRICS")]
        capacities = {device: int(core.get_metric(device, TOTAL_MEMORY)) for device in stating}
        measured = {device: find_free_bytes(core, device) for device, limit in limits.items() if limit is None}
        self.free = {device: free for device, free in measured.items() if free is not None}
        self.ceilings = {**capacities, **self.free, **self.limits}
        # Devices in the machine's memory share what is free there.
        self.sharing = {device for device in self.free if computes_on_host(core, device)}
        self.may_end = [width < FORBIDDEN for width in measure_widths(self.network, task.units)]
        if self.may_end:
            self.may_end[-1] = True
        self.takers = {
            device: task.core.query_network(self.network, device, config).supported for device, config in task.configs.items()
        }
        largest = _grow_to_bounds(self.network, sizes)
        if self.free:
            _require_bounds(largest)
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
        start, used_on_host, ends = 0, 0, []
        for device in devices:
            limit, ceiling = self.limits.get(device, unlimited), self._find_ceiling(device, used_on_host)
            rooms = [room for room in (None if limit is None else limit * share, ceiling) if room is not None]
            end = self._extend(start, device, min(rooms, default=None))
            if device in self.sharing:
                used_on_host += self._count(self._measure(start, end), device)
            start = end
            ends.append(end)
        return ends if start == len(self.network.nodes) else None

    def _find_ceiling(self, device: str, used_on_host: int) -> int | None:
        """Returns the most bytes that a device may hold beside the parts of earlier devices; None if there is no limit."""
        ceiling = self.ceilings.get(device)
        return max(ceiling - used_on_host, 0) if ceiling is not None and device in self.sharing else ceiling

    def _count(self, part: _Part, device: str) -> int:
        """Returns the bytes of a part, with the workspace of an engine if free memory is the limit."""
        return part.total + (part.largest if device in self.free else 0)

    def _extend(self, start: int, device: str, room: float | None) -> int:
        """Returns the end of the longest part that begins at `start`, that the device takes, and that fits into the room."""
        part, end = _Part(), start
        for index in range(start, len(self.network.nodes)):
            node = self.network.nodes[index]
            if node.name not in self.takers[device] or self.task.network.affinity.get(node.name, device) != device:
                break
            self._add(part, index)
            if room is not None and self._count(part, device) > room:
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
                part.largest = max(part.largest, self.bytes_of_value[value])
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
        memories, start, used_on_host = [], 0, 0
        for device, end in zip(devices, ends, strict=True):
            part = self._measure(start, end)
            ceiling = self._find_ceiling(device, used_on_host)
            if end > start:
                workspace = part.largest if device in self.free else 0
                held = HeldMemory(device, part.weights, part.border, part.peak, ceiling, workspace)
                memories.append(held)
                used_on_host += held.total if device in self.sharing else 0
            device_of_node |= {node.name: device for node in self.network.nodes[start:end]}
            start = end
        return device_of_node, tuple(memories)

    def refuse(self, devices: Sequence[str]) -> DeviceMemoryError:
        """Returns the error for a network that does not fit, with the bytes that it needs and the node at which filling the devices
        in order ends."""
        whole = self._measure(0, len(self.network.nodes))
        start, used_on_host = 0, 0
        rows = []
        for device in devices:
            limit = self._find_ceiling(device, used_on_host)
            end = self._extend(start, device, limit)
            used = self._count(self._measure(start, end), device)
            used_on_host += used if device in self.sharing else 0
            kind = "free bytes" if device in self.free else "bytes"
            rows.append(f"{device} takes {end - start} nodes, {used} of {'unlimited' if limit is None else limit} {kind}")
            start = end
        node = self.network.nodes[start] if start < len(self.network.nodes) else self.network.nodes[-1]
        free = sum(self.ceilings.get(device, 0) for device in devices)
        return DeviceMemoryError(
            f"network '{self.network.name}' does not fit: it needs {whole.total} bytes (constants {whole.weights}, inputs and outputs "
            f"{whole.border}, inner values {whole.peak}); {'; '.join(rows)}; no device is left for node {node.label}. "
            + ("Free memory, " if self.free else f"Raise {MEMORY_KEY}, ")
            + "add a device to the list, or give smaller sizes",
            needed=whole.total,
            free=free,
        )


def _grow_to_bounds(network: Network, sizes: Mapping[str, Any]) -> Network:
    """Returns the network with every bounded size, and the sizes of the user, at their largest, so that the types of inner values
    follow from these sizes.

    Raises: ConfigValueError for sizes of the user that the network does not take.
    """
    largest = {**{name: most for name, (_, most) in network.border.bounds.items()}, **sizes}
    if not largest:
        return network
    from hetero_core.transforms.reshaping import reshape_network  # imports onnx, for inference

    try:
        return reshape_network(network, largest)
    except InvalidNetworkError as error:
        if sizes:
            raise ConfigValueError(f"configuration key {SIZES_KEY}: {error}") from error
        # Not every size may be at its largest in one run.
        return network


def _require_bounds(network: Network) -> None:
    """Raises ConfigValueError if an input has an open size without a bound."""
    open_sizes = {
        size if isinstance(size, str) else f"axis {axis} of {spec.name}"
        for spec in network.inputs
        if isinstance(spec.type, TensorType)
        for axis, size in enumerate(spec.type.shape or ())
        if not isinstance(size, int) and size not in network.border.bounds
    }
    if not open_sizes:
        return
    raise ConfigValueError(
        f"{MEMORY_KEY}=AUTO estimates memory for the largest inputs, and network '{network.name}' has open sizes without a bound: "
        f"{enumerate_choices(open_sizes)}. Say the largest of each: {SIZES_KEY}={{'{min(open_sizes)}': 128}}, in `hetero fit` "
        f"--shape '{min(open_sizes)}=128'; an input takes a whole shape, as {{'x': [8, 3, 224, 224]}}"
    )


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
