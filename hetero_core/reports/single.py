"""The plan of a device that runs the whole network itself: one stage, and the nodes that the device refuses in it."""

from __future__ import annotations

from hetero_core.contract import QueryResult, freeze_mapping
from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType
from hetero_core.plan import Boundary, Plan, PlanStage


def plan_single_device(network: Network, device: str, result: QueryResult) -> Plan:
    """Returns a plan with a single stage; a refused node stands in the stage and has no device."""
    names = tuple(node.name for node in network.nodes)
    inputs = []
    for spec in network.inputs:
        nbytes = spec.type.nbytes if isinstance(spec.type, TensorType) else None
        readers = tuple(names[index] for index in network.index_of_consumers.get(spec.name, ()))
        inputs.append(Boundary(spec.name, spec.type, nbytes, None, (0,), readers=readers))
    stage = PlanStage(0, device, names, tuple(entry.value for entry in inputs), tuple(spec.name for spec in network.outputs))
    return Plan(
        network=network.name,
        priorities=(device,),
        device_of_node=freeze_mapping(result.supported),
        operator_of_node=freeze_mapping((node.name, node.operator) for node in network.nodes),
        refusals=freeze_mapping((name, freeze_mapping({device: reason})) for name, reason in result.refused.items()),
        pins=freeze_mapping({}),
        stages=(stage,) if names else (),
        boundaries=tuple(inputs) if names else (),
    )
