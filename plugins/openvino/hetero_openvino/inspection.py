"""What is known of a node's inputs: types, shapes, presence."""

from __future__ import annotations

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType


def dtype_of_input(node: Node, graph: Graph, index: int = 0) -> str | None:
    """Returns the element type of an input; None where it is absent, no tensor, or not known."""
    found = graph.type_of(node.inputs[index]) if has_input(node, index) else None
    return found.dtype if isinstance(found, TensorType) else None


def find_shape(node: Node, graph: Graph, index: int = 0) -> tuple[int | str | None, ...] | None:
    """Returns the shape of an input; None where its rank is not known."""
    found = graph.type_of(node.inputs[index]) if has_input(node, index) else None
    return found.shape if isinstance(found, TensorType) else None


def has_input(node: Node, index: int) -> bool:
    """Says whether a node has its input at this position."""
    return len(node.inputs) > index and bool(node.inputs[index])
