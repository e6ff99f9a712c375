"""The search for placements: the cost table of a network from measurements, the estimated time of a placement, and the placements to try.

All placements of a small table are estimated. The search in a larger table begins with each device alone and with the fastest device
of each segment, and improves these by moves of a segment or of a run of neighbours, judged by the schedule of the parts that HETERO
would make of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

from hetero_core.composing.properties import computes_on_host
from hetero_core.network.types import HOST
from hetero_hetero.affinity import SplitTask
from hetero_hetero.placement.segments import Segment
from hetero_hetero.schedule import find_lane
from hetero_hetero.subgraphs import select_subgraphs

UNUSABLE = float("inf")
FREE = ""
"""The device of a segment that none takes whole: priority decides."""


@dataclass(frozen=True, slots=True)
class TransferCost:
    """The cost of moving a value between the memories of two devices: seconds for each value, and for each byte."""

    seconds: float
    seconds_per_byte: float


NO_COST = TransferCost(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of each segment on each device that takes it, and of moving values.

    `devices` stand in order of priority. `seconds` has for each segment device -> seconds; a device that is not there does not take
    the segment. `flows` are the values between segments: (maker, readers, bytes). `transfers` maps pairs of devices to the cost; a pair
    that is not there shares a memory. `overhead` is the cost of a part besides its segments. `lanes` maps a device to its lane,
    which runs a single part at a time; a device that is not there is its own lane. With `is_pipeline` requests overlap, and the
    lane with the most to do counts.
    """

    devices: tuple[str, ...]
    seconds: tuple[Mapping[str, float], ...]
    flows: tuple[tuple[int, tuple[int, ...], int], ...]
    transfers: Mapping[tuple[str, str], TransferCost] = field(default_factory=dict)
    overhead: float = 0.0
    lanes: Mapping[str, str] = field(default_factory=dict)
    is_pipeline: bool = False


class Estimator:
    """Estimates placements of one table, each once."""

    def __init__(self, costs: CostTable) -> None:
        self.costs = costs
        self.known: dict[tuple[str, ...], float] = {}
        """The estimated seconds of each placement so far."""

    @cached_property
    def predecessors(self) -> list[tuple[int, ...]]:
        """The segments that each segment reads."""
        sources: list[dict[int, None]] = [{} for _ in self.costs.seconds]
        for maker, readers, _ in self.costs.flows:
            for reader in readers:
                sources[reader][maker] = None
        return [tuple(before) for before in sources]

    def find_seconds(self, placement: Sequence[str]) -> float:
        """Returns the makespan of a placement, a device for each segment, or the time of its fullest lane.

        It is infinite if a device does not take its segment.
        """
        key = tuple(placement)
        seconds = self.known.get(key)
        if seconds is None:
            seconds = self.known[key] = self._estimate(key)
        return seconds

    def _estimate(self, placement: tuple[str, ...]) -> float:
        costs = self.costs
        if any(device not in costs.seconds[index] for index, device in enumerate(placement)):
            return UNUSABLE
        if len(set(placement)) == 1:
            return costs.overhead + sum(row[device] for row, device in zip(costs.seconds, placement, strict=True))
        parts = select_subgraphs(self.predecessors, placement, costs.devices)
        part_of_segment = {index: number for number, part in enumerate(parts) for index in part.nodes}
        durations = [costs.overhead + sum(costs.seconds[index][placement[index]] for index in part.nodes) for part in parts]
        before: list[set[int]] = [set() for _ in parts]
        for maker, readers, nbytes in costs.flows:
            source = part_of_segment[maker]
            targets = {part_of_segment[reader] for reader in readers} - {source}
            for target in targets:
                before[target].add(source)
            # A value is moved once, by the part that makes it, however many parts of a device read it there.
            for device in dict.fromkeys(str(parts[target].device) for target in sorted(targets)):
                move = costs.transfers.get((placement[maker], device))
                durations[source] += 0.0 if move is None else move.seconds + move.seconds_per_byte * nbytes
        lanes = [costs.lanes.get(str(part.device), str(part.device)) for part in parts]
        if costs.is_pipeline:
            return max(sum(time for time, own in zip(durations, lanes, strict=True) if own == lane) for lane in lanes)
        return schedule_parts(durations, before, lanes)


def schedule_parts(durations: Sequence[float], predecessors: Sequence[set[int]], lanes: Sequence[str]) -> float:
    """Returns the end of the last part, if each lane runs a single part at a time, the first ready part, as in HETERO's
    schedule."""
    missing = [len(before) for before in predecessors]
    ready = [index for index, count in enumerate(missing) if count == 0]
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        busy = {lanes[index] for _, index in running}
        for index in list(ready):
            if lanes[index] not in busy:
                ready.remove(index)
                busy.add(lanes[index])
                running.append((now + durations[index], index))
        running.sort()
        now, ended = running.pop(0)
        for index, before in enumerate(predecessors):
            if ended in before:
                missing[index] -= 1
                if missing[index] == 0:
                    ready.append(index)
        ready.sort()
    return now


_ENUMERATED = 1024
"""The most placements of a table of which each is estimated."""
_MOST_ESTIMATES = 4000

Placement = tuple[str, ...]


def propose_placements(costs: CostTable, *, count: int) -> dict[Placement, float]:
    """Returns up to `count` placements with their estimated seconds of a run, the least first."""
    estimator = Estimator(costs)
    choices = [[device for device in costs.devices if device in row] for row in costs.seconds]
    if prod(map(len, choices)) <= _ENUMERATED:
        for placement in product(*choices):
            estimator.find_seconds(placement)
    else:
        fastest = [min(row, key=row.__getitem__) for row in costs.seconds]
        for start in (fastest, *([device if device in row else row[0] for row in choices] for device in costs.devices)):
            _improve(estimator, choices, tuple(start))
    return dict(sorted(estimator.known.items(), key=lambda entry: (entry[1], entry[0]))[:count])


def _improve(estimator: Estimator, choices: Sequence[Sequence[str]], placement: Placement) -> None:
    """Estimates placements on the way from this placement to one that no move improves further."""
    seconds, estimates = estimator.find_seconds(placement), 0
    moves = _list_moves(estimator, choices, placement)
    while (moved := next(moves, None)) is not None and estimates < _MOST_ESTIMATES:
        estimates += 1
        after = estimator.find_seconds(moved)
        if after < seconds:
            seconds, moves = after, _list_moves(estimator, choices, moved)


def _list_moves(estimator: Estimator, choices: Sequence[Sequence[str]], placement: Placement) -> Iterator[Placement]:
    """Yields the placement with a segment, a segment and its producer, or a run of neighbours on another device."""
    count = len(placement)
    groups: list[Sequence[int]] = [(index,) for index in range(count)]
    groups += [(source, index) for index in range(count) for source in estimator.predecessors[index]]
    for length in (count, *(size for size in (16, 8, 4, 3, 2) if size < count)):
        groups += [range(start, start + length) for start in range(count - length + 1)]
    for group in groups:
        for device in choices[group[0]]:
            if all(device in choices[index] for index in group) and any(placement[index] != device for index in group):
                yield tuple(device if index in group else own for index, own in enumerate(placement))


_OVERHEAD = 5e-6
"""Seconds of a part besides its run: what HETERO's executable takes for a stage."""
_SCALES = (0.25, 1.25)
"""The range of the time of a device for its segments as one network, against their sum; outside it a measurement was disturbed."""


@dataclass
class Measurements:
    """Seconds by distinct segment and device, reasons of failures, seconds of whole networks, and memories apart from the host's.

    `memories` maps a device to the name of its memory, and to the cost of a value on its way there and back.
    """

    seconds: dict[int, dict[str, float]] = field(default_factory=dict)
    failures: dict[int, dict[str, str]] = field(default_factory=dict)
    wholes: dict[str, float] = field(default_factory=dict)
    memories: dict[str, tuple[str, TransferCost, TransferCost]] = field(default_factory=dict)

    def list_transfers(self, devices: Sequence[str]) -> dict[tuple[str, str], TransferCost]:
        """Returns the cost of a value between each two devices that share no memory."""
        free = HOST, NO_COST, NO_COST
        transfers = {}
        for source in devices:
            for target in devices:
                first, _, back = self.memories.get(source, free)
                second, there, _ = self.memories.get(target, free)
                if first != second:
                    transfers[source, target] = TransferCost(
                        back.seconds + there.seconds, back.seconds_per_byte + there.seconds_per_byte
                    )
        return transfers


def build_costs(
    task: SplitTask,
    segments: Sequence[Segment],
    takers: Sequence[Sequence[str]],
    twins: Sequence[int],
    measurements: Measurements,
    flows: Sequence[tuple[int, tuple[int, ...], int]],
    *,
    is_pipeline: bool,
) -> CostTable:
    """Returns the table of all segments; `is_pipeline` says that requests overlap.

    The time of a whole run goes before the sum of its segments, as engines fuse across their borders: each device's segments are
    scaled by the quotient. A segment that was not measured has its share of the whole, by its estimated work;
    without a whole the device does not get the segment. A segment without a device is FREE, and counts nothing.
    """
    known = [
        {device: seconds for device, seconds in measurements.seconds.get(twin, {}).items() if device in takers[index]}
        for index, twin in enumerate(twins)
    ]
    work = sum(segment.work for segment in segments)
    shares = {device: seconds / work for device, seconds in measurements.wholes.items()} if work else {}
    measured: list[dict[str, float]] = []
    for index, segment in enumerate(segments):
        failed = measurements.failures.get(twins[index], {})
        row = {**{device: share * segment.work for device, share in shares.items()}, **known[index]}
        measured.append({device: row[device] for device in takers[index] if device in row and device not in failed})
    scales = {device: _find_scale(device, measured, measurements.wholes) for device in task.configs}
    lanes = {
        # If requests overlap, the devices' work on the host's processors adds up: no device is idle while another works.
        device: "processors" if is_pipeline and computes_on_host(task.core, device) else find_lane(task.core, device)
        for device in task.configs
    }
    return CostTable(
        (*task.configs, FREE),
        tuple({device: seconds * scales[device] for device, seconds in row.items()} or {FREE: 0.0} for row in measured),
        tuple(flows),
        measurements.list_transfers(tuple(task.configs)),
        _OVERHEAD,
        lanes,
        is_pipeline,
    )


def _find_scale(device: str, measured: Sequence[Mapping[str, float]], wholes: Mapping[str, float]) -> float:
    seconds = sum(row.get(device, 0.0) for row in measured)
    whole = wholes.get(device)
    if whole is None or not seconds:
        return 1.0
    least, most = _SCALES
    return min(max(whole / seconds, least), most)
