"""A plan as plain values that JSON can hold; docs/reference/command-line.md names the fields."""

from __future__ import annotations

from typing import Any

from hetero_core.plan import Plan
from hetero_core.reports.placement import memory_to_json, placement_to_json


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Returns the plan as values that JSON can hold."""
    return {
        "network": plan.network,
        "priorities": list(plan.priorities),
        "subgraphs": [
            {
                "index": stage.index,
                "device": stage.device,
                "nodes": list(stage.nodes),
                "inputs": list(stage.inputs),
                "outputs": list(stage.outputs),
            }
            for stage in plan.stages
        ],
        "boundaries": [
            {
                "value": boundary.value,
                "type": str(boundary.type),
                "bytes": boundary.nbytes,
                "producer": boundary.producer,
                "consumers": list(boundary.consumers),
                "maker": boundary.maker,
                "readers": list(boundary.readers),
            }
            for boundary in plan.boundaries
        ],
        "device_of_node": dict(plan.device_of_node),
        "operator_of_node": dict(plan.operator_of_node),
        "pins": dict(plan.pins),
        "refusals": {name: dict(reasons) for name, reasons in plan.refusals.items()},
        "conflicts": [
            {"node": conflict.node, "subgraph": conflict.subgraph, "path": list(conflict.path)} for conflict in plan.conflicts
        ],
        "unexplained": plan.unexplained,
        **({"selection": plan.selection} if plan.selection else {}),
        **({} if plan.placement is None else {"placement": placement_to_json(plan.placement)}),
        **({"memory": [memory_to_json(held) for held in plan.memory]} if plan.memory else {}),
    }
