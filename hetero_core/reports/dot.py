"""A plan as text for other viewers: in the DOT language of Graphviz, and as a mermaid flowchart."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_core.plan import Boundary, Plan
from hetero_core.reports.drawing import COLORS, PlanLink, describe_stage, find_links, index_colors


def plan_to_dot(plan: Plan) -> str:
    """Returns the plan in the DOT language."""
    index_of_device = index_colors(plan)
    lines = [f"digraph {_quote(plan.network)} {{", "  rankdir=TB; compound=true; node [shape=box, style=filled, fontname=sans];"]
    for stage in plan.stages:
        color = COLORS[index_of_device[stage.device]]
        lines.append(f"  subgraph cluster_{stage.index} {{")
        lines.append(f"    label={_quote(f'subgraph {stage.index} on {stage.device}')};")
        for name in stage.nodes:
            reasons = "; ".join(f"{device}: {reason}" for device, reason in plan.refusals.get(name, {}).items())
            tooltip = f", tooltip={_quote(reasons)}" if reasons else ""
            label = _quote(f"{name} ({plan.operator_of_node[name]})")
            lines.append(f"    {_quote(name)} [label={label}, fillcolor={_quote(color.fill)}{tooltip}];")
        lines.append("  }")
    for boundary in plan.boundaries:
        lines += _draw_boundary(boundary, plan)
    return "\n".join([*lines, "}"])


def _draw_boundary(boundary: Boundary, plan: Plan) -> list[str]:
    """Returns an edge from the producing subgraph, or the input, to each consumer."""
    lines = []
    source = _quote(f"input {boundary.value}")
    tail = ""
    if boundary.producer is None:
        lines.append(f"  {source} [shape=ellipse, fillcolor=white, label={_quote(boundary.value)}];")
    else:
        source = _quote(plan.stages[boundary.producer].nodes[-1])
        tail = f"ltail=cluster_{boundary.producer}, "
    size = "" if boundary.nbytes is None else f" ({boundary.nbytes} bytes)"
    for consumer in boundary.consumers:
        target = _quote(plan.stages[consumer].nodes[0])
        label = _quote(f"{boundary.value}{size}")
        lines.append(f"  {source} -> {target} [{tail}lhead=cluster_{consumer}, label={label}];")
    return lines


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


_MOST_VALUES = 3
"""The most values named on an arrow."""


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
