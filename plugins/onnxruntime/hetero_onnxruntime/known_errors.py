"""The known errors of ONNX Runtime and of two of its providers: nodes that are computed wrongly, fail in a run, or end the process.

The query refuses them. Nodes that the plugin replaces are in `corrections`; rewrites of the engine that change a result are in `engine` and
`session`. A row goes when a newer engine is right. OpenVINO's provider: found with
onnxruntime-openvino 1.24.1. WebGPU's provider: found with onnxruntime-ep-webgpu 0.4.0 on SwiftShader.
"""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import repeat
from operator import ge

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES
from hetero_core.engines.inspection import (
    dtype_of_input,
    dtype_of_value,
    find_constant,
    find_shape,
    has_input,
    list_nearest_factors,
)
from hetero_core.engines.known_errors import (
    EMPTY_AXES,
    Condition,
    always,
    both,
    computes_input,
    differs,
    find_error,
    flattens_axes,
    follows,
    has_dtype,
    may_be_empty,
    may_have_empty_axes,
    may_hold,
    reads,
    rounds_aligned_size,
    state_error,
    tabulate,
)
from hetero_core.kernels.program import evaluate_node
from hetero_core.network.graph import Graph, Node
from hetero_core.network.operators import scale_size
from hetero_core.network.types import sizes_of
from hetero_onnxruntime.corrections import MANY, may_have_no_depth
from hetero_onnxruntime.engine import CPU_PROVIDER, WEBGPU_PROVIDER, import_own_names, make_options, open_session

OPENVINO_PROVIDER = "OpenVINOExecutionProvider"


def find_known_error(node: Node, graph: Graph) -> str | None:
    """Returns the reason of the first row that a node, or a node in its bodies, meets; None without such a row."""
    return find_error(node, graph, _check_engine)


def find_provider_error(node: Node, graph: Graph, provider: str, fault_of_halves: str | None = None) -> str | None:
    """Returns the text of a provider's error in a node or in a node of its bodies, or None.

    `fault_of_halves` says why the provider does not run float16 here.
    """
    if fault_of_halves is not None and any(
        dtype_of_value(value, graph) == "float16" for value in (*node.reads, *node.outputs) if value
    ):
        return f"{provider} does not run float16 here: {fault_of_halves}"
    check = {WEBGPU_PROVIDER: _check_webgpu, OPENVINO_PROVIDER: _check_openvino}.get(provider)
    return None if check is None else find_error(node, graph, check)


def _check_openvino(node: Node, graph: Graph) -> str | None:
    return None if node.domain else _check_openvino_rows(node, graph) or _check_integers(node, graph)


def _moves_empty_axes(node: Node, graph: Graph) -> bool:
    """Says whether a Scan reads or writes along another axis than the first, of a tensor that may have no elements."""
    count = int(node.attributes["num_scan_inputs"])
    read, written = node.inputs[-count:], node.outputs[len(node.inputs) - count :]
    moved = [value for value, axis in zip(read, node.attributes.get("scan_input_axes", ()), strict=False) if axis]
    moved += [value for value, axis in zip(written, node.attributes.get("scan_output_axes", ()), strict=False) if axis]
    sizes = [sizes_of(graph.type_of(value)) for value in moved]
    return any(each is None or 0 in each for each in sizes)


def _has_output(index: int) -> Condition:
    return lambda node, graph: any(node.outputs[index : index + 1])


def _has_short_mask(node: Node, graph: Graph) -> bool:
    if not has_input(node, 3) or has_input(node, 4):
        return False
    keys, columns = (find_shape(node, graph, 1) or ())[-2:-1], (find_shape(node, graph, 3) or ())[-1:]
    return keys != columns or columns in ((), (None,))


def _moves_dequantized(node: Node, graph: Graph) -> bool:
    is_int32 = dtype_of_input(node, graph) == "int32" and node.inputs[0] not in graph.initializers
    return is_int32 and has_input(node, 2) and any(mover.op_type == "Transpose" for mover in graph.nodes)


def _loses_statistics(node: Node, graph: Graph) -> bool:
    read = [name for name in node.outputs[1:3] if name in graph.index_of_consumers or name in graph.names_of_outputs]
    return bool(node.attributes.get("training_mode", 0)) and len(read) < 2


_SIZE_OPERATORS = frozenset({"Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})


def _is_of_sizes(value: str, graph: Graph, depth: int) -> bool:
    """Says whether a value holds sizes of axes, whose product no tensor in memory lets overflow."""
    constant = find_constant(value, graph)
    if constant is not None:
        return constant.dtype.kind in "iu" and bool(np.prod(np.abs(constant.astype(np.float64))) < np.iinfo(np.int32).max)
    node = graph.find_producer(value)
    if node is None or node.domain or depth == 0:
        return False
    if node.op_type in ("Shape", "Size"):
        return True
    sources = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in _SIZE_OPERATORS and all(_is_of_sizes(source, graph, depth - 1) for source in sources)


def _dilates_same_padding(node: Node, graph: Graph) -> bool:
    is_same = node.attributes.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    return is_same and any(dilation != 1 for dilation in node.attributes.get("dilations", ()))


def _rotates_narrow_heads(node: Node, graph: Graph) -> bool:
    width = (find_shape(node, graph) or (None,))[-1]
    packed = 0 if has_input(node, 1) else 2 * int(node.attributes["kv_num_heads"])
    is_wide = isinstance(width, int) and width // (int(node.attributes["num_heads"]) + packed) % 16 == 0
    return bool(node.attributes.get("do_rotary", 0)) and not is_wide


def _is_rounded_power(node: Node, graph: Graph) -> bool:
    exponent = find_constant(node.inputs[1], graph)
    return exponent is None or exponent.size != 1 or exponent.item() not in (0, 2, 3)


def _slices_to_largest(node: Node, graph: Graph) -> bool:
    ends, steps = (find_constant(node.inputs[index], graph) if has_input(node, index) else None for index in (2, 4))
    is_largest = ends is not None and np.isin(ends, (2**31 - 1, 2**63 - 1))
    return steps is not None and bool(np.any(is_largest & (steps < 0)))


def _sums_many(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph)
    if not shape:
        return False
    sizes = shape[2:] if node.op_type == "GlobalLpPool" else (shape[int(node.attributes.get("axis", -1))],)
    return math.prod(size if isinstance(size, int) else 0 for size in sizes) >= MANY


_MODES = ("asymmetric", "half_pixel", "pytorch_half_pixel")
_LARGEST = 1 << 16
"""Pixels along an axis; longer axes are not compared."""


def _picks_other_pixels(node: Node, graph: Graph) -> bool:
    """Says whether a nearest Resize of known sizes picks another pixel than the standard, since it divides in float32.

    From 20 to 12 pixels, asymmetric, floor: pixel 9 is 15 = 9 x 20 / 12 and becomes 14. Of open sizes, constant scales are refused that
    are no whole number and no part of 1. Source: ONNX Resize-19.
    """
    coordinates = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = node.attributes.get("nearest_mode", "round_prefer_floor")
    is_stretched = node.attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    if node.since_version < 11 or coordinates not in _MODES or not is_stretched:
        return False
    for size, factor in zip(find_shape(node, graph) or (), list_nearest_factors(node, graph), strict=False):
        if factor is None:
            continue
        if not isinstance(size, int):
            if 1 not in (factor.numerator, factor.denominator):
                return True
        elif 0 < size <= _LARGEST:
            target = scale_size(size, float(factor))
            scale = None if has_input(node, 3) else float(factor)
            if 0 < target <= _LARGEST and target % size and _is_wrong(size, target, scale, coordinates, rounding):
                return True
    return False


@cache
def _is_wrong(size: int, target: int, scale: float | None, coordinates: str, rounding: str) -> bool:
    """Compares the engine's pixels along one axis with the toolkit's, which follow from integers alone."""
    import onnx.parser  # heavy, and loaded already if there is a network

    module = import_own_names()
    constant, inputs = (
        (f"int64[4] s = {{1,1,{target},1}}", ", , , s") if scale is None else (f"float[4] s = {{1,1,{scale},1}}", ", , s")
    )
    attributes = f'mode = "nearest", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{rounding}"'
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 13]> probe (float[1,1,{size},1] x) => (float[a,b,c,d] y) <{constant}> '
        f"{{ y = Resize <{attributes}> (x{inputs}) }}"
    )
    options = make_options(module, CPU_PROVIDER)
    options.intra_op_num_threads = 1
    session = open_session(module, model.SerializeToString(), options, CPU_PROVIDER)
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)
    sizes = (None, None, np.array([1, 1, target, 1])) if scale is None else (None, np.array([1, 1, scale, 1], np.float32))
    own = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    node = Node("probe", "Resize", ("x", *("" if each is None else "s" for each in sizes)), ("y",), "", 13, 13, own)
    expected = evaluate_node(node, (x, *sizes))
    return expected is None or not np.array_equal(session.run(None, {"x": x})[0], expected[0])


_LONG = frozenset({"int64", "uint64"})
_WIDE = _LONG | {"int32", "uint32"}
_BYTES = frozenset({"int8", "uint8"})
_INDEXED = "Expand Gather GatherElements GatherND Reshape ScatterElements ScatterND Squeeze Tile TopK Unsqueeze"
_INDICES = {**dict.fromkeys(_INDEXED.split(), (1,)), "ConstantOfShape": (0,), "Loop": (0,), "OneHot": (0, 1), "Pad": (1, 3)}
"""Operator -> the inputs that hold sizes, axes and positions, which 32 bits are enough for."""
_GROWING = frozenset({"Einsum", "Gemm", "MatMul", "Pow", "ReduceProd", "ReduceSumSquare"})
_IN_FLOAT = _GROWING | {
    *("Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod", "ReduceL1", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "Resize", "ReverseSequence", "TopK", "Trilu", "Upsample"),
}
_SATURATING = _GROWING | {"Abs", "Add", "Div", "Mul", "Neg", "ReduceMean", "ReduceSum", "Sub", "Sum"}


def _check_integers(node: Node, graph: Graph) -> str | None:
    """The engine computes integers of 64 bits in 32, some operators of wide integers in float32, and saturates bytes."""
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


_row = partial(state_error, versions="1.31 or 1.32")
_openvino_row = partial(state_error, versions="1.24.1")
_webgpu_row = partial(state_error, versions="0.4.0")
_UNWRITTEN = "ONNX Runtime returns memory that it has not written from a {node.op_type} over an axis of length 0, as it may be here"
_HALVES = "OpenVINO's provider multiplies by the reciprocal, so that a quotient may be on the other side of a half"

# fmt: off
ERRORS = (
    _row("scores of causal attention", "Attention", both(differs("is_causal", 0), _has_output(3)),
         "ONNX Runtime returns the lowest float where the standard has -inf in the scores of causal attention",
         "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal"),
    _row("mask of integers", "Attention",
         both(reads(3), lambda node, graph: dtype_of_input(node, graph, 3) not in (*FLOAT_DTYPES, "bool")),
         "ONNX Runtime adds a mask of integers wrongly, and this mask is of integers or of a type that is not known"),
    _row("short mask", "Attention", _has_short_mask,
         "ONNX Runtime fails at run time on a mask that is shorter than the keys, and its size here is not known to be theirs",
         "attention_4d_diff_heads_mask4d_padded_kv"),
    _row("batch statistics that nothing reads", "BatchNormalization", _loses_statistics,
         "ONNX Runtime normalizes by other statistics than the batch's if nothing reads the running mean and variance"),
    _row("saturate", "Cast CastLike", lambda node, graph: node.attributes.get("saturate", 1) not in (0, 1),
         "ONNX Runtime returns memory that it has not written from a {node.op_type} whose saturate is neither 0 nor 1"),
    _row("printed floats", "Cast CastLike",
         both(has_dtype(None, *FLOAT_DTYPES), lambda node, graph: dtype_of_value(node.outputs[0], graph) == "string"),
         "ONNX Runtime prints floats with 8 or 17 digits and exponents; the standard writes them out plainly", "cast_FLOAT_to_STRING"),
    _row("dilated windows of the same size", "Conv ConvInteger QLinearConv com.microsoft.FusedConv", _dilates_same_padding,
         "ONNX Runtime fails at run time on dilations beside auto_pad SAME_UPPER and SAME_LOWER"),
    _row("dilated pools of the same size", "AveragePool LpPool MaxPool", _dilates_same_padding,
         "ONNX Runtime pads {node.op_type} of auto_pad SAME_UPPER and SAME_LOWER as if it had no dilations"),
    _row("recurrence in float64", "GRU LSTM", has_dtype("float64"), "ONNX Runtime fails at run time on {node.op_type} of float64"),
    _row("zero points of channels", "ConvInteger",
         both(reads(3), lambda node, graph: find_shape(node, graph, 3) not in ((), (1,))),
         "ONNX Runtime fails at run time on ConvInteger with a zero point for each channel of the filter, or of an unknown number",
         "convinteger_with_padding"),
    _row("8-bit product over nothing",
         "ConvInteger MatMulInteger com.microsoft.DynamicQuantizeMatMul com.microsoft.MatMulIntegerToFloat", may_have_no_depth,
         _UNWRITTEN, "onnxruntime#23142"),
    _row("8-bit product with scales over nothing", "QLinearConv QLinearMatMul com.microsoft.QGemm", partial(may_have_no_depth, second=3),
         _UNWRITTEN, "onnxruntime#23142"),
    _row("zero points of rows", "MatMulInteger",
         both(reads(2), lambda node, graph: find_shape(node, graph, 2) not in ((), (1,))),
         "ONNX Runtime fails at run time on MatMulInteger with a zero point for each row, or of an unknown number"),
    _row("rotated heads", "com.microsoft.GroupQueryAttention", _rotates_narrow_heads,
         "ONNX Runtime fails at run time on do_rotary of {node.op_type} unless the size of a head is a multiple of 16"),
    _row("groups of bits in another order", "com.microsoft.MatMulNBits",
         both(reads(4), lambda node, graph: has_input(node, 3) or node.attributes.get("bits", 4) != 4),
         "ONNX Runtime takes g_idx of MatMulNBits for weights of 4 bits without zero points only"),
    _row("long padding of outputs", "ConvTranspose",
         lambda node, graph: any(map(ge, node.attributes.get("output_padding", ()), node.attributes.get("strides", repeat(1)))),
         "ONNX Runtime fails at run time on output_padding of ConvTranspose that is as long as the stride"),
    _row("single block", "DequantizeLinear QuantizeLinear",
         both(differs("block_size", 0), lambda node, graph: find_shape(node, graph, 1) in (None, (1,), (None,))),
         "ONNX Runtime fails at run time on block_size if there is a single scale"),
    _row("dequantized int32 beside a Transpose", "DequantizeLinear", _moves_dequantized,
         "ONNX Runtime fails to load a DequantizeLinear of int32 with a zero point in a network that has a Transpose"),
    _row("training dropout", "Dropout", may_hold(2, lambda trains: trains), "a Dropout that trains draws other numbers than ONNX's cases",
         "training_dropout"),
    _row("norm of many elements", "GlobalLpPool LpNormalization", _sums_many,
         "ONNX Runtime adds up many elements in one float32, and loses them"),
    _row("given size of MaxUnpool", "MaxUnpool", reads(2), "ONNX Runtime places values wrongly when output_shape is given",
         "maxunpool_export_with_output_shape"),
    _row("coordinates of a scalar", "NonZero", lambda node, graph: find_shape(node, graph) == (),
         "ONNX Runtime gives the element of a scalar one coordinate in NonZero"),
    _row("exponentials of integers", "ReduceLogSumExp", has_dtype("int32", "int64"),
         "ONNX Runtime adds exponentials that are cut to integers in {node.op_type} of integers"),
    _row("extreme of no bools", "ReduceMax ReduceMin", both(has_dtype("bool"), may_be_empty()),
         "ONNX Runtime fails at run time on {node.op_type} of an empty bool tensor", "reduce_max_empty_set_bool"),
    _row("product of integers", "ReduceProd",
         both(has_dtype("int32", "int64"), lambda node, graph: not _is_of_sizes(node.inputs[0], graph, 16)),
         "ONNX Runtime multiplies integers in float64 and saturates, and this product may overflow", "onnxruntime#28743"),
    _row("power of integers", "Pow", both(has_dtype("int32", "int64"), _is_rounded_power),
         "ONNX Runtime computes powers of integers in float64 and saturates, unless a constant exponent is 0, 2 or 3"),
    _row("drawn numbers", "RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
         lambda node, graph: node.attributes.get("scale", 1) <= 0 or node.attributes.get("low", 0) > node.attributes.get("high", 1),
         "ONNX Runtime ends the process on a {node.op_type} whose scale is not positive, or whose low is above its high"),
    _row("axes of a Scan", "Scan", _moves_empty_axes,
         "ONNX Runtime ends the process on a Scan that moves an axis of a tensor without elements, as there may be one here"),
    _row("position in a sequence", "SequenceAt SequenceErase SequenceInsert",
         lambda node, graph: any(size != 1 for size in find_shape(node, graph, 2 if node.op_type == "SequenceInsert" else 1) or ()),
         "ONNX Runtime may end the process on a {node.op_type} whose position is not one number"),
    _row("aligned corners", "Resize", rounds_aligned_size,
         "ONNX Runtime scales by the rounded size under align_corners, the standard by the scales that are given",
         "resize_downsample_scales_linear_align_corners"),
    _row("nearest pixel", "Resize", _picks_other_pixels,
         "ONNX Runtime divides coordinates in float32 and picks another pixel than the standard at these sizes"),
    _row("backwards to the largest integer", "Slice", _slices_to_largest,
         "ONNX Runtime slices backwards to the first element if the end is the largest integer; the standard stops there"),
    _row("empty list of axes", "Squeeze", may_have_empty_axes, EMPTY_AXES),
    _row("layers without steps", "com.microsoft.AttnLSTM", may_be_empty(0, slice(2)),
         "ONNX Runtime ends the process on a {node.op_type} without steps or sequences, and there may be none here"),
    _row("slices of nothing", "Unique", both(differs("axis", None), may_be_empty()),
         "ONNX Runtime ends the process on Unique along an axis of a tensor without elements, as this one may be",
         "onnxruntime#1879"),
    _row("shared caches",
         "com.microsoft.Attention com.microsoft.DecoderMaskedMultiHeadAttention com.microsoft.QAttention com.microsoft.SparseAttention",
         lambda node, graph: node.op_type == "SparseAttention" or bool(node.attributes.get("past_present_share_buffer", 0)),
         "ONNX Runtime's {node.op_type} writes its caches into its inputs, and inputs are never written here"),
)
# fmt: on
"""The table of all providers, in the order of operators; the first row that a node meets gives the reason."""

# fmt: off
OPENVINO_ERRORS = (
    _openvino_row("several windows", "AveragePool MaxPool", differs("ceil_mode", 0),
                  "OpenVINO's provider counts a window that begins behind the end of the input, under ceil_mode",
                  "maxpool_2d_ceil_output_size_reduce_by_one"),
    _openvino_row("axes of CenterCropPad", "CenterCropPad", differs("axes", None),
                  "OpenVINO's provider fails at run time on CenterCropPad of some axes", "center_crop_pad_crop_axes_chw"),
    _openvino_row("blocks", "DequantizeLinear", differs("block_size", 0),
                  "OpenVINO's provider ignores block_size of DequantizeLinear", "dequantizelinear_blocked"),
    _openvino_row("quotient between codes", "DynamicQuantizeLinear QuantizeLinear", always, _HALVES, "dynamicquantizelinear"),
    _openvino_row("rounded quotient", "Round", follows("Div"), _HALVES),
    _openvino_row("layout", "GRU LSTM RNN", differs("layout", 0),
                  "OpenVINO's provider ignores the layout of a recurrent operator", "gru_batchwise"),
    _openvino_row("norm of 0", "LpNormalization", always, "OpenVINO's provider divides by a norm of 0, where the standard has 0",
                  "l2normalization_axis_0"),
    _openvino_row("one value", "Max Min Sum", lambda node, graph: len(node.inputs) == 1,
                  "OpenVINO's provider does not write the {node.op_type} of one value", "max_one_input"),
    _openvino_row("boxes at the threshold", "NonMaxSuppression", always,
                  "OpenVINO's provider drops boxes whose overlap equals the threshold",
                  "nonmaxsuppression_iou_threshold_boundary"),
    _openvino_row("extreme of infinities", "ReduceMax ReduceMin", has_dtype(None, "bfloat16", "float16", "float32", "float64"),
                  "OpenVINO's provider returns the lowest or highest float of infinities alone"),
    _openvino_row("aspect ratio", "Resize", differs("keep_aspect_ratio_policy", "stretch"),
                  "OpenVINO's provider ignores keep_aspect_ratio_policy of Resize", "resize_downsample_sizes_nearest_not_larger"),
    _openvino_row("flattened softmax", "LogSoftmax Softmax", both(flattens_axes, lambda node, graph: node.since_version < 13),
                  "OpenVINO's provider computes {node.op_type} before opset 13 along one axis; "
                  "the standard flattens all from that axis on"),
    _openvino_row("open repeats", "Tile", computes_input(1),
                  "OpenVINO's provider returns what it has not written where repeats are no constant", "tile"),
)
# fmt: on

# fmt: off
WEBGPU_ERRORS = (
    _webgpu_row("training", "BatchNormalization", differs("training_mode", 0),
                "WebGPU's provider fails in a run at a BatchNormalization that trains", "batchnorm_example_training_mode"),
    _webgpu_row("groups over three axes", "Conv",
                both(differs("group", 1), lambda node, graph: len(find_shape(node, graph) or (0,) * 5) > 4),
                "WebGPU's provider fails in a run of a Conv in groups over three axes", "Conv3d_groups"),
    _webgpu_row("logarithm of 0", "Log ReduceLogSum", always, "WebGPU's provider has -88 for the logarithm of 0",
                "reduce_log_sum_empty_set"),
    _webgpu_row("extreme of nothing", "ReduceMax ReduceMin", may_be_empty(),
                "WebGPU's provider fails in a run at the {node.op_type} of nothing, and an axis may be empty here",
                "reduce_max_empty_set"),
    _webgpu_row("antialias", "Resize", differs("antialias", 0), "WebGPU's provider fails in a run at a Resize with antialias",
                "resize_downsample_scales_cubic_antialias"),
    _webgpu_row("deviations", "SimplifiedLayerNormalization", _has_output(1),
                "WebGPU's provider returns other deviations of a SimplifiedLayerNormalization"),
    _webgpu_row("negative step", "Slice", may_hold(4, lambda steps: steps < 0),
                "WebGPU's provider takes the wrong elements where a step of a Slice is negative, as one may be here"),
    _webgpu_row("crashes of com.microsoft", "com.microsoft.Attention com.microsoft.CausalConvWithState com.microsoft.FusedConv",
                always, "WebGPU's provider ends the process on {node.op_type} of com.microsoft", "drawn"),
    _webgpu_row("failures of com.microsoft",
                "com.microsoft.EngramGate com.microsoft.GatherBlockQuantized com.microsoft.MultiHeadAttention com.microsoft.QMoE",
                always, "WebGPU's provider fails in a run of {node.op_type} of com.microsoft", "drawn"),
    _webgpu_row("wrong of com.microsoft",
                "com.microsoft.GatedRMSNorm com.microsoft.GroupQueryAttention com.microsoft.LinearAttention com.microsoft.NGramHashMapping",
                always, "WebGPU's provider computes a wrong {node.op_type} of com.microsoft"),
)
# fmt: on

_check_engine, _check_openvino_rows, _check_webgpu = tabulate(ERRORS), tabulate(OPENVINO_ERRORS), tabulate(WEBGPU_ERRORS)
