"""Times of CPU beside ONNX Runtime where sizes are open, each in a process of its own: first pass, later passes, and the time of a binding.

    python tests/bench/bench_open_sizes.py [decoder gpt prefill encoder detector unet] [--pairs 3] [--threads 1]

A line has milliseconds of the processor and of the clock, medians over the pairs: `cold` with an empty private cache, `warm` with that
of the process before. Reading and loading the model are not part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import onnx

from hetero_core import Core

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from hetero_tests.open_models import make_decoder, make_detector, make_encoder  # the path is set above
from hetero_tests.open_variants import make_gpt, make_unet, swish

SCENARIOS = ("decoder", "decoder-768", "gpt", "prefill", "encoder", "detector", "unet", "unet-groups")
PROMPT, TOKENS = 128, 100
Run = Callable[[dict[str, Any]], dict[str, Any]]


def open_model(scenario: str) -> onnx.ModelProto:
    if scenario == "decoder-768":
        return make_decoder(layers=4, width=768, heads=12, key_heads=4)
    if scenario in ("decoder", "prefill"):
        return make_decoder()
    if scenario == "gpt":
        return make_gpt()
    if scenario == "unet":
        return make_unet()
    if scenario == "unet-groups":
        return make_unet(depth=3, activate=swish, norm="group", grow="nearest", channels=3)
    return make_encoder() if scenario == "encoder" else make_detector()


def draw_inputs(scenario: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Returns the inputs of one pass over 30 pairs, 20 images or 17 lengths."""
    if scenario == "encoder":
        shapes = [(int(rng.integers(1, 9)), int(rng.integers(8, 129))) for _ in range(30)]
        return [{"tokens": rng.integers(0, 1000, shape), "mask": np.ones(shape, np.int64)} for shape in shapes]
    if scenario in ("detector", "unet", "unet-groups"):
        step, channels = (1, 3) if scenario == "detector" else (16, 1 if scenario == "unet" else 3)
        sizes = [tuple(int(size) * step for size in rng.integers(64 // step, 256 // step + 1, 2)) for _ in range(20)]
        return [{"image": rng.standard_normal((1, channels, *size)).astype(np.float32)} for size in sizes]
    lengths = rng.choice(np.arange(16, 300), 17, replace=False)
    return [{"tokens": rng.integers(0, 1000, (1, int(length)))} for length in lengths]


def empty_caches(model: onnx.ModelProto) -> dict[str, Any]:
    return {
        value.name: np.zeros(
            (1, value.type.tensor_type.shape.dim[1].dim_value, 0, value.type.tensor_type.shape.dim[3].dim_value), np.float32
        )
        for value in model.graph.input
        if value.name.startswith("past")
    }


def generate(run: Run, model: onnx.ModelProto) -> None:
    """Feeds a prompt and a hundred tokens, each with the caches that the one before has given."""
    caches, tokens = empty_caches(model), np.arange(PROMPT)[None] % 1000
    for _ in range(TOKENS + 1):
        outputs = run({"tokens": tokens, **caches})
        tokens = outputs["logits"][:, -1:].argmax(-1)
        caches = {name: outputs[name.replace("past", "present")] for name in caches}


def clock(work: Callable[[], None]) -> list[float]:
    """Returns milliseconds of the processor and of the clock."""
    began, began_here = process_time(), perf_counter()
    work()
    return [(process_time() - began) * 1e3, (perf_counter() - began_here) * 1e3]


def open_engine(engine: str, model: onnx.ModelProto, threads: int) -> Run:
    if engine == "ORT":
        import onnxruntime as ort  # only its own process needs it

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(model.SerializeToString(), options)
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))
    return Core().load_network(model, engine, {"INFERENCE_NUM_THREADS": threads, "CPU_KERNELS": os.environ["KERNELS"]}).infer


def run_child(scenario: str, engine: str, threads: int) -> dict[str, list[float]]:
    """Returns the times of each pass of one process."""
    model = open_model(scenario)
    run = open_engine(engine, model, threads)
    if scenario.startswith(("decoder", "gpt")):
        times = {"first pass": clock(lambda: generate(run, model))}
        times["second pass"] = clock(lambda: generate(run, model))
        times["third pass"] = clock(lambda: generate(run, model))
        return times
    rng = np.random.default_rng(5)
    caches = empty_caches(model) if scenario == "prefill" else {}

    def run_all(inputs: Sequence[dict[str, Any]]) -> None:
        for feeds in inputs:
            run({**feeds, **caches})

    inputs, others = draw_inputs(scenario, rng), draw_inputs(scenario, rng)
    return {
        "first pass": clock(lambda: run_all(inputs)),
        "repeated": clock(lambda: run_all(inputs)),
        "new sizes": clock(lambda: run_all(others)),
        "repeated new": clock(lambda: run_all(others)),
    }


def start_child(scenario: str, engine: str, threads: int, *, cache: str, kernels: str) -> dict[str, list[float]]:
    command = [sys.executable, __file__, scenario, "--child", engine, "--threads", str(threads)]
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "KERNELS": kernels}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    times: dict[str, list[float]] = json.loads(done.stdout)
    return times


def compare(scenario: str, *, pairs: int, threads: int, kernels: str) -> None:
    """Prints the table of one scenario."""
    results: dict[tuple[str, str], list[dict[str, list[float]]]] = {}
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as cache:
            for label, engine in (("cold", "CPU"), ("", "ORT"), ("warm", "CPU")):
                times = start_child(scenario, engine, threads, cache=cache, kernels=kernels)
                results.setdefault((engine, label), []).append(times)
    for name in results["ORT", ""][0]:
        middles = {
            key: [statistics.median(times[name][place] for times in runs) for place in (0, 1)] for key, runs in results.items()
        }
        columns = "  ".join(f"{engine} {label} {cpu:8.1f} {wall:8.1f}" for (engine, label), (cpu, wall) in middles.items())
        ratio = middles["CPU", "warm"][0] / middles["ORT", ""][0], middles["CPU", "cold"][0] / middles["ORT", ""][0]
        print(f"{scenario:12} {name:12} {columns}   cold/ORT {ratio[1]:.2f}  warm/ORT {ratio[0]:.2f}", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", default="AUTO")
    parser.add_argument("--child", metavar="ENGINE")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_child(options.scenarios[0], options.child, options.threads)))
        return
    for scenario in options.scenarios:
        compare(scenario, pairs=options.pairs, threads=options.threads, kernels=options.kernels)


if __name__ == "__main__":
    main()
