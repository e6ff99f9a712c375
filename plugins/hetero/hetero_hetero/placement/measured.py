"""Placement by measurement: segments and transfers are timed, candidates proposed, the best of them timed whole in turns.

Every single device that takes the whole network is a candidate, and priority alone. Segments are timed on the values of a real run; a pause
before each timing lets the threads of other engines fall asleep, which may spin for a while. All placements of a small table of costs are
estimated. The search in a larger table begins with each device alone and with the fastest device of each segment, and improves these by
moves of a segment or of a run of neighbours, judged by the schedule of the parts that HETERO would make of them. It ends early, with the
best so far, when its seconds are over or it is interrupted. The last turns decide: the fastest of several is also the luckiest one, so the
times by which it came to the front say too little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations, product
from math import inf, prod
from operator import attrgetter
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

from hetero_core import AsyncInferQueue, ExecutableNetwork
from hetero_core.composing.properties import computes_on_host, describe_error
from hetero_core.composing.runs import is_ready, warm_up
from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.types import HOST, TensorType, ValueSpec
from hetero_core.plan import PlacedSegment, Placement, PlacementCandidate
from hetero_hetero.affinity import SplitTask, without_pins
from hetero_hetero.placement.segments import cut_segments, sign_segment
from hetero_hetero.schedule import find_lane
from hetero_hetero.subgraphs import select_subgraphs

logger = logging.getLogger(__name__)

FREE = ""
"""The device of a segment that none takes whole: priority decides."""
_ENUMERATED = 1024
"""The most placements of a table of which each is estimated."""
_MOST_ESTIMATES = 4000


@dataclass(frozen=True, slots=True)
class TransferCost:
    """The cost of moving a value between the memories of two devices: seconds for each value, and for each byte."""

    seconds: float
    seconds_per_byte: float


@dataclass(frozen=True)
class CostTable:
    """Seconds of each segment on each device that takes it, and of moving values.

    `devices` stand in order of priority. `seconds` has for each segment device -> seconds; a device that is not there does not take
    the segment. `flows` are the values between segments: (maker, readers, bytes). `transfers` maps pairs of devices to the cost; a pair
    that is not there shares a memory. `overhead` is the cost of a part besides its segments. `lanes` maps a device to its lane,
    which runs a single part at a time; a device that is not there is its own lane. With `is_pipeline` requests overlap, and the
    lane with the most to do counts. `known` has the estimated seconds of each placement so far.
    """

    devices: tuple[str, ...]
    seconds: tuple[Mapping[str, float], ...]
    flows: tuple[tuple[int, tuple[int, ...], int], ...]
    transfers: Mapping[tuple[str, str], TransferCost] = field(default_factory=dict)
    overhead: float = 0.0
    lanes: Mapping[str, str] = field(default_factory=dict)
    is_pipeline: bool = False
    known: dict[tuple[str, ...], float] = field(default_factory=dict, init=False)

    @cached_property
    def predecessors(self) -> list[tuple[int, ...]]:
        """The segments that each segment reads."""
        sources: list[dict[int, None]] = [{} for _ in self.seconds]
        for maker, readers, _ in self.flows:
            for reader in readers:
                sources[reader][maker] = None
        return [tuple(before) for before in sources]

    def find_seconds(self, placement: tuple[str, ...]) -> float:
        """Returns the makespan of a placement, a device for each segment, or the time of its fullest lane.

        It is infinite if a device does not take its segment.
        """
        if placement not in self.known:
            self.known[placement] = self._estimate(placement)
        return self.known[placement]

    def _estimate(self, placement: tuple[str, ...]) -> float:
        if any(device not in self.seconds[index] for index, device in enumerate(placement)):
            return inf
        if len(set(placement)) == 1:
            return self.overhead + sum(row[device] for row, device in zip(self.seconds, placement, strict=True))
        parts = select_subgraphs(self.predecessors, placement, self.devices)
        part_of_segment = {index: number for number, part in enumerate(parts) for index in part.nodes}
        durations = [self.overhead + sum(self.seconds[index][placement[index]] for index in part.nodes) for part in parts]
        before: list[set[int]] = [set() for _ in parts]
        for maker, readers, nbytes in self.flows:
            source = part_of_segment[maker]
            targets = {part_of_segment[reader] for reader in readers} - {source}
            for target in targets:
                before[target].add(source)
            # A value is moved once, by the part that makes it, however many parts of a device read it there.
            for device in dict.fromkeys(str(parts[target].device) for target in sorted(targets)):
                move = self.transfers.get((placement[maker], device))
                durations[source] += 0.0 if move is None else move.seconds + move.seconds_per_byte * nbytes
        lanes = [self.lanes.get(str(part.device), str(part.device)) for part in parts]
        if self.is_pipeline:
            return max(sum(time for time, own in zip(durations, lanes, strict=True) if own == lane) for lane in lanes)
        return schedule_parts(durations, before, lanes)


def schedule_parts(durations: Sequence[float], predecessors: Sequence[set[int]], lanes: Sequence[str]) -> float:
    """Returns the end of the last part, if each lane runs a single part at a time, the first ready part, as in HETERO's schedule."""
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


def propose_placements(costs: CostTable, *, count: int) -> dict[tuple[str, ...], float]:
    """Returns up to `count` placements with their estimated seconds of a run, the least first."""
    choices = [[device for device in costs.devices if device in row] for row in costs.seconds]
    if prod(map(len, choices)) <= _ENUMERATED:
        for placement in product(*choices):
            costs.find_seconds(placement)
    else:
        fastest = [min(row, key=row.__getitem__) for row in costs.seconds]
        for start in (fastest, *([device if device in row else row[0] for row in choices] for device in costs.devices)):
            _improve(costs, choices, tuple(start))
    return dict(sorted(costs.known.items(), key=lambda entry: (entry[1], entry[0]))[:count])


def _improve(costs: CostTable, choices: Sequence[Sequence[str]], placement: tuple[str, ...]) -> None:
    """Estimates placements on the way from this placement to one that no move improves further."""
    seconds, estimates = costs.find_seconds(placement), 0
    moves = _list_moves(costs, choices, placement)
    while (moved := next(moves, None)) is not None and estimates < _MOST_ESTIMATES:
        estimates += 1
        after = costs.find_seconds(moved)
        if after < seconds:
            seconds, moves = after, _list_moves(costs, choices, moved)


def _list_moves(costs: CostTable, choices: Sequence[Sequence[str]], placement: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the placement with a segment, a segment and its producer, or a run of neighbours on another device."""
    count = len(placement)
    groups: list[Sequence[int]] = [(index,) for index in range(count)]
    groups += [(source, index) for index in range(count) for source in costs.predecessors[index]]
    for length in (count, *(size for size in (16, 8, 4, 3, 2) if size < count)):
        groups += [range(start, start + length) for start in range(count - length + 1)]
    for group in groups:
        for device in choices[group[0]]:
            if all(device in choices[index] for index in group) and any(placement[index] != device for index in group):
                yield tuple(device if index in group else own for index, own in enumerate(placement))


_CLOSE = 1.05
"""Basic candidates are timed again if they take at most this many times as long as the fastest."""
_GAIN = 0.98
"""A mixed placement wins if it takes at most this share of the time of the best other one."""
_SURE_GAIN = 0.9
"""The share in place of _GAIN if the search ended before the last turns."""
_LAST_ROUNDS = 7
"""The last turns of each candidate."""
_DUELS = 2
"""Mixed placements that are timed again at most; each takes some seconds beyond the budget."""
_LONGEST_TURN = 0.2


@dataclass(eq=False)
class Candidate:
    """A placement on its way. Once it is loaded, it has a number of parts, the seconds that were measured at the load, and `time`, which
    returns the seconds of a run from a stretch of seconds; `times` has the seconds of each round.
    """

    title: str
    devices: tuple[str, ...]
    is_basic: bool
    estimate: float | None = None
    parts: int = 0
    first: float = inf
    time: Callable[[float], float] = lambda _: inf
    times: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def seconds(self) -> float:
        """The median of the rounds; before the first of them the seconds measured at the load, infinite before that."""
        return median(self.times) if self.times else self.first


_find_seconds = attrgetter("seconds")


def decide(candidates: Sequence[Candidate], time: Callable[[Candidate, float, int], None]) -> Candidate | None:
    """Returns the candidate that wins the last turns; None without a basic candidate.

    `time` appends the time of a turn to a candidate. A mixed placement has to be faster than the best basic candidate in the same
    turns.
    """
    losers: list[Candidate] = []
    best: Candidate | None = None
    for _ in range(_DUELS):
        racers = (candidate for candidate in candidates if candidate.times and not candidate.error and candidate not in losers)
        timed = sorted(racers, key=_find_seconds)
        basics = [candidate for candidate in timed if candidate.is_basic]
        if not basics:
            return None
        limit = basics[0].seconds
        close = [candidate for candidate in basics if candidate.seconds <= _CLOSE * limit]
        challenger = next((candidate for candidate in timed if not candidate.is_basic and candidate.seconds <= _GAIN * limit), None)
        _race(close if challenger is None else [challenger, *close], time)
        best = min((candidate for candidate in close if not candidate.error), key=_find_seconds, default=None)
        if challenger is None or best is None:
            return best
        quotients = [mixed / basic for mixed, basic in zip(challenger.times, best.times, strict=False)]
        if not challenger.error and median(quotients) <= _GAIN:
            return challenger
        losers.append(challenger)
    return best


def _race(racers: Sequence[Candidate], time: Callable[[Candidate, float, int], None]) -> None:
    """Times several candidates in turns, in order and back; when all have ended, these times take the place of those before."""
    if len(racers) < 2:
        return
    counts = [len(candidate.times) for candidate in racers]
    for turn in range(_LAST_ROUNDS):
        for candidate in racers if turn % 2 == 0 else reversed(racers):
            time(candidate, _LONGEST_TURN / 2, turn)
    for candidate, count in zip(racers, counts, strict=True):
        candidate.times = candidate.times[count:]


def find_best(candidates: Sequence[Candidate]) -> Candidate | None:
    """Returns the fastest candidate until now, of a search that ended early; a mixed candidate only if it is faster beyond doubt."""
    timed = [each for each in candidates if each.seconds < inf and not each.error and (each.times or each.is_basic)]
    if not timed:
        return None
    fastest = min(timed, key=_find_seconds)
    basic = min((candidate for candidate in timed if candidate.is_basic), key=_find_seconds, default=fastest)
    return fastest if fastest.seconds <= _SURE_GAIN * basic.seconds else basic


_OVERHEAD = 5e-6
"""Seconds of a part besides its run: what HETERO's executable takes for a stage."""
_SCALES = (0.25, 1.25)
"""The range of the time of a device for its segments as one network, against their sum; outside it a measurement was disturbed."""
_PARTS_SHARE = 0.6
"""The share of the budget after which segments are no longer measured, and candidates are."""
_PROPOSALS = 4
_ROUNDS = 5
_FEWEST_ROUNDS = 2
_HOPELESS = 1.5
"""A candidate that takes this many times as long as the fastest is not timed again."""
_LONGEST_WARM_UP = 10.0
_LEAST_RUNS, _MOST_RUNS = 5, 50
_WAKE_SECONDS, _QUIET_SECONDS = 0.03, 0.02
"""Seconds of untimed runs before a timing, in which threads wake up and caches fill, and of the pause before them."""
_TRANSFER_BYTES = (4_096, 4_194_304)


def place_by_measurement(task: SplitTask, inputs: Mapping[str, Any], budget: float, *, streams: int = 0) -> Placement:
    """Returns the placement of a network that its measurements give within about `budget` seconds.

    `streams` is how many runs of each device are to overlap, 0 if only the time of a single run counts.

    The network's pins are kept. Raises: errors of the devices' queries; never for a device that fails to load or run.
    """
    search = _Search(task, inputs, budget, streams)
    with search.opened:
        try:
            is_complete = search.measure()
        except KeyboardInterrupt:
            logger.info("interrupted; the best so far is taken")
            is_complete = False
    return search.describe(is_complete=is_complete)


class _Search:
    """The measurements: seconds and failures by distinct segment and device, seconds of whole networks, and `memories`, which maps a
    device with a memory apart from the host's to its name, and to the cost of a value on its way there and back.
    """

    def __init__(self, task: SplitTask, inputs: Mapping[str, Any], budget: float, streams: int) -> None:
        self.began = perf_counter()
        self.task, self.budget, self.streams = task, budget, streams
        self.network = network = without_pins(task.network)
        supported = {device: task.core.query_network(network, device, config).supported for device, config in task.configs.items()}
        pins = task.network.affinity
        # For each node the devices that take it; of a pinned node its device.
        traits = [
            (pins[node.name],) if node.name in pins else tuple(device for device in supported if node.name in supported[device])
            for node in network.nodes
        ]
        self.segments = cut_segments(network, task.units, traits)
        self.names = [tuple(network.nodes[index].name for index in segment.nodes) for segment in self.segments]
        self.takers = [
            tuple(device for device in task.configs if all(device in traits[index] for index in segment.nodes))
            for segment in self.segments
        ]
        self.twins = list(range(len(self.segments)))
        self.opened = ExitStack()
        self.values = dict(inputs)
        self.seconds: dict[int, dict[str, float]] = {}
        self.failures: dict[int, dict[str, str]] = {}
        self.wholes: dict[str, float] = {}
        self.memories: dict[str, tuple[str, TransferCost, TransferCost]] = {}
        self.candidates: list[Candidate] = []
        self.winner: Candidate | None = None

    @property
    def remaining(self) -> float:
        return self.budget - (perf_counter() - self.began)

    def measure(self) -> bool:
        """Says whether nothing was left out for want of time."""
        basics = self._list_basics()
        logger.info("running the network for the values between %d segments", len(self.segments))
        fault = _find_fault(lambda: self._sample(self._pin(basics[0].devices)))
        for candidate in basics:
            self._load(candidate)
        # Before anything else, so that the best of them is known however short the search is.
        is_complete = self._take_turns()
        if len(self.task.configs) > 1 and len(self.segments) > 1:
            has_all = not fault and self._measure_segments()
            self._propose()
            is_complete = self._take_turns() and has_all and is_complete
        self.winner = decide(self.candidates, self._time_candidate)
        return is_complete

    def _list_basics(self) -> list[Candidate]:
        """Returns the unchanged priority, and each device moved to the front, before the other devices."""
        candidates = []
        for device in self.task.configs:
            devices = tuple(device if device in takers else next(iter(takers), FREE) for takers in self.takers)
            title = device if set(devices) <= {device} else f"{device} first"
            candidates.append(Candidate(title, devices, is_basic=True))
        if not any(candidate.devices == (candidate.title,) * len(self.segments) for candidate in candidates[:1]):
            candidates.insert(0, Candidate("PRIORITY", (FREE,) * len(self.segments), is_basic=True))
        by_devices = {candidate.devices: candidate for candidate in reversed(candidates)}
        return [candidate for candidate in candidates if by_devices[candidate.devices] is candidate]

    def _pin(self, devices: Sequence[str]) -> dict[str, str]:
        """Returns node -> device for all segments that have a device; the network's own pins go before them."""
        pins = {name: device for names, device in zip(self.names, devices, strict=True) if device != FREE for name in names}
        return {**pins, **self.task.network.affinity}

    def _sample(self, pins: Mapping[str, str]) -> None:
        """Keeps the values between segments from a run of the whole network."""
        network, names = self.network, dict.fromkeys(name for segment in self.segments for name in segment.reads)
        inner = [ValueSpec(name, network.types[name]) for name in names if name not in network.names_of_outputs]
        exposed = replace(network, outputs=(*network.outputs, *inner), affinity=dict(pins))
        with closing(self.task.core.load_network(exposed, self.task.itself, self.task.own_config)) as with_values:
            outputs = with_values.infer({spec.name: self.values[spec.name] for spec in with_values.inputs})
        self.values |= {name: outputs[name] for name in names}

    def _load(self, candidate: Candidate) -> None:
        """Loads a candidate and runs it until its devices have compiled their kernels."""
        logger.info("loading candidate %s", candidate.title)
        warm = min(max(self.remaining / 3, 0.5), _LONGEST_WARM_UP)
        config = self.task.own_config
        if self.streams:
            config = {**config, THREADS_KEY: config[THREADS_KEY] * self.streams, STREAMS_KEY: self.streams}

        def load() -> None:
            network = replace(self.network, affinity=self._pin(candidate.devices))
            with ExitStack() as opened:
                loaded = opened.enter_context(closing(self.task.core.load_network(network, self.task.itself, config)))
                run = _prepare_run(loaded, self.values)
                warm_up(loaded, run, warm)
                time = _overlap_runs(loaded, self.values) if self.streams else lambda seconds: median(_repeat(run, seconds))

                def time_awake(seconds: float) -> float:
                    sleep(_QUIET_SECONDS)
                    time(_WAKE_SECONDS)
                    return time(seconds)

                parts = len(loaded.get_metric("HETERO_PLAN").stages)
                candidate.first, candidate.parts, candidate.time = time(0.05), parts, time_awake
                if is_ready(loaded) and candidate.title in self.task.configs:
                    self.wholes[candidate.title] = candidate.first
                self.opened.enter_context(opened.pop_all())

        candidate.error = _find_fault(load)
        self.candidates.append(candidate)

    def _measure_segments(self) -> bool:
        """Times each distinct segment on each device that takes it, those with the most work first; says whether time was enough."""
        first: dict[str, int] = {}
        weights: dict[int, float] = {}
        shapes = {name: array.shape for name, array in self.values.items()}
        for index, segment in enumerate(self.segments):
            signature = f"{sign_segment(self.task.network, segment, shapes)}{self.takers[index]}"
            self.twins[index] = twin = first.setdefault(signature, index)
            weights[twin] = weights.get(twin, 0.0) + segment.work
        order = sorted(weights, key=lambda index: (-weights[index], index))
        pairs = [(index, device) for index in order for device in self.takers[index]]
        for number, (index, device) in enumerate(pairs):
            if self.remaining < self.budget * (1 - _PARTS_SHARE):
                return False
            logger.info("timing segment %d of %d on %s", number // len(self.task.configs) + 1, len(order), device)
            self._time_segment(index, device, max(self.remaining / (len(pairs) - number), min(self.remaining / 10, 2.0)))
        return True

    def _time_segment(self, index: int, device: str, seconds: float) -> None:
        """Times a segment on a device, called as HETERO calls a stage, and transfers to a memory apart from the host's."""
        core = self.task.core
        threads = min(self.task.own_config[THREADS_KEY], core.get_config(device, THREADS_KEY))
        config = {THREADS_KEY: threads, **self.task.configs[device], STREAMS_KEY: 1}

        def time() -> None:
            with closing(core.load_network(cut_subnetwork(self.network, self.names[index]), device, config)) as loaded:
                run = _prepare_run(loaded, self.values)
                warm_up(loaded, run, seconds)
                taken = median(_repeat(run, min(seconds, 0.1)))
                if is_ready(loaded):
                    self.seconds.setdefault(index, {})[device] = taken
                spec = next((spec for spec in (*loaded.outputs, *loaded.inputs) if spec.memory != HOST), None)
                if spec is not None and device not in self.memories:
                    small, large = (_time_round_trip(loaded, spec, nbytes) for nbytes in _TRANSFER_BYTES)
                    slopes = (
                        max((b - a) / (_TRANSFER_BYTES[1] - _TRANSFER_BYTES[0]), 0.0) for a, b in zip(small, large, strict=True)
                    )
                    there, back = map(TransferCost, small, slopes)
                    self.memories[device] = spec.memory, there, back

        fault = _find_fault(time)
        if fault:
            self.failures.setdefault(index, {})[device] = fault

    def _list_transfers(self) -> dict[tuple[str, str], TransferCost]:
        """Returns the cost of a value between each two devices that share no memory."""
        free = HOST, TransferCost(0.0, 0.0), TransferCost(0.0, 0.0)
        transfers = {}
        for source, target in permutations(self.task.configs, 2):
            first, _, back = self.memories.get(source, free)
            second, there, _ = self.memories.get(target, free)
            if first != second:
                per_byte = back.seconds_per_byte + there.seconds_per_byte
                transfers[source, target] = TransferCost(back.seconds + there.seconds, per_byte)
        return transfers

    def _build_costs(self) -> CostTable:
        """Returns the table of all segments.

        The time of a whole run goes before the sum of its segments, as engines fuse across their borders: each device's segments are
        scaled by the quotient. A segment that was not measured has its share of the whole, by its estimated work;
        without a whole the device does not get the segment. A segment without a device is FREE, and counts nothing.
        """
        core, devices, is_pipeline = self.task.core, tuple(self.task.configs), bool(self.streams)
        work = sum(segment.work for segment in self.segments)
        shares = {device: seconds / work for device, seconds in self.wholes.items()} if work else {}
        measured: list[dict[str, float]] = []
        for segment, twin, takers in zip(self.segments, self.twins, self.takers, strict=True):
            failed = self.failures.get(twin, {})
            row = {**{device: share * segment.work for device, share in shares.items()}, **self.seconds.get(twin, {})}
            measured.append({device: row[device] for device in takers if device in row and device not in failed})
        sums = {device: sum(row.get(device, 0.0) for row in measured) for device in devices}
        least, most = _SCALES
        scales = {device: min(max(whole / sums[device], least), most) for device, whole in self.wholes.items() if sums[device]}
        lanes = {
            # If requests overlap, the devices' work on the host's processors adds up: no device is idle while another works.
            device: "processors" if is_pipeline and computes_on_host(core, device) else find_lane(core, device)
            for device in devices
        }
        scaled = ({device: seconds * scales.get(device, 1.0) for device, seconds in row.items()} for row in measured)
        seconds = tuple(row or {FREE: 0.0} for row in scaled)
        return CostTable(
            (*devices, FREE), seconds, tuple(self._list_flows()), self._list_transfers(), _OVERHEAD, lanes, is_pipeline
        )

    def _propose(self) -> None:
        """Loads the candidates with the least estimated time that are not loaded yet."""
        costs = self._build_costs()
        known = {candidate.devices for candidate in self.candidates}
        for candidate in self.candidates:
            seconds = costs.find_seconds(candidate.devices)
            candidate.estimate = None if seconds == inf else seconds
        # A proposal that is estimated to be slower than a basic candidate is not worth its load.
        bound = min((c.estimate for c in self.candidates if c.estimate is not None and not c.error), default=inf)
        proposals = propose_placements(costs, count=_PROPOSALS + len(known))
        fresh = [devices for devices, seconds in proposals.items() if any(devices) and devices not in known and seconds < bound]
        for number, devices in enumerate(fresh[:_PROPOSALS]):
            if self.remaining < 0:
                return
            self._load(Candidate(f"MIXED {number + 1}", devices, is_basic=False, estimate=proposals[devices]))

    def _list_flows(self) -> list[tuple[int, tuple[int, ...], int]]:
        """Returns the values between segments: maker, readers, bytes."""
        maker = {value: index for index, segment in enumerate(self.segments) for value in segment.writes}
        readers: dict[str, list[int]] = {}
        for index, segment in enumerate(self.segments):
            for value in segment.reads:
                readers.setdefault(value, []).append(index)
        return [(maker[value], tuple(indices), self._count_bytes(value)) for value, indices in readers.items()]

    def _count_bytes(self, value: str) -> int:
        known = self.network.type_of(value)
        shape = getattr(self.values.get(value), "shape", ())
        return (TensorType(known.dtype, shape).nbytes or 0) if isinstance(known, TensorType) else 0

    def _take_turns(self) -> bool:
        """Times the candidates that may be the fastest in turns, in order and back; says whether all rounds were run.

        A single device has two rounds in any case: the time of its load may be from before its kernels were compiled.
        """
        for turn in range(_ROUNDS):
            if turn and self.remaining < 0:
                return False
            best = {each: min(each.times or [each.first]) for each in self.candidates if not each.error}
            bound = _HOPELESS * min(best.values(), default=0.0)
            racers = [each for each in best if best[each] <= bound or (each.is_basic and len(each.times) < _FEWEST_ROUNDS)]
            seconds = min(max(self.remaining / (2 * _ROUNDS * max(len(racers), 1)), 0.02), _LONGEST_TURN)
            for candidate in racers if turn % 2 == 0 else reversed(racers):
                self._time_candidate(candidate, seconds, turn)
        return True

    def _time_candidate(self, candidate: Candidate, seconds: float, turn: int) -> None:
        logger.info("round %d: timing %s", turn + 1, candidate.title)
        candidate.error = candidate.error or _find_fault(lambda: candidate.times.append(candidate.time(seconds)))

    def describe(self, *, is_complete: bool) -> Placement:
        """Returns the placement so far."""
        winner = self.winner or find_best(self.candidates)
        chosen = None if winner is None else self.candidates.index(winner)
        devices = (FREE,) * len(self.segments) if winner is None else winner.devices
        segments = tuple(
            PlacedSegment(names, device, twin, self.seconds.get(twin, {}), self.failures.get(twin, {}))
            for names, device, twin in zip(self.names, devices, self.twins, strict=True)
        )
        moves = self._list_transfers().items()
        transfers = tuple((source, target, move.seconds, move.seconds_per_byte) for (source, target), move in moves)
        candidates = tuple(
            PlacementCandidate(
                c.title, c.devices, c.parts, c.estimate, c.seconds if c.seconds < inf else None, len(c.times), c.error
            )
            for c in self.candidates
        )
        return Placement(segments, transfers, candidates, chosen, perf_counter() - self.began, is_complete)


def _find_fault(call: Callable[[], None]) -> str:
    """Returns the message of the error that a call raises, as one line; an empty text if it raises none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # whatever a device raises rules out one candidate, and is shown
        return describe_error(error)
    return ""


def _prepare_run(loaded: ExecutableNetwork, values: Mapping[str, Any]) -> Callable[[], object]:
    """Returns a call of the device's run with its inputs in its memory; it waits for a result in another memory than the host's."""
    inputs = tuple(
        values[spec.name] if spec.memory == HOST else loaded.from_host(values[spec.name], spec) for spec in loaded.inputs
    )
    context, outputs = loaded.open_context(loaded.create_state()), loaded.outputs
    run = loaded.run_device
    away = next((index for index, spec in enumerate(outputs) if spec.memory != HOST), None)
    if away is None:
        return lambda: run(inputs, context)
    return lambda: loaded.to_host(run(inputs, context)[away])


def _overlap_runs(loaded: ExecutableNetwork, values: Mapping[str, Any]) -> Callable[[float], float]:
    """Returns a function that takes a stretch of seconds and returns the time of a run among runs that overlap: as many requests as the
    network works on at once, each begun again when it has ended.
    """
    inputs = {spec.name: values[spec.name] for spec in loaded.inputs}
    queue = AsyncInferQueue(loaded)

    def run(rounds: int) -> float:
        began, count = perf_counter(), rounds * len(queue)
        for _ in range(count):
            queue.start_async(inputs)
        queue.wait_all()
        return (perf_counter() - began) / count

    return lambda seconds: run(min(max(int(seconds / max(run(1), 1e-9)), _LEAST_RUNS), _MOST_RUNS))


def _repeat(run: Callable[[], object], seconds: float) -> list[float]:
    """Returns the times of runs that last for `seconds` in all; at least `_LEAST_RUNS` and at most `_MOST_RUNS`."""
    times: list[float] = []
    began = before = perf_counter()
    while len(times) < _LEAST_RUNS or (before - began < seconds and len(times) < _MOST_RUNS):
        run()
        after = perf_counter()
        times.append(after - before)
        before = after
    return times


def _time_round_trip(loaded: ExecutableNetwork, spec: ValueSpec, nbytes: int) -> tuple[float, float]:
    """Returns the seconds of bytes on their way into the memory of a device, and back."""
    array = np.zeros(nbytes // 4, np.float32)
    carrier = ValueSpec(spec.name, TensorType("float32", array.shape), spec.memory)
    moved = loaded.from_host(array, carrier)
    ways = (lambda: loaded.from_host(array, carrier)), (lambda: loaded.to_host(moved))
    there, back = (median(_repeat(way, 0.0)) for way in ways)
    return there, back
