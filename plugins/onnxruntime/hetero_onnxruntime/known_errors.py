"""Nodes that the engine computes wrongly or fails at when it runs; they are refused, so that nobody gets a wrong answer or a late error.

Each entry was found by a case of ONNX's own backend suite, or by a formula, with the version named; it goes when a newer engine
passes that case.
"""

from __future__ import annotations

import numpy as np

from hetero_core.dtypes import FLOAT_DTYPES
from hetero_core.engines.inspection import dtype_of_input, find_constant, find_shape, has_input, scales_are_whole
from hetero_core.engines.known_errors import Check, KnownError, find_error, refuse_empty_axes, tabulate
from hetero_core.network.graph import Graph, Node
from hetero_onnxruntime.emptiness import DEEP_PRODUCTS, RECURRENT, may_be_empty
from hetero_onnxruntime.overflows import FUSED, PLACES, is_small, may_saturate, reads_integers


def find_known_error(node: Node, graph: Graph, *, saturates: bool = False, widens: bool = True) -> str | None:
    """Returns what the engine gets wrong about a node, or about a node in its bodies, in words, or None.

    `saturates` says that products of uint8 by int8 saturate on this processor, `widens` that the engine makes uint8 of constant weights.
    """

    def check(node: Node, graph: Graph) -> str | None:
        own = _CHECKS.get((node.domain, node.op_type))
        reason = (None if own is None else own(node, graph)) or _check_rows(node, graph)
        if reason is None and saturates and _is_product(node) and may_saturate(node, graph, widens):
            reason = SATURATION
        return reason

    return find_error(node, graph, check)


def _is_product(node: Node) -> bool:
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return operator in PLACES or operator in FUSED


SATURATION = (
    "ONNX Runtime adds pairs of products of uint8 by int8 in 16 bits on this processor, where they saturate (onnxruntime#6004); it is "
    "right with constant weights of the same graph and ORT_GRAPH_OPTIMIZATION=EXTENDED or ALL, and with weights of uint8"
)


def _may_divide_the_least(node: Node, graph: Graph) -> bool:
    if len(node.inputs) != 2:
        return False
    dividend, divisor = (find_constant(name, graph, graph.initializers) for name in node.inputs)
    dtype = dtype_of_input(node, graph) or dtype_of_input(node, graph, 1)
    known = dividend if dividend is not None else divisor
    dtype = dtype if known is None else str(known.dtype)
    if dtype not in ("int32", "int64"):
        return False
    if divisor is not None and not bool((divisor == -1).any()):
        return False
    if dividend is not None:
        return bool((dividend == np.iinfo(dividend.dtype).min).any())
    return not is_small(node.inputs[0], graph)


ROWS = (
    KnownError(
        "least_by_minus_one",
        ("Div",),
        "ONNX Runtime ends the process where it divides the least integer by -1, which may happen here",
        "1.32",
        "drawn",
        _may_divide_the_least,
    ),
    KnownError(
        "integer_reduction",
        ("ReduceL1", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        "ONNX Runtime's {node.op_type} of integers saturates at the ends of their type; the standard wraps, and these may be large",
        "1.32",
        "drawn",
        reads_integers,
    ),
    KnownError(
        "empty_recurrence",
        RECURRENT,
        "ONNX Runtime ends the process on a {node.op_type} of batch 0 or 0 steps, and their number is 0 or only known inside the run",
        "1.32",
        "drawn",
        may_be_empty,
    ),
    KnownError(
        "unique_of_nothing",
        ("Unique",),
        "ONNX Runtime ends the process on Unique along an axis of an empty tensor, and its size is 0 or only known inside the run",
        "1.32",
        "drawn",
        may_be_empty,
    ),
    KnownError(
        "product_of_nothing",
        tuple(DEEP_PRODUCTS),
        "ONNX Runtime returns unwritten memory from a {node.op_type} with nothing to add, and the depth is 0 or only known inside the run",
        "1.32",
        "drawn",
        may_be_empty,
    ),
)
_check_rows = tabulate(ROWS)


def _check_attention(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.31: attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal.
    if len(node.outputs) > 3 and node.outputs[3] and node.attributes.get("is_causal", 0):
        return "ONNX Runtime returns the lowest float where the standard has -inf in the scores of causal attention"
    # ONNX Runtime 1.32, no case: of a mask of uint8, or of int32 beside the lengths of the caches, it adds something else than the mask.
    if not has_input(node, 3):
        return None
    dtype = dtype_of_input(node, graph, 3)
    if dtype is None or dtype not in (*FLOAT_DTYPES, "bool"):
        return f"ONNX Runtime adds a mask of integers wrongly; this one is {dtype or 'of a type that is not known'}"
    # ONNX Runtime 1.31: attention_4d_diff_heads_mask4d_padded_kv; the standard pads such a mask with -inf.
    keys, columns = (find_shape(node, graph, 1) or ())[-2:-1], (find_shape(node, graph, 3) or ())[-1:]
    if not has_input(node, 4) and (keys != columns or columns in ((), (None,))):
        return "ONNX Runtime fails at run time on a mask that is shorter than the keys, and its size here is not known to be theirs"
    return None


def _check_cast(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.32, no case: the standard has 0 and 1.
    if node.attributes.get("saturate", 1) in (0, 1):
        return None
    return f"ONNX Runtime returns what it has not written from a {node.op_type} whose saturate is neither 0 nor 1"


def _check_conv_integer(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.32: convinteger_with_padding; padded or not, a zero point of the filter has to be one number.
    if not has_input(node, 3) or find_shape(node, graph, 3) in ((), (1,)):
        return None
    return "ONNX Runtime fails at run time on ConvInteger with a zero point for each channel of the filter, or of an unknown number"


def _check_reduce_max(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.31: reduce_max_empty_set_bool.
    shape = find_shape(node, graph)
    is_full = shape is not None and all(isinstance(size, int) and size > 0 for size in shape)
    if is_full or dtype_of_input(node, graph) != "bool":
        return None
    return f"ONNX Runtime fails at run time on {node.op_type} of an empty bool tensor"


def _check_resize(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.31: resize_downsample_scales_linear_align_corners, _cubic_; it rounds the size before it scales.
    is_aligned = node.attributes.get("coordinate_transformation_mode") == "align_corners"
    if not is_aligned or not has_input(node, 2) or scales_are_whole(node, graph):
        return None
    return "ONNX Runtime scales by the rounded size under align_corners, the standard by the scales that are given"


def _check_dequantized(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.32, no case: it moves a Transpose through the pair, and makes a QuantizeLinear of int32.
    is_int32 = dtype_of_input(node, graph) == "int32" and node.inputs[0] not in graph.initializers
    if not is_int32 or not has_input(node, 2) or all(other.op_type != "Transpose" for other in graph.nodes):
        return None
    return "ONNX Runtime fails to load a DequantizeLinear of int32 with a zero point in a network that has a Transpose"


def _check_dropout(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.31: training_dropout; the standard leaves the mask free, and its cases come from NumPy's generator.
    training = graph.initializers.get(node.inputs[2]) if has_input(node, 2) else None
    if not has_input(node, 2) or (training is not None and not training.array.any()):
        return None
    return "a Dropout that trains draws other numbers than ONNX's cases"


def _check_log_sum_exp(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.32, no case: the exponentials are cut to integers before they are added.
    if (dtype := dtype_of_input(node, graph)) not in ("int32", "int64"):
        return None
    return f"ONNX Runtime adds exponentials that are cut to integers in ReduceLogSumExp of {dtype}"


def _check_drawn(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.32, no case: assertions of the C++ library end the process.
    if node.op_type.startswith("RandomNormal"):
        spread = float(node.attributes.get("scale", 1.0))
        return None if spread > 0 else f"ONNX Runtime ends the process on a {node.op_type} whose scale is {spread}"
    low, high = (float(node.attributes.get(name, default)) for name, default in (("low", 0.0), ("high", 1.0)))
    return None if low <= high else f"ONNX Runtime ends the process on a {node.op_type} from {low} to {high}"


def _check_position(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.32, no case: SIGSEGV for an int64[0].
    places = {"SequenceAt": 1, "SequenceErase": 1, "SequenceInsert": 2}
    shape = find_shape(node, graph, places[node.op_type])
    is_number = shape is None or all(size == 1 for size in shape)
    return None if is_number else f"ONNX Runtime may end the process on a {node.op_type} whose position is not one number"


def _check_shared_caches(node: Node, graph: Graph) -> str | None:
    # ONNX Runtime 1.32: the outputs have to be bound to the memory of inputs, or hold what lay in their own before.
    if node.op_type == "SparseAttention" or node.attributes.get("past_present_share_buffer", 0):
        return f"ONNX Runtime's {node.op_type} writes its caches into its inputs, and inputs are never written here"
    return None


_CHECKS: dict[tuple[str, str], Check] = {
    ("", "Attention"): _check_attention,
    ("", "Cast"): _check_cast,
    ("", "CastLike"): _check_cast,
    ("", "ConvInteger"): _check_conv_integer,
    ("", "DequantizeLinear"): _check_dequantized,
    ("", "Dropout"): _check_dropout,
    # ONNX Runtime 1.31: maxunpool_export_with_output_shape; indices count in the input's shape, not in output_shape's.
    ("", "MaxUnpool"): lambda node, graph: (
        "ONNX Runtime places values wrongly when output_shape is given" if has_input(node, 2) else None
    ),
    # ONNX Runtime 1.32, no case: the standard has no coordinates for the element of a scalar.
    ("", "NonZero"): lambda node, graph: (
        "ONNX Runtime gives the element of a scalar one coordinate in NonZero" if find_shape(node, graph) == () else None
    ),
    ("", "ReduceLogSumExp"): _check_log_sum_exp,
    ("", "ReduceMax"): _check_reduce_max,
    ("", "ReduceMin"): _check_reduce_max,
    **{("", name): _check_drawn for name in ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")},
    ("", "Resize"): _check_resize,
    # ONNX Runtime 1.32, no case; the reference implementation of the standard drops no axis.
    **{("", name): _check_position for name in ("SequenceAt", "SequenceErase", "SequenceInsert")},
    ("", "Squeeze"): refuse_empty_axes,
    **{
        ("com.microsoft", name): _check_shared_caches
        for name in ("Attention", "DecoderMaskedMultiHeadAttention", "QAttention", "SparseAttention")
    },
}
