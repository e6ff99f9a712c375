"""Measurements: which of two members runs a network faster, and the record of a choice for later processes.

A record is an entry of the private store. Its name has the structure of the network without the contents of its weights, which
would take long to read and change no time; its content has the versions of the chosen device.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np

from hetero_auto.pool import Member, Pool
from hetero_core import Core
from hetero_core.blobs.store import STORE, name_entry
from hetero_core.composing.runs import is_ready, warm_up
from hetero_core.devices.processors import count_processors
from hetero_core.devices.provenance import find_core_version
from hetero_core.dtypes import numpy_dtype
from hetero_core.errors import HeteroError
from hetero_core.network.graph import Network, iterate_graphs
from hetero_core.network.types import TensorType, ValueSpec

logger = logging.getLogger(__name__)

ROUNDS = 7
SECONDS, LONGEST_SECONDS = 2.0, 5.0
"""Number of timed samples of each member, and seconds for all samples of a comparison; longer if other work disturbs it."""
WARM_SECONDS = 30.0
"""Seconds that a device has at most to compile its final kernels, before it is timed."""
_SAMPLE_SECONDS = 1e-3
"""Seconds of a sample: runs of a few microseconds are timed many at once."""
_SETTLE_SECONDS = 10e-3
"""Seconds of runs before a sample. The first ones behind another size or device take longer, up to twice as long for a token behind a
prompt, and not all devices recover after as many runs.
"""
_SPARE_SECONDS, _HOLD_SECONDS = 0.25, 0.5
"""Seconds that a sample waits at most for the end of a request, and that requests wait at most for a sample. Beside a sample they would
take as long, as both want all processors, and the device whose threads wait without sleeping would win. Longer samples run beside
requests.
"""
_MARGIN = 0.98
"""A member replaces another member if it takes less than this part of its time."""
_CLEAR, _DISTANT = 3.0, 1.5
_CLEAR_SECONDS = 0.2
"""The ratios of two times that need no samples beyond `_CLEAR_SECONDS`, and beyond `SECONDS`."""
_SAME = 1.03
"""A member's least time is confirmed if another sample took at most so many times as long."""
_FIRST_MARGIN = 1.5
"""The chosen device also answers first if it is not slower than this, relative to the device that answers first. The figures compare
roughly: the device that was loaded first has paid for imports that all devices need, and the others were loaded beside requests.
"""


class Requests:
    """The requests to a network until its device is chosen. For each class of sizes: the number of requests, the number of them that
    followed a request of a different class, and the inputs of a request. Within a class each input has the same number of elements up
    to a factor of four, so a growing length makes few classes.
    """

    def __init__(self) -> None:
        self.repeats = False
        """Whether the latest request had run before, as one that the caller keeps; `infer` of the network makes a new one each time."""
        self.elements = 0
        """The elements of the inputs of the first request."""
        self._classes: dict[tuple[int, ...], tuple[int, int, tuple[Any, ...]]] = {}
        self._latest: tuple[int, ...] = ()

    def note(self, inputs: tuple[Any, ...], *, repeats: bool) -> None:
        """Counts a request, and copies its inputs if it is the first of its class. Not counted are inputs other than arrays of the host,
        and the first request: in a language model it is a prompt, which more tokens follow than have come when devices are compared.
        """
        self.repeats = repeats
        if not all(isinstance(each, np.ndarray) for each in inputs):
            return
        sizes = tuple((each.size.bit_length() + 1) // 2 for each in inputs)
        self.elements = self.elements or sum(each.size for each in inputs)
        is_counted = bool(self._classes)
        number, changes, sample = self._classes.get(sizes, (0, 0, ()))
        sample = sample if number else tuple(each.copy() for each in inputs)
        self._classes[sizes] = number + is_counted, changes + (is_counted and sizes != self._latest), sample
        self._latest = sizes

    def find_mix(self, names: Sequence[str], specs: Sequence[ValueSpec]) -> Mix:
        """Returns the mix of the requests so far, whose inputs have these names, for a member with these inputs. With fewer than two
        counted classes it is that class alone, or the first request; arrays of ones if there was no request.
        """
        own = {spec.name for spec in specs}
        classes = [
            (number, changes, {name: array for name, array in zip(names, sample, strict=False) if name in own})
            for number, changes, sample in self._classes.values()
        ]
        counted = [each for each in classes if each[0]]
        if len(counted) < 2:
            return [(1.0, 0.0, sample) for _, _, sample in counted or classes] or [(1.0, 0.0, make_inputs(specs))]
        total = sum(number for number, _, _ in counted)
        return [((number - changes) / total, changes / total, sample) for number, changes, sample in counted]

    def forget(self) -> None:
        """Frees the inputs."""
        self._classes.clear()


@dataclass(slots=True)
class _Run:
    """The run of a class of sizes by a member, its two shares of the requests, and the seconds of a run."""

    share: float
    share_of_changes: float
    infer: Callable[[], object]
    seconds: float = 0.0


Mix = Sequence[tuple[float, float, Mapping[str, Any]]]
"""For each class two shares of all requests, behind a request of the same class and behind one of a different class, and its inputs."""


def beats(challenger: Member, best: Member, pool: Pool, *, mix: Mix, repeats: bool, title: str) -> bool:
    """Says whether a challenger runs the mix faster: both are timed in turns, between the requests of a pool, and the least
    time of each counts. On a busy machine least times that are close need more samples. A member that cannot run the inputs loses,
    with a warning.
    """
    members = (challenger, best)
    runs = {member: _open_runs(member, mix, repeats) for member in members}
    for member in members:
        if not _is_able(member, partial(_run_each, member, runs[member]), title):
            return member is best
    for member in members:
        _run_each(member, runs[member])
    # Kernels may be compiled between the samples.
    for member in members:
        member.is_final = is_ready(member.loaded)
    rounds: dict[Member, list[list[float]]] = {member: [] for member in members}
    samples: dict[Member, list[float]] = {member: [] for member in members}
    began = perf_counter()
    while not _is_decided(samples.values(), perf_counter() - began):
        for member in members:
            rounds[member].append(_time_mix(member, runs[member], pool))
            # The least time of each class, the second one, and so on: other work disturbs one class at a time.
            samples[member] = list(map(sum, zip(*map(sorted, zip(*rounds[member], strict=True)), strict=True)))
    is_distant = _find_ratio(samples.values()) > _DISTANT
    for member in members:
        member.is_final = member.is_final and is_ready(member.loaded)
        member.least, member.is_confirmed = samples[member][0], is_distant or _is_confirmed(samples[member])
        logger.info("%s measured %.3f ms on %s", title, member.least * 1e3, member.name)
    return challenger.least < _MARGIN * best.least


def _time_mix(member: Member, runs: Sequence[_Run], pool: Pool) -> list[float]:
    """Returns seconds of a request, each times its share; the sum is the mean of all requests. A run after a run of a different
    class takes longer (a token after a prompt by half and more): its data has left the caches, or the device plans for new shapes.
    """
    times = []
    for run in runs:
        with pool.hold(_HOLD_SECONDS) if run.seconds < _SPARE_SECONDS else nullcontext():
            deadline = perf_counter() + _SPARE_SECONDS
            while pool.is_busy() and perf_counter() < deadline:
                sleep(2e-4)
            if len(runs) > 1:
                times.append(run.share_of_changes * _time(member, run.infer, 1))
            if run.share:
                latest = perf_counter() + _SETTLE_SECONDS
                while run.seconds < _SETTLE_SECONDS and perf_counter() < latest:
                    run.seconds = min(run.seconds, _time(member, run.infer, 1))
                count = max(1, int(_SAMPLE_SECONDS / max(run.seconds, 1e-9)))
                times.append(run.share * _time(member, run.infer, count))
    return times


def _is_decided(samples: Collection[Sequence[float]], seconds: float) -> bool:
    """Says whether the samples of the members, each in ascending order, need no further samples after these seconds."""
    rounds = min(map(len, samples))
    if not rounds:
        return False
    ratio = _find_ratio(samples)
    if seconds > LONGEST_SECONDS or (seconds > SECONDS and ratio > _DISTANT):
        return True
    if rounds > 1 and seconds > _CLEAR_SECONDS and ratio > _CLEAR:
        return True
    return (rounds >= ROUNDS or seconds > SECONDS) and all(map(_is_confirmed, samples))


def _find_ratio(samples: Collection[Sequence[float]]) -> float:
    least = [own[0] for own in samples]
    return max(least) / max(min(least), 1e-9)


def _is_confirmed(samples: Sequence[float]) -> bool:
    return len(samples) > 1 and samples[1] <= _SAME * samples[0]


def await_kernels(member: Member, *, mix: Mix, repeats: bool, title: str) -> bool:
    """Runs a member now and then until its device has compiled its final kernels, or for `WARM_SECONDS`; False if it cannot run."""
    runs = _open_runs(member, mix, repeats)

    def run_and_rest() -> None:
        _run_each(member, runs)
        # The rest leaves processors to requests and to the compiler.
        sleep(min(sum(run.seconds for run in runs), 1.0))

    return _is_able(member, partial(warm_up, member.loaded, run_and_rest, WARM_SECONDS), title)


def _open_runs(member: Member, mix: Mix, repeats: bool) -> list[_Run]:
    """Returns the runs of a mix in the caller's way: by one request that is kept (`repeats`), or by `infer` of the network, which may
    copy outputs.
    """
    infer = member.loaded.create_infer_request().infer if repeats else member.loaded.infer
    return [_Run(share, changes, partial(infer, inputs)) for share, changes, inputs in mix]


def _is_able(member: Member, run: Callable[[], object], title: str) -> bool:
    try:
        run()
    except HeteroError as error:
        logger.warning("%s cannot measure %s: %s", title, member.name, error)
        return False
    return True


def _run_each(member: Member, runs: Sequence[_Run]) -> None:
    for run in runs:
        run.seconds = _time(member, run.infer, 1)
        member.first = member.first or run.seconds


def _time(member: Member, run: Callable[[], object], count: int) -> float:
    began, member.timed_since = perf_counter(), monotonic()
    try:
        for _ in range(count):
            run()
    finally:
        member.timed_since = None
    return (perf_counter() - began) / count


def make_inputs(specs: Sequence[ValueSpec]) -> dict[str, Any]:
    """Returns inputs of ones with open sizes of 1, for a network that is measured before its first request."""
    inputs: dict[str, Any] = dict.fromkeys(spec.name for spec in specs)
    for spec in specs:
        if isinstance(spec.type, TensorType) and spec.type.dtype is not None:
            shape = tuple(size if isinstance(size, int) else 1 for size in spec.type.shape or ())
            dtype = numpy_dtype(spec.type.dtype)
            inputs[spec.name] = np.full(shape, "", dtype) if dtype.kind == "O" else np.ones(shape, dtype)
    return inputs


_FORMAT = 3
_MOST_ELEMENTS = 16


@dataclass(frozen=True, slots=True)
class Choice:
    """A measured choice: the fastest device with its identity, the device to answer first, and the elements of the inputs."""

    device: str
    identity: str
    quick: str
    elements: int


def describe_device(core: Core, name: str) -> str:
    """Returns the versions of a device and of the engine behind it."""
    return f"{core.get_versions(name)} {core.get_metric(name, 'FULL_DEVICE_NAME')}"


def name_choice(network: Network, names: Sequence[str], config: Mapping[str, Any]) -> str:
    """Returns the name of the entry for a network, the devices to choose from, and the configuration. Cost: linear in nodes."""
    digest = sha256()
    for graph in iterate_graphs(network):
        for node in graph.nodes:
            attributes = {name: _shorten(value) for name, value in sorted(node.attributes.items())}
            digest.update(repr((node.operator, node.since_version, node.reads, node.writes, attributes)).encode())
        digest.update(repr([(name, str(constant.type)) for name, constant in graph.initializers.items()]).encode())
    digest.update(repr([(spec.name, str(spec.type)) for spec in network.inputs]).encode())
    settings = json.dumps(dict(config), sort_keys=True, default=str)
    return name_entry("choice", str(_FORMAT), find_core_version(), repr(names), settings, str(count_processors()), digest.digest())


def _shorten(value: Any) -> Any:
    if isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, tuple | list) and len(value) <= _MOST_ELEMENTS:
        return tuple(map(_shorten, value))
    size = getattr(value, "shape", None)
    return type(value).__name__, (len(value) if hasattr(value, "__len__") else 0) if size is None else size


def read_choice(name: str) -> Choice | None:
    """Returns the choice of an entry; None if it is missing or cannot be read."""
    content = STORE.read(name)
    try:
        return None if content is None else Choice(**json.loads(content))
    except (ValueError, TypeError) as error:
        logger.warning("a kept choice of a device cannot be read and is measured again: %s", error)
        return None


def write_choice(name: str, core: Core, best: Member, seconds_until_answer: Mapping[str, float], elements: int) -> None:
    """Stores a choice; `seconds_until_answer` is the query, the load and the first run of each device that was measured."""
    quick = min(seconds_until_answer, key=lambda device: seconds_until_answer[device], default=best.name)
    if seconds_until_answer.get(best.name, 0.0) <= _FIRST_MARGIN * seconds_until_answer.get(quick, 0.0):
        quick = best.name
    STORE.write(name, json.dumps(asdict(Choice(best.name, describe_device(core, best.name), quick, elements))).encode())
