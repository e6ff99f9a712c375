"""Chains: nodes that compute element by element, joined into one expression, and into one group where nothing else reads what is between.

x * sigmoid(x), Gelu in its parts, BatchNormalization and the Relu after it become one pass over memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType
from hetero_cpu.fusion import Extra, Group
from hetero_cpu.jit.activations import OPERATORS, read_activation
from hetero_cpu.jit.elementwise import Instruction
from hetero_cpu.jit.native import Array
from hetero_cpu.weights import PackedWeights

# Operators of two inputs or more, each with the version since which it broadcasts as NumPy does.
_BINARY: Mapping[str, int] = {"Add": 7, "Sub": 7, "Mul": 7, "Div": 7, "PRelu": 7, "Max": 8, "Min": 8, "Sum": 8}
_OF_TWO = frozenset({"Add", "Sub", "Mul", "Div", "PRelu"})
# More would compile slowly, and need more registers than there are.
_MOST_NODES, _MOST_OPERANDS = 24, 8

ELEMENTWISE = OPERATORS | frozenset(_BINARY) | {"BatchNormalization"}
"""The operators that may be part of an expression."""


@dataclass
class ExpressionReader:
    """Reads nodes one after the other: `operands` are values of the plan by name, or constants; `instructions` what is computed of them."""

    constants: Mapping[str, Array]
    weights: PackedWeights
    ranks: Mapping[str, int]
    """The ranks of values, which BatchNormalization asks for."""
    operands: list[str | Array] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def read_node(self, node: Node) -> bool:
        """Adds a node; returns whether it could be read."""
        if node.domain or len(node.writes) != 1:
            return False
        if node.op_type == "BatchNormalization":
            return self._read_batch_normalization(node)
        if node.op_type in _BINARY and not (node.op_type == "PRelu" and read_activation(node, self.constants)):
            return self._read_binary(node)
        activation = read_activation(node, self.constants)
        if activation is None:
            return False
        self._known[node.outputs[0]] = self._add(activation.operator, (self._refer(node.inputs[0]),), activation.numbers)
        return True

    def _read_binary(self, node: Node) -> bool:
        count = len(node.inputs)
        fits = count == 2 if node.op_type in _OF_TWO else count >= 2
        if not fits or node.attributes or node.since_version < _BINARY[node.op_type]:
            return False
        operator = "Add" if node.op_type == "Sum" else node.op_type
        result = self._refer(node.inputs[0])
        for value in node.inputs[1:]:
            result = self._add(operator, (result, self._refer(value)))
        self._known[node.outputs[0]] = result
        return True

    def _read_batch_normalization(self, node: Node) -> bool:
        """Reads a scale and a shift for each channel, made of the parameters in float64."""
        parameters = tuple(self.constants[name] for name in node.inputs[1:5] if name in self.constants)
        rank = self.ranks.get(node.inputs[0], 0)
        if len(parameters) != 4 or node.since_version < 9 or node.attributes.get("training_mode", 0) or rank < 2:
            return False
        if any(parameter.dtype != np.float32 or parameter.ndim != 1 for parameter in parameters):
            return False
        epsilon = float(node.attributes.get("epsilon", 1e-5))

        def pack(scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
            factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
            shift = bias.astype(np.float64) - mean.astype(np.float64) * factor
            return np.stack([factor, shift]).astype(np.float32)

        packed = self.weights.pack(parameters, ("affine", epsilon), pack)
        scale, shift = (vector.reshape(-1, *[1] * (rank - 2)) for vector in packed)
        operands = (self._refer(node.inputs[0]), self._refer_constant(scale), self._refer_constant(shift))
        self._known[node.outputs[0]] = self._add("MultiplyAdd", operands)
        return True

    def _add(self, operator: str, operands: tuple[int, ...], numbers: tuple[float, ...] = ()) -> int:
        self.instructions.append(Instruction(operator, operands, numbers))
        return -len(self.instructions)

    def _refer(self, value: str) -> int:
        if value not in self._known:
            self._known[value] = len(self.operands)
            self.operands.append(self.constants.get(value, value))
        return self._known[value]

    def _refer_constant(self, array: Array) -> int:
        self.operands.append(array)
        return len(self.operands) - 1


def join_chains(
    groups: Sequence[Group], graph: Graph, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> tuple[Group, ...]:
    """Returns the groups with those joined that are one expression; the order stays one in which they can run.

    A joined group stands where its last node stood. Its epilogue holds the nodes after the first one.
    """
    found: list[Group | None] = []
    made: dict[str, int] = {}
    for group in groups:
        joined = group
        if _is_link(group, types, constants):
            joined = _join(group, found, made, graph, types)
        for value in joined.outputs:
            if value:
                made[value] = len(found)
        found.append(joined)
    return tuple(group for group in found if group is not None)


def _join(group: Group, found: list[Group | None], made: Mapping[str, int], graph: Graph, types: Mapping[str, TensorType]) -> Group:
    """Returns the group with the chains before it that only it reads; they leave `found`."""
    wanted = types[group.outputs[0]]
    positions: list[int] = []
    members = [group]
    is_growing = True
    while is_growing:
        is_growing = False
        inside = {id(node) for member in members for node in member.members}
        for value in dict.fromkeys(value for member in members for value in member.reads):
            position = made.get(value)
            maker = None if position is None else found[position]
            if position is None or maker is None or position in positions or maker.node.op_type not in ELEMENTWISE:
                continue
            readers = {id(graph.nodes[index]) for index in graph.index_of_consumers.get(value, ())}
            if value in graph.names_of_outputs or not readers <= inside or types.get(value) != wanted or not _is_chain(maker):
                continue
            merged = [maker, *members]
            if sum(len(member.members) for member in merged) > _MOST_NODES or _count_operands(merged) > _MOST_OPERANDS:
                continue
            members = merged
            positions.append(position)
            is_growing = True
            break
    if not positions:
        return group
    makers = [maker for position in sorted(positions) if (maker := found[position]) is not None]
    for position in positions:
        found[position] = None
    first, *others = [node for member in (*makers, group) for node in member.members]
    return Group(first, tuple(Extra(node) for node in others))


def _is_link(group: Group, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> bool:
    """Says whether a group is one node that an expression may hold."""
    node = group.node
    if group.epilogue or node.op_type not in ELEMENTWISE or node.domain or len(node.writes) != 1 or node.bodies:
        return False
    values = (*node.reads, *node.writes)
    if any(value not in types or types[value].dtype != "float32" for value in values):
        return False
    ranks = {value: len(types[value].shape or ()) for value in values}
    return ExpressionReader(constants, PackedWeights(), ranks).read_node(node)


def _is_chain(group: Group) -> bool:
    return all(node.op_type in ELEMENTWISE for node in group.members)


def _count_operands(groups: Sequence[Group]) -> int:
    values = {value for group in groups for node in group.members for value in node.writes}
    return len({value for group in groups for value in group.reads} - values)
