"""Loading a split network: its subgraphs as networks of their own, each loaded on its device, and the plan that describes them.

If a device fails at a part that it has taken: with STRICT that is an error that names part, device and cause. With NEXT the device counts
as refusing the nodes of the part, they go to the devices behind it, and loading goes on; parts that stay as they are stay loaded. Every
failure adds refusals, so this ends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetero_core import ExecutableNetwork
from hetero_core.contract import QueryResult, freeze_mapping
from hetero_core.devices.query import GENERAL_CURE, describe_refusals
from hetero_core.devices.threads import THREADS_KEY
from hetero_core.errors import HeteroError, InternalError, LoadError, UnsupportedNodesError
from hetero_core.network.graph import Network
from hetero_core.network.types import TensorType
from hetero_core.plan import Boundary, Conflict, Plan, PlanStage
from hetero_hetero.affinity import SplitTask, complete_assignment
from hetero_hetero.conflicts import explain_within
from hetero_hetero.moves import Assignment
from hetero_hetero.schedule import configure_stages

logger = logging.getLogger(__name__)

_MOST_STEPS = 400_000
"""Nodes that the searches for conflicts enter together; at about 5 million a second."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A subgraph as the plan has it, as a network with typed borders, and its device's answer about it."""

    planned: PlanStage
    part: Network
    query: QueryResult | None


def cut_stages(task: SplitTask, assignment: Assignment) -> tuple[Stage, ...]:
    """Returns the stages in order of execution. Weights are shared with the network.

    Raises: InvalidNetworkError if a value at a border has no known element type.
    """
    network, stages = task.network, []
    for position, subgraph in enumerate(assignment.subgraphs):
        device, names = str(subgraph.device), tuple(network.nodes[index].name for index in subgraph.nodes)
        part = replace(task.cut(names), name=f"{network.name}/{position}")
        inputs, outputs = (tuple(spec.name for spec in specs) for specs in (part.inputs, part.outputs))
        planned = PlanStage(position, device, names, inputs, outputs)
        stages.append(Stage(planned, part, assignment.confirmed.get((device, names))))
    return tuple(stages)


def build_plan(network: Network, task: SplitTask, assignment: Assignment, cut: Sequence[Stage]) -> Plan:
    """Returns the plan of stages that were cut, as plain values, for reports. Its pins are the network's own, without the pins of
    placement."""
    stages = tuple(stage.planned for stage in cut)
    kept_outs, unexplained = explain_within(task.predecessors, assignment.subgraphs, steps=_MOST_STEPS)
    names = [node.name for node in network.nodes]
    index_of_subgraph = {subgraph: index for index, subgraph in enumerate(assignment.subgraphs)}
    by_node = sorted((entry.node, index_of_subgraph[entry.subgraph], entry.path) for entry in kept_outs)
    return Plan(
        network=network.name,
        priorities=assignment.priorities,
        device_of_node=freeze_mapping(assignment.device_of_node),
        operator_of_node=freeze_mapping((node.name, node.operator) for node in network.nodes),
        refusals=freeze_mapping(assignment.refusals),
        pins=freeze_mapping((name, device) for name, device in assignment.pins.items() if name in network.affinity),
        stages=stages,
        boundaries=_list_boundaries(network, stages),
        conflicts=tuple(Conflict(names[node], index, tuple(names[place] for place in path)) for node, index, path in by_node),
        unexplained=unexplained,
        procedures=freeze_mapping(assignment.procedures),
        placement=task.placement,
        memory=task.memory,
    )


def _list_boundaries(network: Network, stages: Sequence[PlanStage]) -> tuple[Boundary, ...]:
    """Returns the values that stages read from outside themselves, by first consumer."""
    producer = {value: stage.index for stage in stages for value in stage.outputs}
    stage_of_node = {name: stage.index for stage in stages for name in stage.nodes}
    consumers: dict[str, list[int]] = {}
    for stage in stages:
        for value in stage.inputs:
            consumers.setdefault(value, []).append(stage.index)
    boundaries = []
    for value, indices in consumers.items():
        known, maker = network.type_of(value) or TensorType(None), network.index_of_producer.get(value)
        name_of_maker, nbytes = None if maker is None else network.nodes[maker].name, getattr(known, "nbytes", None)
        names = (network.nodes[index].name for index in network.index_of_consumers.get(value, ()))
        readers = tuple(name for name in names if stage_of_node[name] in indices)
        boundaries.append(Boundary(value, known, nbytes, producer.get(value), tuple(indices), name_of_maker, readers))
    return tuple(boundaries)


def load_stages(
    task: SplitTask, assignment: Assignment, *, may_move: bool
) -> tuple[tuple[Stage, ...], tuple[ExecutableNetwork, ...]]:
    """Returns the stages of a complete assignment and each of them loaded; with `may_move` the assignment may have changed by then.

    All loaded stages are closed after an error.

    Raises: an error of the device's own type if that is a HeteroError, else LoadError, with the device's error as the cause;
    UnsupportedNodesError if no other device takes the failed parts; InvalidNetworkError if a value at a border has no type.
    """
    loaded: dict[tuple[str, tuple[str, ...], int], ExecutableNetwork] = {}
    try:
        while True:
            stages = cut_stages(task, assignment)
            rows = [stage.planned for stage in stages]
            configs = configure_stages(task.core, rows, task.own_config[THREADS_KEY], task.configs)
            keys = [(row.device, row.nodes, config[THREADS_KEY]) for row, config in zip(rows, configs, strict=True)]
            for key in [key for key in loaded if key not in keys]:
                loaded.pop(key).close()
            for stage, config, key in zip(stages, configs, keys, strict=True):
                if key in loaded:
                    continue
                device = stage.planned.device
                try:
                    config = {**(task.own_config if device == task.itself else task.configs[device]), **config}
                    loaded[key] = task.core.load_network(stage.part, device, config, query=stage.query)
                except Exception as error:  # noqa: BLE001  # whatever a device raises is reported, or recorded if NEXT was asked for
                    title = f"cannot load stage {stage.planned.index} of {len(stages)} of network '{task.network.name}'"
                    # The device's own error, if the core has wrapped it.
                    own = error.__cause__ if isinstance(error, InternalError) else None
                    _give_to_others(task, assignment, stage, own if isinstance(own, Exception) else error, title, may_move=may_move)
                    break
            else:
                return stages, tuple(loaded[key] for key in keys)
    except BaseException:
        for executable in loaded.values():
            executable.close()
        raise


def require_complete(task: SplitTask, assignment: Assignment) -> None:
    """Raises UnsupportedNodesError with every reason of every device if a node is refused by all."""
    if assignment.refused:
        known = assignment.refusals
        refusals = {name: known[name] for name in assignment.refused}
        headline = f"cannot load network '{task.network.name}' on {task.itself}"
        raise UnsupportedNodesError(describe_refusals(task.network, refusals, headline), refusals, GENERAL_CURE)


def _give_to_others(task: SplitTask, assignment: Assignment, stage: Stage, error: Exception, title: str, *, may_move: bool) -> None:
    """Gives the nodes of a part that failed to load to other devices. Raises: as `load_stages`, if that is not possible."""
    nodes, device = stage.part.nodes, stage.planned.device
    # The type of a foreign error often says more than its text.
    cause = str(error) if isinstance(error, HeteroError) else f"{type(error).__name__}: {error}"
    failure = f"{title} on {device}, nodes {shorten_names([node.label for node in nodes])}: {cause}"
    movable = [node.name for node in nodes if node.name not in assignment.pins]
    if not may_move:
        raise _describe_failure(error, f"{failure}; HETERO_FALLBACK=NEXT would move on to the next device") from error
    if not movable:
        raise _describe_failure(error, f"{failure}; all of its nodes are pinned to {device}") from error
    logger.warning("%s; its nodes go to the next device", failure)
    for name in movable:
        assignment.refuse(name, device, f"failed to load: {cause}")
    complete_assignment(task, assignment)
    try:
        require_complete(task, assignment)
    except UnsupportedNodesError as refusal:
        raise refusal from error


def _describe_failure(cause: Exception, text: str) -> HeteroError:
    """Returns an error with the type, fields and notes of the cause if that is an error of hetero, else a LoadError."""
    error = type(cause).__new__(type(cause), text) if isinstance(cause, HeteroError) else LoadError(text)
    if isinstance(cause, HeteroError):
        error.__dict__.update(cause.__dict__)
    error.__notes__ = list(getattr(cause, "__notes__", ()))
    return error


def shorten_names(names: Sequence[str]) -> str:
    """Returns the first names, and the number of all if there are more."""
    return ", ".join(names[:3]) + (f", ... ({len(names)} in all)" if len(names) > 3 else "")
