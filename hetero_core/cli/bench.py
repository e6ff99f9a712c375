"""`hetero bench`: times a model on several devices, each in its own process, and compares their outputs."""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hetero_core.cli import options as shared
from hetero_core.cli.answer import (
    BUG,
    INTERRUPTED,
    OK,
    Announcer,
    Answer,
    UsageError,
    error_to_json,
    exit_code_of_error,
    follow,
    format_number,
    format_seconds,
    format_table,
)
from hetero_core.core import Core
from hetero_core.devices.processors import count_affinity
from hetero_core.devices.switches import read_switches
from hetero_core.devices.threads import HINT_KEY, STREAMS_KEY, THREADS_KEY
from hetero_core.errors import HeteroError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from hetero_core.profile import Profile
    from hetero_core.runtime.executable import ExecutableNetwork
    from hetero_core.runtime.queue import AsyncInferQueue

_KEYS = {"-hint": HINT_KEY, "-nstreams": STREAMS_KEY, "-nthreads": THREADS_KEY, "-infer_precision": "INFERENCE_PRECISION_HINT"}
_HINTS = {"NONE": "UNDEFINED", "TPUT": "THROUGHPUT"}
_SECONDS = 1.0


def add_options(parser: shared.Parser) -> None:
    """Adds the options of the command; several have the name of OpenVINO's benchmark_app as a second name."""
    parser.add_argument("model", metavar="MODEL_OR_BLOB", help="an .onnx file, what 'hetero compile' wrote, or a name as resnet50")
    text = "for example CPU, GPU.1 or HETERO:GPU,CPU; may be repeated, outputs are compared with the first device's"
    parser.add_argument("-d", "--device", required=not read_switches().device, action="append", metavar="DEVICE", help=text)
    shared.add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a key of those devices that have it; may be repeated")
    shared.add_pin_options(parser)
    count, timing = shared.whole_number(1), parser.add_argument_group("timing")
    length = timing.add_mutually_exclusive_group()
    text = f"how long each device is timed in each round ({_SECONDS:g})"
    length.add_argument("--seconds", "-t", type=shared.read_seconds, metavar="S", help=text)
    length.add_argument("--iterations", "-niter", type=count, metavar="N", help="how often each device runs in each round")
    timing.add_argument("--rounds", type=count, default=3, metavar="N", help="how often the devices take turns (3)")
    timing.add_argument("--warmup", type=shared.whole_number(0), default=5, metavar="N", help="untimed runs of each request (5)")
    text = "one request that runs again and again, or a queue of requests (sync)"
    timing.add_argument("--api", "-api", choices=("sync", "async"), help=text)
    text = "the number of requests in the queue, for --api async (what the device recommends)"
    timing.add_argument("--requests", "-nireq", type=count, metavar="N", help=text)
    text = "write a trace of a few more runs with PERF_COUNT, which are not timed, for ui.perfetto.dev"
    timing.add_argument("--trace", metavar="FILE", help=text)
    shared.add_input_options(parser)
    names = parser.add_argument_group("by the names of OpenVINO's benchmark_app")
    for name, key in _KEYS.items():
        read = partial(lambda key, text: f"{key}={_HINTS.get(text.upper(), text)}", key)
        names.add_argument(name, dest="config", action="append", type=read, metavar="VALUE", help=f"-c {key}=VALUE")
    names.add_argument("-b", dest="batch", type=count, metavar="N", help="run the model for this batch size")
    reshaped: dict[str, Any] = {"type": read_bracketed_shapes, "action": "append", "metavar": "NAME[SIZE,...],..."}
    names.add_argument("-shape", dest="model_shape", default=[], help="run the model for these shapes of its inputs", **reshaped)
    names.add_argument("-data_shape", dest="shape", help="--shape", **reshaped)


def read_bracketed_shapes(text: str) -> str:
    """Returns shapes in benchmark_app's form, "x[1,3],y[2]", as a --shape option, "x=1,3,y=2"; the only input needs no name.

    Raises: ArgumentTypeError for another form, also for open sizes.
    """
    if not re.fullmatch(r"[^\[\],]*\[[\d, ]*\](,[^\[\],]+\[[\d, ]*\])*", text):
        raise argparse.ArgumentTypeError(f"expected sizes in brackets, as in x[1,3,224,224] or [1,3,224,224]; got {text}")
    return ",".join(f"{name or shared.ONLY_INPUT}={sizes}" for name, sizes in re.findall(r"([^\[\],]*)\[([^\]]*)\]", text))


def answer(options: argparse.Namespace) -> Answer:
    """Returns a row for each device, and the worst exit code. Raises: UsageError; the error that all devices have in common."""
    from hetero_core.reports.trace import format_events

    options.device = options.device or [read_switches().device]
    target = None if options.trace is None else shared.find_target(options.trace)
    if options.requests is not None and options.api == "sync":
        raise UsageError("--requests has a meaning only with --api async; leave one of them out")
    options.api = "async" if options.requests is not None else options.api or "sync"
    options.seconds = _SECONDS if options.seconds is None and options.iterations is None else options.seconds
    config, pins, step = shared.read_config(options), shared.read_pins(options), follow(options)
    devices = [MeasuredDevice(BenchTask(options, *share)) for share in _share_options(options.device, config, pins)]
    events, is_interrupted = None, False
    try:
        measure_rounds(devices, options.rounds, step)
        events = None if target is None else trace_runs(devices, step)
    except KeyboardInterrupt:
        is_interrupted = True
    rows = [summarize(device, devices, config, pins) for device in devices]
    errors = [device.error for device in devices if isinstance(device.error, HeteroError)]
    if len(errors) == len(rows) and len({(type(error), str(error)) for error in errors}) == 1:
        raise errors[0]  # a mistake in the call
    if is_interrupted and not any(row["runs"] for row in rows):
        raise KeyboardInterrupt
    name, cleared = next((device.rounds[0]["network"] for device in devices if device.rounds), None), list_kernel_variables()
    fields: dict[str, Any] = {"model": options.model, "network": name, "api": options.api, "warmup": options.warmup}
    fields |= {"processors": count_affinity(), "interrupted": is_interrupted, "cleared_environment": cleared, "devices": rows}
    text = f"{_describe(options, fields)}\n\n{format_rows(rows)}"
    if target is not None and events is not None:
        shared.write_target(target, format_events(events).encode())
        fields["trace"] = str(target)
        text += f"\n\nwrote '{target}': a trace of a few more runs of each device with PERF_COUNT, which are not in the times above"
    remarks = [f"not passed on, since they choose other kernels than this machine's: {', '.join(cleared)}"] if cleared else []
    for row in rows:
        remarks += [f"{row['device']} has no configuration key {name} and ran without" for name in row.get("left_out", ())]
    remarks += [f"{row['device']} splits no networks and ran without pins" for row in rows if row.get("ignores_pins")]
    remarks += ["interrupted; the table has what was measured until then"] if is_interrupted else []
    code = max((row["error"]["exit_code"] for row in rows if row["error"] is not None), default=OK)
    return Answer(text, fields, INTERRUPTED if is_interrupted else code, tuple(remarks))


def _share_options(
    devices: Sequence[str], config: Mapping[str, str], pins: Mapping[str, str]
) -> list[tuple[str, Mapping[str, str], Mapping[str, str]]]:
    """Returns each device with its keys and pins; a single device gets all of them, and its load refuses the unknown.

    Raises: UsageError for a key that no device has, and for pins without a device that splits networks.
    """
    if len(devices) == 1 or not (config or pins):
        return [(device, config, pins) for device in devices]
    with Core() as core:
        configs = shared.share_config(core, devices, config)
        splitters = [device for device in devices if pins and shared.find_list_key(core, device)]
    if pins and not splitters:
        names = ", ".join(devices)
        raise UsageError(f"--pin and --affinity need a device that splits networks, as HETERO:GPU,CPU does; none of {names} does")
    return [(device, own, pins if device in splitters else {}) for device, own in zip(devices, configs, strict=True)]


def _describe(options: argparse.Namespace, fields: Mapping[str, Any]) -> str:
    length = f"{options.seconds:g} s" if options.iterations is None else f"{options.iterations} runs"
    queues = ", ".join(f"{row['requests']} on {row['device']}" for row in fields["devices"] if row["runs"])
    how = "one request after another" if fields["api"] == "sync" else f"queues of requests: {queues}"
    return f"network '{fields['network']}': {options.rounds} round{'s' if options.rounds > 1 else ''} of {length} for each device, {how}"


_TRACE_PROCESSES = 1000
"""Number of processes in a trace that each device may have."""


@dataclass(eq=False)
class MeasuredDevice:
    """A device with the answers of its rounds, the outputs in the first of them. A device that has failed is not asked again."""

    task: BenchTask
    rounds: list[dict[str, Any]] = field(default_factory=list)
    error: Exception | None = None

    def ask(self, step: contextlib.AbstractContextManager[Any], **changes: Any) -> list[dict[str, Any]]:
        """Returns the answer of a process as a list, which is empty if the device has failed, now or before."""
        if self.error is not None:
            return []
        with step:
            answer = measure_apart(replace(self.task, **changes))
        if isinstance(answer, Exception):
            self.error = answer
            return []
        return [answer]


def measure_rounds(devices: Sequence[MeasuredDevice], count: int, step: Announcer) -> None:
    """Measures every device once in each round, in order and back in turns, against a drift of the machine's speed."""
    for index in range(count):
        for each in devices[:: 1 if index % 2 == 0 else -1]:
            title = f"round {index + 1} of {count}: timing {each.task.device}"
            each.rounds += each.ask(step(title), keeps_outputs=index == 0)


def trace_runs(devices: Sequence[MeasuredDevice], step: Announcer) -> list[dict[str, Any]]:
    """Returns the trace events of a few more runs of each device that has not failed."""
    events = []
    for position, each in enumerate(devices):
        for answer in each.ask(step(f"tracing {each.task.device}"), first_process=1 + position * _TRACE_PROCESSES):
            events += answer["events"]
    return events


_HEADER = ("DEVICE", "LOAD", "FIRST", "MEDIAN", "P90", "PER SECOND", "PEAK MEMORY")


def summarize(
    device: MeasuredDevice, devices: Sequence[MeasuredDevice], config: Mapping[str, str], pins: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the row of a device, with an `error` if it failed and with times if it was measured; `config`, `pins` of the call."""
    task, rounds, error = device.task, device.rounds, device.error
    code = exit_code_of_error(error) if isinstance(error, HeteroError) else BUG
    row: dict[str, Any] = {"device": task.device, "error": error and error_to_json(error, code)["error"], "runs": 0}
    if not rounds:
        return row
    latencies = sorted(latency for timing in rounds for latency in timing["latencies"])
    seconds = sum(timing["seconds"] for timing in rounds)
    peaks = [timing["peak_bytes"] for timing in rounds if timing["peak_bytes"] is not None]
    columns = ("read_seconds", "load_seconds", "first_seconds")
    return {
        **row,
        "config": task.config,
        "left_out": [name for name in config if name not in task.config],
        "ignores_pins": bool(pins) and not task.pins,
        "requests": rounds[0]["requests"],
        "runs": len(latencies),
        "seconds": seconds,
        **{name: median(timing[name] for timing in rounds) for name in columns},
        "min_seconds": latencies[0],
        "median_seconds": median(latencies),
        # The smallest latency that is not below so many percent of them.
        **{f"p{percent}_seconds": latencies[math.ceil(len(latencies) * percent / 100) - 1] for percent in (90, 99)},
        "max_seconds": latencies[-1],
        "per_second": len(latencies) / seconds,
        "peak_bytes": max(peaks) if peaks else None,
        "difference": _compare(device, devices),
        "rounds": [
            {
                "runs": len(timing["latencies"]),
                "median_seconds": median(timing["latencies"]),
                "per_second": len(timing["latencies"]) / timing["seconds"],
                **{name: timing[name] for name in (*columns, "peak_bytes")},
            }
            for timing in rounds
        ],
    }


def _compare(device: MeasuredDevice, devices: Sequence[MeasuredDevice]) -> dict[str, Any] | None:
    """Returns the differences from the first device with outputs; None for that device."""
    from hetero_core.cli.outputs import compare_outputs

    first = next(each for each in devices if each.rounds)
    if device is first:
        return None
    rows = compare_outputs(device.rounds[0]["outputs"], first.rounds[0]["outputs"], rtol=None, atol=0.0)
    fields: dict[str, Any] = {"position": devices.index(first)}
    for name in ("max_absolute_difference", "max_relative_difference"):
        known = [row[name] for row in rows if row[name] is not None]
        # NaN is the largest of all, and `max` would lose it.
        fields[name] = next((number for number in known if math.isnan(number)), max(known, default=None))
    return {**fields, "mismatches": [row["mismatch"] for row in rows if row["mismatch"] is not None]}


def format_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table, and below it the outputs that differ by more than their element type explains."""
    compares = any(row.get("difference") is not None for row in rows)
    fails = any(row["error"] is not None for row in rows)
    header = [*_HEADER, *(["LARGEST DIFFERENCE"] if compares else []), *(["ERROR"] if fails else [])]
    table = []
    for row in rows:
        difference = [format_number((row.get("difference") or {}).get("max_absolute_difference"))] if compares else []
        reason = ["" if row["error"] is None else " ".join(str(row["error"]["message"]).split())] if fails else []
        table.append([row["device"], *_format_cells(row), *difference, *reason])
    lines = [format_table(header, table)]
    for row in rows:
        comparison = row.get("difference") or {"mismatches": []}
        if comparison["mismatches"]:
            first = rows[comparison["position"]]["device"]
            lines.append(f"{row['device']} differs from {first} by more than its element types explain:")
            lines += [f"  {mismatch}" for mismatch in comparison["mismatches"]]
    return "\n".join(lines)


def _format_cells(row: Mapping[str, Any]) -> list[str]:
    if not row["runs"]:
        return ["-"] * (len(_HEADER) - 1)
    times = [format_seconds(row[name]) for name in ("first_seconds", "median_seconds", "p90_seconds")]
    speed, peak = row["per_second"], row["peak_bytes"]
    frequency = f"{speed:.4g}" if speed < 1000 else f"{speed:.0f}"
    return [f"{row['load_seconds']:.3f} s", *times, frequency, "-" if peak is None else f"{peak / 2**20:.0f} MiB"]


# The process of a device


# These variables choose kernels of NumPy's libraries and of the engines. Set in a shell, they measure another machine.
_KERNEL_VARIABLES = """
ATEN_CPU_CAPABILITY BLIS_ARCH_TYPE DNNL_MAX_CPU_ISA NPY_DISABLE_CPU_FEATURES NPY_ENABLE_CPU_FEATURES ONEDNN_MAX_CPU_ISA
OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
"""
# How many threads to use is the caller's choice, as everywhere.
_THREAD_VARIABLES = ("MKL_DOMAIN_NUM_THREADS", "MKL_DYNAMIC", "MKL_NUM_THREADS")


def list_kernel_variables() -> list[str]:
    """Returns the names of the environment's variables that choose kernels."""
    names = _KERNEL_VARIABLES.split()
    return sorted(name for name in os.environ if name in names or (name.startswith("MKL_") and name not in _THREAD_VARIABLES))


class ProcessError(Exception):
    """A process ended and said nothing."""


def measure_apart(task: BenchTask) -> dict[str, Any] | Exception:
    """Returns what `measure` returns in a new process, its error, or a ProcessError that tells how the process ended."""
    context = multiprocessing.get_context("spawn")
    link, other = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(other, task))
    # A started process has a copy of the environment.
    removed = {name: os.environ.pop(name) for name in list_kernel_variables()}
    try:
        process.start()
    finally:
        os.environ.update(removed)
    other.close()
    try:
        answer: dict[str, Any] | Exception = link.recv()
        return answer
    except EOFError:
        process.join()
        code = process.exitcode or 0
        ending = f"with exit code {code}" if code >= 0 else f"by signal {-code} ({signal.Signals(-code).name})"
        return ProcessError(f"the process that ran {task.device} ended {ending} and said nothing")
    finally:
        process.kill()
        process.join()


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
    """The measurement of a device by the options of the command, with its own keys and pins.

    With `keeps_outputs` the answer has the outputs of the first run. With `first_process` nothing is timed: the runs are traced.
    """

    options: argparse.Namespace
    device: str
    config: Mapping[str, str]
    pins: Mapping[str, str]
    keeps_outputs: bool = False
    first_process: int | None = None


def measure(task: BenchTask) -> dict[str, Any]:
    """Returns the fields of one measurement, times in seconds. Raises: the errors of loading and running."""
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
        time = _time_one_request if task.options.api == "sync" else _time_queue
        timed = time(executable, inputs, task.options)
    return {**fields, **times, **timed, **kept, "peak_bytes": find_peak_memory()}


def _load(core: Core, task: BenchTask) -> tuple[ExecutableNetwork, dict[str, Any], dict[str, Any]]:
    """Returns the loaded network, its inputs, and how long reading and loading took."""
    from hetero_core.blobs.container import is_blob
    from hetero_core.cli.inputs import collect_inputs
    from hetero_core.runtime.loading import list_replaceable

    settings, options = dict(task.config), task.options
    if task.first_process is not None:
        settings = {**{name: value for name, value in settings.items() if name.upper() != "PERF_COUNT"}, "PERF_COUNT": "YES"}

    if is_blob(options.model):
        if options.batch is not None or options.model_shape or task.pins:
            names = "--pin needs" if task.pins else "-b and -shape need"
            raise UsageError(f"{names} the ONNX model; '{options.model}' is an exported network with shapes and devices of its own")
        began = perf_counter()
        executable = core.import_network(options.model, task.device, settings)
        times = {"read_seconds": 0.0, "load_seconds": perf_counter() - began}
        inputs = collect_inputs(options, executable.inputs, network=executable.name, replaceable=executable.replaceable)
        return executable, inputs, times
    core.resolve_config(task.device, settings)  # a wrong name is reported before the inputs
    began = perf_counter()
    network = shared.read_model(core, options.model)
    network = shared.reshape(network, options.model_shape)
    network = network if options.batch is None else network.with_batch(options.batch)
    read_seconds = perf_counter() - began
    inputs = collect_inputs(options, network.inputs, network=network.name, replaceable=list_replaceable(network))
    pinned = shared.pin_network(core, network, task.device, task.pins)
    began = perf_counter()
    executable = core.load_network(pinned, task.device, settings)
    return executable, inputs, {"read_seconds": read_seconds, "load_seconds": perf_counter() - began}


def _time_one_request(executable: ExecutableNetwork, inputs: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    request = executable.create_infer_request()
    for _ in range(options.warmup):
        request.infer(inputs)
    moments = [perf_counter()]
    while not _is_enough(options, len(moments) - 1, moments[-1] - moments[0]):
        request.infer(inputs)
        moments.append(perf_counter())
    latencies = [after - before for before, after in pairwise(moments)]
    return {"requests": 1, "latencies": latencies, "seconds": moments[-1] - moments[0]}


def _is_enough(options: argparse.Namespace, runs: int, seconds: float) -> bool:
    """Says whether a round may end: after at least one run."""
    return bool(runs >= options.iterations if options.iterations is not None else runs and seconds >= options.seconds)


@contextlib.contextmanager
def _open_queue(executable: ExecutableNetwork, inputs: Mapping[str, Any], options: argparse.Namespace) -> Iterator[AsyncInferQueue]:
    """Yields a queue of warm requests; of one request if the command asks for no queue."""
    from hetero_core.runtime.queue import AsyncInferQueue

    with AsyncInferQueue(executable, 1 if options.api == "sync" else options.requests or 0) as queue:
        for _ in range(options.warmup * len(queue)):
            queue.start_async(inputs)
        queue.wait_all()
        yield queue


def _time_queue(executable: ExecutableNetwork, inputs: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """A latency is from the start of a run until its callback."""
    latencies: list[float] = []
    with _open_queue(executable, inputs, options) as queue:
        queue.set_callback(lambda _, started: latencies.append(perf_counter() - started))
        began, runs = perf_counter(), 0
        while True:
            queue.get_idle_request_id()
            started = perf_counter()
            if _is_enough(options, runs, started - began):
                break
            queue.start_async(inputs, userdata=started)
            runs += 1
        queue.wait_all()
        seconds = perf_counter() - began
        return {"requests": len(queue), "latencies": latencies, "seconds": seconds}


def _trace(executable: ExecutableNetwork, inputs: Mapping[str, Any], task: BenchTask) -> list[dict[str, Any]]:
    """Returns the trace events of a few warm runs."""
    from hetero_core.reports.trace import list_events

    profiles: list[Profile | None] = []
    with _open_queue(executable, inputs, task.options) as queue:
        queue.set_callback(lambda request, _: profiles.append(request.profile))
        for _ in range(max(_TRACED_RUNS, 2 * len(queue))):
            queue.start_async(inputs)
    ended = sorted((profile for profile in profiles if profile is not None), key=lambda profile: profile.requested)
    return list_events(ended, title=f"{executable.device}: ", first_process=task.first_process or 1)


def find_peak_memory() -> int | None:
    """Returns the largest number of resident bytes of this process so far; None if the system does not say."""
    lines = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
