"""Colours of devices, for light and dark backgrounds; the order is that of the priorities.

The fills are from Okabe and Ito's palette for colour-blind readers, lightened for light backgrounds and darkened for dark ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hetero_core.plan import Plan


@dataclass(frozen=True, slots=True)
class Color:
    """One device's colours: fill and line of its boxes, on a light and on a dark background."""

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
    """Returns device -> index into `COLORS`: by priority, and after the last colour from the first one again."""
    devices: Iterable[str] = dict.fromkeys((*plan.priorities, *(stage.device for stage in plan.stages)))
    return {device: index % len(COLORS) for index, device in enumerate(devices)}
