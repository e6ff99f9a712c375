"""Sizes that must not be 0, because ONNX Runtime then ends the process or returns memory that it has not written.

A size that is known before the run decides in the query. A size that an input of the network has is checked when the network runs. A size
that only a node inside the network decides is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hetero_core.engines.inspection import find_shape
from hetero_core.errors import InferenceError
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.types import TensorType, ValueSpec

Size = int | str | None
RECURRENT = ("LSTM", "GRU", "RNN", "com.microsoft.AttnLSTM", "com.microsoft.DynamicQuantizeLSTM")
DEEP_PRODUCTS = {"MatMulInteger": 1, "QLinearMatMul": 3, "com.microsoft.MatMulIntegerToFloat": 1}
"""The products that return unwritten memory if there is nothing to add, with the place of the right operand."""


def find_sizes(node: Node, graph: Graph) -> tuple[Sequence[Size], ...]:
    """Returns groups of sizes of a node's inputs. The engine fails if all sizes of one group are 0."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    shape = find_shape(node, graph)
    if operator in RECURRENT:
        return ((None,),) if shape is None else tuple((size,) for size in shape[:2])
    if operator == "Unique" and "axis" in node.attributes:
        return ((None,),) if shape is None else tuple((size,) for size in shape)
    if operator in DEEP_PRODUCTS:
        right = find_shape(node, graph, DEEP_PRODUCTS[operator])
        depths = [None if not shape else shape[-1], None if not right else right[max(-2, -len(right))]]
        return (tuple(depths),)
    return ()


def may_be_empty(node: Node, graph: Graph) -> bool:
    """Says whether a size that the query cannot vouch for may be 0: it is 0, or no input of the graph has it."""
    symbols = {symbol for symbol, _, _ in _iterate_symbols(graph.inputs)}
    return any(
        all(not (isinstance(size, int) and size) and size not in symbols for size in group) for group in find_sizes(node, graph)
    )


def list_checks(network: Network) -> tuple[tuple[int, int, str], ...]:
    """Returns which sizes of inputs are checked in each run: number of the input, axis, and the node that needs the size."""
    needed: dict[Size, str] = {}
    for node in network.nodes:
        for group in find_sizes(node, network):
            if not any(isinstance(size, int) and size for size in group):
                needed.update({size: node.label for size in group if isinstance(size, str)})
    return tuple((place, axis, needed[symbol]) for symbol, place, axis in _iterate_symbols(network.inputs) if symbol in needed)


def require_sizes(checks: tuple[tuple[int, int, str], ...], inputs: tuple[object, ...], names: Sequence[str]) -> None:
    """Raises InferenceError if an input has a size of 0 that the engine does not survive."""
    for place, axis, label in checks:
        shape = getattr(inputs[place], "shape", ())
        if axis < len(shape) and shape[axis] == 0:
            raise InferenceError(
                f"input '{names[place]}' has size 0 along axis {axis}, which ONNX Runtime does not survive in node {label}; run the node "
                "on another device, as in HETERO:CPU,ORT, or feed at least one element"
            )


def _iterate_symbols(inputs: Sequence[ValueSpec]) -> Iterator[tuple[str, int, int]]:
    """Yields the symbols among the sizes of inputs, each with the number of its input and its axis."""
    for place, spec in enumerate(inputs):
        shape = spec.type.shape if isinstance(spec.type, TensorType) else None
        for axis, size in enumerate(shape or ()):
            if isinstance(size, str):
                yield size, place, axis
