"""Passes that remove transposes: they merge pairs, and move them behind nodes that work in any order of axes if that saves transposes.

Only ranks have to be known, not sizes. `x.transpose(p).transpose(q)` is `x.transpose(p[q])`.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, rank_of
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.copies import eliminate_copies

Perm = tuple[int, ...]
_TRANSPOSE_OPSET = 21
# Only the first input of these has axes; the rest are bounds and the like.
_UNARY = frozenset(
    {
        "Abs", "Cast", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
        "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus",
        "Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu"
    }
)  # fmt: skip
_BROADCASTING = frozenset(
    {
        "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "Or",
        "Pow", "Sub", "Sum", "Where", "Xor"
    }
)  # fmt: skip
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
    """Returns the network with fewer transposes: pairs merged, and others moved behind elementwise nodes if they meet a pair there."""
    merged = merge_transposes(network)
    sunk = merge_transposes(_Sinker(merged).sink())
    return sunk if _count_transposes(sunk) < _count_transposes(merged) else merged


def _count_transposes(network: Network) -> int:
    return sum(node.op_type == "Transpose" and not node.domain for node in network.nodes)


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


class _Sinker:
    """Moves transposes behind elementwise nodes: a node whose operands are transposes by the same order reads their sources instead.

    Behind each moved node stands a Transpose to its old result; `merge_transposes` removes those that meet their inverse.
    """

    def __init__(self, network: Network) -> None:
        self._network, self._names = network, FreshNames(network)
        self._nodes: list[Node] = []
        self._types, self._constants = dict(network.types), dict(network.initializers)
        self._sources: dict[str, dict[Perm, str]] = {}
        """Value -> order -> the value of which it is the transpose by this order, if both are there already."""
        self._made: dict[str, Perm] = {}
        """The values that a Transpose makes."""

    def sink(self) -> Network:
        """Returns the network with its transposes as late as possible."""
        for node in self._network.nodes:
            perm = read_perm(self._network, node)
            if perm is not None:
                self._nodes.append(node)
                self._note(node.outputs[0], perm, node.inputs[0])
            elif not self._turn(node):
                self._nodes.append(node)
        types, constants = MappingProxyType(self._types), MappingProxyType(self._constants)
        return drop_unread(replace(self._network, nodes=tuple(self._nodes), types=types, initializers=constants))

    def _note(self, value: str, perm: Perm, source: str) -> None:
        self._made[value] = perm
        self._sources.setdefault(value, {})[perm] = source
        self._sources.setdefault(source, {}).setdefault(invert(perm), value)

    def _turn(self, node: Node) -> bool:
        """Adds a node that reads the sources of its operands; returns whether it could be."""
        operands = _list_operands(self._network, node)
        perm = next((self._made[value] for value in operands if value in self._made), None)
        if perm is None or not _is_turnable(self._network, node, len(perm)):
            return False
        if not all(value in self._constants or perm in self._sources.get(value, ()) for value in operands):
            return False
        inputs = tuple(self._turn_operand(value, perm) if value in operands else value for value in node.inputs)
        attributes, (value,) = dict(node.attributes), node.writes
        if node.op_type == "Concat":
            attributes["axis"] = perm[int(attributes["axis"]) % len(perm)]
        turned = self._names.value(f"{value}/turned")
        value_type = self._network.type_of(value)
        if isinstance(value_type, TensorType) and value_type.shape is not None:
            self._types[turned] = TensorType(value_type.dtype, tuple(value_type.shape[axis] for axis in invert(perm)))
        self._nodes.append(replace(node, inputs=inputs, outputs=(turned,), attributes=MappingProxyType(attributes)))
        name, version = self._names.node(f"{node.name}/transpose"), _TRANSPOSE_OPSET
        self._nodes.append(Node(name, "Transpose", (turned,), (value,), "", version, version, {"perm": perm}, origins=node.origins))
        self._note(value, perm, turned)
        return True

    def _turn_operand(self, value: str, perm: Perm) -> str:
        constant = self._constants.get(value)
        if constant is None:
            return self._sources[value][perm]
        array = constant.array
        if array.size == 1 and array.ndim < len(perm):
            return value
        name = self._names.value(f"{value}/turned")
        wide = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
        self._constants[name] = Initializer.of_array(np.ascontiguousarray(wide.transpose(invert(perm))))
        self._types[name] = self._constants[name].type
        return name


def _is_turnable(network: Network, node: Node, rank: int) -> bool:
    """Says whether a node computes the same in any order of axes of this rank."""
    if node.domain or len(node.writes) != 1 or node.outputs[1:] or rank_of(network.type_of(node.outputs[0])) != rank:
        return False
    if node.op_type in _BROADCASTING:
        is_whole = node.since_version >= _FIRST_BROADCASTING or (node.since_version == 7 and not node.attributes)
        return is_whole and all(
            value in network.initializers or rank_of(network.type_of(value)) in (0, rank) for value in node.inputs
        )
    return node.op_type in _UNARY or (node.op_type == "Concat" and "axis" in node.attributes)


def _list_operands(network: Network, node: Node) -> tuple[str, ...]:
    """Returns the inputs that have the axes of the result."""
    if node.op_type in _BROADCASTING:
        return tuple(value for value in node.inputs if rank_of(network.type_of(value)) != 0)
    return node.inputs if node.op_type == "Concat" else node.inputs[:1]
