"""Times every engine on every model: rounds of one process after another, the median of the rounds, and how far the outputs are apart."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speed.child import EXPECTED
from speed.children import find_difference, run_child
from speed.engines import OURS

from hetero_core.cli.measurement import Answer, take_turns

_MEDIANS = ("import", "load", "first", "median", "lowest", "peak", "ready")


@dataclass(frozen=True)
class Plan:
    """What to time: in `rounds` rounds, `seconds` each. `cache` is where the children's caches are."""

    engines: Sequence[str]
    threads: Sequence[int]
    batches: Sequence[int]
    rounds: int
    seconds: float
    cache: Path


class PreparationError(RuntimeError):
    """A model could not be made."""


@contextmanager
def prepare_model(model: str, batch: int, *, cache: Path, compares: bool = True) -> Iterator[tuple[Path, Answer]]:
    """Yields a folder with the model, its inputs and, where it `compares`, its float64 answer, made by a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-model-") as name:
        task = {"kind": "prepare", "model": model, "batch": batch, "folder": name, "compares": compares}
        answer = run_child(task, threads=2, cache=cache)
        if "error" in answer:
            raise PreparationError(f"cannot make '{model}' of batch {batch}: {answer['error']}")
        yield Path(name), answer


def probe_engines(engines: Sequence[str], *, cache: Path) -> dict[str, str | None]:
    """Returns for each engine why it cannot take part, or None."""
    with prepare_model("residual", 1, cache=cache, compares=False) as (folder, _):
        answer = run_child({"kind": "probe", "engines": list(engines), "folder": str(folder)}, threads=1, cache=cache)
    if "error" in answer:
        raise PreparationError(f"cannot ask the engines: {answer['error']}")
    return answer


def time_model(model: str, plan: Plan, tell: Callable[[Answer], None]) -> list[Answer]:
    """Returns one row for each batch and number of threads; `tell` is called with each as soon as it is there."""
    rows = []
    for batch in plan.batches:
        with prepare_model(model, batch, cache=plan.cache) as (folder, prepared):
            for threads in plan.threads:
                row: Answer = {"model": model, "batch": batch, "threads": threads, **prepared}
                # The reference evaluator takes minutes for what the others do in milliseconds.
                engines = [engine for engine in plan.engines if engine != "reference" or batch == min(plan.batches)]
                row["engines"] = _time_engines(engines, plan, folder, threads=threads)
                rows.append(row)
                tell(row)
    return rows


def _time_engines(engines: Sequence[str], plan: Plan, folder: Path, *, threads: int) -> dict[str, Answer]:
    answers: dict[str, list[Answer]] = {engine: [] for engine in engines}
    for turn in range(plan.rounds):
        for engine in take_turns(engines, turn):
            is_reference = engine == "reference"
            if (is_reference and turn) or any("error" in answer for answer in answers[engine]):
                continue
            task = {"kind": "time", "engine": engine, "folder": str(folder), "outputs": str(folder / engine)}
            limits = {"seconds": 0.0 if is_reference else plan.seconds, "least_runs": 1 if is_reference else 3}
            answers[engine].append(run_child({**task, **limits}, threads=threads, cache=plan.cache))
            if turn == 0:
                answers[engine][0]["float64"] = _compare(folder, engine, EXPECTED)
    merged = {engine: merge_rounds(answers[engine]) for engine in engines}
    for engine in (engine for engine in engines if engine in OURS):
        others = {other: _compare(folder, engine, f"{other}.last.npz") for other in engines if other != engine}
        merged[engine]["differences"] = {other: value for other, value in others.items() if value is not None}
    return merged


def _compare(folder: Path, engine: str, other: str) -> float | None:
    """Returns how far an engine's first and last outputs are from a file: kernels may have changed between them."""
    differences = [find_difference(folder / f"{engine}.{run}.npz", folder / other) for run in ("first", "last")]
    known = [difference for difference in differences if difference is not None]
    return max(known) if known else None


def merge_rounds(answers: Sequence[Mapping[str, Any]]) -> Answer:
    """Returns the median of each figure, and beside it the medians of all rounds; the error of the round that failed, if one did."""
    for answer in answers:
        if "error" in answer:
            return {"error": answer["error"]}
    merged: Answer = {"rounds": [answer["median"] for answer in answers], "facts": answers[0]["facts"]}
    merged["float64"] = answers[0].get("float64")
    for key in _MEDIANS:
        figures = [answer[key] for answer in answers if answer[key] is not None]
        merged[key] = statistics.median(figures) if figures else None
    return merged
