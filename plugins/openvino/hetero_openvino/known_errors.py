"""The known errors of OpenVINO: nodes that it computes wrongly, fails at in a run or ends the process at. The query refuses them.

Each row was found on OpenVINO 2026.4 by a case of ONNX's own backend suite, which it names, by a report, or by a drawn comparison with
NumPy. It goes when a newer engine is right. `arithmetic`: errors by the magnitude of integers; `corrections`: rewrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from math import inf, prod

import numpy as np

from hetero_core.engines.inspection import (
    MOVING,
    dtype_of_input,
    dtype_of_value,
    find_constant,
    find_reduced_axes,
    find_shape,
    has_input,
    is_exact_factor,
    list_nearest_factors,
    walk_producers,
)
from hetero_core.engines.known_errors import (
    EMPTY_AXES,
    always,
    both,
    computes_input,
    differs,
    find_error,
    flattens_axes,
    follows,
    has_dtype,
    is_open,
    may_be_empty,
    may_have_empty_axes,
    may_hold,
    reads,
    rounds_aligned_size,
    state_error,
    tabulate,
)
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import fixed_sizes, sizes_of
from hetero_openvino.arithmetic import find_arithmetic_error
from hetero_openvino.engine import import_own_names

QUANTIZED_KEY = "OPENVINO_QUANTIZED"
QUANTIZING = ("DynamicQuantizeLinear", "QuantizeLinear")
"""Operators that are right up to a step of the quantization, which OPENVINO_QUANTIZED takes."""


def find_known_error(node: Node, graph: Graph, *, takes_quantized: bool = False) -> str | None:
    """Returns the known error of a node, or of a node in its bodies; None without a known error.

    With `takes_quantized` a result may be off by a step of the quantization.
    """

    def check(node: Node, graph: Graph) -> str | None:
        if node.domain == MICROSOFT and node.op_type not in _RIGHT_CONTRIB.split():
            return f"OpenVINO's {node.op_type} of {MICROSOFT} was not found right"
        reason = (_check_quantized if takes_quantized else _check_halves)(node, graph)
        if reason or (takes_quantized and node.op_type in QUANTIZING):
            return reason
        return _check_rows(node, graph) or (None if node.domain else find_arithmetic_error(node, graph))

    return find_error(node, graph, check)


LONGEST_SUM = 2**20
"""Elements that a sum in float32 may have: the engine adds eight numbers side by side, and is off by 0.1 % if all are equal."""
LONGEST_CHAIN = 2**17
"""The same for sums in sequence, which keep the last axis or have a single dimension."""
DEEPEST_PRODUCT = 2**22
"""The same for products of matrices."""
MOST_ITERATIONS = 10_000
"""Iterations of a Loop of constants, which the engine runs when it compiles."""

REDUCTIONS = tuple(f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Mean", "Sum", "SumSquare"))
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
RECURRENT = ("GRU", "LSTM", "RNN")


def _is_long_when_compiled(node: Node, graph: Graph) -> bool:
    """Says whether a Loop reads constants alone, so that the engine runs it when it compiles, and has many iterations or no limit."""
    count = graph.initializers.get(node.inputs[0])
    is_long = count is None or count.array.size != 1 or int(count.array.reshape(-1)[0]) > MOST_ITERATIONS
    return is_long and all(find_constant(name, graph) is not None for name in node.reads)


_OF_NOTHING = frozenset({"Cast", "CastLike", "Compress", "Expand", "GRU", "Gather", "GatherND", "GlobalLpPool", "LSTM", "RNN"})
"""Operators that are wrong about, or end the process on, a list of nothing as well."""


def _has_fixed_zero(node: Node, graph: Graph) -> bool:
    """Says whether a value has an axis of length 0, mostly beside other axes; alone, it is a list of nothing, as of axes or scales."""
    shapes = [getattr(graph.type_of(name), "shape", None) or () for name in (*node.reads, *node.writes)]
    return any(0 in shape and (len(shape) > 1 or node.op_type in _OF_NOTHING) for shape in shapes)


def _find_depth(node: Node, graph: Graph) -> int | str | None:
    shape = find_shape(node, graph)
    if not shape:
        return None
    return shape[0] if node.op_type == "Gemm" and node.attributes.get("transA", 0) else shape[-1]


def _may_saturate_pairs(node: Node, graph: Graph) -> bool:
    """Says whether a product reads dequantized numbers on both sides, and may saturate as 8-bit products do."""
    for index in (0, 1):
        producers = walk_producers(node.inputs[index], graph, lambda each: each.op_type not in (*PRODUCTS, "DequantizeLinear"))
        codes = [producer.inputs[0] for producer in producers if producer.op_type == "DequantizeLinear"]
        if not codes:
            return False
    return any(_are_large(graph.initializers.get(code)) for code in codes)


def _are_large(weights: Initializer | None) -> bool:
    if weights is None or weights.dtype != "int8":
        return True
    return bool(weights.array.size) and (int(weights.array.min()) < -64 or int(weights.array.max()) > 64)


def _list_summed(node: Node, graph: Graph) -> tuple[list[int | str | None], int] | None:
    """Returns the summed sizes of a node, and how many elements may be summed; None if it is no sum or its axes are unknown."""
    shape = find_shape(node, graph)
    if node.domain or not shape:
        return None
    rank = len(shape)
    first_axis = {"GlobalAveragePool": 2, "GroupNormalization": 1, "InstanceNormalization": 2}.get(node.op_type)
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        first_axis = node.attributes.get("axis", -1) % rank
    if first_axis is not None:
        axes: Sequence[int] | None = range(first_axis, rank)
    elif node.op_type in REDUCTIONS:
        axes = find_reduced_axes(node, graph)
    elif node.op_type == "CumSum":
        constant = find_constant(node.inputs[1], graph)
        return [shape[axis] for axis in (range(rank) if constant is None else constant.reshape(-1).tolist())], LONGEST_CHAIN
    elif node.op_type == "MeanVarianceNormalization":
        axes = [axis % rank for axis in node.attributes.get("axes", (0, 2, 3))]
    else:
        axes = None
    if axes is None:
        return None
    return [shape[axis] for axis in axes], LONGEST_CHAIN if rank - 1 not in axes or rank == 1 else LONGEST_SUM


def _is_long_sum(node: Node, graph: Graph) -> bool:
    sizes, most = _list_summed(node, graph) or ([], 0)
    return prod(size for size in sizes if isinstance(size, int)) > most > 0


@cache
def saturates_bytes() -> bool:
    """Says whether the engine saturates sums of 8-bit products on this processor: 64 times 255 x 127 is 2,072,640."""
    import onnx.parser  # heavy, and loaded already with the network

    core = import_own_names().Core()
    for operator, a, b in (("QLinearMatMul", (2, 64), (64, 16)), ("QLinearConv", (1, 64, 3, 3), (16, 64, 1, 1))):
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g (uint8{list(a)} a) => (y) '
            f"<float s = {{1}}, float t = {{8192}}, uint8 z = {{0}}, int8 o = {{0}}> {{ y = {operator}(a, s, z, b, s, o, t, z) }}"
        )
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(b, 127, np.int8), "b"))
        answer = core.compile_model(core.read_model(model.SerializeToString()), "CPU")([np.full(a, 255, np.uint8)])[0]
        if (answer != round(64 * 255 * 127 / 8192)).any():
            return True
    return False


@dataclass(frozen=True)
class SizeLimit:
    """Bounds of a product of sizes of inputs, each an index of an input and an axis."""

    places: tuple[tuple[int, int], ...]
    least: int
    most: float
    reason: str


def list_size_limits(network: Network) -> list[SizeLimit]:
    """Returns the limits of open sizes of inputs within which products and sums over them are right."""
    place_of_size: dict[object, tuple[int, int]] = {}
    for index, spec in enumerate(network.inputs):
        for axis, size in enumerate(spec.shape or ()):
            if isinstance(size, str):
                place_of_size.setdefault(size, (index, axis))
    limits: dict[SizeLimit, None] = {}
    for node in network.nodes:
        if not node.domain and node.op_type in ("Gemm", "MatMul") and (depth := _find_depth(node, network)) in place_of_size:
            limits[SizeLimit((place_of_size[depth],), 1, inf, "OpenVINO is wrong about products over no elements")] = None
        summed, most = _list_summed(node, network) or ([], 0)
        if places := tuple(place_of_size[size] for size in summed if size in place_of_size):
            reason = f"OpenVINO loses 0.1 % and more where it adds up more than {most} numbers in float32"
            factor = max(1, prod(size for size in summed if isinstance(size, int)))
            limits[SizeLimit(places, 0, most / factor, reason)] = None
    return list(limits)


_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def joins_views(network: Network) -> bool:
    """Says whether a Concat of open sizes reads an input of the network by way of another shape, as torch.stack of inputs does.

    Runs of several threads at once then may return memory that the engine has not written. Seen with OpenVINO 2026.4.1.
    """

    def is_view(node: Node) -> bool:
        return node.op_type in _VIEWS and not node.domain

    joins = (node for node in network.nodes if node.op_type == "Concat" and fixed_sizes(find_shape(node, network)) is None)
    views = (view for join in joins for value in join.inputs for view in walk_producers(value, network, is_view) if is_view(view))
    return any(view.inputs[0] in network.index_of_input for view in views)


_TURN = (1, 0, 2)
"""(length, batch, width) to (batch, length, width)."""
_PASSING = ("Cast", "CastLike", "Dropout", "Identity", "Transpose")


def _shares_turned_input(node: Node, graph: Graph) -> bool:
    """Says whether a second reader of the input of a one-directional recurrent node may turn it to (batch, length, width).

    The engine merges its own Transpose of the input with an equal Transpose, and makes a Reshape of both, so that the second reader gets
    the numbers in the wrong order. Right if length or batch is 1.
    """
    shape = find_shape(node, graph)
    if node.attributes.get("direction", "forward") == "bidirectional" or (shape is not None and 1 in shape[:2]):
        return False
    value, reader = node.inputs[0], node
    order, is_shared = (0, 1, 2), False
    while True:
        others = [other for index in graph.index_of_consumers.get(value, ()) if (other := graph.nodes[index]) is not reader]
        is_shared |= any(other.op_type in (*_PASSING, *RECURRENT) for other in others)
        is_shared |= order == _TURN and (bool(others) or value in graph.names_of_outputs)
        producer = graph.find_producer(value)
        if producer is None or producer.op_type not in _PASSING:
            return is_shared and order != _TURN
        if producer.op_type == "Transpose":
            perm = producer.attributes.get("perm", (2, 1, 0))
            order = perm[order[0]], perm[order[1]], perm[order[2]]
        value, reader = producer.inputs[0], producer


_FUSED_PAIRS = frozenset({"Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum"})
_BINARY = "Add Div Max Min Mod Mul Pow Sub"
_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Ceil Clip Cos Cosh Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
    "Identity LeakyRelu Log Mean Mish Mod Neg QuantizeLinear Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt "
    "Swish Tan Tanh"
)
_ELEMENTWISE = _FUSED_PAIRS.union(_UNARY.split())
"""Operators that the engine fuses into the node before them, and through which it moves strides."""
_SEVERAL_OUTPUTS = frozenset({"Split", "SplitToSequence", "TopK", "Unique"})
"""Operators that have several outputs in the engine, whether or not the node names them all."""
_CASTS = ("Cast", "CastLike")
_SHIFTED = _ELEMENTWISE | {"Flatten", "Reshape", "Squeeze", "Unsqueeze", *_CASTS}
"""Operators through which the engine fuses a step into a reduction: it drops or fuses them too."""
_EXACT = frozenset({"bool", "float16", "int8", "uint8"})
"""Types that float16 holds exactly."""
_SELECTING = MOVING | {"Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu", "TopK", *_CASTS}
"""Operators that pass elements of their inputs on, rounded or cast."""


def _groups_parts(node: Node, graph: Graph) -> bool:
    """Says whether a Concat joins convolutions of parts of a value, which the engine makes a convolution with groups in any order.

    Right if all outputs of a Split along the channels are convolved and concatenated along the channels in the same order.
    """
    producers = [_pass_over(value, graph) for value in node.inputs]
    convolutions = [producer for producer in producers if producer is not None and producer.op_type == "Conv"]
    # The engine ignores inputs and constants beside the convolutions; any node beside them stops it.
    has_leaf = None in producers
    if not convolutions or (not has_leaf and len(convolutions) < len(producers)):
        return False
    parts = [_pass_identities(convolution.inputs[0], graph) for convolution in convolutions]
    sources = [graph.find_producer(part) for part in parts]
    if not any(source is not None and source.op_type in ("Slice", "Split") for source in sources):
        return False
    split = sources[0]
    if has_leaf or split is None or split.op_type != "Split" or tuple(parts) != split.outputs:
        return True
    axes = node.attributes.get("axis"), split.attributes.get("axis", 0)
    return axes != (1, 1) or not graph.initializers.keys() >= set(filter(None, split.inputs[1:]))


def _is_elementwise(node: Node) -> bool:
    return node.op_type in _ELEMENTWISE and not node.domain


def _pass_identities(value: str, graph: Graph) -> str:
    while (producer := graph.find_producer(value)) is not None and producer.op_type in ("Dropout", "Identity"):
        value = producer.inputs[0]
    return value


def _pass_over(value: str, graph: Graph) -> Node | None:
    return graph.find_producer(_pass_identities(value, graph))


def _raises_rank(node: Node, graph: Graph) -> bool:
    """Says whether a constant operand has more dimensions than the computed operand, all of size 1."""
    for index, value in enumerate(node.inputs[:2]):
        constant, other = graph.initializers.get(value), find_shape(node, graph, 1 - index)
        if constant is not None and other is not None and node.inputs[1 - index] not in graph.initializers:
            more = len(constant.shape) - len(other)
            if more > 0 and all(size == 1 for size in constant.shape[:more]):
                return True
    return False


def _sums_lone_label(node: Node, graph: Graph) -> bool:
    terms, _, result = str(node.attributes.get("equation", "")).replace(" ", "").partition("->")
    return any(
        letter.isalpha() and letter not in result and sum(letter in term for term in terms.split(",")) == 1 for letter in terms
    )


def _reads_computed_constant(node: Node, graph: Graph) -> bool:
    """Says whether nodes compute an input from constants and sizes alone."""
    for value in filter(graph.find_producer, node.inputs):
        producers = walk_producers(value, graph, lambda producer: producer.op_type not in ("Shape", "Size"))
        reads = {read for producer in producers if producer.op_type not in ("Shape", "Size") for read in producer.reads}
        if all(read in graph.initializers or graph.find_producer(read) is not None for read in reads):
            return True
    return False


def _shifts_reduced_integers(node: Node, graph: Graph) -> bool:
    """Says whether integers behind a reduction to several elements are scaled or shifted, a step that the engine fuses into it."""
    shape = getattr(graph.type_of(node.outputs[0]), "shape", None)
    if (shape is not None and all(size == 1 for size in shape)) or not _has_integers(node.outputs[0], graph):
        return False
    producers = [
        producer for value in node.inputs for producer in walk_producers(value, graph, lambda each: each.op_type in _SHIFTED)
    ]
    return any(producer.op_type.startswith("Reduce") and _has_integers(producer.inputs[0], graph) for producer in producers)


def _has_integers(value: str, graph: Graph) -> bool:
    return str(dtype_of_value(value, graph)).startswith(("int", "uint"))


def _may_miss_pixels(node: Node, graph: Graph) -> bool:
    factors = list_nearest_factors(node, graph)
    is_old = node.op_type == "Upsample" or node.since_version == 10
    coordinates = node.attributes.get("coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel")
    is_aligned = coordinates not in ("asymmetric", "half_pixel", "pytorch_half_pixel")
    return any(factor is None or (factor != 1 and (is_aligned or not is_exact_factor(factor))) for factor in factors)


def _strides_last_axis_alone(node: Node, graph: Graph) -> bool:
    strides, filters = node.attributes.get("strides", ()), find_shape(node, graph, 1)
    has_one_channel = node.attributes.get("group", 1) == 1 and (filters is None or filters[1] == 1)
    return has_one_channel and strides[-2:-1] == (1,) and strides[-1] != 1


def _loses_strides(node: Node, graph: Graph) -> bool:
    """Says whether filters of one element have strides, and pads or, behind elementwise nodes, an operation with several outputs."""
    filters = find_shape(node, graph, 3 if node.op_type == "QLinearConv" else 1)
    has_one_element = filters is None or all(size == 1 for size in filters[2:])
    if not has_one_element or all(stride == 1 for stride in node.attributes.get("strides", ())):
        return False
    producers = walk_producers(node.inputs[0], graph, _is_elementwise)
    # All but the first stand behind an elementwise node.
    return any(node.attributes.get("pads", ())) or any(
        producer.op_type in _SEVERAL_OUTPUTS or len(producer.outputs) > 1 for producer in islice(producers, 1, None)
    )


def _is_fused_by_channels(node: Node, graph: Graph) -> bool:
    """Says whether a node with a number for each channel stands behind a product of matrices: the engine fuses both.

    It takes the last axis of the product for the channel axis: if sizes differ it does not compile, else values are wrong.
    """
    is_normalization = node.op_type == "BatchNormalization"
    sources = node.inputs[:1] if is_normalization else [name for name in node.inputs if not _is_per_channel(name, graph)]
    shapes = {value: getattr(graph.type_of(value), "shape", None) for value in sources}
    return (is_normalization or len(sources) < len(node.inputs)) and any(
        producer.op_type in ("Gemm", "MatMul")
        for value, shape in shapes.items()
        if shape is None or len(shape) >= 4
        for producer in walk_producers(value, graph, _is_elementwise)
    )


def _is_per_channel(value: str, graph: Graph) -> bool:
    """Says whether a value varies only along the channels of a value of at least four dimensions."""
    sizes = getattr(graph.type_of(value), "shape", None) or ()
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    return len(axes) == 1 and len(sizes) - axes[0] > 2


def _loses_rounding(node: Node, graph: Graph) -> bool:
    """Says whether a cast from float16 reads the result of a cast to float16, which the engine holds in float32, unrounded."""
    if dtype_of_input(node, graph) != "float16" or dtype_of_value(node.outputs[0], graph) == "float16":
        return False
    producers = walk_producers(node.inputs[0], graph, lambda producer: producer.op_type in _SELECTING)
    return any(producer.op_type in _CASTS and dtype_of_input(producer, graph) not in _EXACT for producer in producers)


def _rounds_to_bfloat16(node: Node, graph: Graph) -> bool:
    before = dtype_of_input(node, graph)
    return dtype_of_value(node.outputs[0], graph) == "bfloat16" and before != "bfloat16" and "float" in (before or "float")


def _activates_directions(node: Node, graph: Graph) -> bool:
    activations = node.attributes.get("activations", ())
    half = len(activations) // 2
    return node.attributes.get("direction") == "bidirectional" and activations[:half] != activations[half:]


def _differs_beside_axis(node: Node, graph: Graph) -> bool:
    shape, indices, axis = find_shape(node, graph), find_shape(node, graph, 1), node.attributes.get("axis", 0)
    if not shape or indices is None or len(shape) != len(indices):
        return True
    beside = [pair for index, pair in enumerate(zip(shape, indices, strict=True)) if index != axis % len(shape)]
    return not all(size is not None and size == other for size, other in beside)


def _divides_by_zero(node: Node, graph: Graph) -> bool:
    divisor = find_constant(node.inputs[1], graph) if len(node.inputs) == 2 else None
    return divisor is not None and divisor.dtype.kind in "iu" and bool(np.isin(divisor, (0, -1)).any())


def _has_unfit_slopes(node: Node, graph: Graph) -> bool:
    shape, slopes = find_shape(node, graph), find_shape(node, graph, 1)
    if slopes is None or (len(slopes) == 1 and slopes != (1,) and (shape is None or len(shape) > 2)):
        return True
    pairs = zip(reversed(slopes), reversed(shape or ()), strict=False)
    return shape is not None and (len(slopes) > len(shape) or not all(slope in (1, size) for slope, size in pairs))


def _selects_too_many(node: Node, graph: Graph) -> bool:
    constant = find_constant(node.inputs[1], graph) if has_input(node, 1) else None
    count = node.attributes.get("k", 1) if constant is None else int(constant.reshape(-1)[0])
    size = (find_shape(node, graph) or (None,) * 8)[node.attributes.get("axis", -1)]
    return bool(count < 1 or (isinstance(size, int) and count > size))


def _has_unfit_window(node: Node, graph: Graph) -> bool:
    if "kernel_shape" not in node.attributes or (node.op_type != "LpPool" and not node.attributes.get("ceil_mode", 0)):
        return False
    shape, rank = find_shape(node, graph), len(node.attributes["kernel_shape"])
    fits = all(len(node.attributes.get(name, (1,) * rank)) == rank for name in ("strides", "dilations"))
    fits = fits and len(node.attributes.get("pads", (0,) * (2 * rank))) == 2 * rank
    return not fits or (shape is not None and len(shape) != rank + 2)


def _begins_behind_end(node: Node, graph: Graph) -> bool:
    """Says whether a window may begin behind the end of the input: it reaches less far than a stride and the padding."""
    if not node.attributes.get("ceil_mode", 0) or _has_unfit_window(node, graph):
        return False
    kernel = node.attributes["kernel_shape"]
    ones, rank = (1,) * len(kernel), len(kernel)
    strides, dilations = (node.attributes.get(name, ones) for name in ("strides", "dilations"))
    ends = node.attributes.get("pads", (0,) * (2 * rank))[rank:]
    return any(
        stride + end > (size - 1) * dilation + 1
        for size, stride, dilation, end in zip(kernel, strides, dilations, ends, strict=True)
    )


def _spreads_pixel(node: Node, graph: Graph) -> bool:
    """Says whether a pooled image of a single pixel is repeated and has a second reader: the engine puts its channels last."""
    shape, result = find_shape(node, graph), getattr(graph.type_of(node.outputs[0]), "shape", None)
    is_pixel = shape is not None and len(shape) >= 4 and all(size == 1 for size in shape[2:])
    is_spread = result is None or any(size != 1 for size in result[2:])
    has_readers = len(set(graph.index_of_consumers.get(node.inputs[0], ()))) > 1
    is_repeated = node.op_type != "Concat" or len(set(node.inputs)) == 1
    return is_pixel and is_spread and has_readers and is_repeated and follows("AveragePool", "MaxPool")(node, graph)


def _has_open_branches(node: Node, graph: Graph) -> bool:
    is_chosen = node.inputs[0] in graph.initializers
    return not is_chosen and any(sizes_of(graph.type_of(name)) is None for name in node.outputs if name)


_row = partial(state_error, versions="2026.4")
_SATURATING = "OpenVINO adds up pairs of 8-bit products in 16 bits on this processor, which saturate"
_TO_CODES = " ".join((*QUANTIZING, *(f"{MICROSOFT}.{name}" for name in QUANTIZING)))
_SUMMING = " ".join((*REDUCTIONS, "CumSum", "GlobalAveragePool", "GroupNormalization", "InstanceNormalization"))
_SUMMING += " LayerNormalization MeanVarianceNormalization RMSNormalization"
_RIGHT_CONTRIB = (
    "BiasGelu DequantizeLinear DynamicQuantizeLinear EmbedLayerNormalization FastGelu FusedConv FusedMatMul GatherBlockQuantized Gelu "
    "MatMulIntegerToFloat MatMulNBits MultiHeadAttention Pad QuantizeLinear QuickGelu Range SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization"
)
"""Operators of com.microsoft without a wrong case among 40 that the conformance kit draws, or with a row."""

# fmt: off
ROWS = (
    _row("attention_window", "Attention",
         lambda node, graph: any(node.attributes.get(f"{side}_window_size", -1) != -1 for side in ("left", "right")),
         "OpenVINO ignores left_window_size and right_window_size of Attention", "attention_local_window"),
    _row("attention_causal_past", "Attention", both(differs("is_causal", 0), reads(4)),
         "OpenVINO counts the positions of causal Attention from the first query, not from the end of past_key",
         "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal"),
    _row("attention_of_no_keys", "Attention", both(reads(6), has_dtype("bfloat16", None)),
         "OpenVINO attends to padded keys in bfloat16 if no key is left", "attention_4d_causal_padded_kv_bf16"),
    _row("bernoulli", "Bernoulli", always, "OpenVINO draws 1 of Bernoulli with the probability of 0, and 0 with that of 1",
         source="bernoulli_seed"),
    _row("cast_to_bfloat16", "Cast CastLike", _rounds_to_bfloat16, "OpenVINO does not round floats to the nearest bfloat16",
         "cast_FLOAT_to_BFLOAT16"),
    _row("cast_twice", "Cast CastLike", _loses_rounding,
         "OpenVINO does not round what is cast to float16, as it computes float16 in float32 within a network"),
    _row("dft", "DFT", always,
         "OpenVINO ignores the axis of DFT, shapes one-sided transforms wrongly, and may end the process if the length is 0", "dft_axis"),
    _row("recurrent_layout", " ".join(RECURRENT), differs("layout", 0), "OpenVINO ignores the layout of {node.op_type}",
         "gru_batchwise"),
    _row("lstm_peepholes", "LSTM", reads(7), "OpenVINO ignores the peepholes of LSTM", "lstm_with_peepholes"),
    _row("lstm_input_forget", "LSTM", differs("input_forget", 0), "OpenVINO ignores input_forget of LSTM"),
    _row("recurrent_activations", " ".join(RECURRENT), _activates_directions,
         "OpenVINO computes both directions of {node.op_type} with the activations of the first"),
    _row("recurrent_lengths", " ".join(RECURRENT), both(reads(4), is_open(0, slice(2))),
         "OpenVINO ignores the lengths of the sequences of {node.op_type} if length or batch is open"),
    _row("recurrent_states", " ".join(RECURRENT),
         both(may_hold(4, lambda lengths: lengths == 0), lambda node, graph: has_input(node, 5) or has_input(node, 6)),
         "OpenVINO may return zeros for the initial states of sequences of length 0 of {node.op_type}"),
    _row("recurrent_shared_input", " ".join(RECURRENT), _shares_turned_input,
         "OpenVINO reorders what a recurrent node of one direction reads, and another node or an output has the same numbers, transposed"),
    _row("zero_factor", "HardSigmoid Selu", lambda node, graph: 0 in map(node.attributes.get, ("alpha", "beta", "gamma")),
         "OpenVINO takes the default of {node.op_type} for a factor of 0"),
    _row("lrn_bias", "LRN", lambda node, graph: not float(node.attributes.get("bias", 1.0)).is_integer(),
         "OpenVINO cuts the fraction of the bias of LRN off"),
    _row("mean_variance_before_9", "MeanVarianceNormalization", lambda node, graph: not node.since_version,
         "OpenVINO averages other axes in MeanVarianceNormalization before opset 9 than ONNX Runtime"),
    _row("multinomial", "Multinomial", always, "OpenVINO draws the same numbers of Multinomial in every run"),
    _row("random_normal", "RandomNormal RandomNormalLike", lambda node, graph: float(node.attributes.get("seed", 0.0)) == 0.0,
         "OpenVINO draws {node.op_type} without a seed from two generators that are alike, so that the numbers are not normal"),
    _row("range_stash_type", "Range", both(differs("stash_type", 1), has_dtype("bfloat16", "float16")),
         "OpenVINO ignores stash_type of Range"),
    _row("reduction_axes", "ReduceL1 ReduceLogSum ReduceLogSumExp", differs("axes", None),
         "OpenVINO ignores the attribute axes of {node.op_type}, and reduces all axes"),
    _row("reduction_without_axes", "ReduceL1 ReduceL2 ReduceLogSum", both(differs("noop_with_empty_axes", 0), may_be_empty(1)),
         "OpenVINO makes no absolute value and no logarithm of {node.op_type} without axes"),
    _row("resize_attributes", "Resize",
         lambda node, graph: bool(node.attributes.get("antialias", 0))
         or node.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
         or (bool(node.attributes.get("exclude_outside", 0)) and node.attributes.get("mode") == "cubic"),
         "OpenVINO ignores antialias, exclude_outside and keep_aspect_ratio_policy of Resize",
         "resize_downsample_scales_linear_antialias"),
    _row("resize_aligned", "Resize", rounds_aligned_size,
         "OpenVINO scales by the rounded size under align_corners, not by the scales",
         "resize_downsample_scales_cubic_align_corners"),
    _row("roialign_max", "RoiAlign", differs("mode", "avg"),
         "OpenVINO's RoiAlign of mode max interpolates after it takes the maximum", "roialign_mode_max"),
    _row("roialign_coordinates", "RoiAlign", is_open(1, slice(1, 2)),
         "OpenVINO fails to load RoiAlign with boxes of an open number of coordinates"),
    _row("softmax_11", "Softmax", both(flattens_axes, lambda node, graph: node.since_version == 11),
         "OpenVINO computes Softmax-11 along one axis; the standard flattens all from that axis on"),
    _row("spacetodepth_crd", "SpaceToDepth", differs("mode", "DCR"), "OpenVINO ignores the mode of SpaceToDepth",
         "spacetodepth_crd_mode_example"),
    _row("squeeze_of_no_axes", "Squeeze", may_have_empty_axes, EMPTY_AXES),
    _row("col2im_sizes", "Col2Im", computes_input(1, 2), "OpenVINO may end the process on Col2Im whose sizes come with the run"),
    _row("division_by_zero", "Div Mod", _divides_by_zero,
         "OpenVINO ends the process if it folds {node.op_type} of integers by 0, or of the least one by -1"),
    _row("gather_elements_beside", "GatherElements", _differs_beside_axis,
         "OpenVINO's GatherElements takes no indices with other sizes than the data beside the axis, and these may differ"),
    _row("pool_of_unfit_window", "AveragePool LpPool MaxPool", _has_unfit_window,
         "strides, dilations, pads and the input of {node.op_type} have other numbers of dimensions than its kernel"),
    _row("average_behind_padding", "AveragePool",
         lambda node, graph: all(map(node.attributes.get, ("ceil_mode", "count_include_pad"))) and any(node.attributes.get("pads", ())),
         "OpenVINO counts elements behind the padding, under ceil_mode and count_include_pad"),
    _row("max_pool_indices", "MaxPool", both(differs("storage_order", 0), lambda node, graph: len(node.outputs) > 1),
         "OpenVINO returns the indices of MaxPool in another order and shape if storage_order is 1"),
    _row("max_pool_behind_end", "MaxPool", _begins_behind_end,
         "OpenVINO counts a window that begins behind the end of the input, under ceil_mode",
         "maxpool_2d_ceil_output_size_reduce_by_one"),
    _row("prelu_slopes", "PRelu", _has_unfit_slopes,
         "OpenVINO takes slopes of one dimension for those of the channels, and may end the process on slopes that do not broadcast"),
    _row("top_k", "TopK", _selects_too_many,
         "OpenVINO fails to load a TopK of no elements, and may end the process on one of more elements than there are"),
    _row("unique", "Unique", always,
         "OpenVINO fails at Unique of no elements or along an axis that the input lacks, or ends the process"),
    _row("spread_pixel", "Concat Expand Tile", _spreads_pixel,
         "OpenVINO's {node.op_type} of images of one pixel that another node reads is wrong if channels are last"),
    _row("group_of_parts", "Concat", _groups_parts,
         "OpenVINO makes one convolution with groups of what this Concat reads, and not always the right one"),
    _row("conv_strides_last_axis", "Conv", _strides_last_axis_alone,
         "OpenVINO is wrong about a Conv of one channel whose last axis alone has a stride, and ends with one position"),
    _row("conv_lost_strides", "Conv ConvInteger QLinearConv", _loses_strides,
         "OpenVINO moves the strides of {node.op_type} to the node before it, and loses them beside pads or behind several outputs"),
    _row("words_to_halves", "DequantizeLinear",
         both(has_dtype("int16", "uint16", "int32"), lambda node, graph: dtype_of_input(node, graph, 1) == "float16"),
         "OpenVINO dequantizes integers of 16 and 32 bits in float16 if their scale is of it, and makes them infinite"),
    _row("flatten_of_nothing", "Flatten",
         both(may_be_empty(), lambda node, graph: node.attributes.get("axis", 1) not in (0, 1)),
         "OpenVINO gives a Flatten of no elements another shape, and there may be none here"),
    _row("groups_of_bits", "com.microsoft.MatMulNBits", reads(4), "OpenVINO may end the process on MatMulNBits with g_idx"),
    _row("transposed_open_same", "ConvTranspose",
         both(is_open(), lambda node, graph: str(node.attributes.get("auto_pad")).startswith("SAME")),
         "OpenVINO cuts nothing off a ConvTranspose with auto_pad SAME if a size of its input is open"),
    _row("transposed_output_shape", "ConvTranspose",
         both(differs("output_shape", None),
              lambda node, graph: node.attributes.get("auto_pad", "NOTSET") != "NOTSET" or node.attributes.get("group", 1) != 1),
         "OpenVINO places the results of ConvTranspose wrongly if output_shape is given with groups or auto_pad"),
    _row("fused_by_channels", " ".join(("BatchNormalization", *sorted(_FUSED_PAIRS))), _is_fused_by_channels,
         "OpenVINO fuses {node.op_type} by channels into the product before it, along its last axis"),
    _row("constant_of_more_dimensions", _BINARY, _raises_rank,
         "OpenVINO folds a constant of more dimensions into the node before {node.op_type}, and loses them"),
    _row("einsum_of_lone_label", "Einsum", _sums_lone_label,
         "OpenVINO loses a Reshape or Transpose before an Einsum that sums over a label of one operand alone"),
    _row("einsum_of_computed_constant", "Einsum", _reads_computed_constant,
         "OpenVINO loses the Transpose of an operand of Einsum that it computes from constants, by GatherElements for one"),
    _row("reduced_integers", "Add Div Mul Neg Sub", _shifts_reduced_integers,
         "OpenVINO leaves the last results unwritten where it fuses {node.op_type} into a reduction of integers"),
    _row("normalizer_of_magnitudes", "ai.onnx.ml.Normalizer", lambda node, graph: node.attributes.get("norm", "MAX") == "MAX",
         "OpenVINO divides by the greatest magnitude of a row, not by its greatest element"),
    _row("if_of_open_sizes", "If", _has_open_branches, "OpenVINO lets other values overwrite what an If with open sizes returns"),
    _row("lp_normalization", "LpNormalization", always, "OpenVINO adds to the norm that LpNormalization divides by"),
    _row("round_of_quotient", "Round", follows("Div"),
         "OpenVINO divides by a multiplication, so that a quotient may be on the other side of a half",
         "dynamicquantizelinear_expanded"),
    _row("dropped_infinities", "Shrink ThresholdedRelu", always,
         "OpenVINO multiplies by 0 what it drops, so that infinities become NaN"),
    _row("tile_of_open_repeats", "Tile", computes_input(1), "OpenVINO returns what it has not written if repeats are no constant",
         "tile"),
    _row("contrib_attention_masks", "com.microsoft.MultiHeadAttention", both(differs("unidirectional", 0), reads(4)),
         "OpenVINO differs in rows of unidirectional MultiHeadAttention of which the mask of padded keys leaves none"),
    _row("contrib_product_of_batches", "com.microsoft.FusedMatMul",
         lambda node, graph: any(map(node.attributes.get, ("transBatchA", "transBatchB"))),
         "OpenVINO ignores transBatchA and transBatchB of FusedMatMul"),
    _row("fixed_size_0", "*", _has_fixed_zero,
         "OpenVINO gives several operators another shape, fails to load them or ends the process if a fixed size is 0"),
    _row("loop_of_constants", "Loop", _is_long_when_compiled,
         f"OpenVINO runs a Loop of constants when it compiles, here with more than {MOST_ITERATIONS} iterations"),
    _row("loop_without_iterations", "Loop",
         lambda node, graph: any(may_hold(index, lambda value: value < 1)(node, graph) for index in (0, 1)),
         "OpenVINO returns results of an earlier run from a Loop without iterations, and never returns from one with a negative number",
         "openvino#37247"),
    _row("scan_of_nothing", "Scan", lambda node, graph: any(is_open(index)(node, graph) for index in range(len(node.inputs))),
         "OpenVINO fails at Scan of length 0, and the length may be 0"),
    _row("hardmax_of_open_sizes", "Hardmax", is_open(),
         "OpenVINO loses the shape of a Hardmax of no elements, and sizes are open"),
    _row("nearest_pixel", "Resize Upsample", _may_miss_pixels,
         "OpenVINO computes the nearest pixel in float32 and may take another one", "onnxruntime#28291"),
    _row("deep_product", "Gemm MatMul",
         lambda node, graph: isinstance(depth := _find_depth(node, graph), int) and depth > DEEPEST_PRODUCT,
         "OpenVINO adds up too many products in float32 for {node.op_type}, which loses 0.1 % and more"),
    _row("long_sum", _SUMMING, _is_long_sum,
         "OpenVINO adds up too many numbers in float32 for {node.op_type}, which loses 0.1 % and more"),
)
# fmt: on

# fmt: off
HALF_ROWS = (
    _row("between_codes", f"QLinearConv QLinearMatMul {_TO_CODES}", always,
         "OpenVINO may round a product between two codes to the odd one, and multiplies by the reciprocal of a scale, so that a quotient "
         "may be on the other side of a half; OPENVINO_QUANTIZED=YES takes it all the same",
         "quantizelinear_uint16"),
)
# fmt: on
"""The row of results that are off by a step of the quantization."""

# fmt: off
QUANTIZED_ROWS = (
    _row("saturating_products", "QLinearConv QLinearMatMul",
         lambda node, graph: _are_large(graph.initializers.get(node.inputs[3])), _SATURATING, probe=saturates_bytes),
    _row("saturating_pairs", " ".join(PRODUCTS), _may_saturate_pairs, _SATURATING, probe=saturates_bytes),
    _row("scales_of_channels", "QLinearConv", lambda node, graph: find_shape(node, graph, 4) not in ((), (1,)),
         "OpenVINO multiplies filters by the scales of QLinearConv along the input channels"),
    _row("quantized_pair", _TO_CODES,
         lambda node, graph: getattr(_pass_over(node.inputs[0], graph), "op_type", "") == "DequantizeLinear",
         "OpenVINO may end the process on a QuantizeLinear of what was dequantized"),
    _row("quantized_to_words", _TO_CODES, lambda node, graph: dtype_of_value(node.outputs[0], graph) in ("int16", "uint16"),
         "OpenVINO does not saturate what it quantizes to 16 bits"),
)
# fmt: on
"""Rows that OPENVINO_QUANTIZED does not lift."""

_check_rows, _check_halves, _check_quantized = tabulate(ROWS), tabulate(HALF_ROWS), tabulate(QUANTIZED_ROWS)
