"""Element types, shapes and presence of a node's inputs."""

from __future__ import annotations

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType

MOVING = frozenset(
    {
        *("Compress", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
        *("Pad", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"),
        *("Transpose", "Trilu", "Unsqueeze", "Where"),
    }
)
"""Operators that move elements of their inputs and do not ask what they are."""


def dtype_of_input(node: Node, graph: Graph, index: int = 0) -> str | None:
    """Returns the element type of an input; None where it is absent, no tensor, or not known."""
    input_type = graph.type_of(node.inputs[index]) if has_input(node, index) else None
    return input_type.dtype if isinstance(input_type, TensorType) else None


def dtype_of_value(value: str, graph: Graph) -> str | None:
    """Returns the element type of a value; None where it is no tensor, or not known."""
    value_type = graph.type_of(value)
    return value_type.dtype if isinstance(value_type, TensorType) else None


def find_shape(node: Node, graph: Graph, index: int = 0) -> tuple[int | str | None, ...] | None:
    """Returns the shape of an input; None where its rank is not known."""
    input_type = graph.type_of(node.inputs[index]) if has_input(node, index) else None
    return input_type.shape if isinstance(input_type, TensorType) else None


def has_input(node: Node, index: int) -> bool:
    """Says whether a node has its input at this position."""
    return len(node.inputs) > index and bool(node.inputs[index])


def scales_are_whole(node: Node, graph: Graph) -> bool:
    """Says whether the scales of a Resize are known and give every axis a whole size, which rounding leaves as it is."""
    scales, shape = graph.initializers.get(node.inputs[2]), find_shape(node, graph)
    if scales is None:
        return False
    factors = [float(scale) for scale in scales.array]
    if all(factor.is_integer() for factor in factors):
        return True
    if shape is None or len(factors) != len(shape):
        return False
    return all(
        factor.is_integer() or (isinstance(size, int) and (size * factor).is_integer())
        for size, factor in zip(shape, factors, strict=True)
    )
