"""The known errors of ONNX Runtime: nodes that it computes wrongly, fails at in a run, or ends the process at. The query refuses them.

Nodes that the plugin replaces by others, which the engine computes rightly, are in `corrections`; rewrites of the engine that change a
result are in `engine` and `session`. A row goes when a newer engine is right.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES
from hetero_core.engines.inspection import dtype_of_input, find_constant, find_shape, has_input, scales_are_whole
from hetero_core.engines.known_errors import Condition, KnownError, find_error, may_have_empty_axes, tabulate
from hetero_core.network.graph import Graph, Node
from hetero_onnxruntime.corrections import MANY, has_steps, may_have_no_depth
from hetero_onnxruntime.resizing import picks_other_pixels


def find_known_error(node: Node, graph: Graph) -> str | None:
    """Returns the reason of the first row that a node, or a node in its bodies, meets; None if it meets none."""
    return find_error(node, graph, _check_node)


def has_elements(index: int = 0) -> Callable[[Node, Graph], bool]:
    """Returns a predicate that says whether an input has elements in every run."""

    def predicate(node: Node, graph: Graph) -> bool:
        shape = find_shape(node, graph, index)
        return shape is not None and all(isinstance(size, int) and size > 0 for size in shape)

    return predicate


def _draws_badly(node: Node, graph: Graph) -> bool:
    if node.op_type.startswith("RandomNormal"):
        return float(node.attributes.get("scale", 1.0)) <= 0
    return float(node.attributes.get("low", 0.0)) > float(node.attributes.get("high", 1.0))


def _hides_scores(node: Node, graph: Graph) -> bool:
    return len(node.outputs) > 3 and bool(node.outputs[3]) and bool(node.attributes.get("is_causal", 0))


def _has_integer_mask(node: Node, graph: Graph) -> bool:
    return has_input(node, 3) and dtype_of_input(node, graph, 3) not in (*FLOAT_DTYPES, "bool")


def _has_short_mask(node: Node, graph: Graph) -> bool:
    if not has_input(node, 3) or has_input(node, 4):
        return False
    keys, columns = (find_shape(node, graph, 1) or ())[-2:-1], (find_shape(node, graph, 3) or ())[-1:]
    return keys != columns or columns in ((), (None,))


def _has_channel_points(node: Node, graph: Graph) -> bool:
    return has_input(node, 3) and find_shape(node, graph, 3) not in ((), (1,))


def _is_bool_and_may_be_empty(node: Node, graph: Graph) -> bool:
    return dtype_of_input(node, graph) == "bool" and not has_elements()(node, graph)


def _rounds_aligned_size(node: Node, graph: Graph) -> bool:
    is_aligned = node.attributes.get("coordinate_transformation_mode") == "align_corners"
    return is_aligned and has_input(node, 2) and not scales_are_whole(node, graph)


def _moves_dequantized(node: Node, graph: Graph) -> bool:
    is_int32 = dtype_of_input(node, graph) == "int32" and node.inputs[0] not in graph.initializers
    return is_int32 and has_input(node, 2) and any(other.op_type == "Transpose" for other in graph.nodes)


def _may_train(node: Node, graph: Graph) -> bool:
    training = graph.initializers.get(node.inputs[2]) if has_input(node, 2) else None
    return has_input(node, 2) and (training is None or bool(training.array.any()))


def _loses_statistics(node: Node, graph: Graph) -> bool:
    """Says whether nothing reads the running mean or variance of a BatchNormalization that trains."""
    read = [name for name in node.outputs[1:3] if name in graph.index_of_consumers or name in graph.names_of_outputs]
    return bool(node.attributes.get("training_mode", 0)) and len(read) < 2


def _may_have_many_positions(node: Node, graph: Graph) -> bool:
    places = {"SequenceAt": 1, "SequenceErase": 1, "SequenceInsert": 2}
    shape = find_shape(node, graph, places[node.op_type])
    return shape is not None and not all(size == 1 for size in shape)


def _shares_caches(node: Node, graph: Graph) -> bool:
    return node.op_type == "SparseAttention" or bool(node.attributes.get("past_present_share_buffer", 0))


def _may_be_unique_of_nothing(node: Node, graph: Graph) -> bool:
    return "axis" in node.attributes and not has_elements()(node, graph)


def _has_no_depth(first: int, second: int) -> Condition:
    """Returns a condition that holds if a product of matrices may be over an axis of length 0."""

    def condition(node: Node, graph: Graph) -> bool:
        return may_have_no_depth(node, graph, first, second)

    return condition


def _may_overflow_product(node: Node, graph: Graph) -> bool:
    return dtype_of_input(node, graph) in ("int32", "int64") and not _is_of_sizes(node.inputs[0], graph, 16)


_SIZE_OPERATORS = frozenset({"Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})


def _is_of_sizes(value: str, graph: Graph, depth: int) -> bool:
    """Says whether a value holds sizes of axes, whose product no tensor in memory lets overflow."""
    constant = find_constant(value, graph, graph.initializers)
    if constant is not None:
        return constant.dtype.kind in "iu" and bool(np.prod(np.abs(constant.astype(np.float64))) < np.iinfo(np.int32).max)
    node = graph.find_producer(value)
    if node is None or node.domain or depth == 0:
        return False
    if node.op_type in ("Shape", "Size"):
        return True
    sources = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in _SIZE_OPERATORS and all(_is_of_sizes(source, graph, depth - 1) for source in sources)


def _sums_many(axis_of: Callable[[Node, tuple[int | str | None, ...]], int]) -> Condition:
    """Returns a condition that holds if a norm is known to be of many elements."""

    def condition(node: Node, graph: Graph) -> bool:
        shape = find_shape(node, graph)
        if not shape:
            return False
        sizes = shape[axis_of(node, shape) :] if node.op_type == "GlobalLpPool" else (shape[axis_of(node, shape)],)
        return all(isinstance(size, int) for size in sizes) and int(np.prod([int(size) for size in sizes])) >= MANY  # type: ignore[arg-type]  # sizes are integers

    return condition


_UNWRITTEN = "ONNX Runtime returns memory that it has not written from a {node.op_type} over an axis of length 0, as it may be here"

ERRORS = (
    KnownError(
        "scores of causal attention",
        ("Attention",),
        "ONNX Runtime returns the lowest float where the standard has -inf in the scores of causal attention",
        "1.31",
        "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
        _hides_scores,
    ),
    KnownError(
        "mask of integers",
        ("Attention",),
        "ONNX Runtime adds a mask of integers wrongly, and this mask is of integers or of a type that is not known",
        "1.32",
        "drawn",
        _has_integer_mask,
    ),
    KnownError(
        "short mask",
        ("Attention",),
        "ONNX Runtime fails at run time on a mask that is shorter than the keys, and its size here is not known to be theirs",
        "1.31",
        "attention_4d_diff_heads_mask4d_padded_kv",
        _has_short_mask,
    ),
    KnownError(
        "batch statistics that nothing reads",
        ("BatchNormalization",),
        "ONNX Runtime normalizes by other statistics than the batch's if nothing reads the running mean and variance",
        "1.32",
        "drawn",
        _loses_statistics,
    ),
    KnownError(
        "saturate",
        ("Cast", "CastLike"),
        "ONNX Runtime returns memory that it has not written from a {node.op_type} whose saturate is neither 0 nor 1",
        "1.32",
        "drawn",
        lambda node, graph: node.attributes.get("saturate", 1) not in (0, 1),
    ),
    KnownError(
        "zero points of channels",
        ("ConvInteger",),
        "ONNX Runtime fails at run time on ConvInteger with a zero point for each channel of the filter, or of an unknown number",
        "1.32",
        "convinteger_with_padding",
        _has_channel_points,
    ),
    KnownError(
        "8-bit product over nothing",
        ("ConvInteger", "MatMulInteger", "com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat"),
        _UNWRITTEN,
        "1.32",
        "onnxruntime#23142",
        _has_no_depth(0, 1),
    ),
    KnownError(
        "8-bit product with scales over nothing",
        ("QLinearConv", "QLinearMatMul", "com.microsoft.QGemm"),
        _UNWRITTEN,
        "1.32",
        "onnxruntime#23142",
        _has_no_depth(0, 3),
    ),
    KnownError(
        "dequantized int32 beside a Transpose",
        ("DequantizeLinear",),
        "ONNX Runtime fails to load a DequantizeLinear of int32 with a zero point in a network that has a Transpose",
        "1.32",
        "drawn",
        _moves_dequantized,
    ),
    KnownError(
        "training dropout",
        ("Dropout",),
        "a Dropout that trains draws other numbers than ONNX's cases",
        "1.31",
        "training_dropout",
        _may_train,
    ),
    KnownError(
        "norm of many elements",
        ("LpNormalization",),
        "ONNX Runtime adds up many elements in one float32, and loses them",
        "1.32",
        "drawn",
        _sums_many(lambda node, shape: int(node.attributes.get("axis", -1))),
    ),
    KnownError(
        "pooled norm of many elements",
        ("GlobalLpPool",),
        "ONNX Runtime adds up many elements in one float32, and loses them",
        "1.32",
        "drawn",
        _sums_many(lambda node, shape: 2),
    ),
    KnownError(
        "given size of MaxUnpool",
        ("MaxUnpool",),
        "ONNX Runtime places values wrongly when output_shape is given",
        "1.31",
        "maxunpool_export_with_output_shape",
        lambda node, graph: has_input(node, 2),
    ),
    KnownError(
        "coordinates of a scalar",
        ("NonZero",),
        "ONNX Runtime gives the element of a scalar one coordinate in NonZero",
        "1.32",
        "drawn",
        lambda node, graph: find_shape(node, graph) == (),
    ),
    KnownError(
        "exponentials of integers",
        ("ReduceLogSumExp",),
        "ONNX Runtime adds exponentials that are cut to integers in {node.op_type} of integers",
        "1.32",
        "drawn",
        lambda node, graph: dtype_of_input(node, graph) in ("int32", "int64"),
    ),
    KnownError(
        "extreme of no bools",
        ("ReduceMax", "ReduceMin"),
        "ONNX Runtime fails at run time on {node.op_type} of an empty bool tensor",
        "1.31",
        "reduce_max_empty_set_bool",
        _is_bool_and_may_be_empty,
    ),
    KnownError(
        "product of integers",
        ("ReduceProd",),
        "ONNX Runtime multiplies integers in float64 and saturates, and this product may overflow",
        "1.32",
        "onnxruntime#28743",
        _may_overflow_product,
    ),
    KnownError(
        "drawn numbers",
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        "ONNX Runtime ends the process on a {node.op_type} whose scale is not positive, or whose low is above its high",
        "1.32",
        "drawn",
        _draws_badly,
    ),
    KnownError(
        "aligned corners",
        ("Resize",),
        "ONNX Runtime scales by the rounded size under align_corners, the standard by the scales that are given",
        "1.31",
        "resize_downsample_scales_linear_align_corners",
        _rounds_aligned_size,
    ),
    KnownError(
        "nearest pixel",
        ("Resize",),
        "ONNX Runtime divides coordinates in float32 and picks another pixel than the standard at these sizes",
        "1.32",
        "drawn",
        picks_other_pixels,
    ),
    KnownError(
        "position in a sequence",
        ("SequenceAt", "SequenceErase", "SequenceInsert"),
        "ONNX Runtime may end the process on a {node.op_type} whose position is not one number",
        "1.32",
        "drawn",
        _may_have_many_positions,
    ),
    KnownError(
        "empty list of axes",
        ("Squeeze",),
        "the engine takes an empty list of axes for all axes of size 1, and here the list may be empty",
        "1.32",
        "drawn",
        may_have_empty_axes,
    ),
    KnownError(
        "layers without steps",
        ("com.microsoft.AttnLSTM",),
        "ONNX Runtime ends the process on a {node.op_type} without steps or sequences, and there may be none here",
        "1.32",
        "drawn",
        lambda node, graph: not has_steps(node, graph),
    ),
    KnownError(
        "slices of nothing",
        ("Unique",),
        "ONNX Runtime ends the process on Unique along an axis of a tensor without elements, as this one may be",
        "1.32",
        "onnxruntime#1879",
        _may_be_unique_of_nothing,
    ),
    KnownError(
        "shared caches",
        (
            "com.microsoft.Attention",
            "com.microsoft.DecoderMaskedMultiHeadAttention",
            "com.microsoft.QAttention",
            "com.microsoft.SparseAttention",
        ),
        "ONNX Runtime's {node.op_type} writes its caches into its inputs, and inputs are never written here",
        "1.32",
        "drawn",
        _shares_caches,
    ),
)
"""The table, in the order of operators; the first row that a node meets gives the reason."""

_check_node = tabulate(ERRORS)
