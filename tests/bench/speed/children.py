"""Starts the processes that measure: one at a time, in an environment in which nothing chooses kernels or threads but the benchmark."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetero_core.cli.bench import clear_environment
from hetero_core.cli.measurement import Answer, run_task

SCRIPT = Path(__file__).parents[1] / "bench_models.py"
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CACHE = "XDG_CACHE_HOME"
# Names that say how threads wait, or what numba compiles and where it keeps it.
_CLEARED_PREFIXES = ("GOMP_", "KMP_", "NUMBA_", "OMP_", "OPENBLAS_")
# Packages are installed with their bytecode. A checkout gets it from the first child, so that no import that is measured compiles.
_CLEARED_NAMES = frozenset({"PYTHONDONTWRITEBYTECODE"})


def make_environment(given: Mapping[str, str], threads: int, *, cache: Path) -> tuple[dict[str, str], list[str]]:
    """Returns the environment of a child, and the names of `given` that are not in it: they would choose kernels or ways to wait."""
    environment, cleared = clear_environment(given)
    more = sorted(name for name in environment if _is_cleared(name))
    environment = {name: value for name, value in environment.items() if name not in more}
    environment.update(dict.fromkeys(THREADS, str(threads)))
    environment[CACHE] = str(cache)
    return environment, sorted([*cleared, *more])


def _is_cleared(name: str) -> bool:
    return name in _CLEARED_NAMES or (name.startswith(_CLEARED_PREFIXES) and name not in THREADS)


def list_cleared() -> list[str]:
    """Returns the names in our own environment that the children do not have."""
    return make_environment(os.environ, 1, cache=Path())[1]


def run_child(task: Mapping[str, Any], *, threads: int, cache: Path) -> Answer:
    """Returns the answer of a new process to a task; what it raised, or how it died, is a line under `error`."""
    environment, _ = make_environment(os.environ, threads, cache=cache)
    with tempfile.TemporaryDirectory(prefix="bench-task-") as folder:
        full = {**task, "threads": threads, "spawned": time.time()}
        answer = run_task([str(SCRIPT), "--child"], full, folder=Path(folder), environment=environment, who=f"'{task['kind']}'")
    if "error" in answer:
        answer["error"] = f"{answer['error']['type']}: {answer['error']['message']}"
    return answer


# It ends by itself when the benchmark was killed before it could end it.
_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


@contextmanager
def run_busy_neighbour() -> Iterator[None]:
    """Keeps one processor busy meanwhile."""
    neighbour = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def find_difference(file: Path, other: Path) -> float | None:
    """Returns the largest difference of the outputs in two files, relative to the largest element of each; None without one of them."""
    import numpy as np

    if not (file.exists() and other.exists()):
        return None
    with np.load(file) as ours, np.load(other) as theirs:
        if len(ours.files) != len(theirs.files):
            raise ValueError(f"{file.name} holds {len(ours.files)} outputs, {other.name} {len(theirs.files)}")
        return max(_compare(ours[key], theirs[key]) for key in ours.files)


def _compare(actual: Any, expected: Any) -> float:
    """Returns the largest relative difference; what is not finite takes the way that tells equal from unequal, and ten times as long."""
    import numpy as np

    from hetero_core.testing.compare import max_relative_difference

    if actual.shape == expected.shape and expected.size:
        with np.errstate(invalid="ignore"):
            largest, difference = (float(np.abs(array).max()) for array in (expected, actual - expected))
        if math.isfinite(difference) and largest > 0:
            return difference / largest
    return max_relative_difference(actual, expected)
