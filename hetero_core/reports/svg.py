"""A plan as an SVG file that stands alone: title, legend, and the drawing; light or dark as the viewer asks for."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_core.plan import Plan
from hetero_core.reports.drawing import ARROW, draw_plan, escape_text, style_drawing
from hetero_core.reports.legend import list_devices

_HEAD = 40.0
_LINE = 20.0
_LETTER = 6.8

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
