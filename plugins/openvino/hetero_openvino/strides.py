"""Convolutions of one element that skip positions, behind an elementwise node of what a node with several outputs returns.

OpenVINO 2026.4 moves the strides of such a convolution up through elementwise operations, so that these compute fewer elements. It cannot
move them beyond an operation with several outputs, and then refuses to compile the network.
"""

from __future__ import annotations

from hetero_core.network.graph import Graph, Node

ELEMENTWISE = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Add", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Ceil", "Clip", "Cos", "Cosh"),
        *("Div", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSwish", "Identity", "Log", "Max", "Mean", "Min", "Mish"),
        *("Mod", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus"),
        *("Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh"),
    }
)
"""Operators through which the engine moves strides, and those that it takes away before."""
SEVERAL_OUTPUTS = frozenset({"Split", "SplitToSequence", "TopK", "Unique"})
"""Operators that have several outputs in the engine, whether or not the node names them all."""


def find_lost_stride(node: Node, graph: Graph) -> str | None:
    """Returns why the engine cannot compile a network with this Conv, or None."""
    strides = node.attributes.get("strides", ())
    weights = graph.type_of(node.inputs[1])
    sizes = getattr(weights, "shape", None)
    if all(stride == 1 for stride in strides) or (sizes is not None and any(size != 1 for size in sizes[2:])):
        return None
    waiting = [(node.inputs[0], False)]
    seen = set(waiting)
    while waiting:
        value, is_behind_elementwise = waiting.pop()
        index = graph.index_of_producer.get(value)
        if index is None:
            continue
        producer = graph.nodes[index]
        if is_behind_elementwise and (producer.op_type in SEVERAL_OUTPUTS or len(producer.outputs) > 1):
            return f"OpenVINO cannot move the strides of this Conv to '{producer.name}' ({producer.op_type}), which has several outputs"
        if not producer.domain and producer.op_type in ELEMENTWISE:
            sources = {(name, True) for name in producer.inputs if name}
            waiting += sources - seen
            seen |= sources
    return None
