"""The support matrix of a device as a page to publish, and a badge, both made from the fields of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LEGEND = (
    "A number counts the cases of ONNX's backend suite that were computed right; `refused` counts those that query and load refuse alike, "
    "with the reason; `wrong` counts the others. An empty cell has no case."
)


def format_matrix(report: Mapping[str, Any]) -> str:
    """Returns a page of Markdown: a row for each operator and version, a column for each element type; refused cases come last."""
    dtypes = list(dict.fromkeys(sorted(cell["dtype"] for cell in report["matrix"])))
    cells = {(cell["operator"], cell["dtype"]): cell for cell in report["matrix"]}
    rows = [
        [*_split_version(operator), *(_describe_cell(cells.get((operator, dtype))) for dtype in dtypes)]
        for operator in dict.fromkeys(operator for operator, _ in cells)
    ]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    parts = [
        f"# Operators of {report['device']}",
        f"{versions}. {_LEGEND}",
        format_markdown(["operator", "version", *dtypes], rows),
    ]
    refusals = report["operators"]["refusals"] if report["operators"] is not None else []
    if refusals:
        reasons = [[f"`{refusal['case']}`", refusal["reason"]] for refusal in refusals]
        parts += ["## Refused cases", format_markdown(["case", "reason"], reasons)]
    return "\n\n".join(parts) + "\n"


def describe_badge(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that shields.io reads from an endpoint: green if no check failed, else red."""
    counts = report["checks"]
    failed, passed = counts["failed"], counts["passed"]
    message, color = (f"{failed} failed, {passed} passed", "red") if failed else (f"{passed} passed", "brightgreen")
    return {"schemaVersion": 1, "label": f"{report['device']} conformance", "message": message, "color": color}


def _split_version(operator: str) -> tuple[str, str]:
    name, _, version = operator.rpartition("-")
    return f"`{name}`", version


def _describe_cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    counts = [str(cell["passed"])] if cell["passed"] else []
    counts += [f"{cell[name]} {name}" for name in ("refused", "wrong") if cell[name]]
    return ", ".join(counts)


def format_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown; line breaks in cells are removed."""
    lines = [["---"] * len(head), *([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, *lines])
