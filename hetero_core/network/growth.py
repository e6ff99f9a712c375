"""Bounds of what onnx's inference may make of a network, found before it is asked: dimensions of types, elements of known shapes.

onnx makes a message for each dimension of a type and, with data propagation, for each element of any tensor of one dimension that
arithmetic reads. A Gather of a value by itself doubles the dimensions, a Concat the elements, an Expand makes 2**40 of them: some
bytes of nodes ask for gigabytes. Bounds are rough and never too low; a type that is known takes the place of its bound. Imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from hetero_core.network.graph import Graph, Node, iterate_graphs
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import LARGEST_RANK, MapType, TensorType, ValueType

_LONGEST_VECTOR = 1 << 16
"""Elements that onnx may make messages of; far above any shape."""
_MOST_ELEMENTS = 1 << 21
"""Limit for the elements of all vectors of a graph together."""
_HUGE = 1 << 62
_MOST_BYTES_OF_DTYPE = {"int32": 1024, "int64": 1024, "float32": 32, "float64": 64}
"""The largest constants whose numbers are read: shapes and axes are small, and scales are one float for each axis."""


@dataclass(frozen=True, slots=True)
class GrowthBounds:
    """Whether types may get more dimensions than an array has, and whether known shapes may get absurdly many elements."""

    of_ranks: bool
    of_shapes: bool


def find_growth(graph: Graph) -> GrowthBounds:
    """Returns what of a graph may grow without bound when its types are inferred. Cost: linear, some 2 us per node."""
    bounds = _Bounds()
    bounds.read_graph(graph)
    return GrowthBounds(bounds.of_ranks, bounds.of_shapes)


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
    return 64 + sum(40 + (len(size) if isinstance(size, str) else 0) for size in value_type.shape or ())


Bound = tuple[int, int, int]
"""The bound of a value: how many dimensions, the largest size that is a number, and the largest element that onnx may know."""
_NONE: Bound = (0, 0, 0)


class _Bounds:
    """The bounds of the values seen so far."""

    def __init__(self) -> None:
        self.bounds: dict[str, Bound] = {}
        self.of_ranks = self.of_shapes = False
        self.elements = 0
        self.constants: set[str] = set()

    def read_graph(self, graph: Graph) -> None:
        """Enters the values of a graph, bodies included."""
        types, bounds = graph.types, self.bounds
        for spec in graph.inputs:
            self._enter(spec.name, (0, 0, 0), spec.type)
        self.constants.update(graph.initializers)
        for name, constant in graph.initializers.items():
            bounds[name] = (len(constant.shape), max(constant.shape, default=0), _find_largest(constant))
        for node in graph.nodes:
            reads = [bounds.get(value, _NONE) for value in node.inputs]
            for body in node.bodies.values():
                self.read_graph(body)
                reads += [bounds.get(spec.name, _NONE) for spec in body.outputs]
            rank, size, number = self._bound(node, reads)
            for value in node.writes:
                self._enter(value, (rank, size, number), types.get(value))

    def _enter(self, value: str, bound: Bound, value_type: ValueType | None) -> None:
        rank, size, number = bound
        is_vector = True
        if isinstance(value_type, TensorType) and value_type.shape is not None:
            rank = len(value_type.shape)
            known = [each for each in value_type.shape if isinstance(each, int)]
            # A size that is named or open is no more than its name: onnx may still find that it is large.
            size = max(known, default=0) if len(known) == rank else max(size, *known, 0)
            is_vector = rank == 1
        if rank > LARGEST_RANK:
            self.of_ranks = True
        if is_vector and size:
            self.elements += size
            self.of_shapes |= size > _LONGEST_VECTOR or self.elements > _MOST_ELEMENTS
        self.bounds[value] = rank, min(size, _HUGE), min(number, _HUGE)

    def _bound(self, node: Node, reads: list[Bound]) -> Bound:
        most_rank = most_size = most_number = 0
        # Written out: this is asked of each node of each model.
        for rank, size, number in reads:
            if rank > most_rank:
                most_rank = rank
            if size > most_size:
                most_size = size
            if number > most_number:
                most_number = number
        rule = _RULES.get(node.op_type)
        if node.op_type == "Range" and not self.constants.issuperset(node.inputs):
            # onnx takes its limits from constants alone.
            return 1, 0, most_number
        if rule is not None and node.inputs:
            most_rank, most_size, most_number = rule(node, reads, (most_rank, most_size, most_number))
        if node.bodies:
            # A body's outputs are stacked along one axis more.
            most_rank += 1
        elif node.attributes:
            most_size += 2 * _find_largest_attribute(node.attributes.values())
        return most_rank, most_size, most_number


def _find_largest(constant: Initializer) -> int:
    """Returns the largest number in a small constant: shapes and pads of integers, scales and limits of floats."""
    most = _MOST_BYTES_OF_DTYPE.get(constant.dtype, 0)
    if constant.nbytes > most or 0 in constant.shape:
        return 0
    array = constant.array
    # Python's numbers: the least of int64 has no counterpart in it. An infinity is as large as can be.
    return int(min(max(abs(array.max().item()), abs(array.min().item())), _HUGE)) if (array == array).all() else 0


def _find_largest_attribute(values: Iterable[Any]) -> int:
    return max((_largest_integer(value) for value in values), default=0)


def _largest_integer(value: Any) -> int:
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, tuple) and value and isinstance(value[0], (int, float)):
        largest = max(map(abs, value))
        return int(largest) if largest < _HUGE else _HUGE
    return 0


def _concatenate(node: Node, reads: list[Bound], most: Bound) -> Bound:
    # A number without dimensions is one element.
    return most[0] + (node.op_type == "ConcatFromSequence"), sum(max(read[1], 1) for read in reads), most[2]


def _count_elements(bound: Bound) -> int:
    return _HUGE if bound[0] > LARGEST_RANK else min(max(bound[1], 1) ** max(bound[0], 1), _HUGE)


def _follow_shape(node: Node, reads: list[Bound], most: Bound) -> Bound:
    """Returns the bound of ConstantOfShape, Expand, Reshape: one dimension for each element of the shape, at most as large as that."""
    shape = node.attributes.get("shape")
    listed = len(shape) if isinstance(shape, tuple) else 0
    rank = max(reads[-1][1], listed, most[0] if node.op_type == "Expand" else 0)
    elements = _count_elements(reads[0]) if node.op_type == "Reshape" else reads[0][1]
    return rank, max(elements, reads[-1][2]), most[2]


def _repeat(node: Node, reads: list[Bound], most: Bound) -> Bound:
    return max(reads[0][0], reads[-1][1]), reads[0][1] * max(read[2] for read in reads[1:]) if len(reads) > 1 else 0, most[2]


def _lengthen(node: Node, reads: list[Bound], most: Bound) -> Bound:
    """Returns the bound of Pad and Resize, whose constants add to sizes, replace them or multiply them."""
    number = max((read[2] for read in reads[1:]), default=0)
    return most[0], reads[0][1] * max(number, 1) + 2 * number, most[2]


def _count_axes(node: Node, reads: list[Bound]) -> int:
    axes = node.attributes.get("axes")
    if isinstance(axes, tuple):
        return len(axes)
    return reads[1][1] if len(reads) > 1 else 0


def _spread(node: Node, reads: list[Bound], most: Bound) -> Bound:
    """Returns the bound of ConvTranspose, DepthToSpace and the like: sizes times an attribute, squared for blocks."""
    factor = max(_find_largest_attribute(node.attributes.values()), most[2], 1)
    return most[0], most[1] * factor * factor, most[2]


def _sum_products(node: Node, reads: list[Bound], most: Bound) -> Bound:
    equation = node.attributes.get("equation", "")
    return most[0] + (len(equation) if isinstance(equation, (str, bytes)) else 0), most[1], most[2]


_Rule = Callable[[Node, list[Bound], Bound], Bound]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("Add", "Sub"), lambda node, reads, most: (most[0], most[1], sum(read[2] for read in reads))),
    "Mul": lambda node, reads, most: (most[0], most[1], prod(max(read[2], 1) for read in reads[:2])),
    **dict.fromkeys(("Concat", "ConcatFromSequence"), _concatenate),
    **dict.fromkeys(("Gather", "GatherND"), lambda node, reads, most: (sum(read[0] for read in reads), most[1], most[2])),
    "Shape": lambda node, reads, most: (1, most[0], most[1]),
    "Size": lambda node, reads, most: (0, 0, _count_elements(reads[0])),
    **dict.fromkeys(("ConstantOfShape", "Expand", "Reshape"), _follow_shape),
    "Tile": _repeat,
    **dict.fromkeys(("Pad", "Resize", "CenterCropPad"), _lengthen),
    # One dimension of any size, since a small step makes many elements between small limits.
    "Range": lambda node, reads, most: (1, _HUGE, most[2]),
    "Unsqueeze": lambda node, reads, most: (reads[0][0] + _count_axes(node, reads), max(reads[0][1], 1), most[2]),
    "Squeeze": lambda node, reads, most: (max(reads[0][0] - _count_axes(node, reads), 0), reads[0][1], most[2]),
    "OneHot": lambda node, reads, most: (reads[0][0] + 1, max(most[1], most[2]), most[2]),
    **dict.fromkeys(("Col2Im", "ConvTranspose", "DepthToSpace", "MaxUnpool", "SpaceToDepth", "Upsample"), _spread),
    "Flatten": lambda node, reads, most: (2, _count_elements(reads[0]), most[2]),
    "Einsum": _sum_products,
    **dict.fromkeys(
        ("NonZero", "SplitToSequence", "StringSplit", "STFT"), lambda node, reads, most: (most[0] + 1, most[1], most[2])
    ),
}
