"""Why one node is where it is: the devices' answers, its pin, what kept it out of other subgraphs, the values that it exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero_core.errors import InvalidNetworkError, suggest
from hetero_core.plan import Boundary, Conflict, Plan, PlanStage
from hetero_core.reports.fields import record_to_json
from hetero_core.reports.text import count, describe_boundary, describe_conflict


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """The answer of a device of the list about a node: True if it takes it, False if not, None if it was not asked; and the reason."""

    device: str
    takes: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The place of one node in a plan, and the reasons for it.

    `device` and `stage` are None where no device takes the node, or where there is no split. `conflicts` are the node's own, and
    where it has none, those of the other nodes in its subgraph, which keep all of it apart. `is_complete` is False where the network
    was too large to look for all of them.
    """

    node: str
    operator: str
    device: str | None
    stage: PlanStage | None
    pin: str | None
    answers: tuple[DeviceAnswer, ...]
    conflicts: tuple[Conflict, ...]
    reads: tuple[Boundary, ...]
    makes: tuple[Boundary, ...]
    is_complete: bool


def explain_node(plan: Plan, name: str) -> Explanation:
    """Returns what the plan knows about a node. Cost: linear in the plan.

    Raises: InvalidNetworkError with the near misses when there is no such node.
    """
    if name not in plan.operator_of_node:
        raise InvalidNetworkError(f"network '{plan.network}' has no node '{name}'{suggest(name, plan.operator_of_node)}")
    device = plan.device_of_node.get(name)
    stage = None if device is None else next((stage for stage in plan.stages if name in stage.nodes), None)
    return Explanation(
        node=name,
        operator=plan.operator_of_node[name],
        device=device,
        stage=stage,
        pin=plan.pins.get(name),
        answers=tuple(_find_answer(plan, name, device) for device in plan.priorities),
        conflicts=_find_conflicts(plan, name, stage),
        reads=tuple(boundary for boundary in plan.boundaries if name in boundary.readers),
        makes=tuple(boundary for boundary in plan.boundaries if boundary.maker == name),
        is_complete=not plan.unexplained,
    )


def _find_answer(plan: Plan, name: str, device: str) -> DeviceAnswer:
    taker = plan.device_of_node.get(name)
    if device == taker:
        return DeviceAnswer(device, True, "runs it")
    reason = plan.refusals.get(name, {}).get(device)
    if reason is not None:
        return DeviceAnswer(device, False, reason)
    pin = plan.pins.get(name)
    why = f"is pinned to {pin}" if pin is not None else f"goes to {taker}" if taker is not None else "has no device"
    if device in plan.candidates.get(name, ()):
        return DeviceAnswer(device, True, f"would take it; the node {why}")
    return DeviceAnswer(device, None, f"was not asked; the node {why}")


def _find_conflicts(plan: Plan, name: str, stage: PlanStage | None) -> tuple[Conflict, ...]:
    own = tuple(conflict for conflict in plan.conflicts if conflict.node == name)
    if own or stage is None:
        return own
    mates = frozenset(stage.nodes)
    return tuple(conflict for conflict in plan.conflicts if conflict.node in mates)


def describe_explanation(plan: Plan, explanation: Explanation) -> str:
    """Returns the explanation as text."""
    stage = explanation.stage
    where = "none" if stage is None else f"{stage.index} of {len(plan.stages)}, {count(stage.nodes, 'node')}"
    lines = [
        f"node '{explanation.node}' ({explanation.operator}) of network '{plan.network}'",
        f"  device    {explanation.device or 'none'}",
        f"  subgraph  {where}",
        f"  pin       {explanation.pin or 'none'}",
        "  devices, in order of priority:",
    ]
    words = {True: "yes", False: "no", None: "-"}
    width = max((len(answer.device) for answer in explanation.answers), default=0)
    lines += [f"    {answer.device.ljust(width)}  {words[answer.takes]:3}  {answer.reason}" for answer in explanation.answers]
    lines += ["  kept apart on one device:"] if explanation.conflicts or not explanation.is_complete else []
    lines += [
        f"    {'' if entry.node == explanation.node else f'{entry.node}, of the same subgraph: '}{describe_conflict(plan, entry)}"
        for entry in explanation.conflicts
    ]
    if not explanation.is_complete:
        lines.append(f"    not all is known: {plan.unexplained} nodes of this large network were not looked at")
    for title, boundaries in (("reads from outside", explanation.reads), ("makes for others", explanation.makes)):
        lines += [f"  {title}:"] if boundaries else []
        lines += [f"    {describe_boundary(entry)}" for entry in boundaries]
    return "\n".join(lines)


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Returns the explanation as values that JSON can hold."""
    stage = explanation.stage
    return {
        "node": explanation.node,
        "operator": explanation.operator,
        "device": explanation.device,
        "subgraph": None if stage is None else stage.index,
        "pin": explanation.pin,
        "devices": record_to_json(explanation.answers),
        "conflicts": record_to_json(explanation.conflicts),
        "conflicts_complete": explanation.is_complete,
        "reads": [entry.value for entry in explanation.reads],
        "makes": [entry.value for entry in explanation.makes],
    }
