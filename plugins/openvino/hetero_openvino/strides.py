"""Convolutions that OpenVINO 2026.4 places or strides wrongly, or that it cannot compile.

One: of one input channel, where the last axis alone has a stride and ends with one position. Two: with filters of one element, behind an
elementwise node of what a node with several outputs returns. The engine moves the strides of such a convolution up through elementwise
operations, so that these compute fewer elements, and cannot move them beyond an operation with several outputs.
"""

from __future__ import annotations

from itertools import islice

from hetero_core.engines.inspection import find_shape
from hetero_core.network.graph import Graph, Node
from hetero_openvino.producers import walk_producers

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


def find_stride_error(node: Node, graph: Graph) -> str | None:
    """Returns why the engine is wrong about the strides of a Conv, or None."""
    strides = node.attributes.get("strides", ())
    if all(stride == 1 for stride in strides):
        return None
    filters = getattr(graph.type_of(node.inputs[1]), "shape", None)
    if len(strides) > 1 and strides[-2] == 1 and node.attributes.get("group", 1) == 1 and (filters is None or filters[1] == 1):
        shape = getattr(graph.type_of(node.outputs[0]), "shape", None)
        if shape is None or shape[-1] == 1 or not isinstance(shape[-1], int):
            return "OpenVINO is wrong about a Conv of one channel whose last axis alone has a stride, and ends with one position"
    has_one_element = filters is None or all(size == 1 for size in filters[2:])
    return _find_lost_stride(node, graph) if has_one_element else None


def _find_lost_stride(node: Node, graph: Graph) -> str | None:
    producers = walk_producers(node.inputs[0], graph, lambda producer: not producer.domain and producer.op_type in ELEMENTWISE)
    for producer in islice(producers, 1, None):  # all but the first stand behind an elementwise node
        if producer.op_type in SEVERAL_OUTPUTS or len(producer.outputs) > 1:
            return f"OpenVINO cannot move the strides of this Conv to '{producer.name}' ({producer.op_type}), which has several outputs"
    return None


def find_placement_error(node: Node, graph: Graph) -> str | None:
    """Returns why the engine is wrong about where a ConvTranspose begins, or None.

    No case: float32[1,2,4,4], filters of [2,1,3,3], strides of 2 and an output_shape of [8,8], in two groups, or with SAME_UPPER.
    """
    shape, auto_pad = find_shape(node, graph), node.attributes.get("auto_pad", "NOTSET")
    if auto_pad.startswith("SAME") and (shape is None or not all(isinstance(size, int) for size in shape)):
        # No case: float32[B,2,5,6], filters of [2,3,5,5] and strides of 3.
        return "OpenVINO cuts nothing off a ConvTranspose with auto_pad SAME where a size of its input is open"
    is_plain = auto_pad == "NOTSET" and node.attributes.get("group", 1) == 1
    if "output_shape" not in node.attributes or is_plain:
        return None
    return "OpenVINO places the results of ConvTranspose wrongly where output_shape is given with groups or auto_pad"
