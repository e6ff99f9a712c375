"""Stages: the subgraphs as networks of their own, and the plan that describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hetero_core.contract import QueryResult, freeze_mapping
from hetero_core.network.graph import Network
from hetero_core.network.topology import predecessors_of_nodes
from hetero_core.network.types import TensorType
from hetero_core.plan import Boundary, Conflict, Plan, PlanStage
from hetero_hetero.affinity import SplitTask
from hetero_hetero.assignment import Assignment
from hetero_hetero.conflicts import explain_within
from hetero_hetero.placement.choice import NO_DECISION, Decision

_MOST_STEPS = 400_000
"""Nodes that the searches for conflicts enter together; at about 5 million a second."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One subgraph as a network with typed borders, the device that runs it, and the device's answer about it."""

    device: str
    part: Network
    query: QueryResult | None = None


def cut_stages(task: SplitTask, assignment: Assignment) -> tuple[Stage, ...]:
    """Returns the stages in order of execution. Weights are shared with the network.

    Raises: InvalidNetworkError where a value at a border has no known element type.
    """
    network = task.network
    named = [tuple(network.nodes[index].name for index in subgraph.nodes) for subgraph in assignment.subgraphs]
    return tuple(
        Stage(device, replace(task.cut(names), name=f"{network.name}/{position}"), assignment.confirmed.get((device, names)))
        for position, (device, names) in enumerate(
            (str(subgraph.device), names) for subgraph, names in zip(assignment.subgraphs, named, strict=True)
        )
    )


def build_plan(network: Network, assignment: Assignment, cut: Sequence[Stage], decision: Decision = NO_DECISION) -> Plan:
    """Returns the plan of stages that were cut, as plain values, for reports. Its pins are the network's own, not those of placement."""
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
    conflicts, unexplained = _find_conflicts(network, assignment)
    return Plan(
        network=network.name,
        priorities=assignment.priorities,
        device_of_node=freeze_mapping(assignment.device_of_node),
        operator_of_node=freeze_mapping((node.name, node.operator) for node in network.nodes),
        refusals=freeze_mapping(assignment.refusals),
        pins=freeze_mapping((name, device) for name, device in assignment.pins.items() if name in network.affinity),
        stages=stages,
        boundaries=_list_boundaries(network, stages),
        conflicts=conflicts,
        unexplained=unexplained,
        procedures=freeze_mapping(assignment.procedures),
        placement=decision.placement,
        memory=decision.memory,
    )


def _find_conflicts(network: Network, assignment: Assignment) -> tuple[tuple[Conflict, ...], int]:
    """Returns the reasons, by node, that keep subgraphs of one device apart, and the number of nodes that were not examined."""
    index_of_subgraph = {subgraph: index for index, subgraph in enumerate(assignment.subgraphs)}
    kept_outs, unexplained = explain_within(predecessors_of_nodes(network), assignment.subgraphs, steps=_MOST_STEPS)
    by_node = sorted((kept_out.node, index_of_subgraph[kept_out.subgraph], kept_out.path) for kept_out in kept_outs)
    names = [node.name for node in network.nodes]
    return tuple(Conflict(names[node], index, tuple(names[place] for place in path)) for node, index, path in by_node), unexplained


def _list_boundaries(network: Network, stages: Sequence[PlanStage]) -> tuple[Boundary, ...]:
    """Returns the values that stages read from outside themselves, by first consumer."""
    producer = {value: stage.index for stage in stages for value in stage.outputs}
    stage_of_node = {name: stage.index for stage in stages for name in stage.nodes}
    consumers: dict[str, list[int]] = {}
    for stage in stages:
        for value in stage.inputs:
            consumers.setdefault(value, []).append(stage.index)
    return tuple(
        _describe_boundary(network, value, producer.get(value), tuple(indices), stage_of_node)
        for value, indices in consumers.items()
    )


def _describe_boundary(
    network: Network, value: str, producer: int | None, consumers: tuple[int, ...], stage_of_node: Mapping[str, int]
) -> Boundary:
    known = network.type_of(value) or TensorType(None)
    maker = network.index_of_producer.get(value)
    readers = (network.nodes[index].name for index in network.index_of_consumers.get(value, ()))
    return Boundary(
        value,
        known,
        known.nbytes if isinstance(known, TensorType) else None,
        producer,
        consumers,
        maker=None if maker is None else network.nodes[maker].name,
        readers=tuple(name for name in readers if stage_of_node[name] in consumers),
    )
