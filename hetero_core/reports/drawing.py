"""A plan as a picture: boxes for subgraphs, pills for the network's inputs and outputs, lines with their values; alone as an SVG file.

The page and the SVG file show the same elements and use the same style. Every text from a model is escaped here. The fills are from Okabe
and Ito's palette for colour-blind readers, lightened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from hetero_core.plan import Boundary, Plan, PlanStage
from hetero_core.reports.layout import Point, lay_out
from hetero_core.reports.text import count, describe_boundary


@dataclass(frozen=True, slots=True)
class Color:
    """The colours of a device: fill and line of its boxes, on a light and on a dark background."""

    fill: str
    line: str
    dark_fill: str
    dark_line: str


COLORS = (
    Color("#cfe8f9", "#2a7fb8", "#12374f", "#56b4e9"),
    Color("#fde6b8", "#b87a00", "#4d3500", "#e69f00"),
    Color("#c5ebdc", "#00815d", "#0b4030", "#2fc79b"),
    Color("#f6d5e6", "#a8527e", "#4a2538", "#d98bb3"),
    Color("#f9d4bf", "#c04f00", "#522404", "#f0793a"),
    Color("#faf3b0", "#8c8200", "#413d06", "#e0d84a"),
    Color("#d3dbf3", "#3b5bb5", "#1f2c56", "#8aa4ee"),
    Color("#e0e0e0", "#6b6b6b", "#3a3a3a", "#a8a8a8"),
)


def index_colors(plan: Plan) -> dict[str, int]:
    """Returns device -> index into `COLORS`: by priority, and starting again with the first colour after the last."""
    devices: Iterable[str] = dict.fromkeys((*plan.priorities, *(stage.device for stage in plan.stages)))
    return {device: index % len(COLORS) for index, device in enumerate(devices)}


@dataclass(frozen=True, slots=True)
class Terminal:
    """Inputs of the network with the same readers, or outputs of the same subgraph."""

    values: tuple[str, ...]
    is_input: bool

    @property
    def label(self) -> str:
        """The name of the only value, or the number of values."""
        if len(self.values) == 1:
            return self.values[0]
        return f"{len(self.values)} {'inputs' if self.is_input else 'outputs'}"


@dataclass(frozen=True, slots=True)
class PlanLink:
    """All values from a place to another; `boundaries` is empty for outputs of the network."""

    source: int
    target: int
    boundaries: tuple[Boundary, ...] = ()

    @property
    def nbytes(self) -> int | None:
        """The bytes of all values, None if a size is open or unknown."""
        sizes = [boundary.nbytes for boundary in self.boundaries if boundary.nbytes is not None]
        return sum(sizes) if sizes and len(sizes) == len(self.boundaries) else None


@dataclass(frozen=True, slots=True)
class Links:
    """Places are numbered: first the subgraphs by index, then the terminals."""

    terminals: tuple[Terminal, ...]
    links: tuple[PlanLink, ...]


def find_links(plan: Plan) -> Links:
    """Returns the boxes and lines of a plan's drawing, in the order of the boundaries; a line carries all values between two places."""
    values_of_readers: dict[tuple[int, ...], list[Boundary]] = {}
    between: dict[tuple[int, int], list[Boundary]] = {}
    for boundary in plan.boundaries:
        if boundary.producer is None:
            values_of_readers.setdefault(boundary.consumers, []).append(boundary)
            continue
        for consumer in boundary.consumers:
            between.setdefault((boundary.producer, consumer), []).append(boundary)
    terminals: list[Terminal] = []
    links = [PlanLink(source, target, tuple(group)) for (source, target), group in between.items()]
    for readers, group in values_of_readers.items():
        place = len(plan.stages) + len(terminals)
        terminals.append(Terminal(tuple(entry.value for entry in group), is_input=True))
        links += [PlanLink(place, reader, tuple(group)) for reader in readers]
    crossing = {boundary.value for boundary in plan.boundaries}
    for stage in plan.stages:
        returned = tuple(value for value in stage.outputs if value not in crossing)
        if returned:
            links.append(PlanLink(stage.index, len(plan.stages) + len(terminals)))
            terminals.append(Terminal(returned, is_input=False))
    return Links(tuple(terminals), tuple(links))


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A device, its colour's index, and a line about it."""

    device: str
    color: int
    text: str


def list_devices(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> tuple[LegendEntry, ...]:
    """Returns the devices in order of priority, devices without a node included."""
    entries = []
    for device, color in index_colors(plan).items():
        stages = [stage for stage in plan.stages if stage.device == device]
        nodes = [name for name, own in plan.device_of_node.items() if own == device]
        text = f"{device}: {count(nodes, 'node')} in {count(stages, 'subgraph')}"
        times = [seconds_of_subgraph[stage.index] for stage in stages if stage.index in seconds_of_subgraph]
        entries.append(LegendEntry(device, color, f"{text}, {sum(times) * 1000:.3f} ms" if times else text))
    return tuple(entries)


_PILL_HEIGHT = 28.0
_LETTER = 7.2
"""Width of a letter of the larger text, in pixels."""
# Characters that XML 1.0 forbids even as escapes; names of nodes are any text.
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
    sizes = [_size_stage(stage) for stage in plan.stages] + [
        (min(24.0 + _LETTER * len(terminal.label), 220.0), _PILL_HEIGHT) for terminal in places.terminals
    ]
    layout = lay_out(sizes, [(link.source, link.target) for link in places.links])
    index_of_device = index_colors(plan)
    longest = max(seconds_of_subgraph.values(), default=0.0)
    lines = [_draw_link(link, route) for link, route in zip(places.links, layout.routes, strict=True)]
    boxes = []
    for index, (stage, size, corner) in enumerate(zip(plan.stages, sizes, layout.corners, strict=False)):
        seconds = seconds_of_subgraph.get(index)
        share = 0.0 if seconds is None or not longest else seconds / longest
        detail = describe_stage(plan, stage, seconds)
        boxes.append(_draw_stage(stage, corner, size, color=index_of_device[stage.device], detail=detail, share=share))
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


def _size_stage(stage: PlanStage) -> tuple[float, float]:
    """More nodes, larger box; ten times as many make it about a third larger."""
    growth = math.log2(max(len(stage.nodes), 1))
    return 152.0 + 9.0 * growth, 48.0 + 5.0 * growth


def _draw_stage(stage: PlanStage, corner: Point, size: tuple[float, float], *, color: int, detail: str, share: float) -> str:
    """Returns the box of a stage; `share` is its time as a share of the longest."""
    (left, top), (width, height) = corner, size
    centre = f"{left + width / 2:.1f}"
    middle = top + height / 2
    title = f"subgraph {stage.index} on {stage.device}, {detail}"
    bar = f'<rect class="time" x="{left + 6:.1f}" y="{top + height - 7:.1f}" width="{(width - 12) * share:.1f}" height="3" rx="1"/>'
    return (
        f'<g class="subgraph device-{color}" data-subgraph="{stage.index}" tabindex="0" role="button" aria-label={quote_text(title)}>'
        f"<title>{escape_text(title)}</title>"
        f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>'
        f'<text class="name" x="{centre}" y="{middle - 4:.1f}">'
        f"{escape_text(_shorten(f'{stage.index} · {stage.device}', width - 12))}</text>"
        f'<text class="detail" x="{centre}" y="{middle + 12:.1f}">{escape_text(detail)}</text>'
        f"{bar if share else ''}</g>"
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


def _draw_link(link: PlanLink, route: tuple[Point, ...]) -> str:
    title = "\n".join(describe_boundary(boundary) for boundary in link.boundaries)
    return (
        f'<g class="link" data-source="{link.source}" data-target="{link.target}"><title>{escape_text(title)}</title>'
        f'<path d="{_trace(route)}" marker-end="url(#arrow)"/></g>'
    )


def _trace(route: tuple[Point, ...]) -> str:
    """Returns the path through the points: a straight line if x or y stay, else a curve with upright ends."""
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
    """Returns the text of a file in this folder: a style sheet or a page."""
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


_HEAD = 40.0
_LINE = 20.0

_BACKGROUND = """.ground{fill:#fff}
.title{font-size:15px;font-weight:600;text-anchor:start}
.key{font-size:12px;text-anchor:start}
@media (prefers-color-scheme: dark){.ground{fill:#14171a}}"""


def plan_to_svg(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> str:
    """Returns the plan as an SVG document; `seconds_of_subgraph` may be empty or partial."""
    drawing = draw_plan(plan, seconds_of_subgraph)
    devices = list_devices(plan, seconds_of_subgraph)
    title = f"network '{plan.network}': {len(plan.operator_of_node)} nodes, {len(plan.stages)} subgraphs"
    top = _HEAD + _LINE * len(devices) + 8
    texts = [title, *(device.text for device in devices)]
    width, height = max(drawing.width, 32 + _LETTER * 1.2 * max(map(len, texts))), top + drawing.height
    keys = [
        f'<rect class="swatch device-{device.color}" x="24" y="{_HEAD + _LINE * row - 1:.0f}" width="14" height="14" rx="3"/>'
        f'<text class="key" x="46" y="{_HEAD + _LINE * row + 10:.0f}">{escape_text(device.text)}</text>'
        for row, device in enumerate(devices)
    ]
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
            f"<title>{escape_text(title)}</title>",
            f"<style>{style_drawing()}\n{_BACKGROUND}</style>",
            ARROW,
            f'<rect class="ground" width="{width:.0f}" height="{height:.0f}"/>',
            f'<text class="title" x="24" y="26">{escape_text(title)}</text>',
            *keys,
            f'<g transform="translate(0 {top:.0f})">',
            drawing.elements,
            "</g>",
            "</svg>",
            "",
        ]
    )
