"""The stopwatch of placement: loads parts and whole splits of one network in this process, and times them on the values of a real run.

Its commands take and return plain values, so that it serves through a pipe as well as in the process that searches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from hetero_core.composing.readiness import is_ready, warm_up
from hetero_core.core import Core
from hetero_core.errors import HeteroError
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, TensorType, ValueSpec
from hetero_core.runtime.executable import ExecutableNetwork
from hetero_hetero.parts import cut_part

_LEAST_RUNS = 5
_MOST_RUNS = 50
_WAKE_SECONDS = 0.03
"""Seconds of untimed runs before a timing, in which threads wake up and caches fill."""
_TRANSFER_BYTES = (4_096, 4_194_304)

Answer = dict[str, Any]


class Stopwatch:
    """Times parts of a network. `values` are its inputs by name, and after `sample` the values between segments."""

    def __init__(self, core: Core, network: Network, values: Mapping[str, Any]) -> None:
        self._core = core
        self._network = network
        self.values = dict(values)
        self._plans: dict[str, tuple[ExecutableNetwork, Callable[[float], float]]] = {}

    def answer(self, command: Mapping[str, Any]) -> Answer:
        """Returns the result of a command {"do": its name, and its arguments}; {"error": text} if the device fails."""
        arguments = {key: value for key, value in command.items() if key != "do"}
        try:
            return _COMMANDS[command["do"]](self, **arguments)
        except Exception as error:  # noqa: BLE001  # whatever a device raises rules out one candidate, and is shown
            text = str(error) if isinstance(error, HeteroError) else f"{type(error).__name__}: {error}"
            return {"error": " ".join(text.split())}

    def configure(self, configs: Mapping[str, Mapping[str, Any]]) -> Answer:
        """Sets the configuration of each device, as the process that searches has it."""
        for device, config in configs.items():
            self._core.set_config(config, device)
        return {}

    def sample(self, device: str, config: Mapping[str, Any], pins: Mapping[str, str], names: Sequence[str]) -> Answer:
        """Keeps the inner values of these names from a run of the whole network; returns their shapes."""
        known = self._network.names_of_outputs
        inner = [ValueSpec(name, self._network.types[name]) for name in names if name not in known]
        exposed = replace(self._network, outputs=(*self._network.outputs, *inner), affinity=dict(pins))
        with_values = self._core.load_network(exposed, device, config)
        try:
            outputs = with_values.infer({spec.name: self.values[spec.name] for spec in with_values.inputs})
        finally:
            with_values.close()
        self.values |= {name: outputs[name] for name in names}
        return {"shapes": {name: list(outputs[name].shape) for name in names}}

    def time_part(self, device: str, config: Mapping[str, Any], nodes: Sequence[str], seconds: float) -> Answer:
        """Returns the seconds of one run of a part on a device, called as HETERO calls a stage."""
        part = cut_part(self._network, nodes)
        loaded = self._core.load_network(part, device, config)
        try:
            run = _prepare_run(loaded, self.values)
            warm_up(loaded, run, seconds)
            memories = dict.fromkeys(spec.memory for spec in (*loaded.outputs, *loaded.inputs))
            memory = next((memory_name for memory_name in memories if memory_name != HOST), HOST)
            return {"seconds": median(_repeat(run, min(seconds, 0.1))), "memory": memory, "is_ready": is_ready(loaded)}
        finally:
            loaded.close()

    def load_plan(
        self, key: str, device: str, config: Mapping[str, Any], pins: Mapping[str, str], seconds: float, overlaps: bool
    ) -> Answer:
        """Loads the network with pins and runs it until its devices have compiled what they will run.

        Where it `overlaps`, the time of a run is that of each of as many requests as the loaded network works on at once.
        """
        loaded = self._core.load_network(replace(self._network, affinity=dict(pins)), device, config)
        try:
            run = _prepare_run(loaded, self.values)
            warm_up(loaded, run, seconds)
            time = partial(_time_overlapping, Rounds(loaded, self.values)) if overlaps else partial(_time_alone, run)
        except BaseException:
            loaded.close()
            raise
        self._plans[key] = loaded, time
        plan = loaded.get_metric("HETERO_PLAN")
        return {"seconds": time(0.05), "is_ready": is_ready(loaded), "parts": len(plan.stages)}

    def time_plan(self, key: str, seconds: float) -> Answer:
        """Returns the median seconds of one run of a loaded plan; the first ones, in which threads wake up, do not count."""
        _, time = self._plans[key]
        time(_WAKE_SECONDS)
        return {"seconds": time(seconds)}

    def time_transfers(self, device: str, config: Mapping[str, Any], node: str) -> Answer:
        """Returns the memory of a device and the cost of a value on its way there and back: seconds, and seconds per byte."""
        loaded = self._core.load_network(cut_part(self._network, [node]), device, config)
        try:
            spec = next((spec for spec in (*loaded.inputs, *loaded.outputs) if spec.memory != HOST), None)
            if spec is None:
                return {"memory": HOST, "there": [0.0, 0.0], "back": [0.0, 0.0]}
            small, large = (_time_round_trip(loaded, spec, nbytes) for nbytes in _TRANSFER_BYTES)
            slopes = [max((b - a) / (_TRANSFER_BYTES[1] - _TRANSFER_BYTES[0]), 0.0) for a, b in zip(small, large, strict=True)]
            return {"memory": spec.memory, "there": [small[0], slopes[0]], "back": [small[1], slopes[1]]}
        finally:
            loaded.close()

    def close(self) -> Answer:
        """Closes the plans."""
        for loaded, _ in self._plans.values():
            loaded.close()
        self._plans.clear()
        return {}


_COMMANDS: Mapping[str, Callable[..., Answer]] = {
    name: getattr(Stopwatch, name)
    for name in ("configure", "sample", "time_part", "load_plan", "time_plan", "time_transfers", "close")
}


def _prepare_run(loaded: ExecutableNetwork, values: Mapping[str, Any]) -> Callable[[], object]:
    """Returns a call of the device's run with its inputs in its memory; it waits for a result in another memory than the host's."""
    inputs = tuple(
        values[spec.name] if spec.memory == HOST else loaded.from_host(values[spec.name], spec) for spec in loaded.inputs
    )
    context, outputs = loaded.open_context(loaded.create_state()), loaded.outputs
    run = loaded.run
    away = next((index for index, spec in enumerate(outputs) if spec.memory != HOST), None)
    if away is None:
        return lambda: run(inputs, context)
    return lambda: loaded.to_host(run(inputs, context)[away])


def _time_alone(run: Callable[[], object], seconds: float) -> float:
    """Returns the median time of runs one after the other."""
    return median(_repeat(run, seconds))


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


def _time_overlapping(rounds: Rounds, seconds: float) -> float:
    """Returns the time of one of the runs that overlap, from a stretch of about `seconds`."""
    alone = rounds.run(1)
    return rounds.run(min(max(int(seconds / max(alone, 1e-9)), _LEAST_RUNS), _MOST_RUNS))


def _repeat(run: Callable[[], object], seconds: float) -> list[float]:
    """Returns the times of runs that last for `seconds` in all; at least a few, and no more than tell what one takes."""
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
