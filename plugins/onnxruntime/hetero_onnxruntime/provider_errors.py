"""Nodes that the execution provider of OpenVINO computes wrongly or fails at in a run; they are refused, so nobody gets a wrong answer.

Found with onnxruntime-openvino 1.24.1: by a case of ONNX's own backend suite, which the entry names, or by a comparison with the provider
of processors. An entry goes when a newer distribution is right. What every provider gets wrong is in `known_errors`.
"""

from __future__ import annotations

import numpy as np

from hetero_core.engines.inspection import dtype_of_input, dtype_of_value, find_shape
from hetero_core.engines.known_errors import Check, find_error, refuse, refuse_unless
from hetero_core.network.graph import Graph, Node
from hetero_onnxruntime.engine import WEBGPU_PROVIDER
from hetero_onnxruntime.webgpu_errors import check_webgpu

OPENVINO_PROVIDER = "OpenVINOExecutionProvider"

_LONG = frozenset({"int64", "uint64"})
_WIDE = _LONG | {"int32", "uint32"}
_BYTES = frozenset({"int8", "uint8"})
_INDICES = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "Loop": (0,),
    "OneHot": (0, 1),
    "Pad": (1, 3),
    "Reshape": (1,),
    "ScatterElements": (1,),
    "ScatterND": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
"""Operator -> the inputs that hold sizes, axes and positions, which 32 bits are enough for."""
_GROWING = frozenset({"Einsum", "Gemm", "MatMul", "Pow", "ReduceProd", "ReduceSumSquare"})
_IN_FLOAT = _GROWING | {
    *("Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod", "ReduceL1", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "Resize", "ReverseSequence", "TopK", "Trilu", "Upsample"),
}
_SATURATING = _GROWING | {"Abs", "Add", "Div", "Mul", "Neg", "ReduceMean", "ReduceSum", "Sub", "Sum"}


def find_provider_error(node: Node, graph: Graph, provider: str, fault_of_halves: str | None = None) -> str | None:
    """Returns the text of a provider's error in a node or in a node of its bodies, or None.

    `fault_of_halves` says why the provider does not run float16 here.
    """
    if fault_of_halves is not None and _has_halves(node, graph):
        return f"{provider} does not run float16 here: {fault_of_halves}"
    if provider == WEBGPU_PROVIDER:
        return find_error(node, graph, check_webgpu)
    return find_error(node, graph, _check_node) if provider == OPENVINO_PROVIDER else None


def _has_halves(node: Node, graph: Graph) -> bool:
    return any(dtype_of_value(value, graph) == "float16" for value in (*node.reads, *node.outputs) if value)


def _check_node(node: Node, graph: Graph) -> str | None:
    if node.domain:
        return None
    check = _CHECKS.get(node.op_type)
    error_text = None if check is None else check(node, graph)
    return _check_integers(node, graph) if error_text is None else error_text


def _check_integers(node: Node, graph: Graph) -> str | None:
    """The engine computes integers of 64 bits in 32, some operators of wide ones in float32, and saturates bytes."""
    # A body may apply any computation to its inputs.
    for position, value in enumerate(node.reads if node.bodies else node.inputs):
        if not value or position in _INDICES.get(node.op_type, ()):
            continue
        constant = graph.initializers.get(value)
        if constant is None:
            if dtype_of_value(value, graph) in _LONG:
                return f"OpenVINO's provider computes integers of 64 bits in 32; '{value}' may be larger"
        elif constant.dtype in _LONG and node.op_type != "Slice" and (constant.array != constant.array.astype(np.int32)).any():
            return f"OpenVINO's provider computes integers of 64 bits in 32; the constant '{value}' is larger"
    dtype = dtype_of_input(node, graph)
    if dtype in _WIDE and node.op_type in _IN_FLOAT:
        return f"OpenVINO's provider computes {node.op_type} of {dtype} in float32"
    if dtype in _BYTES and node.op_type in _SATURATING:
        return f"OpenVINO's provider saturates {dtype} in {node.op_type}; the standard's reference wraps around"
    if node.op_type == "BitShift":
        return "OpenVINO's provider shifts signed integers, and beyond their width, another way than the standard"
    return None


def _check_single(node: Node, graph: Graph) -> str | None:
    # max_one_input, min_one_input, sum_one_input: an output that is an input is not written
    return f"OpenVINO's provider does not write the {node.op_type} of one value" if len(node.inputs) == 1 else None


def _check_reduce(node: Node, graph: Graph) -> str | None:
    # No case: the accumulator begins at the lowest float
    dtype = dtype_of_value(node.inputs[0], graph)
    is_real = dtype is None or "float" in dtype
    return f"OpenVINO's provider returns the {_EXTREMES[node.op_type]} float of infinities alone" if is_real else None


def _check_round(node: Node, graph: Graph) -> str | None:
    producer = graph.find_producer(node.inputs[0])
    return _HALVES if producer is not None and producer.op_type == "Div" else None


def _check_softmax(node: Node, graph: Graph) -> str | None:
    # Before version 13 the input is flattened to two dimensions.
    if node.since_version >= 13:
        return None
    shape, axis = find_shape(node, graph), node.attributes.get("axis", 1)
    if shape and all(size == 1 for size in shape[axis % len(shape) + 1 :]):
        return None
    return f"OpenVINO's provider computes {node.op_type}-{node.since_version} along one axis; the standard flattens all from that axis on"


_HALVES = "OpenVINO's provider multiplies by the reciprocal, so that a quotient may be on the other side of a half"
_WINDOWS = "OpenVINO's provider counts a window that begins behind the end of the input, under ceil_mode"
_UNWRITTEN = "OpenVINO's provider returns what it has not written where repeats are no constant"
_LAYOUT = "OpenVINO's provider ignores the layout of a recurrent operator"
_EXTREMES = {"ReduceMax": "lowest", "ReduceMin": "highest"}

_CHECKS: dict[str, Check] = {
    # averagepool_2d_ceil_last_window_starts_on_pad, maxpool_2d_ceil_output_size_reduce_by_one
    "AveragePool": refuse_unless("ceil_mode", 0, _WINDOWS),
    # center_crop_pad_crop_axes_chw
    "CenterCropPad": refuse_unless("axes", None, "OpenVINO's provider fails at run time on CenterCropPad of some axes"),
    # dequantizelinear_blocked
    "DequantizeLinear": refuse_unless("block_size", 0, "OpenVINO's provider ignores block_size of DequantizeLinear"),
    # dynamicquantizelinear
    "DynamicQuantizeLinear": refuse(_HALVES),
    # gru_batchwise, simple_rnn_batchwise
    "GRU": refuse_unless("layout", 0, _LAYOUT),
    "LSTM": refuse_unless("layout", 0, _LAYOUT),
    # l2normalization_axis_0
    "LpNormalization": refuse("OpenVINO's provider divides by a norm of 0, where the standard has 0"),
    "Max": _check_single,
    "MaxPool": refuse_unless("ceil_mode", 0, _WINDOWS),
    "Min": _check_single,
    # nonmaxsuppression_iou_threshold_boundary
    "NonMaxSuppression": refuse("OpenVINO's provider drops boxes whose overlap equals the threshold"),
    "QuantizeLinear": refuse(_HALVES),
    "RNN": refuse_unless("layout", 0, _LAYOUT),
    "ReduceMax": _check_reduce,
    "ReduceMin": _check_reduce,
    # resize_downsample_sizes_nearest_not_larger, _not_smaller
    "Resize": refuse_unless(
        "keep_aspect_ratio_policy", "stretch", "OpenVINO's provider ignores keep_aspect_ratio_policy of Resize"
    ),
    "Round": _check_round,
    "LogSoftmax": _check_softmax,
    "Softmax": _check_softmax,
    "Sum": _check_single,
    # tile
    "Tile": lambda node, graph: None if node.inputs[1] in graph.initializers else _UNWRITTEN,
}
