"""Prints the slowest runs of several processes that run the same int8 network at the same time, as the workers of a server do.

    python tests/bench/busy.py [--device AUTO] [--processes 3] [--rounds 20] [--seconds 4] [-c KEY=VALUE]

Each round starts the processes at once. A process loads the network, infers for some seconds, and prints the seconds of its load and its
runs, and the devices of its last run. The first round, a single process, is the baseline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

LIMIT = 300.0
"""Seconds after which a process is killed and counted as stuck."""


def run_child(path: str, device: str, seconds: float, config: dict[str, str]) -> None:
    """Infers for some seconds and prints its figures as JSON."""
    from hetero_core import Core  # the parent loads nothing

    with Core() as core:
        began = perf_counter()
        network = core.load_network(path, device, config)
        loaded = perf_counter()
        images = np.random.default_rng(0).standard_normal(network.inputs[0].type.shape, np.float32)
        runs: list[float] = []
        while perf_counter() - loaded < seconds:
            start = perf_counter()
            network.infer({"images": images})
            runs.append(perf_counter() - start)
        devices = network.get_metric("EXECUTION_DEVICES")
    print(json.dumps({"load": loaded - began, "runs": runs, "devices": devices}))


def run_round(processes: int, arguments: list[str]) -> list[dict[str, Any]]:
    """Returns the figures of the processes, without stuck processes."""
    command = [sys.executable, __file__, "--child", *arguments]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    answers: list[dict[str, Any]] = []
    for child in children:
        try:
            answers.append(json.loads(child.communicate(timeout=LIMIT)[0]))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    return answers


def main() -> None:
    """Prints a row for each round, and the slowest run of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="AUTO")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("-c", "--config", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--child", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.child, options.device, options.seconds, dict(item.split("=", 1) for item in options.config))
        return
    from cases import make_int8_resnet  # imported late, because the children build no model

    worst, stuck = 0.0, 0
    print("| processes | slowest load, s | slowest run, s | median run, s | fewest runs | devices at the end |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8_resnet.onnx"
        path.write_bytes(make_int8_resnet().model.SerializeToString())
        arguments = [str(path), "--device", options.device, "--seconds", str(options.seconds)]
        arguments += [part for item in options.config for part in ("-c", item)]
        for count in (1, *[options.processes] * options.rounds):
            answers = run_round(count, arguments)
            stuck += count - len(answers)
            if not answers:
                continue
            runs = [seconds for answer in answers for seconds in answer["runs"]]
            worst = max(worst, *runs)
            devices = ", ".join("+".join(answer["devices"]) for answer in answers)
            load, fewest = max(answer["load"] for answer in answers), min(len(answer["runs"]) for answer in answers)
            print(f"| {count} | {load:.2f} | {max(runs):.2f} | {median(runs):.3f} | {fewest} | {devices} |", flush=True)
    print(f"slowest run {worst:.2f} s; {stuck} processes were stuck for more than {LIMIT:.0f} s")


if __name__ == "__main__":
    main()
