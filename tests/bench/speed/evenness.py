"""Times a model against its batch, chains against their length, and tiny operators: a straight line, and what does a step cost?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from speed.children import run_child
from speed.rounds import Plan, prepare_model

from hetero_core.cli.measurement import Answer, take_turns

BATCHES = (1, 2, 4, 8, 16, 32)
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
TINY_OPERATORS = 400
TINY_FEW = 4
"""The shortest chain in which each operator of `elementwise` and `mixed` comes once: what a run costs that does next to nothing."""


def measure_evenness(
    models: Sequence[str],
    plan: Plan,
    tell: Callable[[Answer], None],
    *,
    batches: Sequence[int] = BATCHES,
    depths: Sequence[int] = DEPTHS,
) -> list[Answer]:
    """Returns one row for each series, number of threads and engine."""
    rows: list[Answer] = []
    for threads in plan.threads:
        series = {f"{model}, batch": {batch: (model, batch) for batch in batches} for model in models}
        series["convolutions, depth"] = {depth: (f"convolutions:{depth}", 1) for depth in depths}
        for name, points in series.items():
            times_of_engine = _time_points(points, plan, threads)
            for engine, times in times_of_engine.items():
                rows.append({"series": name, "threads": threads, "engine": engine, **_describe_line(times)})
                tell(rows[-1])
        for kind in ("elementwise", "mixed"):
            lengths = {length: (f"{kind}:{length}", 1) for length in (TINY_FEW, TINY_OPERATORS)}
            for engine, times in _time_points(lengths, plan, threads).items():
                row: Answer = {"series": f"{kind}, {TINY_OPERATORS} operators", "threads": threads, "engine": engine}
                rows.append({**row, **_describe_overhead(times)})
                tell(rows[-1])
    return rows


def _time_points(points: Mapping[int, tuple[str, int]], plan: Plan, threads: int) -> dict[str, dict[int, Answer]]:
    """Returns engine -> point -> the median over the rounds, or an error."""
    found: dict[str, dict[int, Answer]] = {engine: {} for engine in plan.engines}
    for point, (model, batch) in points.items():
        answers: dict[str, list[Answer]] = {engine: [] for engine in plan.engines}
        with prepare_model(model, batch, cache=plan.cache, compares=False) as (folder, _):
            for turn in range(plan.rounds):
                for engine in take_turns(plan.engines, turn):
                    task = {"kind": "time", "engine": engine, "folder": str(folder), "seconds": plan.seconds, "least_runs": 5}
                    answers[engine].append(run_child(task, threads=threads, cache=plan.cache))
        for engine, rounds in answers.items():
            errors = [answer for answer in rounds if "error" in answer]
            found[engine][point] = errors[0] if errors else {"median": statistics.median(answer["median"] for answer in rounds)}
    return found


def _describe_line(answers: Mapping[int, Answer]) -> Answer:
    for answer in answers.values():
        if "error" in answer:
            return {"error": answer["error"]}
    times = {point: answer["median"] for point, answer in answers.items()}
    constant, slope, deviation = fit_line(times)
    return {"times": times, "constant": constant, "slope": slope, "deviation": deviation}


def _describe_overhead(answers: Mapping[int, Answer]) -> Answer:
    """Microseconds of a run of the long chain, of the short one, and of each further operator."""
    for answer in answers.values():
        if "error" in answer:
            return {"error": answer["error"]}
    few, many = (answers[length]["median"] * 1e3 for length in (TINY_FEW, TINY_OPERATORS))
    return {"few": few, "many": many, "operator": (many - few) / (TINY_OPERATORS - TINY_FEW)}


def fit_line(times: Mapping[int, float]) -> tuple[float, float, float]:
    """Returns constant and slope of the line through the points whose relative deviations have the least squares, and the largest of them.

    Minimizes the sum of ((constant + slope n) / t - 1)^2 over the points (n, t): each counts alike, the small as the large.
    """
    weights = {point: 1 / time**2 for point, time in times.items()}
    total = sum(weights.values())
    middle = sum(weight * point for point, weight in weights.items()) / total
    height = sum(weights[point] * time for point, time in times.items()) / total
    spread = sum(weight * (point - middle) ** 2 for point, weight in weights.items())
    slope = sum(weights[point] * (point - middle) * (time - height) for point, time in times.items()) / spread
    constant = height - slope * middle
    return constant, slope, max(abs(constant + slope * point - time) / time for point, time in times.items())
