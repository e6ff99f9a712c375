"""The search for placements: the cost table of a network from measurements, the estimated time of a placement, and the placements to try.

Small tables are enumerated. Larger ones are walked in topological order; of all beginnings that agree on the devices of the segments
which later ones read, the few that end first are kept. That is exact for chains. If devices run at the same time it is a beam
search, so the best placements are then improved by moves of a segment or of a run of neighbours, judged by the schedule of the
parts that HETERO would make of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from hetero_core.composing.properties import computes_on_host
from hetero_core.network.types import HOST
from hetero_hetero.affinity import SplitTask
from hetero_hetero.placement.segments import Segment
from hetero_hetero.schedule import find_lane
from hetero_hetero.subgraphs import select_subgraphs

UNUSABLE = float("inf")


@dataclass(frozen=True, slots=True)
class TransferCost:
    """The cost of moving a value between the memories of two devices: seconds for each value, and for each byte."""

    seconds: float
    seconds_per_byte: float


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
        self._known: dict[tuple[str, ...], float] = {}

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
        seconds = self._known.get(key)
        if seconds is None:
            seconds = self._known[key] = self._estimate(key)
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


_ENUMERATED = 300
"""Placements; where there are no more, each is estimated."""
_BEAM = 240
_PER_FRONTIER = 6
_BETTERED = 6
_MOST_ESTIMATES = 4000

Placement = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A device for each segment, and the estimated seconds of one run."""

    placement: Placement
    seconds: float


def propose_placements(costs: CostTable, *, count: int) -> tuple[Proposal, ...]:
    """Returns up to `count` placements with the least estimated makespan, best first; empty if a segment has no device."""
    if any(not row for row in costs.seconds):
        return ()
    estimator = Estimator(costs)
    choices = [[device for device in costs.devices if device in row] for row in costs.seconds]
    size = 1
    for devices in choices:
        size *= len(devices)
    if size <= _ENUMERATED:
        placements = [tuple(placement) for placement in product(*choices)]
    else:
        uniform = [tuple(device if device in row else row[0] for row in choices) for device in costs.devices]
        beginnings = list(dict.fromkeys([*_walk(estimator, choices), *uniform]))
        best = heapq.nsmallest(_BETTERED, beginnings, key=estimator.find_seconds)
        placements = [*beginnings, *(_better(estimator, choices, placement) for placement in best)]
    ranked = sorted(dict.fromkeys(placements), key=lambda placement: (estimator.find_seconds(placement), placement))
    return tuple(Proposal(placement, estimator.find_seconds(placement)) for placement in ranked[:count])


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Devices of the first segments, when each of these ends, and when each lane is free."""

    placement: Placement
    ends: tuple[float, ...]
    free: tuple[tuple[str, float], ...]

    @property
    def end(self) -> float:
        return max((time for _, time in self.free), default=0.0)


def _walk(estimator: Estimator, choices: Sequence[Sequence[str]]) -> list[Placement]:
    """Returns complete placements of the beam."""
    costs, before = estimator.costs, estimator.predecessors
    last_reader = [-1] * len(choices)
    for maker, readers, _ in costs.flows:
        last_reader[maker] = max(last_reader[maker], *readers)
    nbytes: dict[tuple[int, int], list[int]] = {}
    for maker, readers, size in costs.flows:
        for reader in readers:
            nbytes.setdefault((maker, reader), []).append(size)
    beam = [_Prefix((), (), ())]
    for index, devices in enumerate(choices):
        groups: dict[Placement, list[_Prefix]] = {}
        frontier = [segment for segment in range(index + 1) if last_reader[segment] > index or segment == index]
        for beginning in beam:
            for device in devices:
                longer = _append(costs, beginning, index, device, before[index], nbytes)
                groups.setdefault(tuple(longer.placement[segment] for segment in frontier), []).append(longer)
        few = [state for group in groups.values() for state in heapq.nsmallest(_PER_FRONTIER, group, key=lambda state: state.end)]
        beam = heapq.nsmallest(_BEAM, few, key=lambda state: (state.end, sum(time for _, time in state.free), state.placement))
    return [state.placement for state in beam]


def _append(
    costs: CostTable, beginning: _Prefix, index: int, device: str, before: Sequence[int], nbytes: dict[tuple[int, int], list[int]]
) -> _Prefix:
    """Returns a beginning with a further segment, which starts as soon as its lane is free and its inputs exist."""
    placement, lane = beginning.placement, costs.lanes.get(device, device)
    start = dict(beginning.free).get(lane, 0.0)
    duration = costs.seconds[index][device]
    if not any(placement[predecessor] == device for predecessor in before):
        duration += costs.overhead
    for maker in before:
        arrival = beginning.ends[maker]
        move = costs.transfers.get((placement[maker], device))
        if move is not None:
            arrival += sum(move.seconds + move.seconds_per_byte * size for size in nbytes[maker, index])
        start = max(start, arrival)
    free = tuple(sorted({**dict(beginning.free), lane: start + duration}.items()))
    return _Prefix((*placement, device), (*beginning.ends, start + duration), free)


def _better(estimator: Estimator, choices: Sequence[Sequence[str]], placement: Placement) -> Placement:
    """Returns the placement improved by moves until no move improves it further."""
    seconds, estimates = estimator.find_seconds(placement), 0
    while True:
        for moved in _list_moves(estimator, choices, placement):
            estimates += 1
            after = estimator.find_seconds(moved)
            if after < seconds and after != UNUSABLE:
                placement, seconds = moved, after
                break
            if estimates > _MOST_ESTIMATES:
                return placement
        else:
            return placement


def _list_moves(estimator: Estimator, choices: Sequence[Sequence[str]], placement: Placement) -> Iterator[Placement]:
    """Yields the placement with a segment, a segment and its producer, or a run of neighbours on another device."""
    count = len(placement)
    for index in range(count):
        yield from _put(choices, placement, (index,))
    for index in range(count):
        for source in estimator.predecessors[index]:
            yield from _put(choices, placement, (source, index))
    for length in (count, *(size for size in (16, 8, 4, 3, 2) if size < count)):
        for start in range(count - length + 1):
            yield from _put(choices, placement, range(start, start + length))
    for first in range(count):
        for second in range(first + 1, min(count, first + 4)):
            for device, other in product(choices[first], choices[second]):
                yield (*placement[:first], device, *placement[first + 1 : second], other, *placement[second + 1 :])


def _put(choices: Sequence[Sequence[str]], placement: Placement, indices: Sequence[int]) -> Iterator[Placement]:
    """Yields the placement with these segments on one device, for each device that takes them and has not all of them."""
    for device in choices[indices[0]]:
        if all(device in choices[index] for index in indices) and any(placement[index] != device for index in indices):
            chosen = list(placement)
            for index in indices:
                chosen[index] = device
            yield tuple(chosen)


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
        free = HOST, TransferCost(0.0, 0.0), TransferCost(0.0, 0.0)
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


@dataclass(frozen=True, slots=True)
class Costs:
    """The table, and which segment each of its rows stands for; `count` is the number of all segments."""

    table: CostTable
    rows: tuple[int, ...]
    count: int

    def spread(self, placement: Sequence[str]) -> tuple[str, ...]:
        """Returns the placement of all segments, "" for segments that no device takes whole."""
        device_of_row = dict(zip(self.rows, placement, strict=True))
        return tuple(device_of_row.get(index, "") for index in range(self.count))

    def estimate(self, devices: Sequence[str]) -> float | None:
        """Returns the estimated seconds of a placement of all segments; None if a segment has no known cost."""
        seconds = Estimator(self.table).find_seconds([devices[index] for index in self.rows])
        return None if seconds == UNUSABLE else seconds


def build_costs(
    task: SplitTask,
    segments: Sequence[Segment],
    takers: Sequence[Sequence[str]],
    twins: Sequence[int],
    measurements: Measurements,
    flows: Sequence[tuple[int, tuple[int, ...], int]],
    *,
    is_pipeline: bool,
) -> Costs:
    """Returns the table of all segments that some device takes; `is_pipeline` says that requests overlap.

    The time of a whole run goes before the sum of its segments, as engines fuse across their borders: each device's segments are
    scaled by the quotient. A segment that was not measured has its share of the whole, by its estimated work;
    without a whole the device does not get the segment.
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
    rows = tuple(index for index, row in enumerate(measured) if row)
    number = {index: row for row, index in enumerate(rows)}
    lanes = {
        # If requests overlap, the devices' work on the host's processors adds up: no device is idle while another works.
        device: "processors" if is_pipeline and computes_on_host(task.core, device) else find_lane(task.core, device)
        for device in task.configs
    }
    table = CostTable(
        tuple(task.configs),
        tuple({device: seconds * scales[device] for device, seconds in measured[index].items()} for index in rows),
        tuple(
            (number[maker], tuple(number[reader] for reader in readers if reader in number), nbytes)
            for maker, readers, nbytes in flows
            if maker in number and any(reader in number for reader in readers)
        ),
        measurements.list_transfers(tuple(task.configs)),
        _OVERHEAD,
        lanes,
        is_pipeline,
    )
    return Costs(table, rows, len(segments))


def _find_scale(device: str, measured: Sequence[Mapping[str, float]], wholes: Mapping[str, float]) -> float:
    seconds = sum(row.get(device, 0.0) for row in measured)
    whole = wholes.get(device)
    if whole is None or not seconds:
        return 1.0
    least, most = _SCALES
    return min(max(whole / seconds, least), most)
