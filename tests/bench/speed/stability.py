"""Starts many processes of each engine: how far the slowest is from the median, alone and beside a busy process, and what idling costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from speed.children import run_busy_neighbour, run_child
from speed.rounds import Plan, prepare_model

from hetero_core.cli.measurement import Answer, take_turns


def measure_stability(model: str, plan: Plan, tell: Callable[[Answer], None], *, processes: int) -> list[Answer]:
    """Returns one row for each batch, number of threads and engine; times are medians of the processes' own medians."""
    rows = []
    for batch in plan.batches:
        with prepare_model(model, batch, cache=plan.cache, compares=False) as (folder, _):
            for threads in plan.threads:
                answers: dict[tuple[str, bool], list[Answer]] = {}
                for has_neighbour in (False, True):
                    with run_busy_neighbour() if has_neighbour else nullcontext():
                        for turn in range(processes):
                            for engine in take_turns(plan.engines, turn):
                                task = {"kind": "time", "engine": engine, "folder": str(folder), "least_runs": 5}
                                # The processes beside a neighbour tell nothing about idleness.
                                more = {"seconds": plan.seconds} if has_neighbour else {"seconds": plan.seconds, "idle": 1.0}
                                answer = run_child({**task, **more}, threads=threads, cache=plan.cache)
                                answers.setdefault((engine, has_neighbour), []).append(answer)
                for engine in plan.engines:
                    place = {"model": model, "batch": batch, "threads": threads, "engine": engine}
                    rows.append({**place, **summarize(answers[engine, False], answers[engine, True])})
                    tell(rows[-1])
    return rows


def summarize(alone: Sequence[Answer], beside: Sequence[Answer]) -> Answer:
    """Returns milliseconds and ratios of processes that ran alone and of ones that ran beside a busy process."""
    for answer in (*alone, *beside):
        if "error" in answer:
            return {"error": answer["error"]}
    times, disturbed = ([answer["median"] for answer in answers] for answers in (alone, beside))
    median, idle = statistics.median(times), [answer["idle"] for answer in alone]
    return {
        "processes": len(times),
        "median": median,
        "slowest": max(times),
        "slowest_to_median": max(times) / median,
        "beside_median": statistics.median(disturbed),
        "beside_slowest": max(disturbed),
        "beside_to_median": statistics.median(disturbed) / median,
        "beside_slowest_to_median": max(disturbed) / median,
        "idle_median": statistics.median(idle),
        "idle_most": max(idle),
        "times": times,
        "beside_times": disturbed,
    }
