"""The figures as text: tables in Markdown, padded so that they can be read in a terminal as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from speed.engines import OURS
from speed.summary import Row, find_ratios, list_engines, list_pairs, summarize_ratios

NOTHING = "-"
EXACT = 1e-5
"""Where ONNX Runtime is as close to float64, ours has to be within `ALLOWED`."""
ALLOWED = 1e-4


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def render_line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([render_line(header), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(render_line, rows)])


def format_number(number: float | None) -> str:
    """Returns three significant digits or more, at most four decimals and no exponent, or a dash."""
    if number is None:
        return NOTHING
    digits = math.floor(math.log10(abs(number))) if number else 0
    return f"{number:.{min(max(2 - digits, 0), 4)}f}"


def format_difference(difference: float | None) -> str:
    """Returns two significant digits with an exponent, or a dash."""
    return NOTHING if difference is None else f"{difference:.1e}"


def render(figures: Mapping[str, Any]) -> str:
    """Returns the tables of what one mode of the benchmark wrote, with the machine and the command."""
    lines = [f"`{figures['command']}`: {figures['machine']}."]
    lines.append(f"Not in the environment of the measured processes: {', '.join(figures['cleared']) or 'nothing was set'}.")
    lines += [f"Without {engine}: {reason}." for engine, reason in figures["skipped"].items()]
    rows = figures["rows"]
    lines += _render_errors(figures["mode"], rows)
    return "\n\n".join([*lines, *MODES[figures["mode"]](rows)])


def _render_errors(mode: str, rows: Sequence[Row]) -> list[str]:
    if mode != "models":
        return [f"Failed: {_name_row(row)}, {row['engine']}: {row['error']}." for row in rows if "error" in row]
    failed = [(row, engine, found["error"]) for row in rows for engine, found in row["engines"].items() if "error" in found]
    lines = [f"Failed: {_name_row(row)}, {engine}: {error}." for row, engine, error in failed]
    unknown = {row["model"]: row["no_float64"] for row in rows if "no_float64" in row}
    return lines + [f"No float64 answer of {model}: {reason}." for model, reason in unknown.items()]


def _name_row(row: Row) -> str:
    return str(row["series"] if "series" in row else f"{row['model']} of batch {row['batch']}") + f", threads {row['threads']}"


def _render_models(rows: Sequence[Row]) -> Iterator[str]:
    rows = sorted(rows, key=lambda row: (row["threads"], row["batch"]))
    engines = list_engines(rows)
    precisions = {
        engine: found["facts"]["precision"]
        for row in rows
        for engine, found in row["engines"].items()
        if "precision" in found.get("facts", {})
    }
    if precisions:
        yield f"Precisions: {', '.join(f'{engine} {precision}' for engine, precision in precisions.items())}."
    yield "Milliseconds, the median of the rounds; in parentheses the ratio to the first column."
    yield _render_engines(rows, engines, lambda row, engine: _format_time(row, engine, engines[0]))
    yield "Time of the other engine / time of ours."
    yield _render_summary(rows, "median")
    yield "Largest difference from float64, relative to the largest element of an output; the first and the last run of a process."
    yield _render_engines(rows, engines, lambda row, engine: format_difference(row["engines"].get(engine, {}).get("float64")))
    yield _judge_exactness(rows)
    yield "Largest difference from each other engine, relative likewise."
    pairs = list_pairs(engines)
    header = ["model", "batch", "threads", *(f"{ours} to {peer}" for ours, peer in pairs)]
    yield render_table(
        header,
        [
            [
                *_place(row),
                *(format_difference(row["engines"].get(one, {}).get("differences", {}).get(other)) for one, other in pairs),
            ]
            for row in rows
        ],
    )
    yield "Import / load / first run in milliseconds, and the peak of the process's memory in MiB."
    yield _render_engines(rows, engines, _format_load)
    for key, name in (("load", "Load"), ("peak", "Peak memory")):
        yield f"{name} of the other engine / of ours."
        yield _render_summary(rows, key)


def _place(row: Row) -> list[str]:
    return [row["model"], str(row["batch"]), str(row["threads"])]


def _render_engines(rows: Sequence[Row], engines: Sequence[str], form: Callable[[Row, str], str]) -> str:
    cells = [[*_place(row), *(form(row, engine) for engine in engines)] for row in rows]
    return render_table(["model", "batch", "threads", *engines], cells)


def _format_time(row: Row, engine: str, first: str) -> str:
    figures = row["engines"].get(engine, {})
    if "median" not in figures:
        return "failed" if "error" in figures else NOTHING
    ratios = find_ratios([row], first, engine) if engine != first else {}
    return " ".join([format_number(figures["median"]), *(f"({ratio:.2f})" for ratio in ratios.values())])


def _format_load(row: Row, engine: str) -> str:
    figures = row["engines"].get(engine, {})
    if "median" not in figures:
        return NOTHING
    times = " / ".join(format_number(figures[key]) for key in ("import", "load", "first"))
    return times if figures["peak"] is None else f"{times}, {figures['peak'] / 2**20:.0f}"


def _render_summary(rows: Sequence[Row], key: str) -> str:
    header = ["ours", "other", "where", "rows", "geometric mean", "median", "worst"]
    cells = [
        [
            *(ratios.ours, ratios.peer, ratios.place, str(ratios.count)),
            *(f"{ratios.geometric_mean:.2f}", f"{ratios.median:.2f}", f"{ratios.worst:.2f} ({ratios.worst_model})"),
        ]
        for ratios in summarize_ratios(rows, key)
    ]
    return render_table(header, cells)


def _judge_exactness(rows: Sequence[Row]) -> str:
    """Says where ours is further than `ALLOWED` from float64 although ONNX Runtime is within `EXACT`."""
    worse, count = [], 0
    for row in rows:
        theirs = row["engines"].get("onnxruntime", {}).get("float64")
        if theirs is None or theirs > EXACT:
            continue
        for engine in OURS:
            difference = row["engines"].get(engine, {}).get("float64")
            count += difference is not None
            if difference is not None and not difference <= ALLOWED:
                worse.append(f"{_name_row(row)}, {engine}: {format_difference(difference)}")
    return f"Further than {ALLOWED:g} where onnxruntime is within {EXACT:g}: {len(worse)} of {count}" + "".join(
        f"\n- {line}" for line in worse
    )


def _render_rows(rows: Sequence[Row], columns: Mapping[str, tuple[str, Callable[[Any], str]]]) -> str:
    """Returns a table of the rows that did not fail; `columns` maps a title to a key and the form of its values."""
    complete = [row for row in rows if "error" not in row]
    return render_table(
        list(columns), [[form(row[key]) if key in row else NOTHING for key, form in columns.values()] for row in complete]
    )


_PLACE: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "model": ("model", str),
    "batch": ("batch", str),
    "threads": ("threads", str),
    "engine": ("engine", str),
}


def _render_start(rows: Sequence[Row]) -> Iterator[str]:
    yield "Milliseconds of fresh processes, median of rounds. Answer = load + first run, without the engine's import; process = all of it."
    steps = {
        f"{step}: {name}": (f"{step}_{key}", format_number)
        for step in ("cold", "warm", "blob")
        for name, key in (
            ("import", "import"),
            ("load", "load"),
            ("answer", "answer"),
            ("process", "total"),
            ("load again", "again"),
        )
    }
    last = {"s until compiled": ("ready", format_number), "largest difference from float64": ("difference", format_difference)}
    yield _render_rows(rows, {**_PLACE, **steps, **last})
    yield "Ratios: what the criteria of a start are about."
    peers = [row for row in rows if row["engine"] == "onnxruntime" and "error" not in row]
    theirs = {(row["model"], row["batch"], row["threads"]): row for row in peers}
    cells = []
    for row in rows:
        other = theirs.get((row["model"], row["batch"], row["threads"]))
        if row["engine"] in OURS and "error" not in row:
            beside = [None if other is None else row[key] / other[key] for key in ("warm_load", "warm_again")]
            blob = [row[f"blob_{key}"] / row[f"warm_{key}"] if "blob_load" in row else None for key in ("load", "again")]
            cells.append([*_place(row), row["engine"], *map(format_number, (*beside, *blob))])
    header = ("warm load / onnxruntime's", "the same, loaded again", "import of the blob / warm load", "the same, again")
    yield render_table(["model", "batch", "threads", "engine", *header], cells)


def _render_stability(rows: Sequence[Row]) -> Iterator[str]:
    yield "Medians of processes, milliseconds; beside = next to a busy process; idle = ms of the processor in a second of nothing."
    columns = {
        "processes": ("processes", str),
        "median": ("median", format_number),
        "slowest / median": ("slowest_to_median", format_number),
        "beside: median": ("beside_median", format_number),
        "beside / alone": ("beside_to_median", format_number),
        "beside: slowest / alone": ("beside_slowest_to_median", format_number),
        "idle: median": ("idle_median", format_number),
        "idle: most": ("idle_most", format_number),
    }
    yield _render_rows(rows, {**_PLACE, **columns})


def _render_evenness(rows: Sequence[Row]) -> Iterator[str]:
    yield "Milliseconds at each point, and the straight line with the least relative deviations."
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "constant": ("constant", format_number),
        "slope": ("slope", format_number),
        "largest deviation": ("deviation", lambda share: f"{share:.1%}"),
        "points": ("times", lambda times: ", ".join(f"{point}: {format_number(time)}" for point, time in times.items())),
    }
    place = {name: _PLACE[name] for name in ("threads", "engine")}
    series: Mapping[str, tuple[str, Callable[[Any], str]]] = {"series": ("series", str), **place}
    yield _render_rows([row for row in rows if "slope" in row], {**series, **columns})
    yield "Microseconds of a run of a chain of tiny operators, of one of four, and of each operator more."
    tiny = {
        "run": ("many", format_number),
        "four operators": ("few", format_number),
        "operator": ("operator", lambda time: f"{time:.3f}"),
    }
    yield _render_rows([row for row in rows if "many" in row], {**series, **tiny})


MODES: Mapping[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "models": _render_models,
    "start": _render_start,
    "stability": _render_stability,
    "even": _render_evenness,
}
