"""Chains: nodes that compute element by element, joined into one expression, and into one group where nothing else reads what is between.

x * sigmoid(x), Gelu in its parts, BatchNormalization and the Relu after it become one pass over memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType
from hetero_cpu.machine.native import Array
from hetero_cpu.operators.elementwise.kernel import Instruction
from hetero_cpu.operators.elementwise.native_activations import OPERATORS, PLAIN, read_activation
from hetero_cpu.planning.fusion import Extra, Group
from hetero_cpu.planning.weights import PackedWeights, pack_affine

# Operators of two inputs or more, each with the version since which it broadcasts as NumPy does.
_BINARY: Mapping[str, int] = {"Add": 7, "Sub": 7, "Mul": 7, "Div": 7, "PRelu": 7, "Max": 8, "Min": 8, "Sum": 8}
_OF_TWO = frozenset({"Add", "Sub", "Mul", "Div", "PRelu"})
# More would compile slowly, and need more registers than there are.
_MOST_NODES, _MOST_OPERANDS = 24, 8

ELEMENTWISE = OPERATORS | frozenset(_BINARY) | {"BatchNormalization"}
"""The operators that may be part of an expression."""

# Whether a node of these without attributes can be read depends on its version and the number of its inputs alone.
_ALIKE = PLAIN | frozenset(_BINARY) - {"PRelu"}


@dataclass(slots=True, eq=False)
class ExpressionReader:
    """Reads nodes in order: `operands` are values of the plan by name, or constants; `instructions` what is computed of them."""

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
        if len({parameter.size for parameter in parameters}) != 1:
            return False  # whoever computes it says what is wrong
        epsilon = float(node.attributes.get("epsilon", 1e-5))

        packed = self.weights.pack(parameters, ("affine", epsilon), partial(pack_affine, epsilon=epsilon))
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


@dataclass(slots=True, eq=False)
class _Chain:
    """A candidate for a part of a group: nodes in order, the values that they read and those that they make for others.

    A chain that grows takes over the list of nodes of the chain before it, so that joining costs the same for each node.
    """

    group: Group
    """The group that the chain is, as long as it is one alone."""
    nodes: list[Node]
    reads: tuple[str, ...]
    outputs: tuple[str, ...]

    def close(self) -> Group:
        """Returns the chain as a group: its epilogue holds the nodes after the first one."""
        first, *others = self.nodes
        return Group(first, tuple([Extra(node) for node in others])) if len(self.nodes) > len(self.group.members) else self.group


def join_chains(
    groups: Sequence[Group], graph: Graph, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> tuple[Group, ...]:
    """Returns the groups with those joined that are one expression; the order stays one in which they can run.

    A joined group stands where its last node stood.
    """
    chains: list[_Chain | None] = []
    position_of_value: dict[str, int] = {}
    is_link = _LinkTest(types, constants)
    for group in groups:
        chain = _Chain(group, list(group.members), group.reads, group.outputs)
        if is_link(group):
            chain = _append(chain, chains, position_of_value, graph, types) or _join(chain, chains, position_of_value, graph, types)
        for value in chain.outputs:
            if value:
                position_of_value[value] = len(chains)
        chains.append(chain)
    return tuple([chain.close() for chain in chains if chain is not None])


def _append(
    chain: _Chain, chains: list[_Chain | None], position_of_value: Mapping[str, int], graph: Graph, types: Mapping[str, TensorType]
) -> _Chain | None:
    """Returns what `_join` does, for a chain that only one chain before it could join; None if there may be others.

    Long chains consist of such nodes, each of which costs the same.
    """
    value, maker = "", None
    for read in chain.reads:
        if (before := _find_maker(read, chains, position_of_value)) is not None:
            if maker is not None:
                return None
            value, maker = read, before
    if maker is None:
        return None
    for read in maker.reads:
        if _find_maker(read, chains, position_of_value) is not None:
            return None
    reads = tuple(dict.fromkeys((*maker.reads, *[read for read in chain.reads if read != value])))
    if (
        len(maker.nodes) + len(chain.nodes) > _MOST_NODES
        or len(reads) > _MOST_OPERANDS
        or types.get(value) != types[chain.outputs[0]]
        or value in graph.names_of_outputs
        or not _is_read_inside(value, (chain,), graph)
    ):
        return chain
    chains[position_of_value[value]] = None
    maker.nodes.extend(chain.nodes)
    maker.reads, maker.outputs = reads, chain.outputs[:1]
    return maker


def _find_maker(value: str, chains: Sequence[_Chain | None], position_of_value: Mapping[str, int]) -> _Chain | None:
    """Returns the chain that makes a value, where it is an expression; None otherwise, or where it has been joined to another one."""
    position = position_of_value.get(value)
    maker = None if position is None else chains[position]
    # What begins with an operator of expressions is one as a whole.
    return maker if maker is not None and maker.nodes[0].op_type in ELEMENTWISE else None


def _join(
    chain: _Chain, chains: list[_Chain | None], position_of_value: Mapping[str, int], graph: Graph, types: Mapping[str, TensorType]
) -> _Chain:
    """Returns the chain with those before it that only it reads; they leave `chains`."""
    result_type = types[chain.outputs[0]]
    positions: list[int] = []
    operands: list[str] = []
    members = [chain]
    count = len(chain.nodes)
    pending = list(chain.reads)
    while pending:
        value = pending.pop(0)
        position, maker = position_of_value.get(value), _find_maker(value, chains, position_of_value)
        if position is None or maker is None or position in positions:
            continue
        if count + len(maker.nodes) > _MOST_NODES or types.get(value) != result_type or value in graph.names_of_outputs:
            continue
        if not _is_read_inside(value, members, graph) or len(read := _list_operands([maker, *members])) > _MOST_OPERANDS:
            continue
        operands, members = read, [maker, *members]
        count += len(maker.nodes)
        positions.append(position)
        # What was refused before may now be read inside alone.
        pending = list(dict.fromkeys([value for member in members for value in member.reads]))
    if not positions:
        return chain
    makers = [maker for position in sorted(positions) if (maker := chains[position]) is not None]
    for position in positions:
        chains[position] = None
    joined = makers[0]
    # Several makers may stand in another order than the one in which they were met.
    operands = operands if len(makers) == 1 else _list_operands([*makers, chain])
    for member in (*makers[1:], chain):
        joined.nodes.extend(member.nodes)
    joined.reads, joined.outputs = tuple(operands), chain.outputs[:1]
    return joined


def _is_read_inside(value: str, members: Sequence[_Chain], graph: Graph) -> bool:
    """Says whether no other nodes than those of chains, of which one reads it, read a value."""
    readers = graph.index_of_consumers.get(value, ())
    if len(readers) == 1:
        return True
    inside = {id(node) for member in members for node in member.nodes}
    return all(id(graph.nodes[index]) in inside for index in readers)


def _list_operands(chains: Sequence[_Chain]) -> list[str]:
    """Returns the values that come into chains, each once, in order; what one of them makes on its way nothing else reads."""
    outputs = {value for chain in chains for value in chain.outputs}
    return [value for value in dict.fromkeys([value for chain in chains for value in chain.reads]) if value not in outputs]


class _LinkTest:
    """Says whether a group is one node that an expression may hold; nodes that differ in nothing that matters are read once."""

    def __init__(self, types: Mapping[str, TensorType], constants: Mapping[str, Array]) -> None:
        self._types, self._constants, self._weights = types, constants, PackedWeights()
        self._verdicts: dict[tuple[str, int, int], bool] = {}

    def __call__(self, group: Group) -> bool:
        node = group.node
        if group.epilogue or node.op_type not in ELEMENTWISE or node.domain or len(node.writes) != 1 or node.bodies:
            return False
        types = self._types
        for value in (*node.reads, *node.writes):
            if value not in types or types[value].dtype != "float32":
                return False
        if node.attributes or node.op_type not in _ALIKE:
            return self._read(node)
        kind = (node.op_type, node.since_version, len(node.inputs))
        verdict = self._verdicts.get(kind)
        if verdict is None:
            verdict = self._verdicts[kind] = self._read(node)
        return verdict

    def _read(self, node: Node) -> bool:
        ranks = {value: len(self._types[value].shape or ()) for value in (*node.reads, *node.writes)}
        return ExpressionReader(self._constants, self._weights, ranks).read_node(node)
