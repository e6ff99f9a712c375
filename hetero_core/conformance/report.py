"""The report of a run: counts, failures with their reasons, and the support matrix, as plain values that JSON can hold.

The matrix has a row for each operator, version and element type. A case that ran counts for every node in it; a refused case
counts only for its refused nodes, since the remaining nodes were not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hetero_core.conformance.check import LEVELS
from hetero_core.conformance.contrib import count_operators
from hetero_core.conformance.operators import PASSED as RIGHT
from hetero_core.conformance.operators import REFUSED, WRONG, CaseOutcome
from hetero_core.conformance.runner import FAILED, PASSED, SKIPPED, Outcome, Target

STATUSES = (PASSED, FAILED, SKIPPED)
_CASES = ("operators", "contrib")
"""Levels of single cases, whose refusals are counted by operator instead of listed one by one."""


def _count_cells(outcomes: Iterable[CaseOutcome]) -> list[dict[str, Any]]:
    """Returns the support matrix, sorted by operator and element type; `native` counts passed cases on the device's own kernels."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for outcome in outcomes:
        for operator, dtype, is_claimed in dict.fromkeys(outcome.operators):
            if outcome.status == REFUSED and is_claimed:
                continue
            counter = counts.setdefault((operator, dtype), Counter())
            counter[outcome.status] += 1
            counter["native"] += outcome.is_native
    return [
        {"operator": operator, "dtype": dtype} | {name: counter[name] for name in (RIGHT, "native", REFUSED, WRONG)}
        for (operator, dtype), counter in sorted(counts.items())
    ]


def report_to_json(target: Target, outcomes: Sequence[Outcome], versions: Mapping[str, str]) -> dict[str, Any]:
    """Returns the report as fields; `operators` is None if no case was run."""
    cases = [outcome.finding for outcome in outcomes if isinstance(outcome.finding, CaseOutcome)]
    # A case without a verdict, such as a hanging case, has no finding; it counts as wrong.
    unjudged = [each for each in outcomes if each.check.level == "operators" and not isinstance(each.finding, CaseOutcome)]
    return {
        "device": target.device,
        "versions": dict(versions),
        "seed": target.seed,
        "reference": target.reference,
        "checks": {status: sum(outcome.status == status for outcome in outcomes) for status in STATUSES},
        "levels": {
            level: {status: sum(each.status == status for each in outcomes if each.check.level == level) for status in STATUSES}
            for level in LEVELS
            if any(each.check.level == level for each in outcomes)
        },
        "failures": _list_reasons(outcome for outcome in outcomes if outcome.status == FAILED),
        "skips": _list_reasons(outcome for outcome in outcomes if outcome.status == SKIPPED and outcome.check.level not in _CASES),
        "operators": _describe_cases(cases, unjudged) if cases or unjudged else None,
        "contrib": count_operators(outcomes),
        "matrix": _count_cells(cases),
    }


def _list_reasons(outcomes: Iterable[Outcome]) -> list[dict[str, str]]:
    return [{"name": outcome.check.name, "level": outcome.check.level, "reason": outcome.reason} for outcome in outcomes]


def _describe_cases(cases: Sequence[CaseOutcome], unjudged: Sequence[Outcome]) -> dict[str, Any]:
    counts = Counter(case.status for case in cases)
    return {
        "cases": len(cases) + len(unjudged),
        RIGHT: counts[RIGHT],
        REFUSED: counts[REFUSED],
        WRONG: counts[WRONG] + len(unjudged),
        "native": sum(case.is_native for case in cases),
        "judged_by_facts": sum(case.is_free for case in cases if case.status == RIGHT),
        "refusals": [{"case": case.name, "reason": case.reason} for case in cases if case.status == REFUSED],
        "errors": [
            *({"case": case.name, "reason": case.reason} for case in cases if case.status == WRONG),
            *({"case": outcome.check.name.partition(".")[2], "reason": outcome.reason} for outcome in unjudged),
        ],
        "through_the_reference": [case.name for case in cases if case.status == RIGHT and not case.is_native],
    }
