"""A plan in the DOT language of Graphviz: a cluster for each subgraph, an edge for each boundary value, refusals as tooltips."""

from __future__ import annotations

from hetero_core.plan import Boundary, Plan
from hetero_core.reports.palette import COLORS, index_colors


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
    """Returns an edge from the producing subgraph, or from the input, to each consuming one."""
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
