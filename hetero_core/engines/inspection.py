"""Element types, shapes and presence of a node's inputs, and inputs that are constant in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from hetero_core.network.graph import Graph, Node
from hetero_core.network.inference import compute_known_value
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, shape_of

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
    return dtype_of_value(node.inputs[index], graph) if has_input(node, index) else None


def dtype_of_value(value: str, graph: Graph) -> str | None:
    """Returns the element type of a value; None if the value is no tensor or of unknown type."""
    value_type = graph.type_of(value)
    return value_type.dtype if isinstance(value_type, TensorType) else None


def find_shape(node: Node, graph: Graph, index: int = 0) -> tuple[int | str | None, ...] | None:
    """Returns the shape of an input; None if its rank is unknown."""
    return shape_of(graph.type_of(node.inputs[index])) if has_input(node, index) else None


def has_input(node: Node, index: int) -> bool:
    """Says whether a node has its input at this position."""
    return len(node.inputs) > index and bool(node.inputs[index])


def walk_producers(value: str, graph: Graph, passes: Callable[[Node], bool]) -> Iterator[Node]:
    """Yields the producer of a value first, then, behind each node that passes, the producers of its inputs."""
    waiting, seen = [value], {value}
    while waiting:
        node = graph.find_producer(waiting.pop())
        if node is None:
            continue
        yield node
        if passes(node):
            fresh = [source for source in node.reads if source not in seen]
            seen.update(fresh)
            waiting += fresh


_MOST_STEPS = 64
"""Nodes of a constant computation that are followed."""


def find_constant(name: str, graph: Graph, steps: list[int] | None = None) -> Any:
    """Returns the array that a value has in every run, as far as it is small and easily known; None else."""
    constant = graph.initializers.get(name)
    steps = [_MOST_STEPS] if steps is None else steps
    if constant is not None:
        return constant.array
    index = graph.index_of_producer.get(name)
    steps[0] -= 1
    if index is None or steps[0] < 0:
        return None
    node = graph.nodes[index]
    sources = {value: find_constant(value, graph, steps) for value in node.reads}
    if any(array is None for array in sources.values()):
        return None
    known_value = compute_known_value(node, graph.types, {value: Initializer.of_array(array) for value, array in sources.items()})
    return known_value[name].array if name in known_value else None


def find_reduced_axes(node: Node, graph: Graph) -> list[int] | None:
    """Returns the axes that a Reduce operator reduces, counted from the first; None if they or the rank are not known."""
    shape, axes = find_shape(node, graph), node.attributes.get("axes")
    if axes is None and has_input(node, 1):
        constant = find_constant(node.inputs[1], graph)
        axes = None if constant is None else constant.reshape(-1).tolist()
        if axes is None:
            return None
    if shape is None:
        return None
    if not axes:
        axes = () if node.attributes.get("noop_with_empty_axes", 0) else range(len(shape))
    return sorted({axis % len(shape) for axis in axes}) if shape else []


def list_nearest_factors(node: Node, graph: Graph) -> list[Fraction | None]:
    """Returns new size / old size of each axis of a Resize to the nearest pixel, None if unknown; an empty list for other modes."""
    if node.attributes.get("mode", "nearest") not in ("nearest", b"nearest"):
        return []
    before, result = find_shape(node, graph), graph.type_of(node.outputs[0])
    if before is None:
        return [None]
    position = 2 if node.op_type == "Resize" and node.since_version != 10 else 1
    scales = find_constant(node.inputs[position], graph) if has_input(node, position) else None
    if "scales" in node.attributes:
        scales = np.array(node.attributes["scales"])
    if scales is not None and scales.size:
        factors: list[Fraction | None] = [Fraction(1)] * len(before)
        for axis, scale in zip(node.attributes.get("axes") or range(len(before)), scales.tolist(), strict=False):
            factors[axis] = Fraction(float(np.float32(scale))) if np.isfinite(scale) and scale > 0 else None
        return factors
    after = result.shape if isinstance(result, TensorType) and has_input(node, 3) else None
    return [
        Fraction(new, old) if isinstance(old, int) and isinstance(new, int) and old > 0 else None
        for old, new in zip(before, after or (None,) * len(before), strict=True)
    ]


def is_exact_factor(factor: Fraction) -> bool:
    """Says whether coordinates are exact in float32 for a factor of sizes: a whole number, or 1 over a power of two."""
    return factor.denominator == 1 or (factor.numerator == 1 and not factor.denominator & (factor.denominator - 1))
