"""The report of a run: counts, failures with their reasons, and the support matrix, as plain values that JSON can hold.

The matrix has a row for each operator, version and element type. A case that ran counts for every node in it; a refused case
counts only for its refused nodes, since the remaining nodes were not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from hetero_core.conformance.check import LEVELS, Subject
from hetero_core.conformance.contrib import count_operators
from hetero_core.conformance.operators import PASSED as RIGHT
from hetero_core.conformance.operators import REFUSED, WRONG, CaseOutcome
from hetero_core.conformance.runner import FAILED, NOT_RUN, PASSED, SKIPPED, Outcome
from hetero_core.reports.page import format_page

STATUSES = (PASSED, FAILED, SKIPPED)
_CASES = ("operators", "contrib")
"""Levels of single cases, whose refusals are counted by operator, not listed."""


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


def report_to_json(
    subject: Subject, outcomes: Sequence[Outcome], versions: Mapping[str, str], *, not_run: int = 0
) -> dict[str, Any]:
    """Returns the report as fields; `operators` is None if no case was run, `not_run` the number of checks that were not reached."""
    left_out = Counter(outcome.reason for outcome in outcomes if outcome.status == NOT_RUN)
    outcomes = [outcome for outcome in outcomes if outcome.status != NOT_RUN]
    cases = [outcome.finding for outcome in outcomes if isinstance(outcome.finding, CaseOutcome)]
    # A case without a verdict, such as a hanging case, has no finding; it counts as wrong.
    unjudged = [each for each in outcomes if each.check.level == "operators" and not isinstance(each.finding, CaseOutcome)]
    return {
        "device": subject.device,
        "versions": dict(versions),
        "seed": subject.seed,
        "reference": subject.reference,
        "checks": {status: sum(outcome.status == status for outcome in outcomes) for status in STATUSES},
        "not_run": not_run + left_out.total(),
        "left_out": [{"checks": count, "reason": reason} for reason, count in left_out.items()],
        "levels": {
            level: {status: sum(each.status == status for each in outcomes if each.check.level == level) for status in STATUSES}
            for level in LEVELS
            if any(each.check.level == level for each in outcomes)
        },
        "failures": _list_outcomes(outcome for outcome in outcomes if outcome.status == FAILED),
        "skips": _list_outcomes(outcome for outcome in outcomes if outcome.status == SKIPPED and outcome.check.level not in _CASES),
        "operators": _describe_cases(cases, unjudged) if cases or unjudged else None,
        "contrib": count_operators(outcomes),
        "matrix": _count_cells(cases),
    }


def _list_outcomes(outcomes: Iterable[Outcome]) -> list[dict[str, str]]:
    """Returns a row for each outcome; a failure with a traceback, or with the stacks of a crash or a hang, has it as `trace`."""
    return [
        {"name": outcome.check.name, "level": outcome.check.level, "reason": outcome.reason}
        | ({"trace": outcome.trace} if outcome.trace else {})
        for outcome in outcomes
    ]


def _describe_cases(cases: Sequence[CaseOutcome], unjudged: Sequence[Outcome]) -> dict[str, Any]:
    counts = Counter(case.status for case in cases)
    return {
        "cases": len(cases) + len(unjudged),
        RIGHT: counts[RIGHT],
        REFUSED: counts[REFUSED],
        WRONG: counts[WRONG] + len(unjudged),
        "native": sum(case.is_native for case in cases),
        "times_of_numpy": _compare_times(cases),
        "judged_by_facts": sum(case.is_free for case in cases if case.status == RIGHT),
        "refusals": [{"case": case.name, "reason": case.reason} for case in cases if case.status == REFUSED],
        "errors": [
            *({"case": case.name, "reason": case.reason} for case in cases if case.status == WRONG),
            *({"case": outcome.check.name.partition(".")[2], "reason": outcome.reason} for outcome in unjudged),
        ],
        "through_the_reference": [case.name for case in cases if case.status == RIGHT and not case.is_native],
    }


SLOW = 100.0
"""The time of an operator, relative to NumPy's kernels, from which on the report names it."""


def _compare_times(cases: Iterable[CaseOutcome]) -> dict[str, float]:
    """Returns operator -> the time of a run relative to NumPy's kernels, the median of its measured cases; the slowest comes first."""
    ratios: dict[str, list[float]] = {}
    for case in cases:
        if case.slowdown:
            ratios.setdefault(case.operators[0][0], []).append(case.slowdown)
    return dict(
        sorted(((operator, round(median(each), 2)) for operator, each in ratios.items()), key=lambda row: (-row[1], row[0]))
    )


def describe_times(times: Mapping[str, float]) -> str:
    """Returns a sentence on the times of operators, which names the slow ones; empty if none was measured."""
    if not times:
        return ""
    slow = [f"{operator} ({ratio:,.0f})" for operator, ratio in times.items() if ratio >= SLOW]
    count = "1 operator takes" if len(slow) == 1 else f"{len(slow)} operators take"
    noted = f" {count} more than {SLOW:g} times as long: {', '.join(slow[:8])}." if slow else ""
    return f" A run takes {median(times.values()):.2g} times as long as with NumPy's kernels, the median of {len(times)} operators.{noted}"


_COUNTS = ("passed", "native", "refused", "wrong")

_LEGEND = (
    "A number counts the cases of ONNX's backend suite that were computed right; `refused` counts those that query and load refuse alike, "
    "with the reason; `wrong` counts the others. An empty cell has no case."
)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a page. Columns whose heads are counts or statuses hold numbers."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def report_to_markdown(report: Mapping[str, Any]) -> str:
    """Returns the report as a page: counts, failures, skipped checks, and the support matrix."""
    parts = [part if isinstance(part, str) else _write_markdown(part) for part in _list_parts(report)]
    return "\n\n".join([f"# Conformance of {report['device']}", *parts]) + "\n"


def report_to_html(report: Mapping[str, Any]) -> str:
    """Returns the report as an HTML document without scripts."""
    parts = [f"<p>{escape(part)}</p>" if isinstance(part, str) else _write_html(part) for part in _list_parts(report)]
    return format_page(f"Conformance of {report['device']}", "\n".join(parts))


def _list_parts(report: Mapping[str, Any]) -> list[str | _Table]:
    """Returns the sentences and tables of a page in order; refused cases, usually hundreds of rows, come last."""
    operators = report["operators"]
    levels = [(level, *(str(counts[status]) for status in STATUSES)) for level, counts in report["levels"].items()]
    versions = ", ".join(f"{name}: {text}" for name, text in report["versions"].items())
    reference = f", beside {report['reference']}" if report["reference"] else ""
    parts: list[str | _Table] = [f"{versions}; seed {report['seed']}{reference}.", _Table("", ("level", *STATUSES), levels)]
    if report["not_run"]:
        parts.append(describe_not_run(report))
    if operators is not None:
        parts.append(describe_operators(operators))
    cells = [(cell["operator"], cell["dtype"], *(str(cell[count]) for count in _COUNTS)) for cell in report["matrix"]]
    tables = [
        _list_reasons("Failures", report["failures"], "name"),
        _list_reasons("Skipped", report["skips"], "name"),
        _Table("Support matrix", ("operator", "element type", *_COUNTS), cells),
        _list_reasons("Refused cases", [] if operators is None else operators["refusals"], "case"),
    ]
    return [*parts, *(table for table in tables if table.rows)]


def _list_reasons(title: str, entries: list[dict[str, str]], key: str) -> _Table:
    return _Table(title, (key, "reason"), [(entry[key], entry["reason"]) for entry in entries])


def _write_markdown(table: _Table) -> str:
    if not table.title:
        return format_markdown(table.head, table.rows)
    return f"## {table.title}\n\n{format_markdown(table.head, [[f'`{first}`', *cells] for first, *cells in table.rows])}"


def _write_html(table: _Table) -> str:
    heads = "".join(f"<th>{name}</th>" for name in table.head)
    rows = "".join(f"<tr>{''.join(map(_write_cell, table.head, row))}</tr>" for row in table.rows)
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    return f"{title}<table><tr>{heads}</tr>{rows}</table>"


def _write_cell(head: str, text: str) -> str:
    if head in (*_COUNTS, *STATUSES):
        return f'<td class="count{f" {head}" if text != "0" else ""}">{text}</td>'
    return f"<td><code>{escape(text)}</code></td>" if head in ("name", "case", "operator") else f"<td>{escape(text)}</td>"


def describe_operators(operators: Mapping[str, Any]) -> str:
    """Returns a sentence with the counts of the cases of ONNX's backend suite."""
    return (
        f"Of {operators['cases']} cases of ONNX's backend suite {operators['passed']} passed, {operators['native']} of them on the "
        f"device's own kernels and {operators['judged_by_facts']} judged by facts because their values are drawn; "
        f"{operators['refused']} were refused, and {operators['wrong']} are wrong.{describe_times(operators['times_of_numpy'])}"
    )


def format_matrix(report: Mapping[str, Any]) -> str:
    """Returns a page of Markdown: a row for each operator and version, a column for each element type; refused cases come last."""
    dtypes = list(dict.fromkeys(sorted(cell["dtype"] for cell in report["matrix"])))
    cells = {(cell["operator"], cell["dtype"]): cell for cell in report["matrix"]}
    rows = []
    for operator in dict.fromkeys(operator for operator, _ in cells):
        name, _, version = operator.rpartition("-")
        rows.append([f"`{name}`", version, *(_describe_cell(cells.get((operator, dtype), {})) for dtype in dtypes)])
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    table = format_markdown(["operator", "version", *dtypes], rows)
    parts = [f"# Operators of {report['device']}", f"{versions}. {_LEGEND}", table]
    refusals = report["operators"]["refusals"] if report["operators"] is not None else []
    parts += [_write_markdown(_list_reasons("Refused cases", refusals, "case"))] if refusals else []
    return "\n\n".join(parts) + "\n"


def count_refused(report: Mapping[str, Any]) -> int:
    """Returns the number of cases that the device refused, of ONNX's operators and of ONNX Runtime's own."""
    refused = 0 if report["operators"] is None else report["operators"]["refused"]
    return int(refused + sum(operator["refused"] for operator in report["contrib"] or ()))


def describe_refusals(report: Mapping[str, Any], shown: int) -> str:
    """Returns a sentence that names the operators of refused cases, at most `shown` of them; empty if no case was refused."""
    rows = [(cell["operator"].rpartition("-")[0], cell["refused"]) for cell in report["matrix"]]
    rows += [(row["operator"], row["refused"]) for row in report["contrib"] or ()]
    operators = list(dict.fromkeys(name for name, refused in rows if refused))
    if not operators:
        return ""
    noun = "operator" if len(operators) == 1 else "operators"
    rest = f" and {len(operators) - shown:,} more" if len(operators) > shown else ""
    return f"{count_refused(report):,} cases refused: {len(operators):,} {noun}, {', '.join(operators[:shown])}{rest}."


def describe_not_run(report: Mapping[str, Any]) -> str:
    """Returns a line for each reason for which checks were not run, with their number."""
    rows = [(group["checks"], group["reason"]) for group in report["left_out"]]
    unreached = report["not_run"] - sum(count for count, _ in rows)
    rows += [(unreached, "the run was ended early")] if unreached else []
    return "\n".join(f"{count:,} {'check was' if count == 1 else 'checks were'} not run: {reason}." for count, reason in rows)


def describe_badge(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that shields.io reads from an endpoint: red if a check failed, yellow if some were not run, else green."""
    counts = {**report["checks"], "refused": count_refused(report), "not run": report["not_run"]}
    names = ("failed", "passed", "refused", "not run")
    message = ", ".join(f"{counts[name]:,} {name}" for name in names if counts[name] or name == "passed")
    color = "red" if counts["failed"] else "yellow" if counts["not run"] else "brightgreen"
    return {"schemaVersion": 1, "label": f"{report['device']} conformance", "message": message, "color": color}


def _describe_cell(cell: Mapping[str, int]) -> str:
    counts = [f"{cell[name]} {name}".removesuffix(" passed") for name in ("passed", "refused", "wrong") if cell.get(name)]
    return ", ".join(counts)


def format_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown; line breaks in cells are removed."""
    lines = [["---"] * len(head), *([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, *lines])
