"""Nodes that the engine computes wrongly or fails at when it runs; they are refused, so that nobody gets a wrong answer or a late error.

Each entry was found on OpenVINO 2026.4 by a case of ONNX's own backend suite, which it names, or by a comparison with NumPy; it goes when
a newer engine is right. The frontend of the engine ignores attributes that it does not know, so what came into an operator
later is refused here by name. `arithmetic` holds what is wrong with integers; what can be put right is in `corrections`.
"""

from __future__ import annotations

from math import ceil

from hetero_core.engines.inspection import dtype_of_input, find_shape, has_input, scales_are_whole
from hetero_core.engines.known_errors import Check, find_error, refuse, refuse_empty_axes
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType
from hetero_openvino.arithmetic import find_arithmetic_error
from hetero_openvino.channels import find_channel_error
from hetero_openvino.contrib import find_contrib_error
from hetero_openvino.emptiness import find_empty_constant, find_empty_product
from hetero_openvino.fatal_nodes import (
    find_col2im_error,
    find_division_error,
    find_gather_elements_error,
    find_gather_nd_error,
    find_global_lp_pool_error,
    find_prelu_error,
    find_top_k_error,
    find_unique_error,
    find_window_error,
)
from hetero_openvino.flags import find_flag_error, find_lrn_error
from hetero_openvino.groups import find_group_error
from hetero_openvino.quantizing import QUANTIZING, find_quantizing_error
from hetero_openvino.sequences import find_shared_turn
from hetero_openvino.strides import find_placement_error, find_stride_error

QUANTIZED_KEY = "OPENVINO_QUANTIZED"


def find_known_error(node: Node, graph: Graph, *, takes_quantized: bool = False) -> str | None:
    """Returns what the engine gets wrong about a node of a network, or about one in its bodies, in words, or None.

    With `takes_quantized` a result that is one step of a quantization away from the right one is not wrong.
    """

    def check(node: Node, graph: Graph) -> str | None:
        return _check_node(node, graph, takes_quantized)

    def check_in_body(node: Node, graph: Graph) -> str | None:
        inner = _CHECKS_OF_BODIES.get(node.op_type)
        return check(node, graph) or (inner(node, graph) if inner is not None and not node.domain else None)

    return find_error(node, graph, check, check_in_body=check_in_body)


def _check_node(node: Node, graph: Graph, takes_quantized: bool) -> str | None:
    if takes_quantized and node.op_type in QUANTIZING and node.domain in ("", MICROSOFT):
        return find_quantizing_error(node, graph)
    if node.domain == MICROSOFT:
        return _HALVES if node.op_type in QUANTIZING else find_contrib_error(node)
    if node.domain:
        return None
    check = _CHECKS.get(node.op_type)
    reason = find_empty_constant(node, graph) if check is None else check(node, graph) or find_empty_constant(node, graph)
    return reason or find_flag_error(node, graph) or find_arithmetic_error(node, graph) or find_channel_error(node, graph)


def _check_attention(node: Node, graph: Graph) -> str | None:
    # attention_local_window, attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal
    if node.attributes.get("left_window_size", -1) != -1 or node.attributes.get("right_window_size", -1) != -1:
        return "OpenVINO ignores left_window_size and right_window_size of Attention"
    if node.attributes.get("is_causal", 0) and has_input(node, 4):
        return "OpenVINO counts the positions of causal Attention from the first query, not from the end of past_key"
    return None


def _check_cast(node: Node, graph: Graph) -> str | None:
    # cast_FLOAT_to_FLOAT8E4M3FN, cast_FLOAT_to_FLOAT4E2M1, cast_e8m0_FLOAT_to_FLOAT8E8M0
    result_type = graph.type_of(node.outputs[0])
    source, target = dtype_of_input(node, graph), getattr(result_type, "dtype", None)
    if source == target:
        return None
    if 0 in (find_shape(node, graph) or ()):
        return "OpenVINO gives a Cast of no elements another shape"
    if target == "bfloat16" and source in ("float16", "float32"):
        # cast_FLOAT_to_BFLOAT16, since the engine's fusion is off
        return f"OpenVINO does not round {source} to the nearest bfloat16"
    if target in ("float8e4m3fn", "float8e5m2") and node.attributes.get("saturate", 1):
        return f"OpenVINO does not saturate what is too large for {target}"
    if target in ("int4", "uint4") and source is not None and "float" in source:
        return f"OpenVINO rounds to {target}; the standard cuts fractions off"
    if target == "float4e2m1":
        return "OpenVINO makes NaN the largest float4e2m1"
    if target == "float8e8m0" and node.attributes.get("round_mode", "up") == "up":
        return "OpenVINO rounds to the nearest float8e8m0, not up"
    return None


def _check_compress(node: Node, graph: Graph) -> str | None:
    # No case: SIGFPE while it compiles.
    condition = graph.type_of(node.inputs[1]) if has_input(node, 1) else None
    is_empty = isinstance(condition, TensorType) and condition.shape is not None and 0 in condition.shape
    return "OpenVINO ends the process where the condition of Compress has no elements" if is_empty else None


def _check_average_pool(node: Node, graph: Graph) -> str | None:
    # No case: 8 elements, kernel 3, stride 2, pads of 1 on both sides.
    if not node.attributes.get("ceil_mode", 0):
        return None
    error = find_window_error(node, graph)
    if error is not None or not node.attributes.get("count_include_pad", 0):
        return error
    shape, kernel = find_shape(node, graph), node.attributes["kernel_shape"]
    rank = len(kernel)
    strides, dilations = (node.attributes.get(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", (0,) * (2 * rank))
    for axis in range(rank):
        size = None if shape is None else shape[axis + 2]
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if any(pads) and not (isinstance(size, int) and (size + pads[axis] + pads[axis + rank] - reach) % strides[axis] == 0):
            return "OpenVINO counts elements behind the padding, under ceil_mode and count_include_pad"
    return None


def _check_mean_variance(node: Node, graph: Graph) -> str | None:
    # No case: the form before opset 9, of which onnx has none. By default it has one mean for each image, and ONNX Runtime one for all.
    return (
        None if node.since_version else "OpenVINO averages other axes in MeanVarianceNormalization before opset 9 than ONNX Runtime"
    )


def _check_channel(node: Node, graph: Graph) -> str | None:
    # No case: a MaxPool of one channel, and a Concat of it and itself, a Tile or an Expand.
    shape = find_shape(node, graph)
    if shape is not None and (len(shape) < 4 or shape[1] != 1):
        return None
    is_repeating = node.op_type != "Concat" or (len(node.inputs) > 1 and len(set(node.inputs)) == 1)
    return f"OpenVINO's {node.op_type} of one channel is wrong where channels are last" if is_repeating else None


def _check_pixel(node: Node, graph: Graph) -> str | None:
    # No case: float32[1,8,1,1] of a pooling, read by a Relu and by a Concat of it and itself along axis 3, a Tile or an Expand. Right
    # with one reader, behind other operators and with open sizes.
    if node.op_type == "Concat" and len(set(node.inputs)) != 1:
        return None
    shape, result = find_shape(node, graph), graph.type_of(node.outputs[0])
    sizes = result.shape if isinstance(result, TensorType) else None
    is_pixel = shape is not None and len(shape) >= 4 and all(size == 1 for size in shape[2:])
    readers = set(graph.index_of_consumers.get(node.inputs[0], ()))
    is_pooled = any(other.op_type in ("AveragePool", "MaxPool") and node.inputs[0] in other.outputs for other in graph.nodes)
    if not (is_pixel and is_pooled and len(readers) > 1 and (sizes is None or any(size != 1 for size in sizes[2:]))):
        return None
    return f"OpenVINO's {node.op_type} of images of one pixel that another node reads is wrong where channels are last"


def _check_reshaped(node: Node, graph: Graph) -> str | None:
    # No case: float32[1,15,2] summed along axis 1 and transposed.
    source = graph.index_of_producer.get(node.inputs[0])
    if node.op_type != "Einsum" and source is not None and graph.nodes[source].op_type in ("Reshape", "Squeeze", "Unsqueeze"):
        return f"OpenVINO may move a Reshape before {node.op_type} behind it, and reduce other axes"
    readers = (graph.nodes[index] for index in graph.index_of_consumers.get(node.outputs[0], ()))
    is_reshaped = any(reader.op_type in ("Flatten", "Reshape", "Transpose") for reader in readers)
    return (
        f"OpenVINO may lose a Reshape behind {node.op_type}"
        if is_reshaped and not (node.op_type != "Einsum" and node.attributes.get("keepdims", 1))
        else None
    )


def _check_expand(node: Node, graph: Graph) -> str | None:
    # No case: SIGFPE while it compiles; a size of 0 in the shape is taken for 1.
    target = graph.initializers.get(node.inputs[1])
    is_empty = 0 in (find_shape(node, graph) or ()) or (target is not None and bool((target.array <= 0).any()))
    return "OpenVINO ends the process, or gives another shape, where Expand makes or reads no elements" if is_empty else None


def _check_reduction(node: Node, graph: Graph) -> str | None:
    # No case: those of the suite have their axes as an input.
    axes = node.attributes.get("axes")
    return None if axes is None else f"OpenVINO ignores the attribute axes of {node.op_type}, and reduces all axes"


def _check_dft(node: Node, graph: Graph) -> str | None:
    # dft_rfft, dft_irfft, dft_axis
    if node.attributes.get("onesided", 0):
        return "OpenVINO shapes one-sided transforms wrongly"
    is_last = node.since_version >= 20 and not has_input(node, 2)
    return None if is_last or node.since_version < 20 else "OpenVINO ignores the axis of DFT"


def _check_if(node: Node, graph: Graph) -> str | None:
    # No case: an If of (N, L, 24), and a product of two others that is computed before the result of the If is read.
    if node.inputs[0] in graph.initializers:
        return None
    types = [graph.type_of(name) for name in node.outputs if name]
    is_fixed = all(
        isinstance(value, TensorType) and value.shape is not None and all(isinstance(size, int) for size in value.shape)
        for value in types
    )
    return None if is_fixed else "OpenVINO lets other values overwrite what an If with open sizes returns"


def _check_recurrent(node: Node, graph: Graph) -> str | None:
    # gru_batchwise, lstm_batchwise, simple_rnn_batchwise, lstm_with_peepholes
    if node.attributes.get("layout", 0) != 0:
        return f"OpenVINO ignores the layout of {node.op_type}"
    if node.op_type == "LSTM" and has_input(node, 7):
        return "OpenVINO ignores the peepholes of LSTM"
    if node.attributes.get("input_forget", 0):
        return "OpenVINO ignores input_forget of LSTM"
    activations = node.attributes.get("activations", ())
    if (
        node.attributes.get("direction") == "bidirectional"
        and activations[: len(activations) // 2] != activations[len(activations) // 2 :]
    ):
        return f"OpenVINO computes both directions of {node.op_type} with the activations of the first"
    shape = find_shape(node, graph)
    if has_input(node, 4) and (shape is None or not all(isinstance(size, int) for size in shape[:2])):
        return f"OpenVINO ignores the lengths of the sequences of {node.op_type} where length or batch is open"
    return find_shared_turn(node, graph)


def _check_max_pool(node: Node, graph: Graph) -> str | None:
    # maxpool_2d_ceil_output_size_reduce_by_one; right by chance in the suite: maxpool_with_argmax_2d_precomputed_strides
    if node.attributes.get("storage_order", 0) and len(node.outputs) > 1:
        return "OpenVINO returns the indices of MaxPool in another order and shape where storage_order is 1"
    if not node.attributes.get("ceil_mode", 0):
        return None
    error = find_window_error(node, graph)
    if error is not None:
        return error
    shape, kernel = find_shape(node, graph), node.attributes["kernel_shape"]
    rank = len(kernel)
    strides = node.attributes.get("strides", (1,) * rank)
    dilations = node.attributes.get("dilations", (1,) * rank)
    pads = node.attributes.get("pads", (0,) * (2 * rank))
    for axis in range(rank):
        size = None if shape is None else shape[axis + 2]
        if isinstance(size, int):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            windows = ceil((size + pads[axis] + pads[axis + rank] - reach) / strides[axis]) + 1
            if (windows - 1) * strides[axis] < size + pads[axis]:
                continue
        return "OpenVINO counts a window that begins behind the end of the input, under ceil_mode"
    return None


def _check_zeros(node: Node, graph: Graph) -> str | None:
    zeros = [name for name in ("alpha", "beta", "gamma") if node.attributes.get(name) == 0]
    return f"OpenVINO takes the default of {node.op_type} where {zeros[0]} is 0" if zeros else None


def _check_quantized_convolution(node: Node, graph: Graph) -> str | None:
    # No case: those of the suite have one scale for all. The frontend dequantizes the filters along its default axis, 1.
    shape = find_shape(node, graph, 4)
    is_single = shape is not None and all(size == 1 for size in shape)
    return None if is_single else "OpenVINO multiplies filters by the scales of QLinearConv along the input channels"


def _check_random_normal(node: Node, graph: Graph) -> str | None:
    # No case: Kolmogorov's statistic of 20,000 numbers is 20 without a seed, and below 1.5 with one.
    if node.attributes.get("seed", 0.0) != 0.0:
        return None
    return f"OpenVINO draws {node.op_type} without a seed from two generators that are alike, so that the numbers are not normal"


def _check_resize(node: Node, graph: Graph) -> str | None:
    # resize_*_antialias, _cubic_exclude_outside, _align_corners, _not_larger, _not_smaller
    attributes = node.attributes
    if attributes.get("antialias", 0):
        return "OpenVINO ignores antialias of Resize"
    if attributes.get("exclude_outside", 0) and attributes.get("mode", "nearest") == "cubic":
        return "OpenVINO ignores exclude_outside of Resize"
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "OpenVINO ignores keep_aspect_ratio_policy of Resize"
    if attributes.get("coordinate_transformation_mode") != "align_corners" or not has_input(node, 2):
        return None
    return None if scales_are_whole(node, graph) else "OpenVINO scales by the rounded size under align_corners, not by the scales"


def _check_round(node: Node, graph: Graph) -> str | None:
    # dynamicquantizelinear_expanded
    index = graph.index_of_producer.get(node.inputs[0])
    is_quotient = index is not None and graph.nodes[index].op_type == "Div"
    return "OpenVINO divides by a multiplication, so that a quotient may be on the other side of a half" if is_quotient else None


def _check_softmax(node: Node, graph: Graph) -> str | None:
    # Softmax-11 flattens its input to two dimensions; OpenVINO takes it for Softmax-13, which does not. LogSoftmax-11 is right.
    if node.since_version != 11:
        return None
    shape, axis = find_shape(node, graph), node.attributes.get("axis", 1)
    if shape and all(size == 1 for size in shape[axis % len(shape) + 1 :]):
        return None
    return "OpenVINO computes Softmax-11 along one axis; the standard flattens all from that axis on"


def _check_space_to_depth(node: Node, graph: Graph) -> str | None:
    # spacetodepth_crd_mode_example
    return "OpenVINO ignores the mode of SpaceToDepth" if node.attributes.get("mode", "DCR") != "DCR" else None


def _check_range(node: Node, graph: Graph) -> str | None:
    known = node.attributes.get("stash_type", 1) == 1 or dtype_of_input(node, graph) not in ("bfloat16", "float16")
    return None if known else "OpenVINO ignores stash_type of Range"


def _check_roi_align(node: Node, graph: Graph) -> str | None:
    # roialign_mode_max
    is_max = node.attributes.get("mode", "avg") == "max"
    return "OpenVINO's RoiAlign of mode max interpolates after it takes the maximum" if is_max else None


def _check_tile(node: Node, graph: Graph) -> str | None:
    # tile
    is_known = node.inputs[1] in graph.initializers
    return None if is_known else "OpenVINO returns what it has not written where repeats are no constant"


_HALVES = (
    "OpenVINO multiplies by the reciprocal of the scale, so that a quotient may be on the other side of a half; "
    f"{QUANTIZED_KEY}=YES takes it all the same"
)

_CHECKS: dict[str, Check] = {
    "Attention": _check_attention,
    "AveragePool": _check_average_pool,
    # bernoulli_seed; what stands in the standard as the operator's function has it the other way round, too
    "Bernoulli": refuse("OpenVINO draws 1 of Bernoulli with the probability of 0, and 0 with that of 1"),
    "Cast": _check_cast,
    "CastLike": _check_cast,
    "Col2Im": find_col2im_error,
    "Compress": _check_compress,
    "Concat": lambda node, graph: _check_pixel(node, graph) or find_group_error(node, graph),
    "Conv": find_stride_error,
    "ConvTranspose": find_placement_error,
    "DFT": _check_dft,
    **dict.fromkeys(("Div", "Mod"), find_division_error),
    "Expand": lambda node, graph: _check_expand(node, graph) or _check_pixel(node, graph),
    # dynamicquantizelinear, quantizelinear_uint16
    "DynamicQuantizeLinear": refuse(_HALVES),
    **dict.fromkeys(("Gemm", "MatMul"), find_empty_product),
    "GRU": _check_recurrent,
    "GlobalLpPool": find_global_lp_pool_error,
    "GatherElements": find_gather_elements_error,
    "GatherND": find_gather_nd_error,
    "If": _check_if,
    "LRN": find_lrn_error,
    # No case: values of 1e-3 along an axis of 3 are off by 0.1.
    "LpNormalization": refuse("OpenVINO adds to the norm that LpNormalization divides by"),
    "LSTM": _check_recurrent,
    "LpPool": find_window_error,
    "MaxPool": _check_max_pool,
    "MeanVarianceNormalization": _check_mean_variance,
    # No case: without a seed the standard has one made up for each run.
    "Multinomial": refuse("OpenVINO draws the same numbers of Multinomial in every run"),
    "PRelu": find_prelu_error,
    "QLinearConv": _check_quantized_convolution,
    "QuantizeLinear": refuse(_HALVES),
    "RNN": _check_recurrent,
    "RandomNormal": _check_random_normal,
    "RandomNormalLike": _check_random_normal,
    "Range": _check_range,
    **dict.fromkeys(("ReduceL1", "ReduceLogSum", "ReduceLogSumExp"), _check_reduction),
    "Resize": _check_resize,
    "RoiAlign": _check_roi_align,
    "Round": _check_round,
    **dict.fromkeys(("Shrink", "ThresholdedRelu"), refuse("OpenVINO multiplies by 0 what it drops, so that infinities become NaN")),
    "Softmax": _check_softmax,
    # No case: an alpha of 0.
    **dict.fromkeys(("HardSigmoid", "Selu"), _check_zeros),
    "SpaceToDepth": _check_space_to_depth,
    "Squeeze": refuse_empty_axes,
    "Tile": lambda node, graph: _check_tile(node, graph) or _check_pixel(node, graph),
    "TopK": find_top_k_error,
    "Unique": find_unique_error,
}

_CHECKS_OF_BODIES: dict[str, Check] = {
    "Concat": lambda node, graph: _check_channel(node, graph) or find_group_error(node, graph, in_body=True),
    **dict.fromkeys(("Expand", "Tile"), _check_channel),
    "Einsum": _check_reshaped,
    "NonMaxSuppression": refuse("OpenVINO drops boxes whose overlap equals the threshold"),
    "PRelu": refuse("OpenVINO takes slopes of one dimension for those of the channels"),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMean", "ReduceProd", "ReduceSum"), _check_reshaped),
    "ReduceMax": refuse("OpenVINO's maximum of -inf alone, or of nothing, is the lowest float"),
    "ReduceMin": refuse("OpenVINO's minimum of inf alone, or of nothing, is the highest float"),
    "TopK": refuse("OpenVINO does not return the lower index first among equal values"),
}
"""Faults that are put right in a network, and not inside a body."""
