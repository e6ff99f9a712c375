"""What runs in a process of its own: one task, read from a file, answered in another. Imports nothing heavy before it knows the task."""

from __future__ import annotations

import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

MODEL, INPUTS, EXPECTED = "model.onnx", "inputs.npz", "expected.npz"

Task = Mapping[str, Any]


def answer_task(folder: Path) -> None:
    """Does the task in a folder and writes its answer there, as `hetero_core.cli.measurement` has them; what failed is an answer, too.

    Imports nothing of hetero: what is imported here would make the import of our own engine look shorter.
    """
    # What engines print must not be in the way of what we print.
    os.dup2(2, 1)
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    try:
        answer = TASKS[task["kind"]](task)
    except Exception as error:  # noqa: BLE001  # the benchmark goes on with the other engines and shows what was raised
        traceback.print_exc()
        answer = {"error": {"type": type(error).__name__, "message": str(error).strip().partition("\n")[0]}}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def prepare(task: Task) -> dict[str, Any]:
    """Writes a model, its inputs, and what it answers in float64."""
    import numpy as np
    import onnx
    from speed.double import compute_expected
    from speed.models import make_model

    from hetero_core.errors import HeteroError
    from hetero_core.testing.models import light_inputs

    folder = Path(task["folder"])
    model = make_model(task["model"], task["batch"])
    onnx.save(model, folder / MODEL)
    inputs = light_inputs(model)
    np.savez(folder / INPUTS, **inputs)
    if not task["compares"]:
        return {}
    try:
        np.savez(folder / EXPECTED, *compute_expected(model, inputs))
    except HeteroError as error:
        return {"no_float64": str(error)}
    return {}


def probe(task: Task) -> dict[str, Any]:
    """Returns for each engine why it cannot take part, or None; the folder holds a small model."""
    from speed.engines import find_reason

    return {name: find_reason(name, Path(task["folder"]) / MODEL) for name in task["engines"]}


def time_runs(task: Task) -> dict[str, Any]:
    """Returns milliseconds of import, load, first and median run, and the peak of the memory in bytes; keeps the outputs of two runs.

    With `idle` seconds also those of the processor in so long a time of nothing, 5 ms after the last run.
    """
    _, session, inputs, outputs, times = _open(task)
    # Ours comes after the engine: what it imports would make the engine's own import look shorter.
    from speed.engines import wait_until_ready

    from hetero_core.cli.measurement import find_peak_memory

    _keep(outputs, task, "first")
    ready = wait_until_ready(session, inputs, warm=0.0 if task["engine"] == "reference" else task["seconds"] / 4)
    runs: list[float] = []
    end = perf_counter() + task["seconds"]
    while perf_counter() < end or len(runs) < task["least_runs"]:
        began = perf_counter()
        outputs = session.run(inputs)
        runs.append(perf_counter() - began)
    idle = _measure_idleness(task["idle"]) if "idle" in task else None
    peak = find_peak_memory()
    _keep(outputs, task, "last")
    summary = {"median": statistics.median(runs) * 1e3, "lowest": min(runs) * 1e3, "runs": len(runs), "peak": peak}
    return {**times, **summary, "ready": ready, "idle": idle, "facts": dict(session.facts or {})}


def start(task: Task) -> dict[str, Any]:
    """Returns milliseconds until the first answer of a fresh process: of import, load, first run, and of all since it was started.

    `again` is a second load in the same process: what the first one takes longer is mostly modules that are imported when they are needed.
    With `blob`, a path: writes one when everything is compiled, or, with `is_import`, loads that instead of the model.
    """
    engine, session, inputs, outputs, times = _open(task)
    times["total"] = (time.time() - task["spawned"]) * 1e3
    from speed.engines import wait_until_ready

    _keep(outputs, task, "first")
    if "blob" not in task or task["is_import"]:
        return {**times, "again": _time_load(engine, task), "ready": None}
    ready = wait_until_ready(session, inputs, warm=0.5)
    if session.export is not None:
        session.export(Path(task["blob"]))
    return {**times, "ready": ready, "is_exported": session.export is not None}


def _open(task: Task) -> tuple[Any, Any, dict[str, Any], list[Any], dict[str, Any]]:
    """Returns the engine, the loaded model, its inputs, the outputs of the first run, and milliseconds."""
    # Every engine's process has NumPy and the inputs before its clock starts.
    import numpy as np
    from speed.engines import import_engine

    folder = Path(task["folder"])
    with np.load(folder / INPUTS) as stored:
        inputs = dict(stored)
    began = perf_counter()
    engine = import_engine(task["engine"], task["threads"])
    imported = perf_counter()
    session = _load(engine, task)
    loaded = perf_counter()
    outputs = session.run(inputs)
    ended = perf_counter()
    times = {"import": (imported - began) * 1e3, "load": (loaded - imported) * 1e3, "first": (ended - loaded) * 1e3}
    return engine, session, inputs, outputs, times


def _load(engine: Any, task: Task) -> Any:
    if task.get("is_import"):
        return engine.load_blob(Path(task["blob"]))
    return engine.load(Path(task["folder"]) / MODEL)


def _time_load(engine: Any, task: Task) -> float:
    began = perf_counter()
    _load(engine, task)
    return (perf_counter() - began) * 1e3


def _keep(outputs: list[Any], task: Task, run: str) -> None:
    if "outputs" in task:
        import numpy as np

        np.savez(f"{task['outputs']}.{run}.npz", *outputs)


def _measure_idleness(seconds: float) -> float:
    """Returns milliseconds of the processor, all threads, for each second of sleep, from 5 ms after now."""
    time.sleep(0.005)
    began, busy = perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - busy) * 1e3 / (perf_counter() - began)


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {"prepare": prepare, "probe": probe, "time": time_runs, "start": start}
