"""Values without elements: constants, and products over an axis of length 0: the engine fails there or returns unwritten memory.

OpenVINO 2026.4, where a bias is added to the product. Lengths that are known are refused by the query; of open ones the inputs say in
each run how long they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from hetero_core.engines.inspection import find_shape
from hetero_core.network.graph import Graph, Network, Node

_PRODUCTS = ("Gemm", "MatMul")
Place = tuple[int, int]
"""The index of an input, and one of its axes."""


def find_empty_product(node: Node, graph: Graph) -> str | None:
    """Returns why a product over an axis of length 0 is refused, or None."""
    return "OpenVINO is wrong about products over an axis of length 0" if _find_length(node, graph) == 0 else None


def find_empty_constant(node: Node, graph: Graph) -> str | None:
    """Returns why a node that reads a constant of no elements is refused, or None."""
    # No case: the Size of int8[3,1,0] is 1.
    constants = [graph.initializers[name] for name in node.reads if name in graph.initializers]
    is_lost = any(0 in constant.shape and constant.shape != (0,) for constant in constants)
    return "OpenVINO forgets the shape of a constant of no elements" if is_lost else None


def list_multiplied_axes(network: Network) -> Iterable[Place]:
    """Yields the axes of inputs whose open length some product sums over."""
    lengths = {_find_length(node, network) for node in network.nodes if node.op_type in _PRODUCTS and not node.domain}
    for index, spec in enumerate(network.inputs):
        for axis, size in enumerate(spec.shape if spec.shape is not None else ()):
            if isinstance(size, str) and size in lengths:
                yield index, axis


def _find_length(node: Node, graph: Graph) -> int | str | None:
    shape = find_shape(node, graph)
    if not shape:
        return None
    return shape[0] if node.op_type == "Gemm" and node.attributes.get("transA", 0) else shape[-1]
