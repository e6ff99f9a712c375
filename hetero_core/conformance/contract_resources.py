"""Contract of resources: device memory, lifetime of Cores and networks, and traces that a device leaves in the process."""

from __future__ import annotations

import ctypes
import gc
import io
import itertools
import locale
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from hetero_core.conformance.check import (
    CheckContext,
    CheckFailed,
    Skip,
    check,
    require,
    require_equal,
    require_error,
    run_in_threads,
)
from hetero_core.conformance.samples import Sample, make_sample
from hetero_core.errors import ClosedError, HeteroError, InputNameError
from hetero_core.network.types import HOST
from hetero_core.runtime.inputs import DeviceTensor

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork

# Device memory: tensors in it, copies from and to the host, and names that distinguish the memories of several ids.

IDS_AT_MOST = 4


def _load(context: CheckContext, device: str) -> tuple[Sample, ExecutableNetwork]:
    """Returns a loaded network. Raises: Skip if the device computes in host memory, after checking that it refuses a DeviceTensor."""
    sample = make_sample(context, "chain")
    loaded = context.core.load_network(sample.network, device)
    part = loaded
    while (inner := part.executable.find_part("x")) is not None:
        part = inner
    if all(spec.memory == HOST for spec in part.all_inputs):
        require_error(InputNameError, lambda: DeviceTensor.create(loaded, "x"), "a DeviceTensor for an input in the host's memory")
        raise Skip("inputs of the device lie in the host's memory")
    return sample, loaded


@check("memory")
def tensors_stay_in_the_memory_of_the_device(context: CheckContext) -> None:
    """A DeviceTensor is read as input and filled as output in each run, and serves as input of a second network on the device."""
    sample, loaded = _load(context, context.device)
    before, between = DeviceTensor.create(loaded, "x"), DeviceTensor.create(loaded, "y")
    request = loaded.create_infer_request()
    request.set_tensor("y", between)
    for turn in range(3):
        inputs = sample.draw(context.seed + turn)
        before.write(inputs["x"])
        outputs = request.infer({"x": before})
        require(outputs["y"] is between, "the output is not the DeviceTensor that was set for it")
        middle = between.read()
        sample.require_right({"y": middle}, inputs, f"run {turn + 1} into a DeviceTensor")
        second = {"x": middle.copy()}
        sample.require_right(loaded.infer({"x": between}), second, f"run {turn + 1}, whose input is the output of the run before")


@check("memory")
def from_host_copies(context: CheckContext) -> None:
    """`from_host` copies: later writes to the caller's array do not change the device's copy."""
    sample, loaded = _load(context, context.device)
    inputs = sample.draw(context.seed)
    tensor = DeviceTensor.create(loaded, "x", inputs["x"])
    expected = inputs["x"].copy()
    inputs["x"][...] = 0
    what = "`from_host` gives the host's own array away in place of a copy: an array on the device changes with the caller's"
    require(np.array_equal(tensor.read(), expected), what)


@check("memory")
def to_host_copies(context: CheckContext) -> None:
    """`to_host` copies: writes to the returned array do not change the device's memory."""
    sample, loaded = _load(context, context.device)
    inputs = sample.draw(context.seed)
    tensor = DeviceTensor.create(loaded, "x", inputs["x"])
    copy = tensor.read()
    require(copy.flags.writeable, "`to_host` returns an array that cannot be written to; it belongs to the caller")
    copy[...] = 0
    what = (
        "`to_host` gives the device's own memory away in place of a copy: what the caller writes to it changes the device's array"
    )
    require(np.array_equal(tensor.read(), inputs["x"]), what)


@check("memory", needs=["ids"])
def one_name_is_one_memory(context: CheckContext) -> None:
    """If the memories of two ids have the same name, each id reads the arrays of both, since no transfer is made between them."""
    loaded_of_id: dict[str, tuple[Sample, ExecutableNetwork]] = {}
    for device_id in context.facts.ids[:IDS_AT_MOST]:
        try:
            loaded_of_id[device_id] = _load(context, f"{context.facts.name}.{device_id}")
        except HeteroError:
            continue  # the id is not usable on this machine
    for maker, (sample, producer) in loaded_of_id.items():
        for reader, (_, consumer) in loaded_of_id.items():
            memory = producer.all_outputs[0].memory
            if maker == reader or memory == HOST or memory != consumer.all_inputs[0].memory:
                continue
            inputs = sample.draw(context.seed)
            tensor = DeviceTensor.create(producer, "x", inputs["x"])
            what = (
                f"the ids {maker} and {reader} both name their memory '{memory}', so that arrays go from one to the other as they are, "
                f"and {reader} cannot read those of {maker}. Name the id in it, as '{memory}:{maker}'"
            )
            sample.require_working(partial(consumer.infer, {"x": tensor}), inputs, what)


# Lifetime: Core, network and request are freed in every order, and closed during runs; the remaining objects work.

RUNS_UNDER_CLOSE = 25
KINDS = ("core", "network", "request")


def _make_all(context: CheckContext, sample: Sample) -> dict[str, Any]:
    core = context.make_core()
    network = core.load_network(sample.network, context.device)
    return {"core": core, "network": network, "request": network.create_infer_request()}


@check("lifetime")
def what_is_left_works_when_others_are_forgotten(context: CheckContext) -> None:
    """Core, network and request may be dropped in any order; the objects still referenced work."""
    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    for order in itertools.permutations(KINDS):
        objects = _make_all(context, sample)
        opened = objects["core"]
        for kind in order:
            del objects[kind]
            gc.collect()
            for runner in ("network", "request"):
                if runner in objects:
                    sample.require_right(objects[runner].infer(inputs), inputs, f"the {runner}, after its {kind} was forgotten")
        opened.close()


@check("lifetime")
def results_and_metrics_outlive_everything(context: CheckContext) -> None:
    """Outputs, tensors and metric values stay intact after request, network and Core are closed and freed."""
    sample = make_sample(context, "fork")
    inputs = sample.draw(context.seed)
    objects = _make_all(context, sample)
    sample.require_started(objects["request"], inputs, "a run before all is closed")
    tensors = {name: objects["request"].get_tensor(name) for name in ("y", "z")}
    outputs = objects["network"].infer(inputs)
    full_name = objects["core"].get_metric(context.device, "FULL_DEVICE_NAME")
    objects["network"].close()
    objects["core"].close()
    objects.clear()
    gc.collect()
    sample.require_right(outputs, inputs, "outputs, after everything was closed")
    sample.require_right(tensors, inputs, "tensors of a request, after everything was closed")
    require(full_name == full_name.strip() and full_name, "the metric is gone")


@check("lifetime")
def closing_frees_nothing_in_use(context: CheckContext) -> None:
    """A network is closed during its runs while a second network of the same model is loaded: no run uses a freed engine."""
    sample = make_sample(context, "chain")
    closing, staying = (context.load(sample.network) for _ in range(2))

    def run(index: int) -> None:
        if index == 0:
            closing.close()
        for turn in range(RUNS_UNDER_CLOSE):
            inputs = sample.draw(context.seed + index * RUNS_UNDER_CLOSE + turn)
            sample.require_right(staying.infer(inputs), inputs, "a second network of the model, whose engine may still be in use")
            try:
                outputs = closing.infer(inputs)
            except ClosedError:
                continue
            sample.require_right(outputs, inputs, "a run under way when its network was closed, whose engine is in use")

    run_in_threads(run, 4)
    staying.close()


# Traces: a device leaves behind no memory of its runs, no threads or files of closed networks, no changed process settings.

ROWS = 1 << 17
"""Rows of two numbers: an input of a megabyte in float32."""
LEAK_RUNS = 40
LEAK_BYTES = 40 << 10
"""Bytes of each run; kernels that a device compiles meanwhile, on other threads, take less."""
FIRST_ROUNDS, QUIET_ROUNDS, LEAK_ROUNDS = 2, 3, 12
"""The first rounds of runs, which fill memory freed by earlier checks; rounds without growth that end the check; all rounds."""
LONG_ROUNDS, LONGER = 5, 8
"""Rounds of so many times as many runs, if rounds with and without growth alternate."""
QUIET_BYTES = 8 << 10
"""The most bytes of each run, up or down, of a round without growth."""
LOADS, ALLOWED = 12, 6
"""Networks that are loaded and closed, and the threads or files that may be there afterwards: others of the process come and go."""
SETTLE_SECONDS = 10.0
"""Seconds within which threads and files of closed networks have to end."""


PROCESS = Path("/proc/self")


def read_settings() -> Mapping[str, Any]:
    """Returns name -> value of each setting. The affinity and the floating-point mode are those of the calling thread."""
    root = logging.getLogger()
    return {
        "the random numbers of random": random.getstate(),
        "the random numbers of NumPy": _read_numpy_random(),
        "np.seterr": np.geterr(),
        # pytest writes the name of the running test there.
        "os.environ": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "the working folder": os.getcwd(),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the limit of recursion": sys.getrecursionlimit(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "the switch interval of threads": sys.getswitchinterval(),
        "the signal handlers": _read_handlers(),
        "the root logger": (root.level, root.disabled, [type(handler).__name__ for handler in root.handlers]),
        "the affinity to processors": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        # Half of a number that has no smaller neighbour without denormals.
        "the floating-point mode, which flushes denormals to 0": float(np.finfo(np.float32).tiny * np.float32(0.5)) == 0,
    }


def _read_numpy_random() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=False)  # the very state that a device must leave alone
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]


def _read_handlers() -> tuple[Any, ...]:
    """Returns the handlers set by Python, and the masks of signals that are ignored or caught by C code, where Linux tells them."""
    handlers = tuple(signal.getsignal(number) for number in sorted(signal.valid_signals()))
    status = PROCESS / "status"
    return handlers, re.findall(r"^Sig(?:Ign|Cgt):.*", status.read_text(), re.MULTILINE) if status.exists() else []


@check("traces")
def settings_of_the_process_stay(context: CheckContext) -> None:
    """A device does not change settings of the process, from its import to its end, and prints nothing: random states, NumPy's error
    handling, environment, working folder, locale, garbage collection, signal handlers, root logger, affinity, floating-point mode."""
    sample = make_sample(context, "chain")
    # Drawing a number from each generator changes its state, so that a device that seeds them is noticed.
    random.random(), np.random.random()
    drawn = {name: setting for name, setting in read_settings().items() if name.startswith("the random numbers")}
    before = {**context.facts.settings, **drawn}
    with _catch_output() as printed, context.make_core() as core:
        core.query_network(sample.network, context.device)
        _load_and_close(context, sample)
        with core.load_network(sample.network, context.device) as loaded:
            loaded.infer(sample.draw(context.seed))
    changed = [what for what, setting in read_settings().items() if setting != before[what]]
    if "os.environ" in changed:
        raise CheckFailed(f"the device changed os.environ: {_describe_difference(before['os.environ'])}")
    require_equal(changed, [], "what the device changed of the process, which is the program's")
    require(not any(printed), f"the device prints to standard output: {''.join(printed)[:80]!r}")


@contextmanager
def _catch_output() -> Iterator[list[str]]:
    """Yields a list that has, after the context has ended, the texts that Python and C wrote to standard output."""
    texts: list[str] = []
    with tempfile.TemporaryFile() as file, redirect_stdout(io.StringIO()) as printed:
        flush = getattr(ctypes.CDLL(None), "fflush", lambda _: None) if os.name == "posix" else lambda _: None
        flush(None)
        descriptor = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield texts
        finally:
            flush(None)
            os.dup2(descriptor, 1)
            os.close(descriptor)
            file.seek(0)
            texts += [printed.getvalue(), file.read().decode(errors="replace")]


@check("traces")
def runs_keep_no_memory(context: CheckContext) -> None:
    """The memory of a network does not grow with its runs: inputs, outputs, copies of them and scratch memory are freed."""
    _require_counts()
    sample = make_sample(context, "dynamic")
    growth: list[float] = []
    with context.load(sample.network) as loaded:
        request = loaded.create_infer_request()
        for _ in range(LEAK_ROUNDS):
            growth.append(_measure_growth(sample, request, LEAK_RUNS))
            later = growth[FIRST_ROUNDS:]
            if len(later) >= QUIET_ROUNDS and all(abs(part) < QUIET_BYTES for part in later[-QUIET_ROUNDS:]):
                return
        # A leak grows in each round. Other threads, such as those of a compiler, take or free memory in some rounds, and not more if there
        # are more runs.
        if min(later) < LEAK_BYTES <= max(later):
            later = [_measure_growth(sample, request, LEAK_RUNS * LONGER) for _ in range(LONG_ROUNDS)]
    if median(later) < LEAK_BYTES:
        return
    shown = ", ".join(f"{part / 1024:.0f}" for part in later)
    nbytes = ROWS * 2 * np.dtype(sample.dtype).itemsize
    what = "inputs, outputs or copies of them are kept" if median(later) > nbytes / 2 else "memory of the device is kept"
    raise CheckFailed(f"each run leaves {shown} KiB behind: {what}")


def _measure_growth(sample: Sample, request: Any, runs: int) -> float:
    """Returns the memory in bytes that each of so many runs leaves, each with a new array."""
    before = _read_written()
    for turn in range(runs):
        request.infer({"x": np.full((ROWS, 2), 1 + turn / runs, sample.dtype)})
    gc.collect()
    return (_read_written() - before) / runs


@check("traces")
def closed_networks_leave_no_threads_and_files(context: CheckContext) -> None:
    """Closing a network ends its threads, closes its files and removes its temporary files, so that repeated loads do not exhaust them."""
    sample = make_sample(context, "chain")
    _require_nothing_left(lambda: _load_and_close(context, sample), f"{LOADS} networks were loaded, run and closed")


@check("traces")
def closed_devices_leave_no_threads_and_files(context: CheckContext) -> None:
    """`close_device` ends the threads of the device, closes its files and removes its temporary files."""
    sample = make_sample(context, "chain")

    def make_and_close() -> None:
        with context.make_core() as core, core.load_network(sample.network, context.device) as loaded:
            sample.require_run(loaded, context.seed, what="a run on a device that is made again and again")

    _require_nothing_left(make_and_close, f"{LOADS} Cores made the device, ran a network and were closed")


def _require_nothing_left(use_and_close: Callable[[], None], what: str) -> None:
    """Raises CheckFailed if threads, open files or temporary files grow by what is used and closed."""
    _require_counts()
    with _make_temporary_folder():
        use_and_close()
        before = _count()
        for _ in range(LOADS):
            use_and_close()
        end = time.monotonic() + SETTLE_SECONDS
        while any(_count()[kind] - before[kind] > ALLOWED for kind in before) and time.monotonic() < end:
            gc.collect()
        for kind, count in _count().items():
            grown = count - before[kind]
            require(grown <= ALLOWED, f"{what}, and {grown} {kind} more are there than before")


@contextmanager
def _make_temporary_folder() -> Iterator[None]:
    """Makes a new folder the place of temporary files, of Python and of C, while the context is open."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory() as folder, patch.object(tempfile, "tempdir", folder):
        os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            del os.environ["TMPDIR"]
            os.environ |= {} if before is None else {"TMPDIR": before}


def _load_and_close(context: CheckContext, sample: Sample) -> None:
    with context.load(sample.network) as loaded:
        request = loaded.create_infer_request()
        request.infer(sample.draw(context.seed))
        sample.require_started(request, sample.draw(context.seed), "a run before close")


def _describe_difference(before: dict[str, str]) -> str:
    names = sorted({name for name, value in {**before, **os.environ}.items() if before.get(name) != os.environ.get(name)})
    return ", ".join(f"{name} from {before.get(name)!r} to {os.environ.get(name)!r}" for name in names)


def _require_counts() -> None:
    if not (PROCESS / "task").exists():
        raise Skip("this system does not tell memory, threads and files of a process in /proc")


def _count() -> dict[str, int]:
    return {
        "threads": len(list((PROCESS / "task").iterdir())),
        "open files": len(list((PROCESS / "fd").iterdir())),
        "temporary files": len(list(Path(tempfile.gettempdir()).iterdir())),
    }


def _read_written() -> int:
    """Returns the memory in bytes that the process has written to, after glibc's free heap memory was given back to the system.

    Where the system counts it exactly (`smaps_rollup`), pages of files, which it may drop at any time, are not part of it and swapped pages
    are. Elsewhere it is the resident memory, of which Linux keeps an approximate sum.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        rows = dict(line.split(":", 1) for line in (PROCESS / "smaps_rollup").read_text().splitlines()[1:])
        return sum(int(rows[name].split()[0]) << 10 for name in ("Anonymous", "Pss_Shmem", "Swap"))
    except (OSError, KeyError):
        return int((PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
