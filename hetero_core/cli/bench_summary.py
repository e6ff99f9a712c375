"""The measurements of `hetero bench` as rows: medians over all rounds, differences of outputs, a table, one error where all fail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hetero_core import errors
from hetero_core.cli.answer import UsageError
from hetero_core.cli.bench_rounds import Bench
from hetero_core.cli.tables import format_table
from hetero_core.errors import HeteroError

_HEADER = ("DEVICE", "LOAD", "FIRST", "MEDIAN", "P90", "PER SECOND", "PEAK MEMORY")


def summarize(bench: Bench, devices: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row for each device, in order; one that failed has an `error`, one that was not reached has no rounds."""
    return [_summarize_device(bench, position, device) for position, device in enumerate(devices)]


def _summarize_device(bench: Bench, position: int, device: str) -> dict[str, Any]:
    rounds = bench.rounds[position]
    row: dict[str, Any] = {"device": device, "error": bench.errors.get(position), "runs": 0}
    if not rounds:
        return row
    latencies = sorted(latency for timing in rounds for latency in timing["latencies"])
    seconds = sum(timing["seconds"] for timing in rounds)
    peaks = [timing["peak_bytes"] for timing in rounds if timing["peak_bytes"] is not None]
    return {
        **row,
        "config": rounds[0]["config"],
        "left_out": rounds[0]["left_out"],
        "ignores_pins": rounds[0]["ignores_pins"],
        "requests": rounds[0]["requests"],
        "runs": len(latencies),
        "seconds": seconds,
        "read_seconds": median(timing["read_seconds"] for timing in rounds),
        "load_seconds": median(timing["load_seconds"] for timing in rounds),
        "first_seconds": median(timing["first_seconds"] for timing in rounds),
        "min_seconds": latencies[0],
        "median_seconds": median(latencies),
        "p90_seconds": find_percentile(latencies, 90),
        "p99_seconds": find_percentile(latencies, 99),
        "max_seconds": latencies[-1],
        "per_second": len(latencies) / seconds,
        "peak_bytes": max(peaks) if peaks else None,
        "difference": _compare(bench, position),
        "rounds": [_describe_round(timing) for timing in rounds],
    }


def _describe_round(answer: Mapping[str, Any]) -> dict[str, Any]:
    copied_fields = ("read_seconds", "load_seconds", "first_seconds", "peak_bytes")
    measured = {"runs": len(answer["latencies"]), "median_seconds": median(answer["latencies"])}
    return {
        **measured,
        "per_second": len(answer["latencies"]) / answer["seconds"],
        **{name: answer[name] for name in copied_fields},
    }


def find_percentile(ordered: Sequence[float], percent: int) -> float:
    """Returns the smallest of the values, in rising order, that so many percent of them do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def _compare(bench: Bench, position: int) -> dict[str, Any] | None:
    """Returns how far the outputs are from those of the first device that has some; None for that device itself."""
    from hetero_core.cli.comparison import compare_outputs

    first = min(bench.outputs)
    if position == first or position not in bench.outputs:
        return None
    rows = compare_outputs(bench.outputs[position], bench.outputs[first], rtol=None, atol=0.0)
    fields: dict[str, Any] = {"position": first}
    for name in ("max_absolute_difference", "max_relative_difference"):
        known = [row[name] for row in rows if row[name] is not None]
        # NaN is the largest of all, and `max` would lose it.
        fields[name] = next((number for number in known if math.isnan(number)), max(known, default=None))
    return {**fields, "mismatches": [row["mismatch"] for row in rows if row["mismatch"] is not None]}


def format_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table, and below it where outputs differ by more than their element type explains."""
    compares = any(row.get("difference") is not None for row in rows)
    fails = any(row["error"] is not None for row in rows)
    header = [*_HEADER, *(["LARGEST DIFFERENCE"] if compares else []), *(["ERROR"] if fails else [])]
    table = []
    for row in rows:
        difference = [_show_difference(row)] if compares else []
        reason = [_shorten_reason(row["error"])] if fails else []
        table.append([row["device"], *_format_cells(row), *difference, *reason])
    lines = [format_table(header, table)]
    for row in rows:
        comparison = row.get("difference")
        if comparison is not None and comparison["mismatches"]:
            lines.append(
                f"{row['device']} differs from {rows[comparison['position']]['device']} by more than its element types explain:"
            )
            lines += [f"  {mismatch}" for mismatch in comparison["mismatches"]]
    return "\n".join(lines)


def _format_cells(row: Mapping[str, Any]) -> list[str]:
    if not row["runs"]:
        return ["-"] * (len(_HEADER) - 1)
    peak = row["peak_bytes"]
    return [
        f"{row['load_seconds']:.3f} s",
        _show_milliseconds(row["first_seconds"]),
        _show_milliseconds(row["median_seconds"]),
        _show_milliseconds(row["p90_seconds"]),
        f"{row['per_second']:.4g}" if row["per_second"] < 1000 else f"{row['per_second']:.0f}",
        "-" if peak is None else f"{peak / 2**20:.0f} MiB",
    ]


def _show_milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3f} ms" if seconds < 0.1 else f"{seconds * 1000:.1f} ms"


def _show_difference(row: Mapping[str, Any]) -> str:
    difference = row.get("difference")
    if difference is None:
        return "-"
    absolute = difference["max_absolute_difference"]
    return "differs" if absolute is None else f"{absolute:.3g}"


def _shorten_reason(error: Mapping[str, Any] | None) -> str:
    return "" if error is None else " ".join(str(error["message"]).split())


def find_common_error(rows: Sequence[Mapping[str, Any]]) -> HeteroError | None:
    """Returns the error where every device failed, and all with the same words; it is then one of the call, not of a device."""
    errors = [row["error"] for row in rows if row["error"] is not None]
    if len(errors) < len(rows) or len({(error["type"], error["message"]) for error in errors}) > 1:
        return None
    return rebuild_error(errors[0])


def rebuild_error(fields: Mapping[str, Any]) -> HeteroError | None:
    """Returns the error that another process told of as JSON; None for one that is not ours."""
    kind = UsageError if fields["type"] == UsageError.__name__ else getattr(errors, str(fields["type"]), None)
    if not (isinstance(kind, type) and issubclass(kind, HeteroError)):
        return None
    is_refusal = issubclass(kind, errors.UnsupportedNodesError)
    error = kind(fields["message"], fields.get("refusals", {})) if is_refusal else kind(fields["message"])
    for note in fields["notes"]:
        error.add_note(note)
    return error
