"""Regions: connected nodes that compute the same in any order of axes, and how a region is turned to another order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, ValueType, rank_of
from hetero_core.transforms.matching import read_axes

Perm = tuple[int, ...]
_TRANSPOSE_OPSET = 21
# Of these only the first input has axes; the others are bounds and the like.
_UNARY = frozenset(
    {
        "Abs", "Cast", "Ceil", "Celu", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
        "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus",
        "Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu"
    }
)  # fmt: skip
_BROADCASTING = frozenset(
    {
        "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "Or",
        "Pow", "Sub", "Sum", "Where", "Xor"
    }
)  # fmt: skip
_REDUCTIONS = frozenset(
    {
        "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"
    }
)  # fmt: skip
_WITH_AXIS = frozenset({"Concat", "LogSoftmax", "Softmax"})
# Since these versions the operators broadcast by NumPy's rules.
_FIRST_BROADCASTING = 8


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes (by id), the values that they read from outside and that have the axes, and the values that they make."""

    rank: int
    members: frozenset[int]
    incoming: tuple[str, ...]
    made: tuple[str, ...]


def find_regions(network: Network) -> list[Region]:
    """Returns the regions of a network, in the order of their first nodes."""
    group: dict[str, int] = {}
    nodes_of: dict[int, list[Node]] = {}
    for node in network.nodes:
        rank = _rank_if_turnable(network, node)
        if rank is None:
            continue
        near = sorted({group[value] for value in _list_operands(network, node) if value in group})
        number = near[0] if near else len(nodes_of)
        nodes_of.setdefault(number, [])
        for other in near[1:]:
            for moved in nodes_of[other]:
                group[moved.writes[0]] = number
            nodes_of[number] += nodes_of[other]
            nodes_of[other] = []
        nodes_of[number].append(node)
        group[node.writes[0]] = number
    return [_make_region(network, nodes) for nodes in nodes_of.values() if nodes]


def _make_region(network: Network, nodes: list[Node]) -> Region:
    ordered = sorted(nodes, key=lambda node: network.index_of_producer[node.writes[0]])
    results = tuple(node.writes[0] for node in ordered)
    inner = set(results)
    incoming = dict.fromkeys(
        value
        for node in ordered
        for value in _list_operands(network, node)
        if value not in inner and value not in network.initializers
    )
    rank = _rank_of(network, results[0])
    assert rank is not None
    return Region(rank, frozenset(map(id, ordered)), tuple(incoming), results)


def _rank_of(network: Network, value: str) -> int | None:
    return rank_of(network.type_of(value))


def _rank_if_turnable(network: Network, node: Node) -> int | None:
    """Returns the rank of a node's output if the node may be in a region, None otherwise."""
    if node.domain or len(node.writes) != 1 or node.outputs[1:] or node.bodies or not node.inputs or not node.inputs[0]:
        return None
    rank = _rank_of(network, node.outputs[0])
    if rank is None or rank < 2:
        return None
    if node.op_type in _BROADCASTING:
        is_whole = node.since_version >= _FIRST_BROADCASTING or (node.since_version == 7 and not node.attributes)
        ranks = [_rank_of(network, value) for value in node.inputs]
        is_fit = all(
            input_rank == rank or input_rank == 0 or name in network.initializers
            for name, input_rank in zip(node.inputs, ranks, strict=True)
        )
        is_fit = is_fit and any(
            input_rank == rank and name not in network.initializers for name, input_rank in zip(node.inputs, ranks, strict=True)
        )
        return rank if is_whole and is_fit and None not in ranks else None
    if any(_rank_of(network, value) != rank for value in _list_operands(network, node)):
        return None
    if any(value and value not in network.initializers for value in node.inputs[len(_list_operands(network, node)) :]):
        return None
    if node.op_type in _UNARY:
        return rank
    if node.op_type in _WITH_AXIS:
        return rank if node.op_type == "Concat" or node.since_version >= 13 else None
    if node.op_type in _REDUCTIONS and node.attributes.get("keepdims", 1) and not node.attributes.get("noop_with_empty_axes", 0):
        return rank if read_axes(network, node) else None
    return None


def _list_operands(network: Network, node: Node) -> tuple[str, ...]:
    """Returns the inputs that have the axes of the result."""
    if node.op_type in _BROADCASTING:
        return tuple(value for value in node.inputs if _rank_of(network, value) != 0)
    return node.inputs if node.op_type == "Concat" else node.inputs[:1]


def turn_region(network: Network, region: Region, perm: Perm) -> Network:
    """Returns the network with the region computing values of which the old ones are the transposes by `perm`.

    A Transpose is added for each non-constant input from outside and for each result; `merge_transposes` removes the redundant ones.
    """
    return _Turner(network, region, perm).turn()


class _Turner:
    """Turns one region; holds the state of the rewrite."""

    def __init__(self, network: Network, region: Region, perm: Perm) -> None:
        self._network = network
        self._region = region
        self._perm = perm
        self._inverse = tuple(perm.index(axis) for axis in range(len(perm)))
        self._names = FreshNames(network)
        self._turned: dict[str, str] = {}
        self._types: dict[str, ValueType] = dict(network.types)
        self._constants: dict[str, Initializer] = dict(network.initializers)
        self._nodes: list[Node] = []

    def turn(self) -> Network:
        for node in self._network.nodes:
            if id(node) in self._region.members:
                self._add_member(node)
            else:
                self._nodes.append(node)
        return replace(
            self._network,
            nodes=tuple(self._nodes),
            types=MappingProxyType(self._types),
            initializers=MappingProxyType(self._constants),
        )

    def _add_member(self, node: Node) -> None:
        operands = set(_list_operands(self._network, node))
        inputs = tuple(self._turn_operand(value, node) if value in operands else value for value in node.inputs)
        attributes, inputs = self._turn_axes(node, inputs)
        (value,) = node.writes
        turned = self._name(value)
        self._turned[value] = turned
        self._nodes.append(replace(node, inputs=inputs, outputs=(turned,), attributes=attributes))
        # If the value is never read in the old order, this Transpose is removed later as dead code.
        self._add_transpose(turned, value, self._perm, node)

    def _turn_operand(self, value: str, node: Node) -> str:
        if value in self._turned:
            return self._turned[value]
        constant = self._constants.get(value)
        if constant is not None:
            return self._turn_constant(value, constant)
        turned = self._name(value)
        self._add_transpose(value, turned, self._inverse, node)
        self._turned[value] = turned
        return turned

    def _turn_constant(self, value: str, constant: Initializer) -> str:
        array = constant.array
        if array.size == 1 and array.ndim < len(self._perm):
            return value
        name = self._name(value)
        wide = array.reshape((1,) * (len(self._perm) - array.ndim) + array.shape)
        self._constants[name] = turned_constant = Initializer.of_array(np.ascontiguousarray(wide.transpose(self._inverse)))
        self._types[name] = turned_constant.type
        self._turned[value] = name
        return name

    def _turn_axes(self, node: Node, inputs: tuple[str, ...]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Returns attributes and inputs with their axes mapped to the new order."""
        rank = len(self._perm)
        if node.op_type in _WITH_AXIS:
            return {**node.attributes, "axis": self._perm[int(node.attributes.get("axis", -1)) % rank]}, inputs
        if node.op_type not in _REDUCTIONS:
            return node.attributes, inputs
        axes = [self._perm[axis % rank] for axis in read_axes(self._network, node) or ()]
        if "axes" in node.attributes:
            return {**node.attributes, "axes": tuple(axes)}, inputs
        name = self._name(node.inputs[1])
        self._constants[name] = turned_axes = Initializer.of_array(np.asarray(axes, np.int64))
        self._types[name] = turned_axes.type
        return node.attributes, (inputs[0], name)

    def _add_transpose(self, source: str, value: str, perm: Perm, node: Node) -> None:
        name = self._names.node(f"{node.name}/transpose")
        attributes = {"perm": perm}
        self._nodes.append(
            Node(name, "Transpose", (source,), (value,), "", _TRANSPOSE_OPSET, _TRANSPOSE_OPSET, attributes, origins=node.origins)
        )

    def _name(self, value: str) -> str:
        """Returns the name of a value in the other order, and notes its type."""
        name = self._names.value(f"{value}/turned")
        value_type = self._network.type_of(value)
        if isinstance(value_type, TensorType) and value_type.shape is not None and len(value_type.shape) == len(self._perm):
            self._types[name] = TensorType(value_type.dtype, tuple(value_type.shape[axis] for axis in self._inverse))
        return name
