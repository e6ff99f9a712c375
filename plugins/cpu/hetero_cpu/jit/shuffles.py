"""Shuffles of channels: Reshape, Transpose and Reshape that are one group, so that images stay channels last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType
from hetero_cpu.fusion import Extra, Group

_OPERATORS = ("Reshape", "Transpose", "Reshape")


def read_shuffle(members: Sequence[Node], types: Mapping[str, TensorType]) -> tuple[int, int] | None:
    """Returns (groups, channels of a group) where three nodes write channel (group, own) of images at (own, group); None elsewhere."""
    if tuple(node.op_type for node in members) != _OPERATORS or any(node.domain for node in members):
        return None
    names = (members[0].inputs[0], members[0].outputs[0], members[2].outputs[0])
    shapes = [types[name].shape if name in types else None for name in names]
    if any(shape is None or not all(isinstance(size, int) for size in shape) for shape in shapes):
        return None
    before, split, after = ([size for size in shape or () if isinstance(size, int)] for shape in shapes)
    if len(before) != 4 or len(split) != 5 or before != after or tuple(members[1].attributes.get("perm", ())) != (0, 2, 1, 3, 4):
        return None
    groups, own = split[1:3]
    return (groups, own) if [before[0], groups * own, *before[2:]] == [split[0], before[1], *split[3:]] else None


def join_shuffles(groups: Sequence[Group], graph: Graph, types: Mapping[str, TensorType]) -> tuple[Group, ...]:
    """Returns the groups with those three joined that are a shuffle, where nothing else reads what is between."""
    found: list[Group | None] = []
    made: dict[str, int] = {}
    for group in groups:
        joined = group
        positions = _find_makers(group, found, made, graph)
        if positions is not None:
            makers = [maker for position in positions if (maker := found[position]) is not None]
            members = [*(maker.node for maker in makers), group.node]
            if read_shuffle(members, types) is not None:
                joined = Group(members[0], tuple(Extra(node) for node in members[1:]))
                for position in positions:
                    found[position] = None
        for value in joined.outputs:
            if value:
                made[value] = len(found)
        found.append(joined)
    return tuple(group for group in found if group is not None)


def _find_makers(group: Group, found: Sequence[Group | None], made: Mapping[str, int], graph: Graph) -> tuple[int, ...] | None:
    """Returns where the two nodes before the last Reshape of a shuffle stand, the first one first."""
    if group.epilogue or group.node.op_type != _OPERATORS[2]:
        return None
    positions: list[int] = []
    node = group.node
    for operator in reversed(_OPERATORS[:2]):
        value = node.inputs[0]
        position = made.get(value)
        maker = None if position is None else found[position]
        if position is None or maker is None or maker.epilogue or maker.node.op_type != operator:
            return None
        if value in graph.names_of_outputs or len(graph.index_of_consumers.get(value, ())) != 1:
            return None
        positions.insert(0, position)
        node = maker.node
    return tuple(positions)
