"""The estimated time of a placement, of one run or of each of many that overlap: costs as data, and the schedule by which HETERO would run
the parts.

Pure functions on numbers; imports no onnx and runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
    that is not there shares a memory. `overhead` is the cost of a part besides its segments. `lanes` maps a device to what runs one
    part at a time, the device itself where it is not there. With `is_pipeline` requests overlap, and the lane with the most to do counts.
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

        It is infinite where a device does not take its segment.
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
    """Returns the end of the last part, if each lane runs one part at a time, the first ready part, as in HETERO's schedule."""
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
