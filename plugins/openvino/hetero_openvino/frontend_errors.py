"""Operators that the engine's frontend reads in another way than the standard: it ignores attributes and inputs that it does not know.

Each entry was found on OpenVINO 2026.4 by a case of ONNX's own backend suite, which it names, or by a comparison with NumPy. What came into
an operator later is refused here by name. Flags that are read otherwise in all operators are in `flags`.
"""

from __future__ import annotations

from hetero_core.engines.inspection import dtype_of_input, find_shape, has_input, scales_are_whole
from hetero_core.engines.known_errors import Check, refuse, refuse_empty_axes, refuse_unless
from hetero_core.network.graph import Graph, Node
from hetero_openvino.sequences import find_shared_turn


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


def _check_dft(node: Node, graph: Graph) -> str | None:
    # dft_rfft, dft_irfft, dft_axis
    if node.attributes.get("onesided", 0):
        return "OpenVINO shapes one-sided transforms wrongly"
    is_last = node.since_version >= 20 and not has_input(node, 2)
    return None if is_last or node.since_version < 20 else "OpenVINO ignores the axis of DFT"


def _check_recurrent(node: Node, graph: Graph) -> str | None:
    # gru_batchwise, lstm_batchwise, simple_rnn_batchwise, lstm_with_peepholes
    if node.attributes.get("layout", 0) != 0:
        return f"OpenVINO ignores the layout of {node.op_type}"
    if node.op_type == "LSTM" and has_input(node, 7):
        return "OpenVINO ignores the peepholes of LSTM"
    if node.attributes.get("input_forget", 0):
        return "OpenVINO ignores input_forget of LSTM"
    activations = node.attributes.get("activations", ())
    half = len(activations) // 2
    if node.attributes.get("direction") == "bidirectional" and activations[:half] != activations[half:]:
        return f"OpenVINO computes both directions of {node.op_type} with the activations of the first"
    shape = find_shape(node, graph)
    if has_input(node, 4) and (shape is None or not all(isinstance(size, int) for size in shape[:2])):
        return f"OpenVINO ignores the lengths of the sequences of {node.op_type} where length or batch is open"
    return find_shared_turn(node, graph)


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


def _check_reduction(node: Node, graph: Graph) -> str | None:
    # No case: those of the suite have their axes as an input.
    axes = node.attributes.get("axes")
    return None if axes is None else f"OpenVINO ignores the attribute axes of {node.op_type}, and reduces all axes"


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


def _check_softmax(node: Node, graph: Graph) -> str | None:
    # Softmax-11 flattens its input to two dimensions; OpenVINO takes it for Softmax-13, which does not. LogSoftmax-11 is right.
    if node.since_version != 11:
        return None
    shape, axis = find_shape(node, graph), node.attributes.get("axis", 1)
    if shape and all(size == 1 for size in shape[axis % len(shape) + 1 :]):
        return None
    return "OpenVINO computes Softmax-11 along one axis; the standard flattens all from that axis on"


def _check_range(node: Node, graph: Graph) -> str | None:
    known = node.attributes.get("stash_type", 1) == 1 or dtype_of_input(node, graph) not in ("bfloat16", "float16")
    return None if known else "OpenVINO ignores stash_type of Range"


FRONTEND_ERRORS: dict[str, Check] = {
    "Attention": _check_attention,
    # bernoulli_seed; what stands in the standard as the operator's function has it the other way round, too
    "Bernoulli": refuse("OpenVINO draws 1 of Bernoulli with the probability of 0, and 0 with that of 1"),
    **dict.fromkeys(("Cast", "CastLike"), _check_cast),
    "DFT": _check_dft,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _check_recurrent),
    # No case: an alpha of 0.
    **dict.fromkeys(("HardSigmoid", "Selu"), _check_zeros),
    # No case: that of the suite has a bias of 2.
    "LRN": lambda node, graph: (
        None if float(node.attributes.get("bias", 1.0)).is_integer() else "OpenVINO cuts the fraction of the bias of LRN off"
    ),
    # No case: the form before opset 9, of which onnx has none. By default it has one mean for each image, and ONNX Runtime one for all.
    "MeanVarianceNormalization": lambda node, graph: (
        None if node.since_version else "OpenVINO averages other axes in MeanVarianceNormalization before opset 9 than ONNX Runtime"
    ),
    # No case: without a seed the standard has one made up for each run.
    "Multinomial": refuse("OpenVINO draws the same numbers of Multinomial in every run"),
    "QLinearConv": _check_quantized_convolution,
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), _check_random_normal),
    "Range": _check_range,
    **dict.fromkeys(("ReduceL1", "ReduceLogSum", "ReduceLogSumExp"), _check_reduction),
    "Resize": _check_resize,
    # roialign_mode_max
    "RoiAlign": refuse_unless("mode", "avg", "OpenVINO's RoiAlign of mode max interpolates after it takes the maximum"),
    "Softmax": _check_softmax,
    # spacetodepth_crd_mode_example
    "SpaceToDepth": refuse_unless("mode", "DCR", "OpenVINO ignores the mode of SpaceToDepth"),
    "Squeeze": refuse_empty_axes,
}
