"""Prints what a process costs a run: a network of one node on CPU, on PROCESS:CPU, and a bare round trip over two pipes, in turns.

    python tests/bench/bench_process.py [--rounds 2000] [--elements 262144] [--profile]

`--elements 262144` is 1 MB in and out of the caller's own memory; a copy of it each way is measured beside. `--profile` prints where the
parent's time goes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import onnx.parser

from hetero_core import Core

_MODEL = '<ir_version: 8, opset_import: ["": 17]> one (float[N] x) => (float[N] y) { y = Neg (x) }'
_ECHO = "import os\nwhile os.read(0, 64): os.write(1, b'12345678')"
_TURN = 20
"""Runs of one subject before the turn of the next."""


def main() -> None:
    """Prints medians in microseconds, and what the process costs beyond a pipe and the device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--elements", type=int, default=4)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    inputs = {"x": np.ones(options.elements, np.float32)}
    model = onnx.parser.parse_model(_MODEL.replace("N]", f"{options.elements}]"))
    copy = np.empty_like(inputs["x"])
    with Core() as core, subprocess.Popen([sys.executable, "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as echo:
        assert echo.stdin is not None
        assert echo.stdout is not None
        requests = {name: core.load_network(model, name).create_infer_request() for name in ("CPU", "PROCESS:CPU")}
        there, back = echo.stdin.fileno(), echo.stdout.fileno()

        def cross_pipes() -> None:
            os.write(there, b"12345678")
            os.read(back, 64)

        subjects: dict[str, Callable[[], object]] = {
            "CPU": lambda: requests["CPU"].infer(inputs),
            "PROCESS:CPU": lambda: requests["PROCESS:CPU"].infer(inputs),
            "pipe": cross_pipes,
            "two copies": lambda: (np.copyto(copy, inputs["x"]), np.copyto(copy, inputs["x"])),
        }
        if options.profile:
            print_profile(subjects["PROCESS:CPU"], options.rounds)
        else:
            print_times(subjects, options.rounds)


def print_times(subjects: dict[str, Callable[[], object]], rounds: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(-(-rounds // _TURN)):
        for name, call in subjects.items():
            for _ in range(_TURN):
                begin = perf_counter()
                call()
                times[name].append(perf_counter() - begin)
    medians = {name: median(values) * 1e6 for name, values in times.items()}
    for name, microseconds in medians.items():
        print(f"{name:12} {microseconds:7.1f} us")
    beyond = medians["PROCESS:CPU"] - sum(medians[name] for name in ("CPU", "pipe", "two copies"))
    print(f"{'beyond all':12} {beyond:7.1f} us")


def print_profile(call: Callable[[], object], rounds: int) -> None:
    profiler = cProfile.Profile()
    call()
    profiler.enable()
    for _ in range(rounds):
        call()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
