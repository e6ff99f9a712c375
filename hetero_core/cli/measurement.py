"""The child process of `hetero bench`: it loads a network on a device, and times or traces it. Prints of engines go to standard error."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import UsageError
from hetero_core.errors import HeteroError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from hetero_core.core import Core
    from hetero_core.network.types import ValueSpec
    from hetero_core.profile import Profile
    from hetero_core.runtime.executable import ExecutableNetwork
    from hetero_core.runtime.queue import AsyncInferQueue


ONLY_INPUT = "<the only input>"
"""The name of an input in a task, if the call gives none."""


class ProcessError(Exception):
    """A process ended and said nothing."""


def measure_apart(task: BenchTask) -> dict[str, Any] | Exception:
    """Returns what `measure` returns in a new process, its error, or a ProcessError that tells how the process ended."""
    context = multiprocessing.get_context("spawn")
    link, other = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(other, task))
    process.start()
    other.close()
    try:
        answer: dict[str, Any] | Exception = link.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        ending = f"with exit code {code}" if code >= 0 else f"by signal {-code} ({signal.Signals(-code).name})"
        return ProcessError(f"the process that ran {task.device} ended {ending} and said nothing")
    finally:
        process.kill()
        process.join()
    return answer


def _serve(link: Connection[Any, Any], task: BenchTask) -> None:
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        answer: Any = measure(task)
    except HeteroError as error:
        answer = error
    link.send(answer)


_TRACED_RUNS = 5
"""The number of traced runs; a longer queue traces two runs for each of its requests."""


@dataclass(frozen=True, slots=True)
class BenchTask:
    """The measurement to make.

    `shapes` are those of random inputs; the model is run for `model_shapes`, as in --shape, and for `batch`.

    `requests` is None for a single request that runs repeatedly; else the length of a queue, 0 for the network's own choice. Timed for
    `seconds` or `iterations`. With `keeps_outputs` the answer has the outputs of the first run. With `first_process` nothing is timed:
    the runs are traced.
    """

    model: str
    device: str
    config: Mapping[str, str]
    pins: Mapping[str, str]
    inputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    seed: int
    warmup: int
    requests: int | None
    seconds: float | None
    iterations: int | None
    batch: int | None = None
    model_shapes: tuple[str, ...] = ()
    keeps_outputs: bool = False
    first_process: int | None = None


def measure(task: BenchTask) -> dict[str, Any]:
    """Returns the fields of one measurement, times in seconds. Raises: the errors of loading and running."""
    from hetero_core.core import Core  # reads the installed distributions

    with Core() as core:
        executable, inputs, times = _load(core, task)
        fields: dict[str, Any] = {"network": executable.name, "device": str(executable.device)}
        if task.first_process is not None:
            return {**fields, "events": _trace(executable, inputs, task)}
        request = executable.create_infer_request()
        began = perf_counter()
        outputs = request.infer(inputs)
        times["first_seconds"] = perf_counter() - began
        kept = {"outputs": deepcopy(outputs)} if task.keeps_outputs else {}
        timed = _time_one_request(executable, inputs, task) if task.requests is None else _time_queue(executable, inputs, task)
    return {**fields, **times, **timed, **kept, "peak_bytes": find_peak_memory()}


def _load(core: Core, task: BenchTask) -> tuple[ExecutableNetwork, dict[str, Any], dict[str, Any]]:
    """Returns the loaded network, its inputs, and how long reading and loading took."""
    from hetero_core.blobs.container import is_blob
    from hetero_core.cli.inputs import collect_inputs
    from hetero_core.cli.options import pin_network, reshape
    from hetero_core.runtime.loading import list_replaceable

    settings = dict(task.config)
    if task.first_process is not None:
        settings = {name: value for name, value in settings.items() if name.strip().upper() != "PERF_COUNT"} | {"PERF_COUNT": "YES"}

    def collect(inputs: Sequence[ValueSpec], *, network: str, replaceable: Sequence[ValueSpec]) -> dict[str, Any]:
        only = inputs[0].name if len(inputs) == 1 else ONLY_INPUT
        shapes = {only if name == ONLY_INPUT else name: shape for name, shape in task.shapes.items()}
        return collect_inputs(task.inputs, inputs, network=network, shapes=shapes, seed=task.seed, replaceable=replaceable)

    if is_blob(task.model):
        if task.batch is not None or task.model_shapes:
            raise UsageError(f"-b and -shape need the ONNX model; '{task.model}' is an exported network with shapes of its own")
        if task.pins:
            raise UsageError(f"--pin needs the ONNX model; '{task.model}' is an exported network, whose devices are chosen already")
        began = perf_counter()
        executable = core.import_network(task.model, task.device, settings)
        times = {"read_seconds": 0.0, "load_seconds": perf_counter() - began}
        return executable, collect(executable.inputs, network=executable.name, replaceable=executable.replaceable), times
    core.resolve_config(task.device, settings)  # a wrong name is reported before the inputs
    began = perf_counter()
    network = core.read_network(task.model)
    only = network.inputs[0].name if len(network.inputs) == 1 else ONLY_INPUT
    network = reshape(network, [text.replace(f"{ONLY_INPUT}=", f"{only}=") for text in task.model_shapes])
    network = network if task.batch is None else network.with_batch(task.batch)
    read_seconds = perf_counter() - began
    inputs = collect(network.inputs, network=network.name, replaceable=list_replaceable(network))
    pinned = pin_network(core, network, task.device, task.pins)
    began = perf_counter()
    executable = core.load_network(pinned, task.device, settings)
    return executable, inputs, {"read_seconds": read_seconds, "load_seconds": perf_counter() - began}


def _time_one_request(executable: ExecutableNetwork, inputs: Mapping[str, Any], task: BenchTask) -> dict[str, Any]:
    request = executable.create_infer_request()
    for _ in range(task.warmup):
        request.infer(inputs)
    latencies: list[float] = []
    began = before = perf_counter()
    while not _is_enough(task, len(latencies), before - began):
        request.infer(inputs)
        after = perf_counter()
        latencies.append(after - before)
        before = after
    return {"requests": 1, "latencies": latencies, "seconds": before - began}


def _is_enough(task: BenchTask, runs: int, seconds: float) -> bool:
    """Says whether a round may end: after at least one run."""
    if task.iterations is not None:
        return runs >= task.iterations
    return runs > 0 and task.seconds is not None and seconds >= task.seconds


@contextlib.contextmanager
def _open_queue(executable: ExecutableNetwork, inputs: Mapping[str, Any], task: BenchTask) -> Iterator[AsyncInferQueue]:
    """Yields a queue of warm requests."""
    from hetero_core.runtime.queue import AsyncInferQueue

    with AsyncInferQueue(executable, task.requests or 0) as queue:
        for _ in range(task.warmup * len(queue)):
            queue.start_async(inputs)
        queue.wait_all()
        yield queue


def _time_queue(executable: ExecutableNetwork, inputs: Mapping[str, Any], task: BenchTask) -> dict[str, Any]:
    """A latency is from the start of a run until its callback."""
    latencies: list[float] = []
    with _open_queue(executable, inputs, task) as queue:
        queue.set_callback(lambda _, started: latencies.append(perf_counter() - started))
        began, runs = perf_counter(), 0
        while True:
            queue.get_idle_request_id()
            started = perf_counter()
            if _is_enough(task, runs, started - began):
                break
            queue.start_async(inputs, userdata=started)
            runs += 1
        queue.wait_all()
        seconds = perf_counter() - began
        return {"requests": len(queue), "latencies": latencies, "seconds": seconds}


def _trace(executable: ExecutableNetwork, inputs: Mapping[str, Any], task: BenchTask) -> list[dict[str, Any]]:
    """Returns the trace events of a few warm runs, of a queue of one request if the task has no queue."""
    from hetero_core.reports.trace import list_events

    profiles: list[Profile | None] = []
    with _open_queue(executable, inputs, task if task.requests is not None else replace(task, requests=1)) as queue:
        queue.set_callback(lambda request, _: profiles.append(request.profile))
        for _ in range(max(_TRACED_RUNS, 2 * len(queue))):
            queue.start_async(inputs)
    ended = sorted((profile for profile in profiles if profile is not None), key=lambda profile: profile.requested)
    return list_events(ended, title=f"{executable.device}: ", first_process=task.first_process or 1)


def wait_for_kernels(executable: ExecutableNetwork, inputs: Mapping[str, Any], *, most_seconds: float) -> None:
    """Runs a network until the device has compiled its machine code for it, or for so many seconds."""
    ends = perf_counter() + most_seconds
    while is_compiling(executable) and perf_counter() < ends:
        executable.infer(inputs)


def is_compiling(executable: ExecutableNetwork) -> bool:
    """Says whether the device still compiles machine code for the network: a metric `..._KERNELS_READY` is False."""
    names = [name for name in executable.get_metric("SUPPORTED_METRICS") if name.endswith("_KERNELS_READY")]
    return not all(executable.get_metric(name) for name in names)


def find_peak_memory() -> int | None:
    """Returns the largest number of resident bytes of this process so far; None if the system does not say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    peaks = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None
