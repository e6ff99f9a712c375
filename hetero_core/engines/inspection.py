"""Element types, shapes and presence of a node's inputs, and inputs that are constant in every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.network.graph import Graph, Node
from hetero_core.network.inference import compute_known_value
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType

MOVING = frozenset(
    {
        *("Compress", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
        *("Pad", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"),
        *("Transpose", "Trilu", "Unsqueeze", "Where"),
    }
)
"""Operators that move elements of their inputs without reading their values."""


def dtype_of_input(node: Node, graph: Graph, index: int = 0) -> str | None:
    """Returns the element type of an input; None if the input is absent, no tensor, or of unknown type."""
    input_type = graph.type_of(node.inputs[index]) if has_input(node, index) else None
    return input_type.dtype if isinstance(input_type, TensorType) else None


def dtype_of_value(value: str, graph: Graph) -> str | None:
    """Returns the element type of a value; None if the value is no tensor or of unknown type."""
    value_type = graph.type_of(value)
    return value_type.dtype if isinstance(value_type, TensorType) else None


def find_shape(node: Node, graph: Graph, index: int = 0) -> tuple[int | str | None, ...] | None:
    """Returns the shape of an input; None if its rank is unknown."""
    input_type = graph.type_of(node.inputs[index]) if has_input(node, index) else None
    return input_type.shape if isinstance(input_type, TensorType) else None


def has_input(node: Node, index: int) -> bool:
    """Says whether a node has its input at this position."""
    return len(node.inputs) > index and bool(node.inputs[index])


def scales_are_whole(node: Node, graph: Graph) -> bool:
    """Says whether the scales of a Resize are known and give every axis a whole size, which rounding does not change."""
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


_MOST_STEPS = 64
"""Nodes of a constant computation that are followed."""


def find_constant(name: str, graph: Graph, constants: Mapping[str, Initializer]) -> Any:
    """Returns the array that a value has in every run, as far as it is small and easily known; None else."""
    return _find_constant(name, graph, constants, [_MOST_STEPS])


def _find_constant(name: str, graph: Graph, constants: Mapping[str, Initializer], steps: list[int]) -> Any:
    """Returns the array that a value has in every run, as far as it is small and easily known; None else."""
    constant = constants.get(name)
    if constant is not None:
        return constant.array
    index = graph.index_of_producer.get(name)
    steps[0] -= 1
    if index is None or steps[0] < 0:
        return None
    node = graph.nodes[index]
    sources = {value: _find_constant(value, graph, constants, steps) for value in node.reads}
    if any(array is None for array in sources.values()):
        return None
    known_value = compute_known_value(node, graph.types, {value: Initializer.of_array(array) for value, array in sources.items()})
    return known_value[name].array if name in known_value else None
