"""Compares AUTO with each device alone on twenty models, in alternating processes with an empty cache: `nox -s auto -- ...`, or this file.

    python tests/bench/auto.py [CASE ...] [--seconds 0.5] [--budget 35] [--cpu]

A process loads the model with the default settings, infers without a pause until the device is final (AUTO's choice is made and kernels
are compiled) and the tenth run has ended, and then times runs for some seconds. The rounds of a case end when another would exceed its
budget of seconds. Prints medians: the fastest device's run / AUTO's, AUTO's first answer / the fastest device's, both since the start of
the process, and the seconds until AUTO is final. The runs until then are not timed, although their caller sees the measurement in
them. --cpu counts processor time, for a busy machine. The cases `sklearn:...` need skl2onnx.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ENGINES = ("CPU", "ORT", "OPENVINO", "AUTO")
CASES = (
    "resnet50", "mobilenet_v2", "bert", "vit_tiny", "u_net", "half:squeezenet", "half:bert", "int8_resnet", "qoperator:squeezenet",
    "dynamic:bert", "int4_products", "int4_decoder", "decoder", "encoder", "detector", "trees_of_one_row", "trees",
    "sklearn:forest", "sklearn:pipeline", "sklearn:ridge",
)  # fmt: skip
LONGEST_WAIT = 60.0
"""Seconds in which a device must be final."""


def run_child(folder: Path, device: str, seconds: float, clock: Callable[[], float], began: float) -> dict[str, Any]:
    """Returns the figures of one device, empty if the device refuses the model; `began` is when the process started."""
    from measure import open_runs, run_case  # the parent imports no engine

    from hetero_core import Core
    from hetero_core.composing.runs import is_ready
    from hetero_core.errors import UnsupportedNodesError

    runs, tokens = open_runs(folder)
    with Core() as core:
        try:
            network = core.load_network(folder / "model.onnx", device)
        except UnsupportedNodesError:
            return {}
        network.infer(runs[0])
        figures: dict[str, Any] = {"first": clock() - began}
        answered, count = time.perf_counter(), 0
        while count < 10 or network.executable.when_final is not None or not is_ready(network):
            run_case(network.infer, runs, tokens)
            count += 1
            if count > 10 and time.perf_counter() - answered > LONGEST_WAIT:
                raise TimeoutError(f"{device} was not final after {LONGEST_WAIT:.0f} s")
        figures["final"] = time.perf_counter() - answered

        def time_passes(count: int) -> float:
            start = clock()
            for _ in range(count):
                run_case(network.infer, runs, tokens)
            return (clock() - start) / count

        # A sample of a millisecond: with many threads the clock of the processor takes as long as a run of a small model.
        count, end = max(1, int(1e-3 / max(time_passes(1), 1e-6))), time.perf_counter() + seconds
        times = [time_passes(count) for _ in range(3)]
        while time.perf_counter() < end:
            times.append(time_passes(count))
        return {**figures, "run": median(times), "devices": network.get_metric("EXECUTION_DEVICES")}


def run_process(folder: Path, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of a new process with an empty cache. Raises: CalledProcessError; its messages are on stderr."""
    from compare import make_environment  # needs pyperf, which a child does not

    with tempfile.TemporaryDirectory(prefix="bench-cache-") as cache:
        task = json.dumps([str(folder), device, options.seconds, options.cpu, time.time()])
        environment = make_environment(options.threads, cache)
        done = subprocess.run([sys.executable, __file__, "--child", task], env=environment, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure_case(name: str, options: argparse.Namespace) -> str:
    """Returns the row of a case."""
    from cases import make_case, write_case  # imports onnx

    answers: dict[str, list[dict[str, Any]]] = {device: [] for device in ENGINES}
    with tempfile.TemporaryDirectory(prefix="bench-case-") as folder:
        write_case(make_case(name), Path(folder))
        began, rounds = time.perf_counter(), 0
        while not rounds or (time.perf_counter() - began) * (rounds + 1) / rounds < options.budget:
            for device in ENGINES if rounds % 2 == 0 else ENGINES[::-1]:
                answers[device].append(run_process(Path(folder), device, options))
            rounds += 1
    able = [device for device in ENGINES if all(answers[device])]
    medians = {key: {device: median(own[key] for own in answers[device]) for device in able} for key in ("run", "first", "final")}
    ratios = {
        key: min(seconds[device] for device in able if device != "AUTO") / seconds["AUTO"] for key, seconds in medians.items()
    }
    chosen = ", ".join("+".join(own["devices"]) for own in answers["AUTO"])
    runs = " ".join(f"{medians['run'][device] * 1e3:10.3f}" if device in able else f"{'-':>10}" for device in ENGINES)
    firsts = " ".join(f"{medians['first'][device]:6.2f}" if device in able else f"{'-':>6}" for device in ENGINES)
    figures = f"{runs} {ratios['run']:6.3f}  {firsts} {1 / ratios['first']:6.3f} {medians['final']['AUTO']:6.1f}"
    return f"{name:22} {rounds:2} {figures}  {chosen}"


def main() -> None:
    """Prints each row when it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--seconds", type=float, default=0.5, help="of timed runs in each process")
    parser.add_argument("--budget", type=float, default=35.0, help="seconds for each case")
    parser.add_argument("--threads", type=int, default=2, help="of the libraries for products; the devices use all processors")
    parser.add_argument("--cpu", action="store_true", help="processor time")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        folder, device, seconds, by_processor, started = json.loads(options.child)
        clock, began = (time.process_time, 0.0) if by_processor else (time.time, started)
        print(json.dumps(run_child(Path(folder), device, seconds, clock, began)))
        return
    heads = " ".join(f"{device + ', ms':>10}" for device in ENGINES), " ".join(f"{device[:4] + ', s':>6}" for device in ENGINES)
    print(f"{'case':22}  n {heads[0]}  best/A  {heads[1]} A/best  final  devices of AUTO", flush=True)
    for name in options.cases:
        try:
            row = measure_case(name, options)
        except ModuleNotFoundError as error:
            row = f"{name:22} not measured: {error}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
