"""A plan as text for other viewers: in the DOT language of Graphviz, and as a mermaid flowchart; and the colours of its devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hetero_core.plan import Boundary, Plan
from hetero_core.reports.text import count

COLORS = ("#2a7fb8", "#b87a00", "#00815d", "#a8527e", "#c04f00", "#8c8200", "#3b5bb5", "#6b6b6b")
"""Lines of boxes, after Okabe and Ito's palette for colour-blind readers; a box is filled with a quarter of its colour."""


def index_colors(plan: Plan) -> dict[str, int]:
    """Returns device -> index into `COLORS`: by priority, and starting again with the first colour after the last."""
    devices: Iterable[str] = dict.fromkeys((*plan.priorities, *(stage.device for stage in plan.stages)))
    return {device: index % len(COLORS) for index, device in enumerate(devices)}


def plan_to_dot(plan: Plan) -> str:
    """Returns the plan in the DOT language."""
    index_of_device = index_colors(plan)
    lines = [f"digraph {_quote(plan.network)} {{", "  rankdir=TB; compound=true; node [shape=box, style=filled, fontname=sans];"]
    for stage in plan.stages:
        fill = _quote(f"{COLORS[index_of_device[stage.device]]}40")
        lines.append(f"  subgraph cluster_{stage.index} {{")
        lines.append(f"    label={_quote(f'subgraph {stage.index} on {stage.device}')};")
        for name in stage.nodes:
            reasons = "; ".join(f"{device}: {reason}" for device, reason in plan.refusals.get(name, {}).items())
            tooltip = f", tooltip={_quote(reasons)}" if reasons else ""
            label = _quote(f"{name} ({plan.operator_of_node[name]})")
            lines.append(f"    {_quote(name)} [label={label}, fillcolor={fill}{tooltip}];")
        lines.append("  }")
    for boundary in plan.boundaries:
        source, tail = _quote(f"input {boundary.value}"), ""
        if boundary.producer is None:
            lines.append(f"  {source} [shape=ellipse, fillcolor=white, label={_quote(boundary.value)}];")
        else:
            source, tail = _quote(plan.stages[boundary.producer].nodes[-1]), f"ltail=cluster_{boundary.producer}, "
        for consumer in boundary.consumers:
            target = _quote(plan.stages[consumer].nodes[0])
            lines.append(f"  {source} -> {target} [{tail}lhead=cluster_{consumer}, label={_quote(_label_value(boundary))}];")
    return "\n".join([*lines, "}"])


def _label_value(boundary: Boundary) -> str:
    return boundary.value + ("" if boundary.nbytes is None else f" ({boundary.nbytes} bytes)")


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


_MOST_VALUES = 3
"""The most values named on an arrow."""


def plan_to_mermaid(plan: Plan, seconds_of_subgraph: Mapping[int, float]) -> str:
    """Returns the plan as text in mermaid's language; `seconds_of_subgraph` may be empty or partial."""
    index_of_device = index_colors(plan)
    lines = ["flowchart TB"]
    values_of_arrow: dict[tuple[str, str], list[str]] = {}
    for boundary in plan.boundaries:
        source = "inputs" if boundary.producer is None else f"p{boundary.producer}"
        for consumer in boundary.consumers:
            values_of_arrow.setdefault((source, f"p{consumer}"), []).append(_label_value(boundary))
    inner = {boundary.value for boundary in plan.boundaries}
    for stage in plan.stages:
        refused, seconds = sum(name not in plan.device_of_node for name in stage.nodes), seconds_of_subgraph.get(stage.index)
        detail = count(stage.nodes, "node") + (f", {refused} refused" if refused else "")
        detail += "" if seconds is None else f" · {seconds * 1000:.3f} ms"
        head = _escape(f"{stage.index}: {stage.device}")
        lines.append(f'  p{stage.index}["{head}<br/>{_escape(detail)}"]:::device{index_of_device[stage.device]}')
        if returned := [value for value in stage.outputs if value not in inner]:
            values_of_arrow[f"p{stage.index}", "outputs"] = returned
    for (source, target), values in values_of_arrow.items():
        more = [f"... {len(values) - _MOST_VALUES} more"] if len(values) > _MOST_VALUES else []
        lines.append(f'  {source} -->|"{"<br/>".join(map(_escape, [*values[:_MOST_VALUES], *more]))}"| {target}')
    lines += [f"  classDef device{index} fill:{color}40,stroke:{color}" for index, color in enumerate(COLORS)]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Returns a text that is no syntax: letters, digits and harmless signs as they are, the rest as mermaid's entities."""
    return "".join(sign if sign.isalnum() or sign in " _-.,:/()·" else f"#{ord(sign)};" for sign in text)
