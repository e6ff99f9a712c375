"""Traces: a device leaves behind no memory of its runs, no threads or files of closed networks, no changed process settings."""

from __future__ import annotations

import ctypes
import gc
import io
import locale
import os
import random
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from hetero_core.conformance.check import CheckContext, CheckFailed, Skip, check, require, require_equal
from hetero_core.conformance.samples import WAIT_SECONDS, Sample, make_sample

ROWS = 1 << 17
"""Rows of two numbers: an input of a megabyte in float32."""
RUNS = 40
FIRST_ROUNDS, ROUNDS = 2, 4
"""The first rounds of runs, which fill memory freed by earlier checks, and the number of all rounds."""
LOADS, ALLOWED = 12, 6
"""Networks that are loaded and closed, and the threads or files that may be there afterwards: others of the process come and go."""
SETTLE_SECONDS = 10.0
"""Seconds within which threads and files of closed networks have to end."""
PROCESS = Path("/proc/self")


@check("contract")
def settings_of_the_process_stay(context: CheckContext) -> None:
    """A device does not change random states, NumPy's error handling, environment, working folder or locale, and prints nothing."""
    sample = make_sample(context, "chain")
    # Drawing a number from each generator changes its state, so that a device that seeds them is noticed.
    random.random(), np.random.random()
    before = _read_settings()
    with redirect_stdout(io.StringIO()) as printed, context.make_core() as core:
        core.query_network(sample.network, context.device)
        _load_and_close(context, sample)
        with core.load_network(sample.network, context.device) as loaded:
            loaded.infer(sample.draw(context.seed))
    changed = [what for what, setting in _read_settings().items() if setting != before[what]]
    if "os.environ" in changed:
        raise CheckFailed(f"the device changed os.environ: {_describe_difference(before['os.environ'])}")
    require_equal(changed, [], "what the device changed of the process, which is the program's")
    require(not printed.getvalue(), f"the device prints to standard output: {printed.getvalue()[:80]!r}")


@check("contract")
def runs_keep_no_memory(context: CheckContext) -> None:
    """The memory of a network does not grow with its runs: inputs, outputs and copies of them are freed."""
    _require_counts()
    sample = make_sample(context, "dynamic")
    growth: list[float] = []
    with context.load(sample.network) as loaded:
        request = loaded.create_infer_request()
        for turn in range(ROUNDS):
            _give_back_free_memory()
            before = _read_resident()
            nbytes = _run_often(sample, request)
            growth.append((_read_resident() - before) / nbytes)
            # Allocators grow only in the first rounds; a leak still grows by each run in the last round.
            if turn >= FIRST_ROUNDS and growth[-1] < 0.5:
                return
    shown = ", ".join(f"{part:.1f}" for part in growth[FIRST_ROUNDS:])
    raise CheckFailed(
        f"{RUNS} runs leave {shown} times the bytes of their inputs behind: inputs, outputs or copies of them are kept"
    )


def _run_often(sample: Sample, request: Any) -> int:
    """Runs repeatedly, each time with a new array; returns the total bytes of the arrays."""
    nbytes = 0
    for turn in range(RUNS):
        x = np.full((ROWS, 2), 1 + turn / RUNS, sample.dtype)
        nbytes += x.nbytes
        request.infer({"x": x})
    gc.collect()
    return nbytes


@check("contract")
def closed_networks_leave_no_threads_and_files(context: CheckContext) -> None:
    """Closing a network ends its threads and closes its files, so that repeated loads do not exhaust them."""
    _require_counts()
    sample = make_sample(context, "chain")
    _load_and_close(context, sample)
    before = _count()
    for _ in range(LOADS):
        _load_and_close(context, sample)
    end = time.monotonic() + SETTLE_SECONDS
    while any(_count()[what] - before[what] > ALLOWED for what in before) and time.monotonic() < end:
        gc.collect()
    for what, count in _count().items():
        grown = count - before[what]
        require(grown <= ALLOWED, f"{LOADS} networks were loaded, run and closed, and {grown} {what} more are there than before")


def _load_and_close(context: CheckContext, sample: Sample) -> None:
    with context.load(sample.network) as loaded:
        request = loaded.create_infer_request()
        request.infer(sample.draw(context.seed))
        request.start_async(sample.draw(context.seed))
        require(request.wait(WAIT_SECONDS), "the run did not end")


def _read_settings() -> dict[str, Any]:
    return {
        "the random numbers of random": random.getstate(),
        "the random numbers of NumPy": _read_numpy_random(),
        "np.seterr": np.geterr(),
        "os.environ": dict(os.environ),
        "the working folder": os.getcwd(),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the limit of recursion": sys.getrecursionlimit(),
    }


def _read_numpy_random() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=False)  # the very state that a device must leave alone
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]


def _describe_difference(before: dict[str, str]) -> str:
    names = sorted({name for name, value in {**before, **os.environ}.items() if before.get(name) != os.environ.get(name)})
    return ", ".join(f"{name} from {before.get(name)!r} to {os.environ.get(name)!r}" for name in names)


def _require_counts() -> None:
    if not (PROCESS / "task").exists():
        raise Skip("this system does not tell memory, threads and files of a process in /proc")


def _count() -> dict[str, int]:
    return {"threads": len(list((PROCESS / "task").iterdir())), "open files": len(list((PROCESS / "fd").iterdir()))}


def _give_back_free_memory() -> None:
    """Returns glibc's free heap memory to the system, since reuse of free memory would hide a leak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _read_resident() -> int:
    """Returns the resident memory of the process in bytes."""
    return int((PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
