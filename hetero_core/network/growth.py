"""Bounds of what onnx's inference makes of a network, found before it is asked: dimensions of types, elements of known shapes.

onnx makes a message for each dimension of each type and, with data propagation, for each element of a shape that it knows. A Concat of
a value with itself doubles the elements, a Gather by itself the dimensions: a kilobyte of nodes asks for gigabytes. Where a bound
passes what arrays have, nodes are inferred one by one, each by the types that are then known. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero_core.network.graph import Graph, Initializer, Node, iterate_graphs
from hetero_core.network.types import LARGEST_RANK, MapType, TensorType, ValueType

_LONGEST_SHAPE = 1024
"""Elements of a shape that onnx may follow; far above any rank, and shapes are cut from longer ones."""
_LENGTH_OF_SHAPES = frozenset({"ConstantOfShape", "Expand", "Reshape", "Tile"})
"""Their output has as many dimensions as their last input, which holds a shape, has elements."""
_RANKS_ADDED = frozenset({"Gather", "GatherElements", "GatherND", "MatMul", "OneHot", "ScatterND"})
"""Their output has at most as many dimensions as their inputs together."""
_SHAPE_KEEPING = frozenset(
    {"Abs", "Add", "Cast", "Div", "Gather", "Identity", "Max", "Min", "Mul", "Neg", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"}
)
"""What onnx computes of known shapes, and of no more elements than one of the inputs has."""


def grows_beyond_arrays(graph: Graph) -> bool:
    """Says whether a type could have more dimensions than an array, or a known shape absurdly many elements. Cost: linear."""
    return _Bounds().read_graph(graph)


def bound_type_bytes(graph: Graph) -> int:
    """Returns about how many bytes the types of all values may take, where each is as large as the largest that is known."""
    largest = values = 0
    for each in iterate_graphs(graph):
        values += sum(len(node.outputs) for node in each.nodes)
        largest = max(largest, max(map(_measure, each.types.values()), default=0))
    return values * largest


def _measure(value_type: ValueType) -> int:
    if isinstance(value_type, MapType):
        return _measure(value_type.value)
    if not isinstance(value_type, TensorType):
        return _measure(value_type.element)
    # 40 bytes: what a dimension takes in a message, in its bytes and in a tuple.
    return (
        64 if not value_type.shape else 64 + sum(40 if not isinstance(size, str) else 40 + len(size) for size in value_type.shape)
    )


class _Bounds:
    """The most dimensions and elements of each value seen so far; what is not in the tables has none."""

    def __init__(self) -> None:
        self.ranks: dict[str, int] = {}
        self.lengths: dict[str, int] = {}

    def read_graph(self, graph: Graph) -> bool:
        """Enters the values of a graph; says whether a bound was passed."""
        types, constants = graph.types, graph.initializers
        for spec in graph.inputs:
            self._enter_type(spec.name, spec.type)
        for name, constant in constants.items():
            self.ranks[name] = len(constant.shape)
            if len(constant.shape) == 1:
                self.lengths[name] = constant.shape[0]
        for node in graph.nodes:
            if node.bodies and any(self.read_graph(body) for body in node.bodies.values()):
                return True
            rank, length = self._bound_rank(node, constants), self._bound_length(node)
            if rank > LARGEST_RANK or length > _LONGEST_SHAPE:
                return True
            for value in node.writes:
                self.ranks[value] = rank
                if length:
                    self.lengths[value] = length
                known = types.get(value)
                if known is not None:
                    self._enter_type(value, known)
        return False

    def _enter_type(self, value: str, value_type: ValueType) -> None:
        if isinstance(value_type, TensorType) and value_type.shape is not None:
            self.ranks[value] = len(value_type.shape)
            if len(value_type.shape) == 1 and isinstance(value_type.shape[0], int):
                self.lengths.setdefault(value, value_type.shape[0])

    def _bound_rank(self, node: Node, constants: Mapping[str, Initializer]) -> int:
        ranks = [self.ranks.get(value, 0) for value in node.reads]
        most = max(ranks, default=0)
        op_type = node.op_type
        if node.bodies:
            # A body's outputs are stacked along one axis more.
            return 1 + max([most, *(self._bound_outputs(body) for body in node.bodies.values())])
        if op_type == "Unsqueeze":
            return self.ranks.get(node.inputs[0], 0) + self._count_axes(node, constants) if node.inputs else most
        if op_type == "Squeeze":
            return max(self.ranks.get(node.inputs[0], 0) - self._count_axes(node, constants), 0) if node.inputs else most
        if op_type in _LENGTH_OF_SHAPES and node.inputs:
            length = self.lengths.get(node.inputs[-1], 0)
            return max(
                length,
                len(node.attributes["shape"]) if isinstance(node.attributes.get("shape"), tuple) else 0,
                most * (op_type == "Expand"),
            )
        if op_type in _RANKS_ADDED:
            return sum(self.ranks.get(value, 0) for value in node.inputs)
        if op_type == "Einsum":
            equation = node.attributes.get("equation", "")
            return most + len(equation) if isinstance(equation, (str, bytes)) else most
        return most + (op_type in ("ConcatFromSequence", "StringSplit", "NonZero"))

    def _bound_outputs(self, body: Graph) -> int:
        return max((self.ranks.get(spec.name, 0) for spec in body.outputs), default=0)

    def _count_axes(self, node: Node, constants: Mapping[str, Initializer]) -> int:
        axes = node.attributes.get("axes")
        if isinstance(axes, tuple):
            return len(axes)
        return self.lengths.get(node.inputs[1], 0) if len(node.inputs) > 1 else 0

    def _bound_length(self, node: Node) -> int:
        lengths: Sequence[int] = [self.lengths.get(value, 0) for value in node.inputs]
        if node.op_type == "Shape":
            return self.ranks.get(node.inputs[0], 0) if node.inputs else 0
        if node.op_type == "Concat":
            # A number of no dimension is one element.
            return sum(length or 1 for length in lengths) if any(lengths) else 0
        return max(lengths, default=0) if node.op_type in _SHAPE_KEEPING else 0
