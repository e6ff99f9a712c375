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
from hetero_hetero.placement.choice import DISTRIBUTION_KEY, MEMORY_KEY, PIPELINE, SIZES_KEY
from hetero_hetero.placement.segments import FORBIDDEN, measure_widths

_UNITS = {
    "": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("", *"KMGT"))},
    **{f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
_SHARE_OF_MARGIN = 10
"""The part of its free memory that a device keeps is one of so many."""
_STEPS = 40
"""Halvings in the search for the least load of the fullest device."""


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


def place_by_memory(task: SplitTask, config: Mapping[str, Any]) -> tuple[dict[str, str], tuple[HeldMemory, ...]]:
    """Returns node -> device, and the bytes that each device will hold; a device without a limit has as much as it states, if
    anything. A pipeline divides the bytes over all devices of the list; else each is filled before the next device.

    Raises: DeviceMemoryError with the numbers if the network does not fit; ConfigValueError for sizes that the network does not take,
    and for an open size without a bound if the free memory of a device is its limit.
    """
    planner = _Planner(task, read_limits(config[MEMORY_KEY] or {}, tuple(task.configs)), config[SIZES_KEY] or {})
    parts = planner.fill(1.0)
    if sum(len(nodes) for nodes, _ in parts) < len(task.network.nodes):
        raise planner.refuse(parts)
    if config[DISTRIBUTION_KEY] == PIPELINE:
        parts = planner.balance(parts)
    device_of_node = {task.network.nodes[index].name: held.device for nodes, held in parts for index in nodes}
    return device_of_node, tuple(held for nodes, held in parts if nodes)


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


_Filled = list[tuple[range, HeldMemory]]
"""For each device the nodes of its part, and the bytes that it will hold."""


class _Planner:
    def __init__(self, task: SplitTask, limits: Mapping[str, int | None], sizes: Mapping[str, Any]) -> None:
        """`sizes` are the largest of open inputs, by the name of a size or of an input."""
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

    def balance(self, parts: _Filled) -> _Filled:
        """Returns the parts that minimize the fullest device's load, from parts that fit."""
        low, high = 0.0, 1.0
        total = self.measure().total
        bound = max((self.limits.get(device, total) for device in self.task.configs), default=total) or 1
        for _ in range(_STEPS if len(parts) > 1 else 0):
            share = (low + high) / 2
            emptier = self.fill(share, unlimited=bound)
            if sum(len(nodes) for nodes, _ in emptier) < len(self.network.nodes):
                low = share
            else:
                high, parts = share, emptier
        return parts

    def fill(self, share: float, *, unlimited: int | None = None) -> _Filled:
        """Returns parts that use at most a share of each device's limit, each as long as it can be; nodes may be left over."""
        parts: _Filled = []
        start = used_on_host = 0
        for device in self.task.configs:
            limit, ceiling = self.limits.get(device, unlimited), self.ceilings.get(device)
            if ceiling is not None and device in self.sharing:
                ceiling = max(ceiling - used_on_host, 0)
            rooms = [room for room in (None if limit is None else limit * share, ceiling) if room is not None]
            nodes, held = self._extend(start, device, min(rooms, default=None), ceiling)
            start = nodes.stop
            used_on_host += held.total if device in self.sharing else 0
            parts.append((nodes, held))
        return parts

    def _extend(self, start: int, device: str, room: float | None, ceiling: int | None) -> tuple[range, HeldMemory]:
        """Returns the longest part that begins at `start`, that the device takes, and that fits into the room; the rest of the network for
        no device. It has the workspace of an engine if free memory is the limit.
        """
        network, takes = self.network, self.takers.get(device)
        nodes, held = range(start, start), HeldMemory(device, 0, 0, 0, ceiling)
        weights = largest = border = live = peak = 0
        counted: set[str] = set()
        ending: dict[int, int] = {}
        for index in range(start, len(network.nodes)):
            node = network.nodes[index]
            if takes is not None and (node.name not in takes or self.task.network.affinity.get(node.name, device) != device):
                break
            for value in dict.fromkeys((*node.reads, *node.writes)):
                nbytes = 0 if value in counted else self.bytes_of_value[value]
                if value in network.initializers:
                    weights, largest = weights + nbytes, max(largest, nbytes)
                elif value in network.index_of_input or value in network.names_of_outputs:
                    border += nbytes
                else:
                    live += nbytes
                    last = max(network.index_of_consumers.get(value, ()), default=index)
                    ending[last] = ending.get(last, 0) + nbytes
                counted.add(value)
            peak = max(peak, live)
            live -= ending.pop(index, 0)
            workspace = largest if device in self.free else 0
            if room is not None and weights + border + peak + workspace > room:
                break
            if self.may_end[index]:
                nodes, held = range(start, index + 1), HeldMemory(device, weights, border, peak, ceiling, workspace)
        return nodes, held

    def measure(self) -> HeldMemory:
        """Returns the bytes of the whole network."""
        return self._extend(0, "", None, None)[1]

    def refuse(self, parts: _Filled) -> DeviceMemoryError:
        """Returns the error for a network that does not fit, with the bytes that it needs and the node at which filling the devices
        in order ends."""
        whole = self.measure()
        rows = [
            f"{held.device} takes {len(nodes)} nodes, {held.total} of {'unlimited' if held.limit is None else held.limit} "
            f"{'free bytes' if held.device in self.free else 'bytes'}"
            for nodes, held in parts
        ]
        node = self.network.nodes[sum(len(nodes) for nodes, _ in parts)]
        return DeviceMemoryError(
            f"network '{self.network.name}' does not fit: it needs {whole.total} bytes (constants {whole.weights}, inputs and outputs "
            f"{whole.border}, inner values {whole.arena}); {'; '.join(rows)}; no device is left for node {node.label}. "
            + ("Free memory, " if self.free else f"Raise {MEMORY_KEY}, ")
            + "add a device to the list, or give smaller sizes",
            needed=whole.total,
            free=sum(self.ceilings.get(device, 0) for device in self.task.configs),
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
