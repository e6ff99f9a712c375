"""Generates the reference page of checks from the catalogue.

`PYTHONPATH=tests/shared python -m hetero_tests.conformance_page docs/reference/conformance.md` regenerates it after a change;
a test fails if the page is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hetero_core.conformance.catalogue import STATIC_CHECKS
from hetero_core.conformance.check import CAPABILITIES, LEVELS, Check
from hetero_core.conformance.choices import list_choice_checks
from hetero_core.conformance.contrib import list_contrib_checks
from hetero_core.conformance.graphs.attempt import list_graph_checks
from hetero_core.conformance.models import list_hetero_checks, list_model_checks
from hetero_core.conformance.operators import list_operator_checks

_HEAD = """# Conformance

This page lists every check of the [conformance kit](../how-to/test-your-device.md), by level and in the order in which they run.
Run one level, or checks by name:

```console
$ hetero conformance CPU --level contract --check 'cancel.*'
```

This page is generated from the checks: `PYTHONPATH=tests/shared python -m hetero_tests.conformance_page docs/reference/conformance.md`.

| level | about | checks |
|---|---|---|
"""

_NEEDS = """
A check is skipped, with the reason, if the device lacks an ability that the check needs:

| needs | reason for the skip |
|---|---|
"""


def format_conformance_page() -> str:
    """Returns the page as Markdown; checks generated from cases and models get a single row for each kind."""
    drawn_checks = (
        *list_choice_checks(),
        *list_operator_checks(),
        *list_contrib_checks(),
        *list_model_checks(),
        *list_hetero_checks(),
        *list_graph_checks(),
    )
    counts = {level: sum(check.level == level for check in (*STATIC_CHECKS, *drawn_checks)) for level in LEVELS}
    levels = "".join(f"| `{level}` | {about} | {counts[level]} |\n" for level, about in LEVELS.items())
    needs = "".join(f"| `{need}` | {reason} |\n" for need, reason in CAPABILITIES.items())
    parts = [_HEAD + levels + _NEEDS + needs]
    for level in LEVELS:
        written = [check for check in STATIC_CHECKS if check.level == level]
        kinds = _describe_kinds([check for check in drawn_checks if check.level == level])
        rows = [f"| `{check.name}` | {check.summary} | {', '.join(check.needs)} |" for check in written]
        parts.append("\n".join([f"## Level `{level}`", "", "| check | claim | needs |", "|---|---|---|", *rows, *kinds, ""]))
    return "\n".join(parts)


def _describe_kinds(checks: list[Check]) -> list[str]:
    """Returns a row for each function that generates checks, with the first check as an example."""
    first: dict[str, Check] = {}
    counts: dict[str, int] = {}
    for check in checks:
        first.setdefault(check.summary, check)
        counts[check.summary] = counts.get(check.summary, 0) + 1
    return [
        f"| `{check.name}` and {counts[summary] - 1} more | {summary} | {', '.join(check.needs)} |"
        for summary, check in first.items()
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(format_conformance_page(), encoding="utf-8")
