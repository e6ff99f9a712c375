"""The stopwatch of placement: loads parts and whole splits of one network, and times them on the values of a real run.

An engine's threads spin for a while after a run. So each engine that is timed alone has a process to itself, a single process works
at a time, and a pause before each timing lets the threads of the others fall asleep. If a device exists only in this process, all
are timed here.

`python -m hetero_hetero.placement.stopwatch FOLDER` reads the network and the values from the folder, and answers each line of
standard input, a command in JSON, with a line of JSON on standard output. Engines print to standard error.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import numpy as np

from hetero_core import Core, ExecutableNetwork
from hetero_core.composing.runs import is_ready, warm_up
from hetero_core.devices.config import CACHE_KEYS, LIMIT_KEYS
from hetero_core.devices.names import parse_device_name
from hetero_core.errors import HeteroError
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, TensorType, ValueSpec
from hetero_core.network.writer import pack_network, unpack_network
from hetero_hetero.parts import cut_part, hold_constants

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
        """Returns the result of a command {"do": the name of a method, and its arguments}; {"error": text} if the device fails."""
        arguments = {key: value for key, value in command.items() if key != "do"}
        try:
            result: Answer = getattr(self, command["do"])(**arguments)
            return result
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
        """Returns the seconds of a run of a part on a device, called as HETERO calls a stage, and the memory of the part's values.

        For a memory apart from the host's also the cost of a value on its way there and back: seconds, and seconds per byte.
        """
        loaded = self._core.load_network(cut_part(self._network, nodes), device, config)
        try:
            run = _prepare_run(loaded, self.values)
            warm_up(loaded, run, seconds)
            answer: Answer = {"seconds": median(_repeat(run, min(seconds, 0.1))), "is_ready": is_ready(loaded), "memory": HOST}
            spec = next((spec for spec in (*loaded.outputs, *loaded.inputs) if spec.memory != HOST), None)
            if spec is not None:
                small, large = (_time_round_trip(loaded, spec, nbytes) for nbytes in _TRANSFER_BYTES)
                slopes = [max((b - a) / (_TRANSFER_BYTES[1] - _TRANSFER_BYTES[0]), 0.0) for a, b in zip(small, large, strict=True)]
                answer |= {"memory": spec.memory, "there": [small[0], slopes[0]], "back": [small[1], slopes[1]]}
            return answer
        finally:
            loaded.close()

    def load_plan(
        self, key: str, device: str, config: Mapping[str, Any], pins: Mapping[str, str], seconds: float, overlaps: bool
    ) -> Answer:
        """Loads the network with pins and runs it until its devices have compiled their kernels. If it `overlaps`, as many requests
        as the loaded network works on at once run together, and the time of a run is the time for each of them.
        """
        loaded = self._core.load_network(replace(self._network, affinity=dict(pins)), device, config)
        try:
            run = _prepare_run(loaded, self.values)
            warm_up(loaded, run, seconds)
            time = Rounds(loaded, self.values).time if overlaps else lambda seconds: median(_repeat(run, seconds))
        except BaseException:
            loaded.close()
            raise
        self._plans[key] = loaded, time
        plan = loaded.get_metric("HETERO_PLAN")
        return {"seconds": time(0.05), "is_ready": is_ready(loaded), "parts": len(plan.stages)}

    def time_plan(self, key: str, seconds: float) -> Answer:
        """Returns the median seconds of a run of a loaded plan; the first runs, in which threads wake up, do not count."""
        _, time = self._plans[key]
        time(_WAKE_SECONDS)
        return {"seconds": time(seconds)}

    def close(self) -> Answer:
        """Closes the plans."""
        for loaded, _ in self._plans.values():
            loaded.close()
        self._plans.clear()
        return {}


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


_MODEL, _INPUTS, _SAMPLE = "model", "inputs", "sample"
"""Folders of the network, of its inputs, and of the values between segments, which the first child that runs the whole writes."""


class StopwatchProcess:
    """A process with a stopwatch. `ask` has a time limit, after which the process is ended and every later answer is an error."""

    def __init__(self, folder: Path) -> None:
        flags = [] if "" in sys.path or str(Path.cwd()) in sys.path else ["-P"]
        # In a session of its own: Ctrl-C is for the parent, which then takes the best so far.
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-m", __name__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._answers: SimpleQueue[str] = SimpleQueue()
        self._reader = Thread(target=self._read, name="hetero-placement", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, command: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Returns the answer of the process, or {"error": text} if it ended or took longer than `timeout` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout)
        except (BrokenPipeError, ValueError):  # ended by itself, or by `close`
            line = ""
        except Empty:
            self.close()
            return {"error": f"no answer within {timeout:.0f} s"}
        if not line:
            return {"error": f"the measuring process ended with {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def _write_values(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes tensors to a folder, as constants of a network."""
    _write(folder, hold_constants(values))


def _read_values(folder: Path) -> dict[str, Any]:
    """Returns the tensors of a folder, in arrays of their own."""
    # Copies: an engine is told the address of a read-only array anew in each run.
    return {name: np.array(constant.array) for name, constant in _read(folder).initializers.items()}


def _write(folder: Path, network: Network) -> None:
    folder.mkdir()
    for name, section in pack_network(network).items():
        (folder / name).write_bytes(section)


def _read(folder: Path) -> Network:
    return unpack_network({path.name: _map(path) for path in folder.iterdir()})


def _map(path: Path) -> Any:
    if not path.stat().st_size:
        return b""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def main(folder: Path) -> None:
    """Answers commands until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with Core() as core:
        watch = Stopwatch(core, _read(folder / _MODEL), _read_values(folder / _INPUTS))
        has_sample = False
        for line in sys.stdin:
            command = json.loads(line)
            if not has_sample and command["do"] != "sample" and (folder / _SAMPLE).exists():
                watch.values |= _read_values(folder / _SAMPLE)
                has_sample = True
            answer = watch.answer(command)
            if command["do"] == "sample" and "error" not in answer:
                _write_values(folder / _SAMPLE, {name: watch.values[name] for name in command["names"]})
                has_sample = True
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        watch.close()


_OWN_DOMAINS = frozenset(("", "ai.onnx.ml", "com.microsoft"))
"""Operators of other domains are extensions, functions of this process."""
_QUIET_SECONDS = 0.02
_LEFT_OUT = frozenset(("DEVICE_ID", "PERF_COUNT", *CACHE_KEYS, *LIMIT_KEYS))


class StopwatchPool:
    """Answers commands of the stopwatch by key: one process for each key. A context manager."""

    def __init__(self, core: Core, network: Network, inputs: Mapping[str, Any], devices: Mapping[str, Mapping[str, Any]]) -> None:
        """`devices` maps the participating devices to their configuration in this Core."""
        self._devices = devices
        self._children: dict[str, StopwatchProcess] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._watch: Stopwatch | None = None
        if _can_measure_apart(core, network, devices):
            self._folder = tempfile.TemporaryDirectory(prefix="hetero-placement-")
            _write(Path(self._folder.name) / _MODEL, network)
            _write_values(Path(self._folder.name) / _INPUTS, inputs)
        else:
            self._watch = Stopwatch(core, network, inputs)

    def prepare(self, keys: Sequence[str], timeout: float) -> None:
        """Starts the processes of these keys together; returns when all of them have read the network, so that they do not disturb
        a timing."""
        if self._folder is None:
            return
        fresh = [key for key in dict.fromkeys(keys) if key not in self._children]
        for key in fresh:
            self._children[key] = StopwatchProcess(Path(self._folder.name))
        for key in fresh:
            # A process that fails says so to the first command, too.
            self._children[key].ask({"do": "configure", "configs": self._devices}, timeout)

    def ask(self, key: str, command: Mapping[str, Any], timeout: float) -> Answer:
        """Returns the answer to a command; the process of a new key is started."""
        if self._watch is not None:
            return self._watch.answer(command)
        self.prepare([key], timeout)
        sleep(_QUIET_SECONDS)
        return self._children[key].ask(command, timeout)

    def __enter__(self) -> StopwatchPool:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.close()
        if self._watch is not None:
            self._watch.close()
        if self._folder is not None:
            self._folder.cleanup()


def _can_measure_apart(core: Core, network: Network, devices: Mapping[str, object]) -> bool:
    """Says whether another process has the same devices and operators as this one: no device or extension was added at run time."""
    if any(node.domain not in _OWN_DOMAINS for node in network.nodes):
        return False
    with Core() as other:
        try:
            return all(other.get_versions(device) == core.get_versions(device) for device in devices)
        except HeteroError:
            return False


def list_settings(core: Core, device: str) -> dict[str, Any]:
    """Returns the values that this Core was given for a device, for a Core in another process."""
    keys = core.config_keys(device)
    resolved = core.resolve_config(str(parse_device_name(device)))
    return {
        name: value
        for name, value in resolved.items()
        if name not in _LEFT_OUT and value is not None and value != keys[name].default and not keys[name].is_arguments
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
