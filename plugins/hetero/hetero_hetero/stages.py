"""Stages: the subgraphs as networks of their own, and the plan that describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_core.contract import Boundary, Plan, PlanStage, freeze_mapping
from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType, ValueType
from hetero_hetero.affinity import Assignment
from hetero_hetero.parts import cut_part


@dataclass(frozen=True, slots=True)
class Stage:
    """One subgraph as a network with typed borders, and the device that runs it."""

    device: str
    part: Network


def cut_stages(network: Network, assignment: Assignment) -> tuple[Stage, ...]:
    """Returns the stages in order of execution. Weights are shared with the network.

    Raises: InvalidNetworkError where a value at a border has no known element type.
    """
    return tuple(
        Stage(
            str(subgraph.device),
            cut_part(network, [network.nodes[index].name for index in subgraph.nodes], name=f"{network.name}/{position}"),
        )
        for position, subgraph in enumerate(assignment.subgraphs)
    )


def build_plan(network: Network, assignment: Assignment, cut: Sequence[Stage]) -> Plan:
    """Returns the plan of stages that were cut, as plain values, for reports."""
    stages = tuple(
        PlanStage(
            index,
            stage.device,
            tuple(node.name for node in stage.part.nodes),
            tuple(spec.name for spec in stage.part.inputs),
            tuple(spec.name for spec in stage.part.outputs),
        )
        for index, stage in enumerate(cut)
    )
    return Plan(
        network=network.name,
        priorities=assignment.priorities,
        device_of_node=freeze_mapping(assignment.device_of_node),
        operator_of_node=freeze_mapping((node.name, node.operator) for node in network.nodes),
        refusals=freeze_mapping(assignment.refusals),
        pins=freeze_mapping(assignment.pins),
        stages=stages,
        boundaries=_list_boundaries(network, stages),
    )


def _list_boundaries(network: Network, stages: Sequence[PlanStage]) -> tuple[Boundary, ...]:
    """Returns the values that stages read from outside themselves, by first consumer."""
    producer = {value: stage.index for stage in stages for value in stage.outputs}
    consumers: dict[str, list[int]] = {}
    for stage in stages:
        for value in stage.inputs:
            consumers.setdefault(value, []).append(stage.index)
    return tuple(
        Boundary(value, known, _count_bytes(known), producer.get(value), tuple(indices))
        for value, indices in consumers.items()
        for known in (network.type_of(value) or TensorType(None),)
    )


def _count_bytes(value_type: ValueType) -> int | None:
    return value_type.nbytes if isinstance(value_type, TensorType) else None
