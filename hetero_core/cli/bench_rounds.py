"""The rounds of `hetero bench`: one process at a time, each with one device."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hetero_core.cli.measurement import BenchTask
from hetero_core.cli.progress import Announcer
from hetero_core.cli.task_process import Answer, run_task, take_turns

# What chooses the kernels of the libraries below NumPy and the engines: set in a shell, it measures another machine.
_KERNEL_VARIABLES = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "BLIS_ARCH_TYPE",
        "DNNL_MAX_CPU_ISA",
        "NPY_DISABLE_CPU_FEATURES",
        "NPY_ENABLE_CPU_FEATURES",
        "ONEDNN_MAX_CPU_ISA",
        "OPENBLAS_CORETYPE",
        "OPENBLAS_L2_SIZE",
    }
)
# How many threads to use is the caller's choice, as everywhere.
_THREAD_VARIABLES = frozenset({"MKL_DOMAIN_NUM_THREADS", "MKL_DYNAMIC", "MKL_NUM_THREADS"})

_TRACE_PROCESSES = 1000
"""Number of processes in a trace that each device may have."""


def clear_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns the environment without what chooses kernels, and the names that are gone."""
    cleared = sorted(
        name for name in environment if name in _KERNEL_VARIABLES or (name.startswith("MKL_") and name not in _THREAD_VARIABLES)
    )
    return {name: value for name, value in environment.items() if name not in cleared}, cleared


class Bench:
    """The measurements of several devices, by position. A device that has failed is not asked again."""

    def __init__(self, tasks: Sequence[BenchTask], environment: Mapping[str, str], step: Announcer) -> None:
        self._step = step
        self.rounds: list[list[dict[str, Any]]] = [[] for _ in tasks]
        self.errors: dict[int, dict[str, Any]] = {}
        self.outputs: dict[int, Any] = {}
        self.is_interrupted = False
        self._tasks = tasks
        self._environment = environment

    def run_rounds(self, count: int, check: Callable[[Bench], None]) -> None:
        """Measures every device once in each round, in order and back in turns; ends early when it is interrupted.

        `check` is called after the first round, and may raise.
        """
        try:
            for index in range(count):
                for position in self._take_turns(index):
                    with self._step(f"round {index + 1} of {count}: timing {self._tasks[position].device}"):
                        self._measure(position, keeps_outputs=index == 0)
                if index == 0:
                    check(self)
        except KeyboardInterrupt:
            self.is_interrupted = True

    def trace(self) -> list[dict[str, Any]]:
        """Returns the trace events of a few more runs of each device that has not failed."""
        events: list[dict[str, Any]] = []
        try:
            for position in self._take_turns(0):
                task = replace(self._tasks[position], first_process=1 + position * _TRACE_PROCESSES)
                with tempfile.TemporaryDirectory(prefix="hetero-bench-") as folder:
                    answer = self._ask(task, Path(folder))
                if "error" in answer:
                    self.errors[position] = answer["error"]
                events += answer.get("events", [])
        except KeyboardInterrupt:
            self.is_interrupted = True
        return events

    def _take_turns(self, turn: int) -> Iterator[int]:
        return (position for position in take_turns(range(len(self._tasks)), turn) if position not in self.errors)

    def _measure(self, position: int, *, keeps_outputs: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="hetero-bench-") as folder:
            path = Path(folder) / "outputs.npz"
            task = replace(self._tasks[position], outputs=str(path)) if keeps_outputs else self._tasks[position]
            answer = self._ask(task, Path(folder))
            if "error" in answer:
                self.errors[position] = answer["error"]
                return
            if keeps_outputs:
                self.outputs[position] = _read_outputs(path, answer["dtypes"])
            self.rounds[position].append(answer)

    def _ask(self, task: BenchTask, folder: Path) -> Answer:
        arguments = [*([] if "" in sys.path or str(Path.cwd()) in sys.path else ["-P"]), "-m", "hetero_core.cli.measurement"]
        return run_task(arguments, asdict(task), folder=folder, environment=self._environment, who=task.device)


def _read_outputs(path: Path, dtypes: Mapping[str, str]) -> dict[str, Any]:
    import numpy as np

    from hetero_core.dtypes import numpy_dtype

    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    # Element types that NumPy does not know come back as plain bytes.
    return {name: array.view(numpy_dtype(dtypes[name])) if array.dtype.kind == "V" else array for name, array in arrays.items()}


def count_processors() -> int:
    """Returns how many processors the measurements may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
