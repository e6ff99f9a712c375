"""The child process of `hetero bench`: it loads one device, times or traces it, and writes the result to a file.

`python -m hetero_core.cli.measurement FOLDER` reads FOLDER/task.json and writes FOLDER/answer.json. What engines print goes to
standard error. Imports nothing heavy before the task is read.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import BUG, INTERRUPTED, UsageError, error_to_json, exit_code_of_error, to_json
from hetero_core.errors import ConfigKeyError, HeteroError

if TYPE_CHECKING:
    from hetero_core.core import Core
    from hetero_core.profile import Profile
    from hetero_core.runtime.executable import ExecutableNetwork

_TRACED_RUNS = 5
"""The runs that are traced with one request; with a queue, two for each of its requests if that is more."""


@dataclass(frozen=True, slots=True)
class BenchTask:
    """The measurement to make, in values that JSON can hold.

    `is_shared`: other devices get the same `config` and `pins`, so what this one has no use for is left out and told. `requests` is None
    for one request that is run again and again; else a queue has as many, 0 as many as the network likes. Timed for `seconds` or
    `iterations`, whichever is given. `outputs` is the file for the outputs of the first run. With `first_process` nothing is timed:
    the runs are traced.
    """

    model: str
    device: str
    config: Mapping[str, str]
    pins: Mapping[str, str]
    is_shared: bool
    inputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    seed: int
    warmup: int
    requests: int | None
    seconds: float | None
    iterations: int | None
    outputs: str | None = None
    first_process: int | None = None


def main(folder: Path) -> int:
    """Returns the exit code; the answer, or the error, is in the folder."""
    task = BenchTask(**json.loads((folder / "task.json").read_text(encoding="utf-8")))
    try:
        answer, code = measure(task), 0
    except HeteroError as error:
        code = exit_code_of_error(error)
        answer = error_to_json(error, code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # a bug, ours or a plugin's: its traceback is shown, and the device has failed
        traceback.print_exc()
        answer, code = error_to_json(error, BUG), BUG
    partial = folder / "answer.partial"
    partial.write_text(json.dumps(to_json(answer)), encoding="utf-8")
    partial.replace(folder / "answer.json")
    return code


def measure(task: BenchTask) -> dict[str, Any]:
    """Returns the fields of one measurement, times in seconds. Raises: what loading and running raise."""
    from hetero_core.core import Core  # reads the installed distributions

    with Core() as core:
        config, left_out = _choose_config(core, task)
        executable, inputs, times = _load(core, task, config)
        fields: dict[str, Any] = {
            "network": executable.name,
            "device": str(executable.device),
            "config": config,
            "left_out": left_out,
        }
        fields["ignores_pins"] = ignores_pins(core, task)
        fields["config_keys"] = sorted(core.config_keys(task.device))
        if task.first_process is not None:
            return {**fields, "events": _trace(executable, inputs, task)}
        request = executable.create_infer_request()
        began = perf_counter()
        outputs = request.infer(inputs)
        times["first_seconds"] = perf_counter() - began
        dtypes = {} if task.outputs is None else _keep_outputs(outputs, task.outputs)
        timed = _time_one_request(executable, inputs, task) if task.requests is None else _time_queue(executable, inputs, task)
    return {**fields, **times, **timed, "dtypes": dtypes, "peak_bytes": find_peak_memory()}


def _choose_config(core: Core, task: BenchTask) -> tuple[dict[str, str], list[str]]:
    """Returns the keys for the device, and those that it does not have and others may."""
    from hetero_core.devices.config import resolve_key

    config, left_out = dict(task.config), []
    for name in task.config if task.is_shared else ():
        try:
            resolve_key(name, core.config_keys(task.device), device=task.device)
        except ConfigKeyError:
            del config[name]
            left_out.append(name)
    return config, left_out


def _load(core: Core, task: BenchTask, config: Mapping[str, str]) -> tuple[ExecutableNetwork, dict[str, Any], dict[str, Any]]:
    """Returns the loaded network, its inputs, and how long reading and loading took."""
    from hetero_core.cli.inputs import collect_inputs
    from hetero_core.cli.options import is_blob, pin_network
    from hetero_core.runtime.loading import list_replaceable

    settings = dict(config)
    if task.first_process is not None:
        settings = {name: value for name, value in config.items() if name.strip().upper() != "PERF_COUNT"} | {"PERF_COUNT": "YES"}
    collect = partial(
        collect_inputs, task.inputs, shapes={name: tuple(shape) for name, shape in task.shapes.items()}, seed=task.seed
    )
    if is_blob(task.model):
        if task.pins:
            raise UsageError(f"--pin needs the ONNX model; '{task.model}' is an exported network, whose devices are chosen already")
        began = perf_counter()
        executable = core.import_network(task.model, task.device, settings)
        times = {"read_seconds": 0.0, "load_seconds": perf_counter() - began}
        return executable, collect(executable.inputs, network=executable.name, replaceable=executable.replaceable), times
    core.resolve_config(task.device, settings)  # a wrong name is said before what is wrong with the inputs
    began = perf_counter()
    network = core.read_network(task.model)
    read_seconds = perf_counter() - began
    inputs = collect(network.inputs, network=network.name, replaceable=list_replaceable(network))
    pinned = network if ignores_pins(core, task) else pin_network(core, network, task.device, task.pins)
    began = perf_counter()
    executable = core.load_network(pinned, task.device, settings)
    return executable, inputs, {"read_seconds": read_seconds, "load_seconds": perf_counter() - began}


def ignores_pins(core: Core, task: BenchTask) -> bool:
    """Says whether there are pins and the device is one of several that splits no networks, so that they are for others."""
    from hetero_core.cli.options import is_splitting

    return bool(task.pins) and task.is_shared and not is_splitting(core, task.device)


def _keep_outputs(outputs: Mapping[str, Any], path: str) -> dict[str, str]:
    """Writes the outputs for the comparison of devices; returns their element types, which the file forgets in part."""
    import numpy as np

    from hetero_core.cli.outputs import iterate_tensors, save_outputs
    from hetero_core.dtypes import dtype_of_numpy

    save_outputs(outputs, path)
    return {name: str(dtype_of_numpy(np.asarray(value).dtype)) for name, value in iterate_tensors(outputs) if value is not None}


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
    """Says whether a round may end; it has at least one run, however long that takes."""
    if task.iterations is not None:
        return runs >= task.iterations
    return runs > 0 and task.seconds is not None and seconds >= task.seconds


def _time_queue(executable: ExecutableNetwork, inputs: Mapping[str, Any], task: BenchTask) -> dict[str, Any]:
    """A latency is from the start of a run until its callback."""
    from hetero_core.runtime.queue import AsyncInferQueue

    latencies: list[float] = []
    with AsyncInferQueue(executable, task.requests or 0) as queue:
        for _ in range(task.warmup * len(queue)):
            queue.start_async(inputs)
        queue.wait_all()
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
    """Returns the trace events of a few runs after those that warm up."""
    from hetero_core.reports.trace import list_events
    from hetero_core.runtime.queue import AsyncInferQueue

    profiles: list[Profile | None] = []
    if task.requests is None:
        request = executable.create_infer_request()
        for index in range(task.warmup + _TRACED_RUNS):
            request.infer(inputs)
            if index >= task.warmup:
                profiles.append(request.profile)
    else:
        with AsyncInferQueue(executable, task.requests) as queue:
            for _ in range(task.warmup * len(queue)):
                queue.start_async(inputs)
            queue.wait_all()
            queue.set_callback(lambda request, _: profiles.append(request.profile))
            for _ in range(max(_TRACED_RUNS, 2 * len(queue))):
                queue.start_async(inputs)
    ended = sorted((profile for profile in profiles if profile is not None), key=lambda profile: profile.requested)
    return list_events(ended, title=f"{executable.device}: ", first_process=task.first_process or 1)


def find_peak_memory() -> int | None:
    """Returns the most bytes of memory that this process has had resident; None where the system does not tell.

    Linux counts what a process had before it became this program, too, in what `getrusage` says: the size of whoever started it.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _ask_for_usage()
    peaks = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None


def _ask_for_usage() -> int | None:
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    os.dup2(2, 1)
    sys.exit(main(Path(sys.argv[1])))
