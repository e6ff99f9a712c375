"""The stopwatch of placement: loads parts and whole splits of one network, and times them on the values of a real run.

An engine's threads may spin for a while after a run, so a pause before each timing lets those of the other devices fall asleep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

from hetero_core import Core, ExecutableNetwork
from hetero_core.composing.runs import is_ready, warm_up
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, TensorType, ValueSpec
from hetero_hetero.parts import cut_part
from hetero_hetero.placement.search import NO_COST, TransferCost

_LEAST_RUNS = 5
_MOST_RUNS = 50
_WAKE_SECONDS, _QUIET_SECONDS = 0.03, 0.02
"""Seconds of untimed runs before a timing, in which threads wake up and caches fill, and of the pause before them."""
_TRANSFER_BYTES = (4_096, 4_194_304)


@dataclass(frozen=True)
class TimedPart:
    """The seconds of a run of a part, and for a memory apart from the host's the cost of a value on its way there and back."""

    seconds: float
    is_ready: bool
    memory: str = HOST
    there: TransferCost = NO_COST
    back: TransferCost = NO_COST


@dataclass(frozen=True)
class TimedPlan:
    """A loaded plan: the seconds of its first runs, and `time`, which returns the seconds of a run from a stretch of seconds."""

    parts: int
    seconds: float
    is_ready: bool
    time: Callable[[float], float]


class Stopwatch:
    """Times parts of a network. `values` are its inputs by name, and after `sample` the values between segments. A context manager."""

    def __init__(self, core: Core, network: Network, values: Mapping[str, Any]) -> None:
        self._core = core
        self._network = network
        self.values = dict(values)
        self._opened = ExitStack()

    def sample(self, device: str, config: Mapping[str, Any], pins: Mapping[str, str], names: Sequence[str]) -> None:
        """Keeps the inner values of these names from a run of the whole network."""
        known = self._network.names_of_outputs
        inner = [ValueSpec(name, self._network.types[name]) for name in names if name not in known]
        exposed = replace(self._network, outputs=(*self._network.outputs, *inner), affinity=dict(pins))
        with closing(self._core.load_network(exposed, device, config)) as with_values:
            outputs = with_values.infer({spec.name: self.values[spec.name] for spec in with_values.inputs})
        self.values |= {name: outputs[name] for name in names}

    def time_part(self, device: str, config: Mapping[str, Any], nodes: Sequence[str], seconds: float) -> TimedPart:
        """Returns the time of a part on a device, called as HETERO calls a stage."""
        with closing(self._core.load_network(cut_part(self._network, nodes), device, config)) as loaded:
            run = _prepare_run(loaded, self.values)
            warm_up(loaded, run, seconds)
            part = TimedPart(median(_repeat(run, min(seconds, 0.1))), is_ready(loaded))
            spec = next((spec for spec in (*loaded.outputs, *loaded.inputs) if spec.memory != HOST), None)
            if spec is None:
                return part
            small, large = (_time_round_trip(loaded, spec, nbytes) for nbytes in _TRANSFER_BYTES)
            slopes = [max((b - a) / (_TRANSFER_BYTES[1] - _TRANSFER_BYTES[0]), 0.0) for a, b in zip(small, large, strict=True)]
            there, back = map(TransferCost, small, slopes)
            return replace(part, memory=spec.memory, there=there, back=back)

    def load_plan(
        self, device: str, config: Mapping[str, Any], pins: Mapping[str, str], seconds: float, *, overlaps: bool
    ) -> TimedPlan:
        """Loads the network with pins and runs it until its devices have compiled their kernels. If it `overlaps`, as many requests
        as the loaded network works on at once run together, and the time of a run is the time for each of them.
        """
        with ExitStack() as opened:
            loaded = opened.enter_context(
                closing(self._core.load_network(replace(self._network, affinity=dict(pins)), device, config))
            )
            run = _prepare_run(loaded, self.values)
            warm_up(loaded, run, seconds)
            time = Rounds(loaded, self.values).time if overlaps else lambda seconds: median(_repeat(run, seconds))
            parts = len(loaded.get_metric("HETERO_PLAN").stages)

            def time_awake(seconds: float) -> float:
                sleep(_QUIET_SECONDS)
                time(_WAKE_SECONDS)
                return time(seconds)

            plan = TimedPlan(parts, time(0.05), is_ready(loaded), time_awake)
            self._opened.enter_context(opened.pop_all())
        return plan

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


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


class Rounds:
    """Rounds of requests on a loaded network: as many as it works on at once, each begun again when it has ended."""

    def __init__(self, loaded: ExecutableNetwork, values: Mapping[str, Any]) -> None:
        self._inputs = {spec.name: values[spec.name] for spec in loaded.inputs}
        self._requests = [
            loaded.create_infer_request() for _ in range(max(int(loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")), 1))
        ]

    def run(self, count: int) -> float:
        """Returns the seconds for each of `count` runs of every request."""
        began = perf_counter()
        for _ in range(count):
            for request in self._requests:
                request.wait()
                request.start_async(self._inputs)
        for request in self._requests:
            request.wait()
        return (perf_counter() - began) / (count * len(self._requests))

    def time(self, seconds: float) -> float:
        """Returns the time of a run among runs that overlap, from a stretch of about `seconds`."""
        alone = self.run(1)
        return self.run(min(max(int(seconds / max(alone, 1e-9)), _LEAST_RUNS), _MOST_RUNS))


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
    """Returns the seconds of bytes on their way into the memory of a device, seen there, and back."""
    array = np.zeros(nbytes // 4, np.float32)
    carrier = ValueSpec(spec.name, TensorType("float32", array.shape), spec.memory)
    there, back = [], []
    for _ in range(_LEAST_RUNS):
        began = perf_counter()
        moved = loaded.from_host(array, carrier)
        between = perf_counter()
        loaded.to_host(moved)
        there.append(between - began)
        back.append(perf_counter() - between)
    return median(there), median(back)
