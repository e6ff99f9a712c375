"""Times the start: a fresh process until its first right answer, with an empty cache and with a full one, and from a compiled blob."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speed.child import EXPECTED
from speed.children import find_difference, run_child
from speed.rounds import Plan, prepare_model

from hetero_core.cli.measurement import Answer, take_turns

RIGHT = 1e-4
"""How far from float64 an answer may be, relative to the largest element."""


def time_starts(model: str, plan: Plan, tell: Callable[[Answer], None]) -> list[Answer]:
    """Returns one row for each batch, number of threads and engine.

    Each round has four processes: `cold` with an empty cache, one that fills the cache and writes the blob, `warm`, and `blob`.
    """
    rows = []
    for batch in plan.batches:
        with prepare_model(model, batch, cache=plan.cache) as (folder, _):
            for threads in plan.threads:
                answers: dict[str, list[Answer]] = {engine: [] for engine in plan.engines}
                for turn in range(plan.rounds):
                    for engine in take_turns(plan.engines, turn):
                        answers[engine].append(_start_four(folder, engine, threads))
                for engine, rounds in answers.items():
                    place = {"model": model, "batch": batch, "threads": threads, "engine": engine}
                    rows.append({**place, **_merge(rounds)})
                    tell(rows[-1])
    return rows


def _start_four(folder: Path, engine: str, threads: int) -> Answer:
    """Returns the answers of the four processes by name; without `blob` where the engine has none."""
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as name:
        cache = Path(name)
        task = {"kind": "start", "engine": engine, "folder": str(folder), "outputs": str(folder / engine), "is_import": False}
        found: Answer = {}

        def run(step: str, *, place: str, **more: Any) -> None:
            (cache / place).mkdir(exist_ok=True)
            answer = run_child({**task, **more}, threads=threads, cache=cache / place)
            answer["difference"] = find_difference(folder / f"{engine}.first.npz", folder / EXPECTED)
            found[step] = answer

        blob = str(cache / "model.blob")
        run("cold", place="empty")
        run("fill", place="kept", blob=blob)
        run("warm", place="kept")
        if found["fill"].get("is_exported"):
            run("blob", place="kept", blob=blob, is_import=True)
    return found


def _merge(rounds: Sequence[Mapping[str, Answer]]) -> Answer:
    """Returns medians of milliseconds as `step_figure`, the largest difference from float64, and how long compiling took in seconds."""
    merged: Answer = {}
    for step in rounds[0]:
        for found in rounds:
            if "error" in found.get(step, {}):
                return {"error": f"{step}: {found[step]['error']}"}
    for step in ("cold", "warm", "blob"):
        if step not in rounds[0]:
            continue
        for key in ("import", "load", "first", "total", "again"):
            merged[f"{step}_{key}"] = statistics.median(found[step][key] for found in rounds)
        # What a user waits for who has imported the engine.
        merged[f"{step}_answer"] = statistics.median(found[step]["load"] + found[step]["first"] for found in rounds)
    ready = [found["fill"]["ready"] for found in rounds if found["fill"]["ready"] is not None]
    merged["ready"] = statistics.median(ready) if ready else None
    differences = [answer["difference"] for found in rounds for answer in found.values() if answer["difference"] is not None]
    merged["difference"] = max(differences) if differences else None
    return merged
