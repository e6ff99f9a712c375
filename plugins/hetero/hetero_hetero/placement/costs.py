"""The cost table of a network from what was measured: gaps filled from whole runs, and segments that no device takes left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero_core.composing.properties import computes_on_host
from hetero_core.network.types import HOST
from hetero_hetero.affinity import SplitTask
from hetero_hetero.placement.makespan import UNUSABLE, CostTable, Estimator, TransferCost
from hetero_hetero.placement.segments import Segment
from hetero_hetero.shares import find_lane

_OVERHEAD = 5e-6
"""Seconds of a part besides its run: what HETERO's executable takes for a stage."""
_GUESS = 1e-9
"""Seconds for one operation of a segment that was never measured, on a device of which nothing is known."""
_LEAST_REST = 0.05
"""The share of a whole that segments which were not measured have at least."""
_SCALES = (0.25, 1.25)
"""The range of the time of a device for its segments as one network, against their sum; outside it a measurement was disturbed."""


@dataclass
class Measurements:
    """Seconds by distinct segment and device, reasons of those that failed, seconds of whole networks, and memories apart from the host's.

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
        """Returns the placement of all segments, "" for those that no device takes whole."""
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

    What a whole run took goes before the sum of its segments, as engines fuse across their borders: each device's segments are scaled
    by the quotient. Segments that were not measured share what the measured ones leave of the whole, by their estimated work.
    """
    known = [
        {device: seconds for device, seconds in measurements.seconds.get(twin, {}).items() if device in takers[index]}
        for index, twin in enumerate(twins)
    ]
    guesses = {device: _find_rate(device, segments, known, measurements.wholes) for device in task.configs}
    rates = [rate for rate in guesses.values() if rate is not None]
    usual = min(rates, default=_GUESS)
    measured: list[dict[str, float]] = []
    for index, segment in enumerate(segments):
        failed = measurements.failures.get(twins[index], {})
        # A device of which nothing is known counts as fast as the best one: the whole is timed before it is chosen.
        rest = {device: usual if rate is None else rate for device, rate in guesses.items()}
        measured.append(
            {device: known[index].get(device, segment.work * rest[device]) for device in takers[index] if device not in failed}
        )
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


def _find_rate(
    device: str, segments: Sequence[Segment], known: Sequence[Mapping[str, float]], wholes: Mapping[str, float]
) -> float | None:
    """Returns the seconds for one operation of the segments that were not measured: what the whole leaves; None without a whole."""
    work = sum(segment.work for segment, row in zip(segments, known, strict=True) if device not in row)
    if device not in wholes or not work:
        return None
    rest = wholes[device] - sum(row.get(device, 0.0) for row in known)
    return max(rest, _LEAST_REST * wholes[device]) / work


def _find_scale(device: str, measured: Sequence[Mapping[str, float]], wholes: Mapping[str, float]) -> float:
    seconds = sum(row.get(device, 0.0) for row in measured)
    whole = wholes.get(device)
    if whole is None or not seconds:
        return 1.0
    least, most = _SCALES
    return min(max(whole / seconds, least), most)
