"""A plan as text for reading: subgraphs, boundary values, pins, refusals, and what keeps subgraphs of one device apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hetero_core.plan import Boundary, Conflict, Plan
from hetero_core.reports.placement import describe_memory, describe_placement


def describe_plan(plan: Plan, *, refusal_limit: int = 20) -> str:
    """Returns the plan as text: stages with their nodes, boundary values with bytes, refusals, and what keeps subgraphs apart.

    At most `refusal_limit` refused nodes, and as many conflicts, are listed one by one; the number of the others is said.
    """
    lines = [
        f"network '{plan.network}': {count(plan.device_of_node, 'node')} in {count(plan.stages, 'subgraph')} on "
        f"{count({stage.device for stage in plan.stages}, 'device')}, priorities {', '.join(plan.priorities)}"
    ]
    lines += [
        f"  subgraph {stage.index} on {stage.device}: {count(stage.nodes, 'node')}: {_shorten(stage.nodes, plan.operator_of_node)}"
        for stage in plan.stages
    ]
    lines += [f"  {describe_procedures(plan)}"] if plan.procedures.keys() - {"LITERAL"} else []
    lines += [] if plan.placement is None else [describe_placement(plan.placement)]
    lines += ["memory, estimated:"] if plan.memory else []
    lines += [f"  {describe_memory(held)}" for held in plan.memory]
    lines += ["boundary values:"] if plan.boundaries else []
    lines += [f"  {describe_boundary(boundary)}" for boundary in plan.boundaries]
    if plan.pins:
        lines.append("pins: " + ", ".join(f"{name} -> {device}" for name, device in plan.pins.items()))
    if plan.refusals:
        lines.append("refusals:")
        listed = list(plan.refusals.items())
        for name, reasons in listed[:refusal_limit]:
            lines += [f"  {name} ({plan.operator_of_node[name]}), {device}: {reason}" for device, reason in reasons.items()]
        if len(listed) > refusal_limit:
            lines.append(f"  ... and {len(listed) - refusal_limit} more nodes")
    return "\n".join(lines + _list_conflicts(plan, refusal_limit))


def _list_conflicts(plan: Plan, limit: int) -> list[str]:
    if not plan.conflicts:
        return []
    lines = ["kept out of another subgraph of their device:"]
    lines += [f"  {conflict.node}: {describe_conflict(plan, conflict)}" for conflict in plan.conflicts[:limit]]
    return lines + ([f"  ... and {len(plan.conflicts) - limit} more nodes"] if len(plan.conflicts) > limit else [])


def describe_procedures(plan: Plan) -> str:
    """Returns the procedures that selected the subgraphs, with the number of nodes of each."""
    return "selected by " + ", ".join(f"{name} ({count(range(nodes), 'node')})" for name, nodes in plan.procedures.items())


def describe_conflict(plan: Plan, conflict: Conflict) -> str:
    """Returns the subgraph, the path, where it leaves and returns, and the devices that it passes."""
    stage_of_node = {name: stage for stage in plan.stages for name in stage.nodes}
    between = [stage_of_node[name] for name in conflict.path[1:-1] if name in stage_of_node]
    passed = ", ".join(dict.fromkeys(f"subgraph {stage.index} on {stage.device}" for stage in between))
    return (
        f"with subgraph {conflict.subgraph}, {' -> '.join(_shorten_path(conflict.path))} would leave at {conflict.path[0]}"
        + (f", pass {passed}" if passed else "")
        + f", and return at {conflict.path[-1]}"
    )


def _shorten_path(path: Sequence[str]) -> Sequence[str]:
    return path if len(path) <= 10 else (*path[:4], f"({len(path) - 8} more)", *path[-4:])


def describe_bytes(boundary: Boundary) -> str:
    """Returns "16 bytes", or that the size is open."""
    return "size known at run time" if boundary.nbytes is None else f"{boundary.nbytes} bytes"


def count(things: Collection[Any], noun: str) -> str:
    """Returns "1 node", "2 nodes"."""
    return f"{len(things)} {noun}" + ("" if len(things) == 1 else "s")


def _shorten(nodes: Sequence[str], operator_of_node: Mapping[str, str]) -> str:
    shown = [f"{name} ({operator_of_node[name]})" for name in nodes[:4]]
    return ", ".join(shown) + (f", ... {nodes[-1]} ({operator_of_node[nodes[-1]]})" if len(nodes) > 4 else "")


def describe_boundary(boundary: Boundary) -> str:
    """Returns "a: float32[4], 16 bytes, subgraph 0 -> subgraph 1"."""
    source = "input" if boundary.producer is None else f"subgraph {boundary.producer}"
    size = describe_bytes(boundary)
    targets = ", ".join(f"subgraph {index}" for index in boundary.consumers)
    return f"{boundary.value}: {boundary.type}, {size}, {source} -> {targets}"
