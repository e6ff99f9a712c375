"""A plan as a mermaid flowchart, which many viewers of Markdown draw: a box for each subgraph, an arrow for each pair of them."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_core.plan import Plan
from hetero_core.reports.drawing import describe_stage
from hetero_core.reports.links import PlanLink, find_links
from hetero_core.reports.palette import COLORS, index_colors

_MOST_VALUES = 3
"""Values named on one arrow."""


def plan_to_mermaid(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> str:
    """Returns the plan as text in mermaid's language; `seconds_of_subgraph` may be empty or partial."""
    places = find_links(plan)
    index_of_device = index_colors(plan)
    lines = ["flowchart TB"]
    for stage in plan.stages:
        detail = describe_stage(plan, stage, seconds_of_subgraph.get(stage.index))
        head = _escape(f"{stage.index}: {stage.device}")
        lines.append(f'  p{stage.index}["{head}<br/>{_escape(detail)}"]:::device{index_of_device[stage.device]}')
    for place, terminal in enumerate(places.terminals, len(plan.stages)):
        lines.append(f'  p{place}(["{_escape(terminal.label)}"])')
    lines += [_draw_link(link) for link in places.links]
    lines += [
        f"  classDef device{index} fill:{COLORS[index].fill},stroke:{COLORS[index].line},color:#1c2024"
        for index in sorted(set(index_of_device.values()))
    ]
    return "\n".join(lines)


def _draw_link(link: PlanLink) -> str:
    named = [
        boundary.value + ("" if boundary.nbytes is None else f" ({boundary.nbytes} bytes)")
        for boundary in link.boundaries[:_MOST_VALUES]
    ]
    if len(link.boundaries) > _MOST_VALUES:
        named.append(f"... {len(link.boundaries) - _MOST_VALUES} more")
    label = f'|"{"<br/>".join(map(_escape, named))}"|' if named else ""
    return f"  p{link.source} -->{label} p{link.target}"


def _escape(text: str) -> str:
    """Returns a text that is no syntax: letters, digits and harmless signs as they are, the rest as mermaid's entities."""
    return "".join(sign if sign.isalnum() or sign in " _-.,:/()·" else f"#{ord(sign)};" for sign in text)
