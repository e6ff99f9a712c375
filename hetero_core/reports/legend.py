"""The legend of a drawing: each device with its colour and its share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero_core.plan import Plan
from hetero_core.reports.palette import index_colors
from hetero_core.reports.text import count


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A device, its colour's index, and a line about it."""

    device: str
    color: int
    text: str


def list_devices(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> tuple[LegendEntry, ...]:
    """Returns the devices in order of priority, those without a node too."""
    entries = []
    for device, color in index_colors(plan).items():
        stages = [stage for stage in plan.stages if stage.device == device]
        nodes = [name for name, own in plan.device_of_node.items() if own == device]
        text = f"{device}: {count(nodes, 'node')} in {count(stages, 'subgraph')}"
        times = [seconds_of_subgraph[stage.index] for stage in stages if stage.index in seconds_of_subgraph]
        entries.append(LegendEntry(device, color, f"{text}, {sum(times) * 1000:.3f} ms" if times else text))
    return tuple(entries)
