"""The table of what OpenVINO computes wrongly, fails at in a run or ends the process at; such nodes are refused with the reason.

Each row was found on OpenVINO 2026.4 by a case of ONNX's own backend suite, which it names, by a report, or by a drawn comparison with
NumPy. It goes when a newer engine is right. `arithmetic` has what hangs on the magnitude of integers, `corrections` what is put right.
"""

from __future__ import annotations

from functools import partial

from hetero_core.engines.known_errors import Condition, KnownError, always, find_error, tabulate
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Node
from hetero_openvino import conditions
from hetero_openvino.arithmetic import find_arithmetic_error
from hetero_openvino.conditions import (
    PRODUCTS,
    RECURRENT,
    REDUCTIONS,
    Probe,
    casts_to,
    computes_input,
    differs,
    reads,
    saturates_bytes,
)
from hetero_openvino.pixels import RESIZING, may_miss_pixels

QUANTIZED_KEY = "OPENVINO_QUANTIZED"
QUANTIZING = ("DynamicQuantizeLinear", "QuantizeLinear")
"""Operators that the engine computes up to one step of the quantization, and that are taken if the user says so."""


def find_known_error(node: Node, graph: Graph, *, takes_quantized: bool = False) -> str | None:
    """Returns what the engine gets wrong about a node of a network, or about a node in its bodies, in words, or None.

    With `takes_quantized` a result that is one step of a quantization away from the right one is not wrong.
    """

    def check(node: Node, graph: Graph) -> str | None:
        if takes_quantized and node.op_type in QUANTIZING:
            return _check_quantized(node, graph)
        if node.domain == MICROSOFT and node.op_type not in RIGHT_CONTRIB:
            return f"OpenVINO's {node.op_type} of {MICROSOFT} was not found right"
        own = (_check_quantized if takes_quantized else _check_halves, _check_rows)
        checks = own if node.domain else (*own, find_arithmetic_error)
        return next((reason for each in checks if (reason := each(node, graph)) is not None), None)

    return find_error(node, graph, check)


def _row(
    name: str,
    operators: tuple[str, ...],
    reason: str,
    source: str,
    condition: Condition = always,
    probe: Probe | None = None,
) -> KnownError:
    return KnownError(name, operators, reason, "2026.4", source, condition, probe)


RIGHT_CONTRIB = frozenset(
    {
        *(
            "BiasGelu",
            "DequantizeLinear",
            "EmbedLayerNormalization",
            "FastGelu",
            "FusedConv",
            "FusedMatMul",
            "GatherBlockQuantized",
        ),
        *("Gelu", "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "Pad", "QuickGelu", "Range"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "DynamicQuantizeLinear", "QuantizeLinear"),
    }
)
"""Of the operators of com.microsoft that the engine knows those with no wrong case among 40 of each that the conformance kit draws.

Wrong were all QLinear ones, which cut off where they should round, Attention, DynamicQuantizeLSTM, DynamicQuantizeMatMul, FusedGemm,
GroupQueryAttention, RotaryEmbedding and others. The last two of the set are in HALF_ROWS.
"""

ROWS = (
    _row(
        "attention_window",
        ("Attention",),
        "OpenVINO ignores left_window_size and right_window_size of Attention",
        "attention_local_window",
        conditions.has_window,
    ),
    _row(
        "attention_causal_past",
        ("Attention",),
        "OpenVINO counts the positions of causal Attention from the first query, not from the end of past_key",
        "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
        conditions.counts_from_first_query,
    ),
    _row(
        "bernoulli",
        ("Bernoulli",),
        "OpenVINO draws 1 of Bernoulli with the probability of 0, and 0 with that of 1",
        "bernoulli_seed",
    ),
    _row(
        "cast_of_nothing",
        ("Cast", "CastLike"),
        "OpenVINO gives a Cast of no elements another shape",
        "drawn",
        conditions.casts_nothing,
    ),
    _row(
        "cast_to_bfloat16",
        ("Cast", "CastLike"),
        "OpenVINO does not round floats to the nearest bfloat16",
        "cast_FLOAT_to_BFLOAT16",
        casts_to("bfloat16", source="float"),
    ),
    _row(
        "cast_to_float8",
        ("Cast", "CastLike"),
        "OpenVINO does not saturate what is too large for a float of 8 bits",
        "cast_FLOAT_to_FLOAT8E4M3FN",
        conditions.casts_saturated,
    ),
    _row(
        "cast_to_int4",
        ("Cast", "CastLike"),
        "OpenVINO rounds to integers of 4 bits; the standard cuts fractions off",
        "drawn",
        casts_to("int4", "uint4", source="float"),
    ),
    _row(
        "cast_to_float4",
        ("Cast", "CastLike"),
        "OpenVINO makes NaN the largest float4e2m1",
        "cast_FLOAT_to_FLOAT4E2M1",
        casts_to("float4e2m1"),
    ),
    _row(
        "cast_to_e8m0",
        ("Cast", "CastLike"),
        "OpenVINO rounds to the nearest float8e8m0, not up",
        "cast_e8m0_FLOAT_to_FLOAT8E8M0",
        conditions.casts_up,
    ),
    _row(
        "cast_twice",
        ("Cast", "CastLike"),
        "OpenVINO does not round what is cast to float16, as it computes float16 in float32 within a network",
        "drawn",
        conditions.loses_rounding,
    ),
    _row("dft_onesided", ("DFT",), "OpenVINO shapes one-sided transforms wrongly", "dft_rfft", differs("onesided", 0)),
    _row("dft_axis", ("DFT",), "OpenVINO ignores the axis of DFT", "dft_axis", conditions.names_axis),
    _row("recurrent_layout", RECURRENT, "OpenVINO ignores the layout of {node.op_type}", "gru_batchwise", differs("layout", 0)),
    _row("lstm_peepholes", ("LSTM",), "OpenVINO ignores the peepholes of LSTM", "lstm_with_peepholes", reads(7)),
    _row("lstm_input_forget", ("LSTM",), "OpenVINO ignores input_forget of LSTM", "drawn", differs("input_forget", 0)),
    _row(
        "recurrent_activations",
        RECURRENT,
        "OpenVINO computes both directions of {node.op_type} with the activations of the first",
        "drawn",
        conditions.activates_directions,
    ),
    _row(
        "recurrent_lengths",
        RECURRENT,
        "OpenVINO ignores the lengths of the sequences of {node.op_type} if length or batch is open",
        "drawn",
        conditions.has_open_lengths,
    ),
    _row(
        "recurrent_shared_input",
        RECURRENT,
        "OpenVINO reorders what a recurrent node of one direction reads, and another node or an output has the same numbers, transposed",
        "drawn",
        conditions.shares_turned_input,
    ),
    _row(
        "zero_factor",
        ("HardSigmoid", "Selu"),
        "OpenVINO takes the default of {node.op_type} for a factor of 0",
        "drawn",
        conditions.has_zero_factor,
    ),
    _row("lrn_bias", ("LRN",), "OpenVINO cuts the fraction of the bias of LRN off", "drawn", conditions.has_fraction),
    _row(
        "mean_variance_before_9",
        ("MeanVarianceNormalization",),
        "OpenVINO averages other axes in MeanVarianceNormalization before opset 9 than ONNX Runtime",
        "drawn",
        lambda node, graph: not node.since_version,
    ),
    _row("multinomial", ("Multinomial",), "OpenVINO draws the same numbers of Multinomial in every run", "drawn"),
    _row(
        "scales_of_channels",
        ("QLinearConv",),
        "OpenVINO multiplies filters by the scales of QLinearConv along the input channels",
        "drawn",
        conditions.scales_channels,
    ),
    _row(
        "random_normal",
        ("RandomNormal", "RandomNormalLike"),
        "OpenVINO draws {node.op_type} without a seed from two generators that are alike, so that the numbers are not normal",
        "drawn",
        conditions.has_no_seed,
    ),
    _row("range_stash_type", ("Range",), "OpenVINO ignores stash_type of Range", "drawn", conditions.stashes),
    _row(
        "reduction_axes",
        ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp"),
        "OpenVINO ignores the attribute axes of {node.op_type}, and reduces all axes",
        "drawn",
        differs("axes", None),
    ),
    _row(
        "reduction_without_axes",
        ("ReduceL1", "ReduceL2", "ReduceLogSum"),
        "OpenVINO makes no absolute value and no logarithm of {node.op_type} without axes",
        "drawn",
        conditions.keeps_no_axes,
    ),
    _row(
        "resize_antialias",
        ("Resize",),
        "OpenVINO ignores antialias of Resize",
        "resize_downsample_scales_linear_antialias",
        differs("antialias", 0),
    ),
    _row(
        "resize_outside",
        ("Resize",),
        "OpenVINO ignores exclude_outside of Resize",
        "resize_upsample_scales_cubic_A_n0p5_exclude_outside",
        conditions.excludes_outside,
    ),
    _row(
        "resize_aspect",
        ("Resize",),
        "OpenVINO ignores keep_aspect_ratio_policy of Resize",
        "resize_upsample_sizes_nearest_not_larger",
        differs("keep_aspect_ratio_policy", "stretch"),
    ),
    _row(
        "resize_aligned",
        ("Resize",),
        "OpenVINO scales by the rounded size under align_corners, not by the scales",
        "resize_downsample_scales_cubic_align_corners",
        conditions.scales_aligned,
    ),
    _row(
        "roialign_max",
        ("RoiAlign",),
        "OpenVINO's RoiAlign of mode max interpolates after it takes the maximum",
        "roialign_mode_max",
        differs("mode", "avg"),
    ),
    _row(
        "softmax_11",
        ("Softmax",),
        "OpenVINO computes Softmax-11 along one axis; the standard flattens all from that axis on",
        "drawn",
        conditions.flattens,
    ),
    _row(
        "spacetodepth_crd",
        ("SpaceToDepth",),
        "OpenVINO ignores the mode of SpaceToDepth",
        "spacetodepth_crd_mode_example",
        differs("mode", "DCR"),
    ),
    _row(
        "squeeze_of_no_axes",
        ("Squeeze",),
        "the engine takes an empty list of axes for all axes of size 1, and here the list may be empty",
        "drawn",
        conditions.has_empty_axes,
    ),
    _row(
        "col2im_sizes",
        ("Col2Im",),
        "OpenVINO may end the process on Col2Im whose sizes come with the run",
        "drawn",
        computes_input(1, 2),
    ),
    _row(
        "compress_by_nothing",
        ("Compress",),
        "OpenVINO ends the process if the condition of Compress has no elements",
        "drawn",
        conditions.compresses_by_nothing,
    ),
    _row(
        "division_by_zero",
        ("Div", "Mod"),
        "OpenVINO ends the process if it folds {node.op_type} of integers by 0, or of the least one by -1",
        "drawn",
        conditions.divides_by_zero,
    ),
    _row(
        "expand_of_nothing",
        ("Expand",),
        "OpenVINO ends the process, or gives another shape, if Expand makes or reads no elements",
        "drawn",
        conditions.expands_nothing,
    ),
    _row(
        "gather_elements_beside",
        ("GatherElements",),
        "OpenVINO's GatherElements takes no indices with other sizes than the data beside the axis, and these may differ",
        "drawn",
        conditions.differs_beside_axis,
    ),
    _row(
        "gather_nd_of_no_coordinates",
        ("GatherND",),
        "OpenVINO returns what it has not written from GatherND by indices of no coordinates",
        "drawn",
        conditions.indexes_by_nothing,
    ),
    _row(
        "global_lp_pool_of_nothing",
        ("GlobalLpPool",),
        "OpenVINO ends the process on GlobalLpPool of no elements",
        "drawn",
        conditions.pools_nothing,
    ),
    _row(
        "prelu_slopes",
        ("PRelu",),
        "OpenVINO may end the process on PRelu whose slopes do not broadcast to its input",
        "drawn",
        conditions.has_unfit_slopes,
    ),
    _row(
        "top_k_of_fewer",
        ("TopK",),
        "OpenVINO may end the process on TopK of more elements than there are",
        "drawn",
        conditions.selects_too_many,
    ),
    _row(
        "unique_axis",
        ("Unique",),
        "OpenVINO may end the process on Unique of an axis that its input may not have",
        "drawn",
        conditions.may_lack_axis,
    ),
    _row(
        "pool_without_kernel",
        ("AveragePool", "LpPool", "MaxPool"),
        "{node.op_type} has no kernel_shape",
        "drawn",
        conditions.has_no_kernel,
    ),
    _row(
        "pool_of_unfit_window",
        ("AveragePool", "LpPool", "MaxPool"),
        "strides, dilations, pads and the input of {node.op_type} have other numbers of dimensions than its kernel",
        "drawn",
        conditions.has_unfit_window,
    ),
    _row(
        "average_behind_padding",
        ("AveragePool",),
        "OpenVINO counts elements behind the padding, under ceil_mode and count_include_pad",
        "drawn",
        conditions.counts_behind_padding,
    ),
    _row(
        "max_pool_indices",
        ("MaxPool",),
        "OpenVINO returns the indices of MaxPool in another order and shape if storage_order is 1",
        "drawn",
        conditions.orders_by_columns,
    ),
    _row(
        "max_pool_behind_end",
        ("MaxPool",),
        "OpenVINO counts a window that begins behind the end of the input, under ceil_mode",
        "maxpool_2d_ceil_output_size_reduce_by_one",
        conditions.begins_behind_end,
    ),
    _row(
        "spread_pixel",
        ("Concat", "Expand", "Tile"),
        "OpenVINO's {node.op_type} of images of one pixel that another node reads is wrong if channels are last",
        "drawn",
        conditions.spreads_pixel,
    ),
    _row(
        "group_of_open_parts",
        ("Concat",),
        "OpenVINO makes one convolution with groups of what this Concat reads, and not always the right one",
        "drawn",
        conditions.groups_open_parts,
    ),
    _row(
        "conv_strides_last_axis",
        ("Conv",),
        "OpenVINO is wrong about a Conv of one channel whose last axis alone has a stride, and ends with one position",
        "drawn",
        conditions.strides_last_axis_alone,
    ),
    _row(
        "conv_lost_stride",
        ("Conv",),
        "OpenVINO cannot move the strides of this Conv to the node before it, which has several outputs",
        "drawn",
        conditions.loses_stride,
    ),
    _row(
        "transposed_open_same",
        ("ConvTranspose",),
        "OpenVINO cuts nothing off a ConvTranspose with auto_pad SAME if a size of its input is open",
        "drawn",
        conditions.pads_open_transposed,
    ),
    _row(
        "transposed_output_shape",
        ("ConvTranspose",),
        "OpenVINO places the results of ConvTranspose wrongly if output_shape is given with groups or auto_pad",
        "drawn",
        conditions.misplaces_transposed,
    ),
    _row(
        "fused_by_channels",
        ("Add", "BatchNormalization", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum"),
        "OpenVINO fuses {node.op_type} by channels into the product before it, along its last axis",
        "drawn",
        conditions.is_fused_by_channels,
    ),
    _row(
        "if_of_open_sizes",
        ("If",),
        "OpenVINO lets other values overwrite what an If with open sizes returns",
        "drawn",
        conditions.has_open_branches,
    ),
    _row("lp_normalization", ("LpNormalization",), "OpenVINO adds to the norm that LpNormalization divides by", "drawn"),
    _row(
        "round_of_quotient",
        ("Round",),
        "OpenVINO divides by a multiplication, so that a quotient may be on the other side of a half",
        "dynamicquantizelinear_expanded",
        conditions.rounds_quotient,
    ),
    _row(
        "dropped_infinities",
        ("Shrink", "ThresholdedRelu"),
        "OpenVINO multiplies by 0 what it drops, so that infinities become NaN",
        "drawn",
    ),
    _row(
        "tile_of_open_repeats",
        ("Tile",),
        "OpenVINO returns what it has not written if repeats are no constant",
        "tile",
        computes_input(1),
    ),
    _row("odd_flag", ("*",), "OpenVINO may read a flag that is neither 0 nor 1 otherwise than 1", "drawn", conditions.has_odd_flag),
    _row(
        "contrib_attention_masks",
        ("com.microsoft.MultiHeadAttention",),
        "OpenVINO differs in rows of unidirectional MultiHeadAttention of which the mask of padded keys leaves none",
        "drawn",
        conditions.hides_twice,
    ),
    _row(
        "contrib_product_of_batches",
        ("com.microsoft.FusedMatMul",),
        "OpenVINO ignores transBatchA and transBatchB of FusedMatMul",
        "drawn",
        conditions.moves_batch,
    ),
    _row(
        "product_of_nothing",
        ("Gemm", "MatMul"),
        "OpenVINO is wrong about products over an axis of length 0",
        "drawn",
        conditions.is_product_of_nothing,
    ),
    _row(
        "empty_constant",
        ("*",),
        "OpenVINO forgets the shape of a constant of no elements",
        "drawn",
        conditions.reads_empty_constant,
    ),
    _row("open_size_beside_0", ("*",), "OpenVINO takes an open size for 0 if another size is 0", "drawn", conditions.forgets_sizes),
    _row(
        "gather_of_nothing",
        ("Gather",),
        "OpenVINO drops the axis that Gather takes nothing of",
        "drawn",
        conditions.gathers_nothing,
    ),
    _row(
        "dft_of_nothing",
        ("DFT",),
        "OpenVINO may end the process on DFT of length 0, and the length may be 0 or is not known",
        "drawn",
        conditions.may_transform_nothing,
    ),
    _row(
        "loop_without_iterations",
        ("Loop",),
        "OpenVINO returns results of an earlier run from a Loop without iterations, and never returns from one with a negative number",
        "openvino#37247",
        conditions.may_not_run,
    ),
    _row(
        "scan_of_nothing",
        ("Scan",),
        "OpenVINO fails at Scan of length 0, and the length may be 0",
        "drawn",
        conditions.may_scan_nothing,
    ),
    _row(
        "unique_of_nothing",
        ("Unique",),
        "OpenVINO fails at Unique of no elements or ends the process, and there may be none",
        "drawn",
        conditions.may_be_empty,
    ),
    _row(
        "recurrent_of_nothing",
        RECURRENT,
        "OpenVINO returns what it has not written from {node.op_type} of no elements, or ends the process",
        "drawn",
        conditions.is_empty,
    ),
    _row(
        "hardmax_of_open_sizes",
        ("Hardmax",),
        "OpenVINO loses the shape of a Hardmax of no elements, and sizes are open",
        "drawn",
        conditions.has_open_size,
    ),
    _row(
        "nearest_pixel",
        RESIZING,
        "OpenVINO computes the nearest pixel in float32 and may take another one, and sizes are open or within a body",
        "onnxruntime#28291",
        may_miss_pixels,
    ),
    _row(
        "deep_product",
        ("Gemm", "MatMul"),
        "OpenVINO adds up too many products in float32 for {node.op_type}, which loses 0.1 % and more",
        "drawn",
        conditions.is_deep_product,
    ),
    _row(
        "long_sum",
        (
            *REDUCTIONS,
            *("CumSum", "Einsum", "GlobalAveragePool", "GroupNormalization", "InstanceNormalization", "LayerNormalization"),
            *("MeanVarianceNormalization", "RMSNormalization"),
        ),
        "OpenVINO adds up too many numbers in float32 for {node.op_type}, which loses 0.1 % and more",
        "drawn",
        conditions.is_long_sum,
    ),
    *(
        _row(
            f"saturating_{operator.lower()}",
            (operator,),
            "OpenVINO adds up pairs of 8-bit products in 16 bits on this processor, which saturate",
            "drawn",
            conditions.may_saturate,
            partial(saturates_bytes, operator),
        )
        for operator in ("QLinearConv", "QLinearMatMul")
    ),
)

HALF_ROWS = (
    _row(
        "product_between_codes",
        ("QLinearConv", "QLinearMatMul"),
        "OpenVINO may round a product that lies exactly between two codes to the odd one; OPENVINO_QUANTIZED=YES takes it all the same",
        "drawn",
        conditions.may_halve,
    ),
    _row(
        "quotient_between_codes",
        (*QUANTIZING, *(f"{MICROSOFT}.{name}" for name in QUANTIZING)),
        "OpenVINO multiplies by the reciprocal of the scale, so that a quotient may be on the other side of a half; "
        f"{QUANTIZED_KEY}=YES takes it all the same",
        "quantizelinear_uint16",
    ),
)
"""Rows of results that are one step of a quantization away from the right one."""

QUANTIZED_ROWS = (
    _row(
        "saturating_pairs",
        PRODUCTS,
        "OpenVINO adds up pairs of 8-bit products in 16 bits on this processor, which saturate",
        "drawn",
        conditions.may_saturate_pairs,
        partial(saturates_bytes, "QLinearConv"),
    ),
    _row(
        "quantized_pair",
        (*QUANTIZING, *(f"{MICROSOFT}.{name}" for name in QUANTIZING)),
        "OpenVINO may end the process on a QuantizeLinear of what was dequantized",
        "drawn",
        conditions.quantizes_pair,
    ),
    _row(
        "quantized_to_words",
        (*QUANTIZING, *(f"{MICROSOFT}.{name}" for name in QUANTIZING)),
        "OpenVINO does not saturate what it quantizes to 16 bits",
        "drawn",
        conditions.quantizes_to_words,
    ),
)
"""Rows of what is refused although the user takes a step of the quantization."""

_check_rows, _check_halves, _check_quantized = tabulate(ROWS), tabulate(HALF_ROWS), tabulate(QUANTIZED_ROWS)
