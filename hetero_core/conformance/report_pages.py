"""Pages of a report: Markdown, and one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_COUNTS = ("passed", "native", "refused", "wrong")

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8886; padding: .2rem .7rem; text-align: left; vertical-align: top; }
td.count { text-align: right; font-variant-numeric: tabular-nums; }
.passed { color: #18794e; } .wrong, .failed { color: #c62a2f; font-weight: 600; } .refused, .skipped { color: #9a6700; }
@media (prefers-color-scheme: dark) { .passed { color: #4cc38a; } .wrong, .failed { color: #ff9592; }
  .refused, .skipped { color: #e2a336; } }
"""


def report_to_markdown(report: Mapping[str, Any]) -> str:
    """Returns the report as a page: counts, failures, what was skipped, and the support matrix."""
    parts = [f"# Conformance of {report['device']}", _introduce(report), _list_levels(report)]
    if report["operators"] is not None:
        parts.append(describe_operators(report["operators"]))
    for title, entries, key in _list_tables(report):
        rows = [f"| `{entry[key]}` | {_in_cell(entry['reason'])} |" for entry in entries]
        parts.append("\n".join([f"## {title}", "", f"| {key} | reason |", "|---|---|", *rows]))
    if report["matrix"]:
        rows = [
            f"| `{operator}` | " + " | ".join(_list_dtypes(cells, count) for count in _COUNTS) + " |"
            for operator, cells in _group(report).items()
        ]
        head = [
            "## Support matrix",
            "",
            "Cases for each element type.",
            "",
            f"| operator | {' | '.join(_COUNTS)} |",
            "|---" * 5 + "|",
        ]
        parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts) + "\n"


def report_to_html(report: Mapping[str, Any]) -> str:
    """Returns the report as one HTML document without scripts."""
    title = escape(f"Conformance of {report['device']}")
    parts = [f"<h1>{title}</h1>", f"<p>{escape(_introduce(report))}</p>", _levels_to_html(report)]
    if report["operators"] is not None:
        parts.append(f"<p>{escape(describe_operators(report['operators']))}</p>")
    for heading, entries, key in _list_tables(report):
        rows = "".join(
            f"<tr><td><code>{escape(entry[key])}</code></td><td>{escape(entry['reason'])}</td></tr>" for entry in entries
        )
        parts.append(f"<h2>{escape(heading)}</h2><table><tr><th>{key}</th><th>reason</th></tr>{rows}</table>")
    if report["matrix"]:
        rows = "".join(
            f"<tr><td><code>{escape(cell['operator'])}</code></td><td>{escape(cell['dtype'])}</td>"
            + "".join(f'<td class="count{f" {count}" if cell[count] else ""}">{cell[count]}</td>' for count in _COUNTS)
            + "</tr>"
            for cell in report["matrix"]
        )
        names = "".join(f"<th>{count}</th>" for count in _COUNTS)
        parts.append(f"<h2>Support matrix</h2><table><tr><th>operator</th><th>element type</th>{names}</tr>{rows}</table>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def describe_operators(operators: Mapping[str, Any]) -> str:
    """Returns a sentence with the counts of the cases of ONNX's backend suite."""
    return (
        f"Of {operators['cases']} cases of ONNX's backend suite {operators['passed']} passed, {operators['native']} of them on the "
        f"device's own kernels and {operators['judged_by_facts']} judged by facts because their values are drawn; "
        f"{operators['refused']} were refused, and {operators['wrong']} are wrong."
    )


def _introduce(report: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name}: {text}" for name, text in report["versions"].items())
    reference = f", beside {report['reference']}" if report["reference"] else ""
    return f"{versions}; seed {report['seed']}{reference}."


def _list_levels(report: Mapping[str, Any]) -> str:
    rows = [
        f"| {level} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |" for level, counts in report["levels"].items()
    ]
    return "\n".join(["| level | passed | failed | skipped |", "|---|---|---|---|", *rows])


def _levels_to_html(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{level}</td>"
        + "".join(f'<td class="count{f" {status}" if count else ""}">{count}</td>' for status, count in counts.items())
        + "</tr>"
        for level, counts in report["levels"].items()
    )
    return f"<table><tr><th>level</th><th>passed</th><th>failed</th><th>skipped</th></tr>{rows}</table>"


def _list_tables(report: Mapping[str, Any]) -> list[tuple[str, list[dict[str, str]], str]]:
    """Returns heading, rows and name of the first column of each list that has entries."""
    tables = [("Failures", report["failures"], "name"), ("Skipped", report["skips"], "name")]
    if report["operators"] is not None:
        tables.append(("Refused cases", report["operators"]["refusals"], "case"))
    return [table for table in tables if table[1]]


def _group(report: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in report["matrix"]:
        groups.setdefault(cell["operator"], []).append(cell)
    return groups


def _list_dtypes(cells: list[dict[str, Any]], count: str) -> str:
    return ", ".join(f"{cell['dtype']} {cell[count]}" for cell in cells if cell[count])


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
