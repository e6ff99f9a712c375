"""The outputs of two devices side by side: how far apart, and whether that is within tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.cli.outputs import iterate_tensors
from hetero_core.cli.tables import format_number, format_table


def compare_outputs(
    actual: Mapping[str, Any], expected: Mapping[str, Any], *, rtol: float | None, atol: float
) -> list[dict[str, Any]]:
    """Returns for each output its largest difference, absolute and as a share of the largest expected value, and what is wrong.

    An array agrees when its largest difference is at most `atol`, or at most `rtol` times the largest expected value; `rtol` None
    takes the tolerance of the element type. Integers, bools and texts are not measured by `rtol`.
    """
    one, other = dict(iterate_tensors(actual)), dict(iterate_tensors(expected))
    rows = [_compare_tensor(name, one[name], other[name], rtol, atol) for name in one if name in other]
    for name in [name for name in (*one, *other) if name not in one or name not in other]:
        where = "first" if name in one else "second"
        rows.append({"name": name, **_UNKNOWN, "mismatch": f"{name}: only the {where} device returns it"})
    return rows


_UNKNOWN: Mapping[str, Any] = {"max_absolute_difference": None, "max_relative_difference": None}


def _compare_tensor(name: str, actual: Any, expected: Any, rtol: float | None, atol: float) -> dict[str, Any]:
    import numpy as np

    from hetero_core.testing.compare import describe_mismatch, max_absolute_difference, max_relative_difference

    mismatch = describe_mismatch(actual, expected, rtol=rtol, name=name)
    if actual is None or expected is None or np.shape(actual) != np.shape(expected):
        return {"name": name, **_UNKNOWN, "mismatch": mismatch}
    absolute = max_absolute_difference(actual, expected)
    is_same_type = np.asarray(actual).dtype == np.asarray(expected).dtype
    return {
        "name": name,
        "max_absolute_difference": absolute,
        "max_relative_difference": max_relative_difference(actual, expected),
        "mismatch": None if is_same_type and absolute <= atol else mismatch,
    }


def format_comparison(rows: list[dict[str, Any]], device: str) -> str:
    """Returns the rows as a table, and below it where outputs differ by too much."""
    table = [
        (
            row["name"],
            format_number(row["max_absolute_difference"]),
            format_number(row["max_relative_difference"]),
            "same" if row["mismatch"] is None else "DIFFERS",
        )
        for row in rows
    ]
    title = f"compared with {device}:"
    mismatches = [f"  {row['mismatch']}" for row in rows if row["mismatch"] is not None]
    return "\n".join([title, format_table(("OUTPUT", "LARGEST DIFFERENCE", "RELATIVE", "RESULT"), table, indent="  "), *mismatches])
