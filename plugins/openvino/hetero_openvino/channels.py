"""Constants of one number for each channel behind a product of matrices, which the engine fuses into the product along the wrong axis.

It takes the last axis of the product for that of the channels. Where the sizes differ it fails to compile, where they are equal the
values are wrong. OpenVINO 2026.4.1, SNIPPETS_MODE DISABLE, no case: float32[2,3,17,17] times [17,3], plus [3,1,1].
"""

from __future__ import annotations

from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType
from hetero_openvino.producers import walk_producers

_LEAST_RANK = 4
"""From which on the engine puts the channels elsewhere than last."""
_FUSED_PAIRS = frozenset({"Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum"})
_FUSED = _FUSED_PAIRS | {
    "Abs", "BatchNormalization", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish",
    "Neg", "QuantizeLinear", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh",
}  # fmt: skip


def find_channel_error(node: Node, graph: Graph) -> str | None:
    """Returns what the engine gets wrong about a node that has one number for each channel, in words, or None."""
    if node.op_type == "BatchNormalization":
        sources = [node.inputs[0]]
    elif node.op_type in _FUSED_PAIRS:
        sources = [value for value in node.inputs if not _is_per_channel(graph.type_of(value))]
        if len(sources) == len(node.inputs):
            return None
    else:
        return None
    shapes = {value: getattr(graph.type_of(value), "shape", None) for value in sources}
    if any((shape is None or len(shape) >= _LEAST_RANK) and _comes_from_product(value, graph) for value, shape in shapes.items()):
        return f"OpenVINO fuses {node.op_type} by channels into the product before it, along its last axis"
    return None


def _is_per_channel(value_type: object) -> bool:
    """Says whether a value has a number for each channel of a value of at least four dimensions, and none for any other axis."""
    if not isinstance(value_type, TensorType) or value_type.shape is None:
        return False
    sizes = value_type.shape
    return any(
        sizes[-spatial - 1] != 1 and all(size == 1 for size in (*sizes[: -spatial - 1], *sizes[-spatial:]))
        for spatial in range(_LEAST_RANK - 2, len(sizes))
    )


def _comes_from_product(value: str, graph: Graph) -> bool:
    """Says whether a value is a product of matrices, or made of one element by element."""
    producers = walk_producers(value, graph, lambda node: node.op_type in _FUSED and not node.domain)
    return any(node.op_type in ("Gemm", "MatMul") for node in producers)
