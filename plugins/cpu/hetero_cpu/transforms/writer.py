"""A network in the making, to which the passes of this device add nodes of ONNX and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Network, Node
from hetero_core.network.inference import infer_contrib, read_numbers
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import Dimension, ValueType, shape_of
from hetero_core.transforms.constants import drop_unread

Array = np.ndarray[Any, Any]

_VERSIONS = {
    "Add": 14, "And": 7, "ArgMax": 13, "Attention": 23, "AveragePool": 11, "CDist": 0, "Cast": 19, "Concat": 13, "Conv": 11,
    "CouplePairs": 0, "Div": 14, "Equal": 19, "Exp": 13, "Expand": 13, "Gather": 13, "Gelu": 20, "GlobalAveragePool": 1, "Greater": 13,
    "Identity": 21, "IsNaN": 20, "LabelEncoder": 2, "LayerNormalization": 17, "LeakyRelu": 6, "LessOrEqual": 16, "MatMul": 13,
    "MatMulInteger": 10, "MatMulIntegerToFloat": 0, "MatMulNBits": 0, "Mul": 14, "MultiplyAdd": 0, "RMSNormalization": 23, "Range": 11,
    "ReduceMax": 20, "ReduceMin": 20, "Reshape": 21, "Round": 11, "Shape": 21, "Split": 18, "Sub": 14, "Swish": 24, "ThresholdedRelu": 10,
    "Transpose": 21, "Unsqueeze": 21, "Where": 16,
}  # fmt: skip
"""The versions of the operators that passes make; 13 for all others, and 0 for those of no standard."""
_DOMAINS = {**dict.fromkeys(("CDist", "MatMulIntegerToFloat", "MatMulNBits"), MICROSOFT), "LabelEncoder": "ai.onnx.ml"}
_ALIKE = frozenset({"Add", "Clip", "Div", "Mul", "MultiplyAdd", "Round", "Sub", "ThresholdedRelu"})
"""Operators whose result has the type of the first input if the others are single numbers."""
_BY_HEADS = (0, 2, 1, 3)
"""From (batch, steps, heads, size) to (batch, heads, steps, size), and back."""


class Writer:
    """The nodes so far, and the types and constants of the network and of new values.

    New nodes stand for `origins` in reports; new values without a name get one that begins with `label`.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.names = network, FreshNames(network)
        self.nodes: list[Node] = []
        self.types, self.constants = dict(network.types), dict(network.initializers)
        self.label, self.origins = "", tuple[str, ...]()

    def write_network(self) -> Network:
        """Returns the network that is written."""
        types, constants = MappingProxyType(self.types), MappingProxyType(self.constants)
        return replace(self.network, nodes=tuple(self.nodes), types=types, initializers=constants)

    def make_node(self, op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: Mapping[str, Any]) -> Node:
        """Returns a node, which is not added."""
        version, name = _VERSIONS.get(op_type, 13), self.names.node(f"{self.label or outputs[0]}/{op_type}")
        domain, attributes = _DOMAINS.get(op_type, ""), MappingProxyType(attributes)
        return Node(name, op_type, inputs, outputs, domain, version or 1, version, attributes, (), self.origins)

    def build(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> Node:
        """Returns a node with a single output, which has a type, as `make_node`."""
        node = self.make_node(op_type, inputs, (output or self.name(op_type),), attributes)
        self.note_types(node)
        return node

    def add(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node with a single output, and returns the output."""
        self.nodes.append(self.build(op_type, *inputs, output=output, **attributes))
        return self.nodes[-1].outputs[0]

    def write(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node with a single output as a pass adds one of the network, and returns the output."""
        node = self.build(op_type, *inputs, output=output, **attributes)
        self.add_node(node)
        return node.outputs[0]

    def add_node(self, node: Node) -> None:
        """Adds a node; a pass may add others in place of it."""
        self.nodes.append(node)

    def split(self, x: str, sizes: tuple[int, ...], axis: int) -> tuple[str, ...]:
        """Adds a Split, and returns its outputs."""
        outputs = tuple([self.name("Split") for _ in sizes])
        self.nodes.append(self.make_node("Split", (x, self.add_integers(*sizes)), outputs, {"axis": axis}))
        self.note_types(self.nodes[-1])
        return outputs

    def note_types(self, node: Node) -> None:
        """Notes the types of a node's outputs that have none."""
        if all(value in self.types for value in node.outputs):
            return
        if node.op_type in _ALIKE and all(
            value in self.constants and self.constants[value].shape == () for value in node.inputs[1:]
        ):
            known = self.type_of(node.inputs[0])
            if known is not None:
                # A rule takes 20 us, and quantized networks have many such nodes.
                self.types[node.outputs[0]] = known
                return
        inferred = infer_contrib(node, list(map(self.type_of, node.inputs)), lambda value: read_numbers(self.constants, value))
        self.types.update((value, own) for value, own in inferred.items() if value not in self.types)

    def add_constant(self, array: Any) -> str:
        """Adds a constant, and returns its name."""
        return self.hold(Initializer.of_array(np.asarray(array)), self.name("constant"))

    def add_integers(self, *numbers: int) -> str:
        """Adds a constant of a single axis."""
        return self.add_constant(np.array(numbers, np.int64))

    def hold(self, constant: Initializer, name: str) -> str:
        """Adds a constant under a new name, and returns that."""
        self.constants[name], self.types[name] = constant, constant.type
        return name

    def name(self, proposal: str) -> str:
        """Returns a new name of a value."""
        return self.names.value(f"{self.label}/{proposal}")

    def type_of(self, value: str) -> ValueType | None:
        """Returns the type of a value; None if it is not known."""
        return self.constants[value].type if value in self.constants else self.types.get(value)

    def shape(self, value: str) -> tuple[Dimension, ...] | None:
        """Returns the sizes of a value; None if their number is not known."""
        return shape_of(self.type_of(value))

    def dtype(self, value: str) -> str:
        """Returns the element type of a value; empty if it is not known."""
        return getattr(self.type_of(value), "dtype", None) or ""

    def end_with(self, output: str) -> None:
        """Has the last node make a value that its own output stands for."""
        self.types.pop(self.nodes[-1].outputs[0], None)
        self.nodes[-1] = replace(self.nodes[-1], outputs=(output,))

    def lay_heads(self, x: str, heads: int, size: int) -> str:
        """Returns (batch, steps, heads * size) as (batch, heads, steps, size)."""
        return self.add("Transpose", self.add("Reshape", x, self.add_integers(0, 0, heads, size)), perm=_BY_HEADS)

    def join_heads(self, x: str, width: int, output: str) -> str:
        """Returns (batch, heads, steps, size) as (batch, steps, heads * size)."""
        return self.add("Reshape", self.add("Transpose", x, perm=_BY_HEADS), self.add_integers(0, 0, width), output=output)


Rewrite = Callable[[Network, Node, Writer], bool]
"""Adds the nodes that make the outputs of a node, and says whether it could; otherwise the node stays."""


def rewrite_operators(network: Network, rewrites: Mapping[tuple[str, str], Rewrite]) -> Network:
    """Returns the network with nodes rewritten by the function of their domain and operator, without nodes that nothing reads then."""
    if not any((node.domain, node.op_type) in rewrites for node in network.nodes):
        return network
    writer, is_changed = Writer(network), False
    for node in network.nodes:
        rewrite = rewrites.get((node.domain, node.op_type))
        writer.label, writer.origins = node.name, node.origins
        count, others = len(writer.nodes), [(own, len(own)) for own in (writer.types, writer.constants)]
        if rewrite is not None and rewrite(network, node, writer):
            is_changed = True
            continue
        writer.nodes[count:] = [node]
        for own, length in others:
            while len(own) > length:
                own.popitem()
    return drop_unread(writer.write_network()) if is_changed else network


def derive_constant(
    source: Initializer,
    convert: Callable[[Array], Array],
    shape: tuple[int, ...] | None = None,
    dtype: str = "float32",
    **fields: Any,
) -> Initializer:
    """Returns a constant that is computed from a source constant when it is read, which releases the source.

    It is as large as the source unless it has a `shape`. `fields`: of the constant.
    """

    def load() -> Array:
        array = convert(source.array)
        source.release()
        return array

    return Initializer(dtype, source.shape if shape is None else shape, load, **{"is_renewable": True, **fields})
