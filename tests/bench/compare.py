"""Compares engines in alternating processes: `nox -s bench -- ...`, or this file.

    python tests/bench/compare.py                                  every case on CPU and ONNX Runtime
    python tests/bench/compare.py bert trees --engines CPU openvino --threads 1 2 --pairs 10
    python tests/bench/compare.py --cold resnet50                  an empty cache for each process: times of first answer and load
    python tests/bench/compare.py mixed:400 --engines HETERO:TEMPLATE,CPU CPU
    python tests/bench/compare.py --engines CPU CPU@/other/.venv/bin/python      another checkout, by its interpreter

Each round starts a process for each engine, in reverse order in every second round. Ratios compare two processes of the same round.
Prints the median ratio and its 95 % interval by order statistics, which requires six rounds. --output FOLDER writes the values of each
engine as a pyperf file: `python -m pyperf compare_to A.json B.json`, `stats`, `hist`. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pyperf
from cases import list_cases, make_case, write_case

MEASURE = Path(__file__).with_name("measure.py")
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CHOOSING = ("GOMP_", "KMP_", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
"""Prefixes of environment variables that choose kernels, set how threads wait, or affect imports."""


def make_environment(threads: int, cache: str) -> dict[str, str]:
    """Returns the environment of a measuring process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(CHOOSING)}
    return {**environment, **dict.fromkeys(THREADS, str(threads)), "XDG_CACHE_HOME": cache}


def name_file(engine: str, suffix: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in engine) + suffix


def run_process(folder: Path, engine: str, *, threads: int, seconds: float, cache: str) -> dict[str, Any]:
    """Returns the figures of a new process. Raises: CalledProcessError if the engine failed; its messages are on stderr."""
    name, _, interpreter = engine.partition("@")
    outputs = str(folder / name_file(engine, ".npz"))
    task = {
        "folder": str(folder),
        "engine": name,
        "threads": threads,
        "seconds": seconds,
        "outputs": outputs,
        "started": time.time(),
    }
    command = [interpreter or sys.executable, str(MEASURE), json.dumps(task)]
    done = subprocess.run(command, env=make_environment(threads, cache), stdout=subprocess.PIPE, check=True, cwd=folder)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def find_interval(ratios: list[float]) -> tuple[float, float] | None:
    """Returns the 95 % interval of the median by order statistics; None if there are fewer than six ratios.

    The probability that the median lies below the k-th smallest of n values is the probability of fewer than k heads in n coin tosses.
    """
    count, ordered = len(ratios), sorted(ratios)
    rank, below = 0, 0.0
    while (below := below + comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else None


def find_difference(folder: Path, first: str, second: str) -> float:
    """Returns the largest difference between the outputs of two engines, relative to the largest element of each output."""
    worst = 0.0
    with np.load(folder / name_file(first, ".npz")) as expected, np.load(folder / name_file(second, ".npz")) as actual:
        for name in expected:
            largest = np.abs(expected[name], dtype=np.float64).max(initial=1e-30)
            worst = max(worst, float(np.abs(actual[name].astype(np.float64) - expected[name]).max(initial=0.0) / largest))
    return worst


def compare(folder: Path, options: argparse.Namespace, name: str, threads: int, suites: dict[str, list[pyperf.Benchmark]]) -> None:
    """Prints the rows of a case and adds its values to the suite of each engine."""
    answers: dict[str, list[dict[str, Any]]] = {engine: [] for engine in options.engines}
    seconds = 0.0 if options.cold else options.seconds
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as shared:
        for turn in range(options.pairs):
            for engine in options.engines if turn % 2 == 0 else options.engines[::-1]:
                with tempfile.TemporaryDirectory(prefix="bench-cache-") as empty:
                    # Each engine has its own cache, so that a second checkout does not reuse the kernels of the first.
                    cache = empty if options.cold else f"{shared}/{options.engines.index(engine)}"
                    answers[engine].append(run_process(folder, engine, threads=threads, seconds=seconds, cache=cache))
    base = options.engines[0]
    difference = {engine: find_difference(folder, base, engine) for engine in options.engines[1:]}
    for figure in ("first answer", "load", "run", "plan", "peak memory"):
        figures = {engine: [run[figure] for run in runs] for engine, runs in answers.items() if figure in runs[0]}
        for engine, values in figures.items():
            suites.setdefault(engine, []).append(_make_benchmark(f"{name} {figure}, threads {threads}", figure, values, engine))
            row = (
                f"{name:16} {threads} {figure:13} {engine:24} {_format(figure, statistics.median(map(statistics.median, values)))}"
            )
            if engine != base and base in figures:
                ratios = [
                    statistics.median(mine) / statistics.median(baseline)
                    for mine, baseline in zip(values, figures[base], strict=True)
                ]
                interval = find_interval(ratios)
                span = "fewer than six pairs" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
                row += f"  / {base}: {statistics.median(ratios):.3f} ({span}), outputs differ by {difference[engine]:.1e}"
            print(row, flush=True)


def _format(figure: str, value: float) -> str:
    return f"{value / 2**20:9.1f} MiB" if figure == "peak memory" else f"{value * 1e3:9.2f} ms "


def _make_benchmark(name: str, figure: str, values: list[list[float]], engine: str) -> pyperf.Benchmark:
    metadata = {"name": name, "engine": engine, "loops": 1, "unit": "byte" if figure == "peak memory" else "second"}
    runs = [pyperf.Run([int(value) if figure == "peak memory" else value for value in run], metadata=metadata) for run in values]
    return pyperf.Benchmark(runs)


def main() -> None:
    """Prints the machine, then each row when it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"all by default: {', '.join(list_cases())}; elementwise:N, mixed:N")
    parser.add_argument("--engines", nargs="+", default=["CPU", "onnxruntime"], help="ratios are to the first; see measure.py")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--batch", type=int, default=1, help="of the fixed models")
    parser.add_argument("--seconds", type=float, default=2.0, help="of runs in each process")
    parser.add_argument("--cold", action="store_true", help="give each process an empty cache and end it after its first answer")
    parser.add_argument("--output", type=Path, help="a folder for one file of pyperf for each engine")
    options = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}", flush=True
    )
    suites: dict[str, list[pyperf.Benchmark]] = {}
    for name in options.cases or list_cases():
        with tempfile.TemporaryDirectory(prefix="bench-case-") as folder:
            write_case(make_case(name, options.batch), Path(folder))
            for threads in options.threads:
                compare(Path(folder), options, name, threads, suites)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        for engine, benchmarks in suites.items():
            pyperf.BenchmarkSuite(benchmarks).dump(str(options.output / name_file(engine, ".json")), replace=True)


if __name__ == "__main__":
    main()
