"""A plan as SVG elements: boxes for subgraphs, pills for the network's inputs and outputs, lines with their values.

The page and the SVG file show the same elements and use the same style. Every text from a model is escaped here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from hetero_core.plan import Plan, PlanStage
from hetero_core.reports.layout import Point, lay_out
from hetero_core.reports.links import PlanLink, Terminal, find_links
from hetero_core.reports.palette import COLORS, index_colors
from hetero_core.reports.text import count, describe_boundary

_PILL_HEIGHT = 28.0
_LETTER = 7.2
"""Width of a letter of the larger text, in pixels."""
_MOST_LABELLED = 80
"""Lines; with more of them their bytes are shown on demand only."""
# What XML 1.0 does not allow, whatever the escape; names of nodes are any text.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Drawing:
    """SVG elements and the size that they take, in pixels."""

    elements: str
    width: float
    height: float


def draw_plan(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> Drawing:
    """Returns the drawing; subgraph i is the group with the attribute data-subgraph="i"."""
    places = find_links(plan)
    sizes = [_size_stage(stage) for stage in plan.stages] + [_size_terminal(terminal) for terminal in places.terminals]
    layout = lay_out(sizes, [(link.source, link.target) for link in places.links])
    index_of_device = index_colors(plan)
    longest = max(seconds_of_subgraph.values(), default=0.0)
    labels = _place_labels(places.links, layout.routes)
    lines = [_draw_link(link, route, label) for link, route, label in zip(places.links, layout.routes, labels, strict=True)]
    boxes = []
    for index, (stage, size, corner) in enumerate(zip(plan.stages, sizes, layout.corners, strict=False)):
        seconds = seconds_of_subgraph.get(index)
        share = 0.0 if seconds is None or not longest else seconds / longest
        look = _Look(index_of_device[stage.device], describe_stage(plan, stage, seconds), share)
        boxes.append(_draw_stage(stage, corner, size, look))
    behind = len(plan.stages)
    pills = [
        _draw_terminal(terminal, corner, size)
        for terminal, corner, size in zip(places.terminals, layout.corners[behind:], sizes[behind:], strict=True)
    ]
    return Drawing("\n".join([*lines, *boxes, *pills]), layout.width, layout.height)


def describe_stage(plan: Plan, stage: PlanStage, seconds: float | None) -> str:
    """Returns "3 nodes, 1 refused · 0.120 ms"."""
    refused = [name for name in stage.nodes if name not in plan.device_of_node]
    parts = count(stage.nodes, "node") + (f", {len(refused)} refused" if refused else "")
    return parts if seconds is None else f"{parts} · {seconds * 1000:.3f} ms"


def escape_text(text: str) -> str:
    """Returns a text as SVG and HTML may hold it between tags."""
    return escape(_NOT_XML.sub("\ufffd", text))


def quote_text(text: str) -> str:
    """Returns a text as SVG and HTML may hold it in an attribute, with its quotes."""
    return quoteattr(_NOT_XML.sub("\ufffd", text))


def format_bytes(nbytes: int) -> str:
    """Returns "24 B", "392 KiB": three digits, for drawings."""
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


@dataclass(frozen=True, slots=True)
class _Look:
    """The colour's index, the second line, and the time as a share of the longest."""

    color: int
    detail: str
    share: float


def _size_stage(stage: PlanStage) -> tuple[float, float]:
    """More nodes, larger box; ten times as many make it about a third larger."""
    growth = math.log2(max(len(stage.nodes), 1))
    return 152.0 + 9.0 * growth, 48.0 + 5.0 * growth


def _size_terminal(terminal: Terminal) -> tuple[float, float]:
    return min(24.0 + _LETTER * len(terminal.label), 220.0), _PILL_HEIGHT


def _draw_stage(stage: PlanStage, corner: Point, size: tuple[float, float], look: _Look) -> str:
    (left, top), (width, height) = corner, size
    centre = f"{left + width / 2:.1f}"
    middle = top + height / 2
    title = f"subgraph {stage.index} on {stage.device}, {look.detail}"
    bar = f'<rect class="time" x="{left + 6:.1f}" y="{top + height - 7:.1f}" width="{(width - 12) * look.share:.1f}" height="3" rx="1"/>'
    return (
        f'<g class="subgraph device-{look.color}" data-subgraph="{stage.index}" tabindex="0" role="button" aria-label={quote_text(title)}>'
        f"<title>{escape_text(title)}</title>"
        f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>'
        f'<text class="name" x="{centre}" y="{middle - 4:.1f}">'
        f"{escape_text(_shorten(f'{stage.index} · {stage.device}', width - 12))}</text>"
        f'<text class="detail" x="{centre}" y="{middle + 12:.1f}">{escape_text(look.detail)}</text>'
        f"{bar if look.share else ''}</g>"
    )


def _draw_terminal(terminal: Terminal, corner: Point, size: tuple[float, float]) -> str:
    (left, top), (width, height) = corner, size
    kind = "input" if terminal.is_input else "output"
    title = f"{kind}: {', '.join(terminal.values)}"
    return (
        f'<g class="terminal"><title>{escape_text(title)}</title>'
        f'<rect class="pill" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{height / 2:.1f}"/>'
        f'<text class="detail" x="{left + width / 2:.1f}" y="{top + height / 2 + 4:.1f}">'
        f"{escape_text(_shorten(terminal.label, width - 12))}</text></g>"
    )


def _shorten(text: str, width: float) -> str:
    most = max(int(width / _LETTER), 3)
    return text if len(text) <= most else text[: most - 1] + "…"


def _place_labels(links: Sequence[PlanLink], routes: Sequence[tuple[Point, ...]]) -> list[str]:
    """Returns a label with the bytes of each line: at an end where no other line is, beside it; none where there is no such end."""
    if len(links) > _MOST_LABELLED:
        return [""] * len(links)
    leaving, arriving = Counter(link.source for link in links), Counter(link.target for link in links)
    labels = []
    for link, route in zip(links, routes, strict=True):
        is_at_end = arriving[link.target] == 1
        if link.nbytes is None or not (is_at_end or leaving[link.source] == 1):
            labels.append("")
            continue
        (x, y), (other, _) = (route[-1], route[-2]) if is_at_end else (route[0], route[1])
        side, step = ("bytes before", -6) if other > x + 1 else ("bytes", 6)
        y += -14 if is_at_end else 18
        labels.append(f'<text class="{side}" x="{x + step:.1f}" y="{y:.1f}">{format_bytes(link.nbytes)}</text>')
    return labels


def _draw_link(link: PlanLink, route: tuple[Point, ...], label: str) -> str:
    title = "\n".join(describe_boundary(boundary) for boundary in link.boundaries)
    return (
        f'<g class="link" data-source="{link.source}" data-target="{link.target}"><title>{escape_text(title)}</title>'
        f'<path d="{_trace(route)}" marker-end="url(#arrow)"/>{label}</g>'
    )


def _trace(route: tuple[Point, ...]) -> str:
    """Returns the path through the points: straight where x or y stay, else a curve that leaves and arrives upright."""
    pieces = [f"M{route[0][0]:.1f} {route[0][1]:.1f}"]
    for (x, y), (next_x, next_y) in pairwise(route):
        if (x, y) == (next_x, next_y):
            continue
        if abs(x - next_x) < 0.5 or abs(y - next_y) < 0.5:
            pieces.append(f"L{next_x:.1f} {next_y:.1f}")
        else:
            half = (y + next_y) / 2
            pieces.append(f"C{x:.1f} {half:.1f} {next_x:.1f} {half:.1f} {next_x:.1f} {next_y:.1f}")
    return "".join(pieces)


ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" '
    'orient="auto">'
    '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
)
"""The head of the lines; stands once in every document that shows a drawing."""


def read_asset(name: str) -> str:
    """Returns a file that lies beside this one: a style sheet, a page, its program."""
    return (files("hetero_core.reports") / name).read_text(encoding="utf-8")


def style_drawing() -> str:
    """Returns the style sheet of the elements, for light and dark backgrounds."""
    light = [f".device-{i} .box,.swatch.device-{i}{{fill:{c.fill};stroke:{c.line}}}" for i, c in enumerate(COLORS)]
    light += [f".device-{i} .time{{fill:{c.line}}}" for i, c in enumerate(COLORS)]
    dark = [f".device-{i} .box,.swatch.device-{i}{{fill:{c.dark_fill};stroke:{c.dark_line}}}" for i, c in enumerate(COLORS)]
    dark += [f".device-{i} .time{{fill:{c.dark_line}}}" for i, c in enumerate(COLORS)]
    return "\n".join(
        [
            read_asset("drawing.css").rstrip(),
            *light,
            "@media (prefers-color-scheme: dark){",
            read_asset("drawing_dark.css").rstrip(),
            *dark,
            "}",
        ]
    )
