"""The measuring process of compare.py: loads a case with an engine, runs it, and prints the figures as JSON.

An engine is `onnxruntime`, `openvino`, or any device of this project with configuration after plus signs:
`CPU`, `CPU+CPU_KERNELS=NUMPY`, `HETERO:TEMPLATE,CPU`. Nothing of tests/ is imported, so that another checkout can be measured.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

Run = Callable[[dict[str, Any]], dict[str, Any]]
LONGEST_WAIT = 300.0
"""The longest wait for the compilation of kernels, in seconds."""
PINNED = 20
"""The number of consecutive nodes on the same device when a plan is timed."""


def open_onnxruntime(path: Path, threads: int) -> tuple[Run, Callable[[], bool]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)), lambda: True


def open_openvino(path: Path, threads: int) -> tuple[Run, Callable[[], bool]]:
    import openvino

    config = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(str(path), "CPU", config)
    request, names = compiled.create_infer_request(), {output: output.get_any_name() for output in compiled.outputs}

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return {name: results[output] for output, name in names.items()}

    return run, lambda: True


def split_engine(engine: str) -> tuple[str, dict[str, str]]:
    """Returns the device and its configuration."""
    device, *items = engine.split("+")
    return device, dict(item.split("=", 1) for item in items)


def open_device(engine: str, path: Path, threads: int) -> tuple[Run, Callable[[], bool]]:
    from hetero_core import Core
    from hetero_core.errors import MetricNotFoundError

    device, config = split_engine(engine)
    core = Core()
    if "INFERENCE_NUM_THREADS" in core.config_keys(device):
        config["INFERENCE_NUM_THREADS"] = str(threads)
    loaded = core.load_network(path, device, config)

    def is_ready() -> bool:
        try:
            return bool(loaded.get_metric("CPU_KERNELS_READY"))
        except MetricNotFoundError:
            return True

    return loaded.create_infer_request().infer, is_ready


def open_engine(engine: str, path: Path, threads: int) -> tuple[Run, Callable[[], bool]]:
    """Returns a function that runs the loaded model, and a function that says whether its background compilation has finished."""
    if engine == "onnxruntime":
        return open_onnxruntime(path, threads)
    return open_openvino(path, threads) if engine == "openvino" else open_device(engine, path, threads)


def time_plan(engine: str, path: Path) -> float:
    """Returns the seconds of HETERO's planning for the case, with its nodes pinned to the devices in turn."""
    from hetero_core import Core

    device, config = split_engine(engine)
    devices = device.partition(":")[2].split(",")
    core = Core()
    network = core.read_network(path)
    pins = {node.name: devices[index // PINNED % len(devices)] for index, node in enumerate(network.nodes)}
    pinned = network.with_affinity(pins)
    for name in devices:
        core.get_metric(name, "FULL_DEVICE_NAME")
    began = perf_counter()
    core.query_network(pinned, device, config)
    return perf_counter() - began


def open_runs(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the feeds of a pass, and the number of tokens that follow, from the files of a case."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    runs: list[dict[str, Any]] = [{} for _ in range(case["runs"])]
    with np.load(folder / "inputs.npz") as stored:
        for key in stored:
            index, _, name = key.partition("/")
            runs[int(index)][name] = stored[key]
    return runs, case["tokens"]


def run_case(run: Run, runs: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Returns the outputs of the last run of a pass; a decoder gets the token of its largest logit and its own past outputs."""
    outputs: dict[str, Any] = {}
    for feeds in runs:
        outputs = run(feeds)
    for _ in range(tokens):
        past = {name: outputs[name.replace("past", "present")] for name in runs[0] if name.startswith("past")}
        feeds = {"tokens": outputs["logits"][:, -1:].argmax(-1), **past}
        if "attention_mask" in runs[0]:
            length = 1 + next(iter(past.values())).shape[2]
            feeds["attention_mask"] = np.ones((len(feeds["tokens"]), length), np.int64)
        outputs = run(feeds)
    return outputs


def wait_until_ready(is_ready: Callable[[], bool], again: Callable[[], object]) -> None:
    """Repeats a run until compilation has finished, because some kernels are compiled on use only. Raises: TimeoutError."""
    began = perf_counter()
    again()
    while not is_ready():
        if perf_counter() - began > LONGEST_WAIT:
            raise TimeoutError(f"kernels were not ready after {LONGEST_WAIT:.0f} s")
        again()
        sleep(0.02)


def find_peak_memory() -> int:
    """Returns the peak resident bytes. On Linux, getrusage would include the parent's peak before the exec."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    # macOS counts in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Returns the seconds until the first answer since the start of the process, of the load and of each pass, and the peak bytes."""
    folder = Path(task["folder"])
    path = folder / "model.onnx"
    runs, tokens = open_runs(folder)
    began = perf_counter()
    run, is_ready = open_engine(task["engine"], path, task["threads"])
    loaded = perf_counter()
    outputs = run(runs[0])
    figures: dict[str, Any] = {"first answer": [time.time() - task["started"]], "load": [loaded - began]}
    if task["seconds"]:
        wait_until_ready(is_ready, lambda: run_case(run, runs, tokens))
        times: list[float] = []
        end = perf_counter() + task["seconds"]
        while perf_counter() < end or len(times) < 3:
            began = perf_counter()
            outputs = run_case(run, runs, tokens)
            times.append(perf_counter() - began)
        figures["run"] = times
        if task["engine"].startswith("HETERO:"):
            figures["plan"] = [time_plan(task["engine"], path)]
    figures["peak memory"] = [find_peak_memory()]
    # Of maps their numbers.
    arrays = {name: [list(row.values()) for row in value] if isinstance(value, list) else value for name, value in outputs.items()}
    np.savez(task["outputs"], **arrays)
    return figures


if __name__ == "__main__":
    printed = os.dup(1)
    # Redirects the output of engines to stderr, away from the JSON.
    os.dup2(2, 1)
    answer = json.dumps(measure(json.loads(sys.argv[1])))
    with os.fdopen(printed, "w") as stream:
        stream.write(answer)
