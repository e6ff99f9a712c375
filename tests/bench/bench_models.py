"""Times models on CPU and on other engines, and prints how far CPU is: `nox -s bench`, or this file with --help.

Each engine runs in a process of its own, so that no engine's threads disturb another's; the engines take turns, three rounds, and the
median of the rounds counts. Environment variables that choose another kernel set of BLAS are cleared in these processes.
Prints a table and the geometric mean of engine / CPU; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

LIGHT = ("densenet121", "inception_v1", "resnet50", "shufflenet", "squeezenet", "vgg19")
LARGER = ("bert", "gpt2_step", "mobilenet_v2", "u_net", "vit_tiny")
ENGINES = ("CPU", "onnxruntime", "openvino", "reference")
# They make OpenBLAS run kernels for another processor, or with other block sizes.
CLEARED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_VERBOSE", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def make_model(name: str, batch: int) -> Any:
    """Returns a model with seeded random weights; a light one is made for one image and takes more where its nodes do."""
    from hetero_core.testing.larger_models import larger_model
    from hetero_core.testing.models import light_model

    if name in LARGER:
        return larger_model(name, batch)
    model = light_model(name)
    for value in (*model.graph.input, *model.graph.output):
        if batch > 1:
            value.type.tensor_type.shape.dim[0].dim_value = batch
    if batch > 1:
        _widen_reshapes(model)
        del model.graph.value_info[:]
    return model


def _widen_reshapes(model: Any) -> None:
    """Makes the first size of each constant Reshape target of activations what the input has: 0."""
    import onnx

    weights = {initializer.name: initializer for initializer in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Reshape" and node.input[0] not in weights and node.input[1] in weights:
            sizes = onnx.numpy_helper.to_array(weights[node.input[1]]).copy()
            if sizes[0] == 1:
                sizes[0] = 0
                weights[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(sizes, node.input[1]))


def open_engine(engine: str, path: str, threads: int) -> Callable[[dict[str, Any]], list[Any]]:
    """Returns a function that runs a model on an engine, f32, with so many threads."""
    if engine == "CPU":
        from hetero_core import Core

        request = Core().load_network(path, "CPU").create_infer_request()
        return lambda inputs: list(request.infer(inputs).values())
    if engine == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda inputs: list(session.run(None, inputs))
    if engine == "openvino":
        import openvino  # type: ignore[import-not-found,unused-ignore]  # not among the requirements

        config = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        compiled = openvino.Core().compile_model(path, "CPU", config)
        asked = compiled.create_infer_request()
        return lambda inputs: [asked.infer(inputs)[output] for output in compiled.outputs]
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(path)
    return lambda inputs: list(evaluator.run(None, inputs))


def measure(engine: str, path: str, threads: int, seconds: float) -> dict[str, float]:
    """Returns times in milliseconds and the peak memory in MiB; writes the outputs beside the model."""
    import numpy as np
    import onnx

    from hetero_core.testing.models import light_inputs

    inputs = light_inputs(onnx.load(path))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = perf_counter()
    run = open_engine(engine, path, threads)
    loaded = perf_counter()
    outputs = run(inputs)
    first = perf_counter()
    np.savez(Path(path).with_name(f"{engine}.npz"), *outputs)
    times: list[float] = []
    end = perf_counter() + seconds
    while perf_counter() < end or len(times) < (1 if engine == "reference" else 5):
        start = perf_counter()
        run(inputs)
        times.append(perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "load": (loaded - began) * 1e3,
        "first": (first - loaded) * 1e3,
        "median": statistics.median(times) * 1e3,
        "added_peak": (peak - before) / 1024,
    }


def run_child(engine: str, path: Path, threads: int, seconds: float) -> dict[str, float]:
    environment = {key: value for key, value in os.environ.items() if key not in CLEARED}
    environment.update(dict.fromkeys(THREADS, str(threads)))
    command = [sys.executable, __file__, "--child", engine, str(path), str(threads), str(seconds)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{engine} failed on {path}:\n{ended.stderr}")
    result: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return result


def find_difference(folder: Path, engine: str, other: str) -> float:
    """Returns the largest difference of two engines' outputs, relative to the largest element."""
    import numpy as np

    ours, theirs = (np.load(folder / f"{name}.npz") for name in (engine, other))
    differences = [np.abs(ours[key] - theirs[key]).max() / max(np.abs(theirs[key]).max(), 1e-30) for key in ours]
    return float(max(differences))


def bench_model(name: str, batch: int, threads: int, arguments: argparse.Namespace) -> dict[str, Any]:
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(make_model(name, batch), path)
        rounds: dict[str, list[dict[str, float]]] = {engine: [] for engine in arguments.engines}
        for turn in range(arguments.rounds):
            for engine in arguments.engines:
                if engine != "reference" or turn == 0:
                    rounds[engine].append(run_child(engine, path, threads, arguments.seconds))
        row: dict[str, Any] = {"model": name, "batch": batch, "threads": threads}
        for engine, found in rounds.items():
            row[engine] = {key: statistics.median(result[key] for result in found) for key in found[0]}
            if engine != "CPU":
                row[engine]["difference"] = find_difference(Path(folder), "CPU", engine)
    return row


def print_row(row: dict[str, Any], engines: list[str]) -> None:
    ours = row["CPU"]
    cells = [f"{row['model']:13}", f"{row['batch']:5}", f"{row['threads']:7}", f"{ours['median']:9.2f}"]
    for engine in engines[1:]:
        other = row[engine]
        cells.append(f"{other['median']:9.2f} {other['median'] / ours['median']:5.2f} {other['difference']:8.1e}")
    cells.append(f"{ours['load']:8.0f} {ours['first']:8.1f} {ours['added_peak']:8.0f}")
    print(" | ".join(cells), flush=True)


def describe_machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} processors, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[*LIGHT, *LARGER], help="names; all by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each engine in each round")
    parser.add_argument("--reference", action="store_true", help="time onnx's reference evaluator, too, in one round")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    wanted = ["CPU", "onnxruntime", "openvino", *(["reference"] if arguments.reference else [])]
    arguments.engines = [engine for engine in wanted if engine in ("CPU", "reference") or find_spec(engine) is not None]
    print(describe_machine())
    print(f"cleared in the children: {', '.join(CLEARED)}; set to the number of threads: {', '.join(THREADS)}")
    print(
        "milliseconds, median of rounds; for each other engine its time, its time / CPU's, the largest relative difference of outputs;"
    )
    print("then CPU's time to load and of the first inference, and the MiB that it added to the peak of its process")
    print(
        " | ".join(
            [
                "model        ",
                "batch",
                "threads",
                "      CPU",
                *(f"{engine:>24}" for engine in arguments.engines[1:]),
                "load, first, MiB",
            ]
        )
    )
    rows = []
    for threads in arguments.threads:
        for batch in arguments.batch:
            for name in arguments.models:
                rows.append(bench_model(name, batch, threads, arguments))
                print_row(rows[-1], arguments.engines)
    for engine in arguments.engines[1:]:
        for threads in arguments.threads:
            ratios = [row[engine]["median"] / row["CPU"]["median"] for row in rows if row["threads"] == threads]
            print(
                f"{engine}, {threads} threads: geometric mean of {engine} / CPU = {math.exp(statistics.mean(map(math.log, ratios))):.2f}"
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))))
    else:
        main()
