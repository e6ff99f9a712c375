"""A plan as text for reading: subgraphs, boundary values, placement, memory, pins, refusals, and the explanation of a node's place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_core.errors import InvalidNetworkError, suggest
from hetero_core.plan import Boundary, Conflict, Placement, Plan


def describe_placement(placement: Placement) -> str:
    """Returns a line with the chosen candidate and the time of a run of each candidate."""
    chosen = "priority decides" if placement.chosen is None else f"{placement.candidates[placement.chosen].title} was chosen"
    times = ", ".join(
        f"{candidate.title} {'failed' if candidate.seconds is None else f'{candidate.seconds * 1000:.3f} ms'}"
        for candidate in placement.candidates
    )
    how = "measured before" if placement.is_kept else f"measured in {placement.seconds:.1f} s"
    return f"placement {how}: {chosen}; {times}" + ("" if placement.is_complete else "; the measurement was cut short")


def explain_placement(placement: Placement) -> str:
    """Returns why the chosen candidate won, and for the best mixture of devices the time that it saves and the time that it costs.

    A mixture saves the difference of the times of its segments on their own. Its cost is the rest of the measured time: values that are
    handed from part to part, and plans that end at the parts. Returns "" if fewer than two candidates were timed.
    """
    timed = sorted(((each.seconds, index) for index, each in enumerate(placement.candidates) if each.seconds is not None))
    if placement.chosen is None or len(timed) < 2:
        return ""
    candidates = placement.candidates
    seconds = {index: each for each, index in timed}
    is_mixed = {index: len(set(candidates[index].devices)) > 1 for index in seconds}
    second = next(index for _, index in timed if index != placement.chosen)
    ratio = seconds[second] / seconds[placement.chosen]
    winner, runner_up = candidates[placement.chosen].title, candidates[second].title
    text = f"{winner} won: a run of {runner_up}, the next, takes {ratio:.2f} times as long."
    mixture = next((index for _, index in timed if is_mixed[index]), None) if not is_mixed[placement.chosen] else placement.chosen
    single = next((index for _, index in timed if not is_mixed[index]), None)
    if mixture is None or single is None or not placement.segments:
        why = "was worth a measurement by its estimate" if placement.is_complete else "was timed before the budget ended"
        return text if single is None else f"{text} No mixture of devices {why}."
    home = candidates[single].devices[0]
    pairs = zip(placement.segments, candidates[mixture].devices, strict=True)
    moved = [(segment.seconds, device) for segment, device in pairs if device != home]
    if not all({home, device} <= times.keys() for times, device in moved):
        return text
    saved = sum(times[home] - times[device] for times, device in moved)
    cost = seconds[mixture] - (seconds[single] - saved)
    verb = "won" if saved > cost else "lost"
    parts = count(range(candidates[mixture].parts), "part")
    return (
        f"{text} The mixture {candidates[mixture].title} {verb} against {home} alone: the times of {count(moved, 'segment')} elsewhere "
        f"save {saved * 1000:.3f} ms, and the borders of {parts} cost {cost * 1000:.3f} ms in values handed on and plans that end there."
    )


def describe_memory(plan: Plan) -> list[str]:
    """Returns a line for each device with the bytes that it will hold, if memory decided the split."""
    return [
        f"{held.device}: {held.total:,} bytes{'' if held.limit is None else f' of {held.limit:,}'}: "
        f"constants {held.weights:,}, inputs and outputs {held.border:,}, inner values {held.arena:,}"
        f"{f', workspace {held.workspace:,}' if held.workspace else ''}"
        for held in plan.memory
    ]


def describe_plan(plan: Plan, *, refusal_limit: int = 20) -> str:
    """Returns the plan as text: stages with their nodes, boundary values with bytes, refusals, and the conflicts that keep subgraphs apart.

    At most `refusal_limit` refused nodes, and as many conflicts, are listed; the rest is counted.
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
    lines += [f"  {line}" for line in describe_memory(plan)]
    lines += ["boundary values:"] if plan.boundaries else []
    lines += [f"  {describe_boundary(boundary)}" for boundary in plan.boundaries]
    lines += ["pins: " + ", ".join(f"{name} -> {device}" for name, device in plan.pins.items())] if plan.pins else []
    lines += ["refusals:"] if plan.refusals else []
    for name, reasons in list(plan.refusals.items())[:refusal_limit]:
        lines += [f"  {name} ({plan.operator_of_node[name]}), {device}: {reason}" for device, reason in reasons.items()]
    lines += _count_rest(plan.refusals, refusal_limit)
    lines += ["kept out of another subgraph of their device:"] if plan.conflicts else []
    lines += [f"  {conflict.node}: {describe_conflict(plan, conflict)}" for conflict in plan.conflicts[:refusal_limit]]
    return "\n".join([*lines, *_count_rest(plan.conflicts, refusal_limit)])


def _count_rest(entries: Collection[Any], limit: int) -> list[str]:
    return [f"  ... and {len(entries) - limit} more nodes"] if len(entries) > limit else []


def describe_procedures(plan: Plan) -> str:
    """Returns the procedures that selected the subgraphs, with the number of nodes of each."""
    return "selected by " + ", ".join(f"{name} ({count(range(nodes), 'node')})" for name, nodes in plan.procedures.items())


def describe_conflict(plan: Plan, conflict: Conflict) -> str:
    """Returns the subgraph, the path, the nodes at which it leaves and returns, and the devices that it passes."""
    stage_of_node = {name: stage for stage in plan.stages for name in stage.nodes}
    between = [stage_of_node[name] for name in conflict.path[1:-1] if name in stage_of_node]
    passed = ", ".join(dict.fromkeys(f"subgraph {stage.index} on {stage.device}" for stage in between))
    path = conflict.path
    shown = path if len(path) <= 10 else (*path[:4], f"({len(path) - 8} more)", *path[-4:])
    return (
        f"with subgraph {conflict.subgraph}, {' -> '.join(shown)} would leave at {conflict.path[0]}"
        + (f", pass {passed}" if passed else "")
        + f", and return at {conflict.path[-1]}"
    )


def count(things: Collection[Any], noun: str) -> str:
    """Returns "1 node", "2 nodes"."""
    return f"{len(things)} {noun}" + ("" if len(things) == 1 else "s")


def _shorten(nodes: Sequence[str], operator_of_node: Mapping[str, str]) -> str:
    shown = [f"{name} ({operator_of_node[name]})" for name in nodes[:4]]
    return ", ".join(shown) + (f", ... {nodes[-1]} ({operator_of_node[nodes[-1]]})" if len(nodes) > 4 else "")


def describe_boundary(boundary: Boundary) -> str:
    """Returns "a: float32[4], 16 bytes, subgraph 0 -> subgraph 1"."""
    source = "input" if boundary.producer is None else f"subgraph {boundary.producer}"
    size = "size known at run time" if boundary.nbytes is None else f"{boundary.nbytes} bytes"
    targets = ", ".join(f"subgraph {index}" for index in boundary.consumers)
    return f"{boundary.value}: {boundary.type}, {size}, {source} -> {targets}"


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """A device's answer about a node, with the reason: True if it takes the node, False if not, None if it was not asked."""

    device: str
    takes: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The place of a node in a plan, with the reasons; the fields are those of `hetero query --explain --json`.

    `device` and `subgraph` are None if no device takes the node, or if there is no split. `conflicts` are the node's own; without any,
    the conflicts of its subgraph, which keep the whole subgraph apart. `conflicts_complete` is False if the network was too large for a
    search for all conflicts. `reads` and `makes` name values that cross subgraphs.
    """

    node: str
    operator: str
    device: str | None
    subgraph: int | None
    pin: str | None
    devices: tuple[DeviceAnswer, ...]
    conflicts: tuple[Conflict, ...]
    conflicts_complete: bool
    reads: tuple[str, ...]
    makes: tuple[str, ...]


def explain_node(plan: Plan, name: str) -> Explanation:
    """Returns the place of a node, with the reasons. Cost: linear in the plan. Raises: InvalidNetworkError with the near misses."""
    if name not in plan.operator_of_node:
        raise InvalidNetworkError(f"network '{plan.network}' has no node '{name}'{suggest(name, plan.operator_of_node)}")
    device = plan.device_of_node.get(name)
    stage = None if device is None else next((stage for stage in plan.stages if name in stage.nodes), None)
    mates = frozenset() if stage is None else frozenset(stage.nodes)
    own = tuple(conflict for conflict in plan.conflicts if conflict.node == name)
    return Explanation(
        node=name,
        operator=plan.operator_of_node[name],
        device=device,
        subgraph=None if stage is None else stage.index,
        pin=plan.pins.get(name),
        devices=tuple(_find_answer(plan, name, device) for device in plan.priorities),
        conflicts=own or tuple(conflict for conflict in plan.conflicts if conflict.node in mates),
        conflicts_complete=not plan.unexplained,
        reads=tuple(boundary.value for boundary in plan.boundaries if name in boundary.readers),
        makes=tuple(boundary.value for boundary in plan.boundaries if boundary.maker == name),
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


def describe_explanation(plan: Plan, explanation: Explanation) -> str:
    """Returns the explanation as text."""
    index = explanation.subgraph
    where = "none" if index is None else f"{index} of {len(plan.stages)}, {count(plan.stages[index].nodes, 'node')}"
    lines = [f"node '{explanation.node}' ({explanation.operator}) of network '{plan.network}'"]
    lines += [f"  device    {explanation.device or 'none'}", f"  subgraph  {where}", f"  pin       {explanation.pin or 'none'}"]
    lines.append("  devices, in order of priority:")
    words = {True: "yes", False: "no", None: "-"}
    width = max((len(answer.device) for answer in explanation.devices), default=0)
    lines += [f"    {answer.device.ljust(width)}  {words[answer.takes]:3}  {answer.reason}" for answer in explanation.devices]
    lines += ["  kept apart on one device:"] if explanation.conflicts or not explanation.conflicts_complete else []
    lines += [
        f"    {'' if entry.node == explanation.node else f'{entry.node}, of the same subgraph: '}{describe_conflict(plan, entry)}"
        for entry in explanation.conflicts
    ]
    if not explanation.conflicts_complete:
        lines.append(f"    not all is known: {plan.unexplained} nodes of this large network were not looked at")
    for title, values in (("reads from outside", explanation.reads), ("makes for others", explanation.makes)):
        lines += [f"  {title}:"] if values else []
        lines += [f"    {describe_boundary(entry)}" for entry in plan.boundaries if entry.value in values]
    return "\n".join(lines)
