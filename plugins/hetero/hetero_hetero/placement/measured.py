"""Placement by measurement: segments and transfers are timed, candidates proposed, the best of them timed whole in turns.

Every single device that takes the whole network is a candidate, and priority alone. The search ends early, with the best so far, when its
seconds are over or it is interrupted. The last turns decide: the fastest of several is also the luckiest one, so the times by which it
came to the front say too little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from hetero_core.devices.threads import STREAMS_KEY, THREADS_KEY
from hetero_core.errors import HeteroError
from hetero_core.network.types import HOST, TensorType
from hetero_core.plan import PlacedSegment, Placement, PlacementCandidate
from hetero_hetero.affinity import SplitTask
from hetero_hetero.parts import without_pins
from hetero_hetero.placement.search import FREE, UNUSABLE, Estimator, Measurements, build_costs, propose_placements
from hetero_hetero.placement.segments import cut_segments, sign_segment
from hetero_hetero.placement.stopwatch import Stopwatch, TimedPlan

logger = logging.getLogger(__name__)

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


class Candidate:
    """A placement on its way: its loaded plan, with a time of each round."""

    plan: TimedPlan | None = None

    def __init__(self, title: str, devices: tuple[str, ...], *, is_basic: bool) -> None:
        self.title, self.devices, self.is_basic = title, devices, is_basic
        self.estimate: float | None = None
        self.times: list[float] = []
        self.error = ""

    @property
    def first(self) -> float:
        """The seconds measured at the load; infinite before it."""
        return float("inf") if self.plan is None else self.plan.seconds

    @property
    def seconds(self) -> float:
        """The median of the rounds; before the first of them the seconds measured at the load."""
        return median(self.times) if self.times else self.first


def decide(candidates: Sequence[Candidate], time: Callable[[Candidate, float, int], None]) -> Candidate | None:
    """Returns the candidate that wins the last turns; None without a basic candidate.

    `time` appends the time of a turn to a candidate. A mixed placement has to be faster than the best basic candidate in the same
    turns.
    """
    losers: list[Candidate] = []
    best: Candidate | None = None
    for _ in range(_DUELS):
        timed = sorted(
            (candidate for candidate in candidates if candidate.times and not candidate.error and candidate not in losers),
            key=_find_seconds,
        )
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
    """Returns the fastest candidate until now, of a search that ended early; a mixed candidate only if it is faster beyond
    doubt."""
    timed = [
        candidate
        for candidate in candidates
        if candidate.seconds < float("inf") and not candidate.error and (candidate.times or candidate.is_basic)
    ]
    if not timed:
        return None
    fastest = min(timed, key=_find_seconds)
    basic = min((candidate for candidate in timed if candidate.is_basic), key=_find_seconds, default=fastest)
    return fastest if fastest.seconds <= _SURE_GAIN * basic.seconds else basic


def _find_seconds(candidate: Candidate) -> float:
    return candidate.seconds


_PARTS_SHARE = 0.6
"""The share of the budget after which segments are no longer measured, and candidates are."""
_PROPOSALS = 4
_ROUNDS = 5
_FEWEST_ROUNDS = 2
_HOPELESS = 1.5
"""A candidate that takes this many times as long as the fastest is not timed again."""
_LONGEST_WARM_UP = 10.0


def place_by_measurement(task: SplitTask, inputs: Mapping[str, Any], budget: float, *, streams: int = 0) -> Placement:
    """Returns the placement of a network that its measurements give within about `budget` seconds.

    `streams` is how many runs of each device are to overlap, 0 if only the time of a single run counts.

    The network's pins are kept. Raises: errors of the devices' queries; never for a device that fails to load or run.
    """
    search = _Search(task, budget, streams)
    with Stopwatch(task.core, without_pins(task.network), inputs) as watch:
        search.watch = watch
        is_complete = True
        try:
            is_complete = search.measure()
        except KeyboardInterrupt:
            logger.info("interrupted; the best so far is taken")
            is_complete = False
    return search.describe(is_complete=is_complete)


class _Search:
    watch: Stopwatch

    def __init__(self, task: SplitTask, budget: float, streams: int) -> None:
        self.began = perf_counter()
        self.task, self.budget, self.streams = task, budget, streams
        network = task.network
        traits = _list_takers(task)
        self.segments = cut_segments(network, task.units, traits)
        self.names = [tuple(network.nodes[index].name for index in segment.nodes) for segment in self.segments]
        self.takers = [
            tuple(device for device in task.configs if all(device in traits[index] for index in segment.nodes))
            for segment in self.segments
        ]
        self.twins = list(range(len(self.segments)))
        self.measurements = Measurements()
        self.candidates: list[Candidate] = []
        self.winner: Candidate | None = None

    @property
    def remaining(self) -> float:
        return self.budget - (perf_counter() - self.began)

    def measure(self) -> bool:
        """Says whether nothing was left out for want of time."""
        basics = self._list_basics()
        values = tuple(dict.fromkeys(name for segment in self.segments for name in segment.reads))
        logger.info("running the network for the values between %d segments", len(self.segments))
        pins = self._pin(basics[0].devices)
        fault = _find_fault(lambda: self.watch.sample(self.task.itself, self.task.own_config, pins, values))
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
            is_single = all(name == device for name in devices)
            title = device if is_single else f"{device} first"
            candidates.append(Candidate(title, devices, is_basic=True))
        if not any(candidate.devices == (candidate.title,) * len(self.segments) for candidate in candidates[:1]):
            candidates.insert(0, Candidate("PRIORITY", (FREE,) * len(self.segments), is_basic=True))
        by_devices = {candidate.devices: candidate for candidate in reversed(candidates)}
        return [candidate for candidate in candidates if by_devices[candidate.devices] is candidate]

    def _pin(self, devices: Sequence[str]) -> dict[str, str]:
        """Returns node -> device for all segments that have a device; the network's own pins go before them."""
        pins = {name: device for names, device in zip(self.names, devices, strict=True) if device != FREE for name in names}
        return {**pins, **self.task.network.affinity}

    def _load(self, candidate: Candidate) -> None:
        logger.info("loading candidate %s", candidate.title)
        warm = min(max(self.remaining / 3, 0.5), _LONGEST_WARM_UP)
        config = self.task.own_config
        if self.streams:
            config = {**config, THREADS_KEY: config[THREADS_KEY] * self.streams, STREAMS_KEY: self.streams}

        def load() -> None:
            pins, overlaps = self._pin(candidate.devices), bool(self.streams)
            candidate.plan = self.watch.load_plan(self.task.itself, config, pins, warm, overlaps=overlaps)
            if candidate.plan.is_ready and candidate.title in self.task.configs:
                self.measurements.wholes[candidate.title] = candidate.first

        candidate.error = _find_fault(load)
        self.candidates.append(candidate)

    def _measure_segments(self) -> bool:
        """Times each distinct segment on each device that takes it, those with the most work first; says whether time was enough."""
        first: dict[str, int] = {}
        shapes = {name: array.shape for name, array in self.watch.values.items()}
        for index, segment in enumerate(self.segments):
            signature = f"{sign_segment(self.task.network, segment, shapes)}{self.takers[index]}"
            self.twins[index] = first.setdefault(signature, index)
        weights: dict[int, float] = {}
        for index, twin in enumerate(self.twins):
            weights[twin] = weights.get(twin, 0.0) + self.segments[index].work
        order = sorted(weights, key=lambda index: (-weights[index], index))
        pairs = [(index, device) for index in order for device in self.takers[index]]
        for number, (index, device) in enumerate(pairs):
            if self.remaining < self.budget * (1 - _PARTS_SHARE):
                return False
            logger.info("timing segment %d of %d on %s", number // len(self.task.configs) + 1, len(order), device)
            self._time_segment(index, device, max(self.remaining / (len(pairs) - number), min(self.remaining / 10, 2.0)))
        return True

    def _time_segment(self, index: int, device: str, seconds: float) -> None:
        def time() -> None:
            part = self.watch.time_part(device, self._configure(device), self.names[index], seconds)
            if part.is_ready:
                self.measurements.seconds.setdefault(index, {})[device] = part.seconds
            if part.memory != HOST:
                self.measurements.memories.setdefault(device, (part.memory, part.there, part.back))

        fault = _find_fault(time)
        if fault:
            self.measurements.failures.setdefault(index, {})[device] = fault

    def _configure(self, device: str) -> dict[str, Any]:
        threads = min(self.task.own_config[THREADS_KEY], self.task.core.get_config(device, THREADS_KEY))
        return {THREADS_KEY: threads, **self.task.configs[device], STREAMS_KEY: 1}

    def _propose(self) -> None:
        """Loads the candidates with the least estimated time that are not loaded yet."""
        flows, is_pipeline = self._list_flows(), bool(self.streams)
        costs = build_costs(self.task, self.segments, self.takers, self.twins, self.measurements, flows, is_pipeline=is_pipeline)
        known, estimator = {candidate.devices for candidate in self.candidates}, Estimator(costs)
        for candidate in self.candidates:
            seconds = estimator.find_seconds(candidate.devices)
            candidate.estimate = None if seconds == UNUSABLE else seconds
        # A proposal that is estimated to be slower than a basic candidate is not worth its load.
        bound = min((c.estimate for c in self.candidates if c.estimate is not None and not c.error), default=UNUSABLE)
        proposals = propose_placements(costs, count=_PROPOSALS + len(known))
        fresh = [devices for devices, seconds in proposals.items() if any(devices) and devices not in known and seconds < bound]
        for number, devices in enumerate(fresh[:_PROPOSALS]):
            if self.remaining < 0:
                return
            candidate = Candidate(f"MIXED {number + 1}", devices, is_basic=False)
            candidate.estimate = proposals[devices]
            self._load(candidate)

    def _list_flows(self) -> list[tuple[int, tuple[int, ...], int]]:
        """Returns the values between segments: maker, readers, bytes."""
        maker = {value: index for index, segment in enumerate(self.segments) for value in segment.writes}
        readers: dict[str, list[int]] = {}
        for index, segment in enumerate(self.segments):
            for value in segment.reads:
                readers.setdefault(value, []).append(index)
        return [(maker[value], tuple(indices), self._count_bytes(value)) for value, indices in readers.items()]

    def _count_bytes(self, value: str) -> int:
        known = self.task.network.type_of(value)
        shape = getattr(self.watch.values.get(value), "shape", ())
        return (TensorType(known.dtype, shape).nbytes or 0) if isinstance(known, TensorType) else 0

    def _take_turns(self) -> bool:
        """Times the candidates that may be the fastest in turns, in order and back; says whether all rounds were run."""
        for turn in range(_ROUNDS):
            if turn and self.remaining < 0:
                return False
            racers = self._list_racers()
            seconds = min(max(self.remaining / (2 * _ROUNDS * max(len(racers), 1)), 0.02), _LONGEST_TURN)
            for candidate in racers if turn % 2 == 0 else reversed(racers):
                self._time_candidate(candidate, seconds, turn)
        return True

    def _list_racers(self) -> list[Candidate]:
        """Returns the loaded candidates with a best time that is not hopeless beside the least.

        A single device has two rounds in any case: the time of its load may be from before its kernels were compiled.
        """
        loaded = [candidate for candidate in self.candidates if not candidate.error]
        best = {candidate: min(candidate.times or [candidate.first]) for candidate in loaded}
        least = min(best.values(), default=0.0)
        return [
            candidate
            for candidate in loaded
            if best[candidate] <= _HOPELESS * least or (candidate.is_basic and len(candidate.times) < _FEWEST_ROUNDS)
        ]

    def _time_candidate(self, candidate: Candidate, seconds: float, turn: int) -> None:
        logger.info("round %d: timing %s", turn + 1, candidate.title)
        plan = candidate.plan
        assert plan is not None, "a candidate is timed after its load"
        candidate.error = candidate.error or _find_fault(lambda: candidate.times.append(plan.time(seconds)))

    def describe(self, *, is_complete: bool) -> Placement:
        """Returns the placement so far."""
        winner = self.winner or find_best(self.candidates)
        chosen = None if winner is None else self.candidates.index(winner)
        devices = (FREE,) * len(self.segments) if chosen is None else self.candidates[chosen].devices
        segments = tuple(
            PlacedSegment(
                self.names[index],
                devices[index],
                twin,
                self.measurements.seconds.get(twin, {}),
                self.measurements.failures.get(twin, {}),
            )
            for index, twin in enumerate(self.twins)
        )
        moves = self.measurements.list_transfers(tuple(self.task.configs))
        return Placement(
            segments,
            tuple((source, target, move.seconds, move.seconds_per_byte) for (source, target), move in moves.items()),
            tuple(
                PlacementCandidate(
                    c.title,
                    c.devices,
                    0 if c.plan is None else c.plan.parts,
                    c.estimate,
                    c.seconds if c.seconds < float("inf") else None,
                    len(c.times),
                    c.error,
                )
                for c in self.candidates
            ),
            chosen,
            perf_counter() - self.began,
            is_complete,
        )


def _find_fault(call: Callable[[], None]) -> str:
    """Returns the message of the error that a call raises, as one line; an empty text if it raises none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # whatever a device raises rules out one candidate, and is shown
        text = str(error) if isinstance(error, HeteroError) else f"{type(error).__name__}: {error}"
        return " ".join(text.split())
    return ""


def _list_takers(task: SplitTask) -> list[tuple[str, ...]]:
    """Returns for each node the devices that take it, asked about the whole network; of a pinned node its device."""
    network = without_pins(task.network)
    supported = {device: task.core.query_network(network, device, config).supported for device, config in task.configs.items()}
    pins = task.network.affinity
    return [
        (pins[node.name],) if node.name in pins else tuple(device for device in supported if node.name in supported[device])
        for node in network.nodes
    ]
