"""The search for placements: a dynamic program over segments, and moves that better its best results.

Pure: costs go in as data, placements come out. Small tables are enumerated. Larger ones are walked in topological order; of all
beginnings that agree on the devices of the segments which later ones read, the few that end first are kept. That is exact for chains.
Where devices run at the same time it is a beam search, so the best placements are then bettered by moving one segment or one run of
neighbours at a time, judged by the schedule of the parts that HETERO would make of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from hetero_hetero.placement.makespan import UNUSABLE, CostTable, Estimator

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
    """Returns a beginning with one segment more, started as soon as its lane is free and what it reads is there."""
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
    """Yields the placement with one segment, a segment and one it reads, or a run of neighbours on another device."""
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
    """Yields the placement with these segments on one device, for each device that takes them and does not have them."""
    for device in choices[indices[0]]:
        if all(device in choices[index] for index in indices) and any(placement[index] != device for index in indices):
            chosen = list(placement)
            for index in indices:
                chosen[index] = device
            yield tuple(chosen)
