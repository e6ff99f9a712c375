"""Views of a plan: text for reading, DOT for drawing, plain data for JSON. They need no plugin's code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hetero_core.contract import Boundary, Plan


def describe_plan(plan: Plan, *, refusal_limit: int = 20) -> str:
    """Returns the plan as text: stages with their nodes, boundary values with bytes, and why nodes were refused where they were.

    At most `refusal_limit` refused nodes are listed one by one; the number of the others is said.
    """
    lines = [
        f"network '{plan.network}': {count(plan.device_of_node, 'node')} in {count(plan.stages, 'subgraph')} on "
        f"{count({stage.device for stage in plan.stages}, 'device')}, priorities {', '.join(plan.priorities)}"
    ]
    lines += [
        f"  subgraph {stage.index} on {stage.device}: {count(stage.nodes, 'node')}: {_shorten(stage.nodes, plan.operator_of_node)}"
        for stage in plan.stages
    ]
    lines += ["boundary values:"] if plan.boundaries else []
    lines += [f"  {_describe_boundary(boundary)}" for boundary in plan.boundaries]
    if plan.pins:
        lines.append("pins: " + ", ".join(f"{name} -> {device}" for name, device in plan.pins.items()))
    if plan.refusals:
        lines.append("refusals:")
        listed = list(plan.refusals.items())
        for name, reasons in listed[:refusal_limit]:
            lines += [f"  {name} ({plan.operator_of_node[name]}), {device}: {reason}" for device, reason in reasons.items()]
        if len(listed) > refusal_limit:
            lines.append(f"  ... and {len(listed) - refusal_limit} more nodes")
    return "\n".join(lines)


def count(things: Collection[Any], noun: str) -> str:
    """Returns "1 node", "2 nodes"."""
    return f"{len(things)} {noun}" + ("" if len(things) == 1 else "s")


def _shorten(nodes: Sequence[str], operator_of_node: Mapping[str, str]) -> str:
    shown = [f"{name} ({operator_of_node[name]})" for name in nodes[:4]]
    return ", ".join(shown) + (f", ... {nodes[-1]} ({operator_of_node[nodes[-1]]})" if len(nodes) > 4 else "")


def _describe_boundary(boundary: Boundary) -> str:
    source = "input" if boundary.producer is None else f"subgraph {boundary.producer}"
    size = "size known at run time" if boundary.nbytes is None else f"{boundary.nbytes} bytes"
    targets = ", ".join(f"subgraph {index}" for index in boundary.consumers)
    return f"{boundary.value}: {boundary.type}, {size}, {source} -> {targets}"


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Returns the plan as values that JSON can hold."""
    return {
        "network": plan.network,
        "priorities": list(plan.priorities),
        "subgraphs": [
            {"index": stage.index, "device": stage.device, "nodes": list(stage.nodes), "inputs": list(stage.inputs), "outputs": list(stage.outputs)}
            for stage in plan.stages
        ],
        "boundaries": [
            {
                "value": boundary.value,
                "type": str(boundary.type),
                "bytes": boundary.nbytes,
                "producer": boundary.producer,
                "consumers": list(boundary.consumers),
            }
            for boundary in plan.boundaries
        ],
        "device_of_node": dict(plan.device_of_node),
        "pins": dict(plan.pins),
        "refusals": {name: dict(reasons) for name, reasons in plan.refusals.items()},
    }


_COLORS = ("#8ecae6", "#ffb703", "#b7e4c7", "#e5989b", "#cdb4db", "#d4d4d4")


def plan_to_dot(plan: Plan) -> str:
    """Returns the plan in the DOT language: a cluster for each subgraph, an edge for each boundary value, refusals as tooltips."""
    color_of_device = {device: _COLORS[index % len(_COLORS)] for index, device in enumerate(plan.priorities)}
    lines = [f"digraph {_quote(plan.network)} {{", "  rankdir=TB; compound=true; node [shape=box, style=filled, fontname=sans];"]
    for stage in plan.stages:
        lines.append(f"  subgraph cluster_{stage.index} {{")
        lines.append(f"    label={_quote(f'subgraph {stage.index} on {stage.device}')};")
        for name in stage.nodes:
            reasons = "; ".join(f"{device}: {reason}" for device, reason in plan.refusals.get(name, {}).items())
            tooltip = f", tooltip={_quote(reasons)}" if reasons else ""
            lines.append(
                f"    {_quote(name)} [label={_quote(f'{name} ({plan.operator_of_node[name]})')}, "
                f"fillcolor={_quote(color_of_device.get(stage.device, '#ffffff'))}{tooltip}];"
            )
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
