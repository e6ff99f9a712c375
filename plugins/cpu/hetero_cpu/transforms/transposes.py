"""Passes that remove transposes: they merge pairs, and turn regions that work in any order of axes if that saves transposes.

Only ranks have to be known, not sizes. `x.transpose(p).transpose(q)` is `x.transpose(p[q])`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, ValueType, rank_of
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.copies import eliminate_copies
from hetero_core.transforms.matching import read_axes

Perm = tuple[int, ...]
_TRANSPOSE_OPSET = 21
# Only the first input of these has axes; the rest are bounds and the like.
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


def read_perm(network: Network, node: Node) -> Perm | None:
    """Returns the order of axes of a Transpose; None for other operators or an unknown rank."""
    if node.op_type != "Transpose" or node.domain or len(node.writes) != 1 or len(node.inputs) != 1:
        return None
    if "perm" in node.attributes:
        perm = tuple(int(axis) for axis in node.attributes["perm"])
        return perm if sorted(perm) == list(range(len(perm))) else None
    rank = rank_of(network.type_of(node.inputs[0]))
    return None if rank is None else tuple(reversed(range(rank)))


def compose(first: Perm, second: Perm) -> Perm:
    """Returns the composition of two orders, applied in sequence."""
    return tuple(first[axis] for axis in second)


def invert(perm: Perm) -> Perm:
    """Returns the inverse of an order."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def cancel_transposes(network: Network) -> Network:
    """Returns the network with fewer transposes: pairs merged, transposes moved into Gemm, regions turned if that saves transposes."""
    network = merge_transposes(network)
    # Each turn takes at least a transpose away, so this ends.
    while (turned := _turn_best_region(network)) is not None:
        network = merge_transposes(turned)
    return _turn_inside_gemm(network)


def merge_transposes(network: Network) -> Network:
    """Returns the network with each Transpose of a Transpose reading the source of the first.

    Transposes without effect are removed, and so are duplicates of an earlier Transpose.
    """
    nodes: list[Node] = []
    sources: dict[str, tuple[str, Perm, Node]] = {}
    names: dict[tuple[str, Perm], str] = {}
    changed = False
    for node in network.nodes:
        perm = read_perm(network, node)
        if perm is None:
            nodes.append(node)
            continue
        source, before, first = sources.get(node.inputs[0], (node.inputs[0], tuple(range(len(perm))), node))
        if len(before) != len(perm):
            nodes.append(node)
            continue
        whole = compose(before, perm)
        same = source if whole == tuple(range(len(whole))) else names.setdefault((source, whole), node.outputs[0])
        if first is not node or same != node.outputs[0]:
            changed = True
            origins = tuple(dict.fromkeys((*first.origins, *node.origins)))
            if same != node.outputs[0]:
                node = Node(node.name, "Identity", (same,), node.outputs, "", node.opset, 1, origins=origins)
            else:
                node = replace(node, inputs=(source,), attributes={"perm": whole}, origins=origins)
        sources[node.outputs[0]] = (source, whole, node)
        nodes.append(node)
    return drop_unread(eliminate_copies(replace(network, nodes=tuple(nodes)))) if changed else network


def _turn_best_region(network: Network) -> Network | None:
    """Returns the network with the first region turned that saves transposes, None if no region does."""
    if not any(node.op_type == "Transpose" and not node.domain for node in network.nodes):
        return None
    for region in find_regions(network):
        best = max(_list_perms(network, region), key=lambda perm: _count_saved(network, region, perm), default=None)
        if best is not None and _count_saved(network, region, best) > 0:
            return _Turner(network, region, best).turn()
    return None


def _list_perms(network: Network, region: Region) -> list[Perm]:
    """Returns the orders that transposes around the region suggest: its values become the transposes of new values by these orders."""
    perms: dict[Perm, None] = {}
    for value in region.incoming:
        perm = _read_perm_of(network, value)
        if perm is not None:
            perms[perm] = None
    for value in region.made:
        for reader in _list_readers(network, value):
            perm = read_perm(network, reader)
            if perm is not None:
                perms[invert(perm)] = None
    return [perm for perm in perms if len(perm) == region.rank and perm != tuple(range(region.rank))]


def _count_saved(network: Network, region: Region, perm: Perm) -> int:
    """Returns how many transposes fewer there are when the region is turned."""
    saved = 0
    for value in region.incoming:
        is_private = value not in network.names_of_outputs and all(
            id(reader) in region.members for reader in _list_readers(network, value)
        )
        own_perm = _read_perm_of(network, value)
        if own_perm == perm:
            saved += is_private
        elif (own_perm is None or not is_private) and not _is_turned(network, region, value, invert(perm)):
            saved -= 1
    for value in region.made:
        outside = [reader for reader in _list_readers(network, value) if id(reader) not in region.members]
        perms = [read_perm(network, reader) for reader in outside]
        saved += sum(own_perm is not None and own_perm == invert(perm) for own_perm in perms)
        saved -= None in perms or value in network.names_of_outputs
    return saved


def _is_turned(network: Network, region: Region, value: str, perm: Perm) -> bool:
    """Says whether a Transpose outside of the region already makes the transposed value that the region would read."""
    outside = (reader for reader in _list_readers(network, value) if id(reader) not in region.members)
    return any(read_perm(network, reader) == perm for reader in outside)


def _read_perm_of(network: Network, value: str) -> Perm | None:
    node = network.find_producer(value)
    return None if node is None else read_perm(network, node)


def _list_readers(network: Network, value: str) -> Sequence[Node]:
    return [network.nodes[index] for index in network.index_of_consumers.get(value, ())]


def _turn_inside_gemm(network: Network) -> Network:
    """Returns the network with each Gemm reading the source of a transposed matrix, turned by its own attribute."""
    changed = False
    nodes: list[Node] = []
    for node in network.nodes:
        if node.op_type != "Gemm" or node.domain or len(node.inputs) < 2:
            nodes.append(node)
            continue
        inputs, attributes, origins = list(node.inputs), dict(node.attributes), list(node.origins)
        for position, name in ((0, "transA"), (1, "transB")):
            if _read_perm_of(network, inputs[position]) != (1, 0):
                continue
            transpose = network.nodes[network.index_of_producer[inputs[position]]]
            inputs[position] = transpose.inputs[0]
            attributes[name] = 0 if attributes.get(name, 0) else 1
            origins[:0] = transpose.origins
            changed = True
        nodes.append(replace(node, inputs=tuple(inputs), attributes=attributes, origins=tuple(dict.fromkeys(origins))))
    return drop_unread(replace(network, nodes=tuple(nodes))) if changed else network


# Regions: connected nodes that compute the same in any order of axes.


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
    rank = rank_of(network.type_of(results[0]))
    assert rank is not None
    return Region(rank, frozenset(map(id, ordered)), tuple(incoming), results)


def _rank_if_turnable(network: Network, node: Node) -> int | None:
    """Returns the rank of a node's output if the node may be in a region, None otherwise."""
    if node.domain or len(node.writes) != 1 or node.outputs[1:] or node.bodies or not node.inputs or not node.inputs[0]:
        return None
    rank = rank_of(network.type_of(node.outputs[0]))
    if rank is None or rank < 2:
        return None
    if node.op_type in _BROADCASTING:
        is_whole = node.since_version >= _FIRST_BROADCASTING or (node.since_version == 7 and not node.attributes)
        ranks = [rank_of(network.type_of(value)) for value in node.inputs]
        is_fit = all(
            input_rank == rank or input_rank == 0 or name in network.initializers
            for name, input_rank in zip(node.inputs, ranks, strict=True)
        )
        is_fit = is_fit and any(
            input_rank == rank and name not in network.initializers for name, input_rank in zip(node.inputs, ranks, strict=True)
        )
        return rank if is_whole and is_fit and None not in ranks else None
    if any(rank_of(network.type_of(value)) != rank for value in _list_operands(network, node)):
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
        return tuple(value for value in node.inputs if rank_of(network.type_of(value)) != 0)
    return node.inputs if node.op_type == "Concat" else node.inputs[:1]


class _Turner:
    """Turns a region, so that the old values are transposes by `perm` of its new values.

    A Transpose is added for each non-constant input from outside and for each result; `merge_transposes` removes the redundant ones.
    """

    def __init__(self, network: Network, region: Region, perm: Perm) -> None:
        self._network = network
        self._region = region
        self._perm = perm
        self._inverse = invert(perm)
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
