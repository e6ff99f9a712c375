"""TORCH beside eager PyTorch in processes of their own, which take turns: one process never times two engines.

Each pair is a process that runs TORCH and one that runs the eager module, in an order that changes from pair to pair; a process tells the
median of its runs. Printed are the medians of both sides, the median of the pairs' quotients, and its 95 % interval.

    python tests/bench/torch_pairs.py --threads 1 --pairs 15 --only resnet50
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch_device import NETWORKS, export

SIDES = ("TORCH", "eager")


def time_side(side: str, name: str, model: Path, threads: int, seconds: float) -> float:
    """Returns the median seconds of a run."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network, inputs, names = NETWORKS[name]()
    network.eval()
    with torch.inference_mode():
        if side == "eager":

            def run() -> Any:
                return network(*inputs)
        else:
            from hetero_core import Core

            arrays = {key: value.numpy() for key, value in zip(names, inputs, strict=True)}
            request = Core().load_network(model, "TORCH", {"INFERENCE_NUM_THREADS": threads}).create_infer_request()

            def run() -> Any:
                return request.infer(arrays)

        held = [run() for _ in range(3)][-1]  # as a decoder holds its caches
        times, end = [], perf_counter() + seconds
        while perf_counter() < end or len(times) < 5:
            began = perf_counter()
            held = run()
            times.append(perf_counter() - began)
        del held
    return statistics.median(times)


def measure_pairs(name: str, model: Path, arguments: argparse.Namespace) -> list[tuple[float, float]]:
    """Returns the seconds of both sides, pair by pair."""
    pairs = []
    for turn in range(arguments.pairs):
        seconds_of_side = {}
        for side in SIDES if turn % 2 else SIDES[::-1]:
            settings = ["--threads", str(arguments.threads), "--seconds", str(arguments.seconds)]
            command = [sys.executable, __file__, "--side", side, "--only", name, "--model", str(model), *settings]
            told = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds_of_side[side] = float(told.stdout.split()[-1])
        pairs.append((seconds_of_side["TORCH"], seconds_of_side["eager"]))
    return pairs


def describe_pairs(name: str, pairs: list[tuple[float, float]]) -> str:
    """Returns a row of the table; the interval is that of the median's ranks in as many draws."""
    quotients = sorted(ours / theirs for ours, theirs in pairs)
    spread = int(0.98 * len(quotients) ** 0.5 + 0.5)
    low, high = max((len(quotients) - 1) // 2 - spread, 0), min(len(quotients) // 2 + spread, len(quotients) - 1)
    ours, theirs = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
    median = statistics.median(quotients)
    return f"| {name} | {ours:.2f} | {theirs:.2f} | {median:.3f} | [{quotients[low]:.3f}, {quotients[high]:.3f}] |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.6, help="how long a process runs")
    parser.add_argument("--only", default="", help="networks whose name has this in it")
    parser.add_argument("--models", type=Path, help="a folder for the exported models, which are kept there")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(time_side(arguments.side, arguments.only, arguments.model, arguments.threads, arguments.seconds))
        return
    with tempfile.TemporaryDirectory() as folder:
        chosen = [name for name in NETWORKS if arguments.only in name]
        models = {name: (arguments.models or Path(folder)) / f"{name}.onnx" for name in chosen}
        for name, model in models.items():
            if not model.exists():
                torch.manual_seed(0)
                network, inputs, names = NETWORKS[name]()
                export(network.eval(), inputs, names, model, is_open=False)
        if arguments.pairs:
            print("| network | TORCH ms | eager ms | quotient | 95 % |\n|---|---|---|---|---|")
        for name, model in models.items() if arguments.pairs else ():
            print(describe_pairs(name, measure_pairs(name, model, arguments)), flush=True)


if __name__ == "__main__":
    main()
