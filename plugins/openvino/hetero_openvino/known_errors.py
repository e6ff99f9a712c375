"""The known errors of OpenVINO: nodes that it computes wrongly, fails at in a run or ends the process at. The query refuses them.

Each row was found on OpenVINO 2026.4 by a case of ONNX's own backend suite, which it names, by a report, or by a drawn comparison with
NumPy. It goes when a newer engine is right. `arithmetic`: errors by the magnitude of integers; `corrections`: rewrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from math import ceil, prod

import numpy as np

from hetero_core.engines.inspection import (
    MOVING,
    dtype_of_input,
    dtype_of_value,
    find_constant,
    find_reduced_axes,
    find_shape,
    has_input,
    list_nearest_factors,
    walk_producers,
)
from hetero_core.engines.known_errors import (
    EMPTY_AXES,
    always,
    both,
    computes_input,
    differs,
    equals,
    find_error,
    flattens_axes,
    follows,
    has_dtype,
    is_empty,
    is_open,
    may_be_empty,
    may_have_empty_axes,
    reads,
    rounds_aligned_size,
    state_error,
    tabulate,
)
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType
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
        if takes_quantized and node.op_type in QUANTIZING:
            return _check_quantized(node, graph)
        if node.domain == MICROSOFT and node.op_type not in RIGHT_CONTRIB:
            return f"OpenVINO's {node.op_type} of {MICROSOFT} was not found right"
        own = (_check_quantized if takes_quantized else _check_halves, _check_rows)
        checks = own if node.domain else (*own, find_arithmetic_error)
        return next((reason for each in checks if (reason := each(node, graph)) is not None), None)

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


def _may_transform_nothing(node: Node, graph: Graph) -> bool:
    if may_be_empty()(node, graph):
        return True
    length = find_constant(node.inputs[1], graph) if has_input(node, 1) else np.ones(1)
    return length is None or int(length.reshape(-1)[0]) <= 0


def _is_long_when_compiled(node: Node, graph: Graph) -> bool:
    """Says whether a Loop reads constants alone, so that the engine runs it when it compiles, and has many iterations or no limit."""
    count = graph.initializers.get(node.inputs[0])
    is_long = count is None or count.array.size != 1 or int(count.array.reshape(-1)[0]) > MOST_ITERATIONS
    return is_long and all(find_constant(name, graph) is not None for name in node.reads)


def _may_not_run(node: Node, graph: Graph) -> bool:
    for position, least in ((0, 1), (1, True)):
        if has_input(node, position):
            value = find_constant(node.inputs[position], graph)
            if value is None or value.size != 1 or value.reshape(-1)[0] < least:
                return True
    return False


def _may_scan_nothing(node: Node, graph: Graph) -> bool:
    count = node.attributes.get("num_scan_inputs", 1)
    first = len(node.inputs) - count
    axes = node.attributes.get("scan_input_axes", (0,) * count)
    sizes = [(find_shape(node, graph, first + index) or (None,) * 8)[axis] for index, axis in enumerate(axes)]
    return not all(isinstance(size, int) and size > 0 for size in sizes)


def _has_fixed_zero(node: Node, graph: Graph) -> bool:
    """Says whether a value has an axis of length 0 beside other axes; alone, it is a list of nothing, as of axes or scales."""
    shapes = [getattr(graph.type_of(name), "shape", None) or () for name in (*node.reads, *node.writes)]
    return any(0 in shape and len(shape) > 1 for shape in shapes)


def _find_depth(node: Node, graph: Graph) -> int | str | None:
    shape = find_shape(node, graph)
    if not shape:
        return None
    return shape[0] if node.op_type == "Gemm" and node.attributes.get("transA", 0) else shape[-1]


def _may_halve(node: Node, graph: Graph) -> bool:
    """Says whether a product may lie exactly between two codes: of scales that are all near powers of two."""
    scales = [graph.initializers.get(node.inputs[index]) for index in (1, 4, 6)]
    if any(scale is None for scale in scales):
        return True
    if any(scale.array.size != 1 for scale in scales if scale is not None):
        return False  # refused for another reason
    first, second, result = (Fraction(float(scale.array.reshape(-1)[0])) for scale in scales if scale is not None)
    step = first * second / result if result else Fraction(0)
    weights = graph.initializers.get(node.inputs[3])
    largest = 2**31 if weights is None else weights.array.size * 255 * 128
    return step.denominator % 2 == 0 and step.denominator <= 2 * largest


def _may_saturate_pairs(node: Node, graph: Graph) -> bool:
    """Says whether a product reads dequantized numbers on both sides, and may saturate as 8-bit products do."""
    for index in (0, 1):
        producers = list(
            walk_producers(node.inputs[index], graph, lambda producer: producer.op_type not in (*PRODUCTS, "DequantizeLinear"))
        )
        if not any(producer.op_type == "DequantizeLinear" for producer in producers):
            return False
        codes = [producer.inputs[0] for producer in producers if producer.op_type == "DequantizeLinear"]
    return any(_are_large(graph.initializers.get(code)) for code in codes)


def _are_large(weights: Initializer | None) -> bool:
    if weights is None or weights.dtype != "int8":
        return True
    return bool(weights.array.size) and (int(weights.array.min()) < -64 or int(weights.array.max()) > 64)


def _list_summed(node: Node, graph: Graph) -> tuple[list[int | str | None], bool] | None:
    """Returns the summed sizes of a node, and whether it adds in sequence; None if it is no sum or its axes are unknown."""
    shape = find_shape(node, graph)
    if node.domain or not shape:
        return None
    rank = len(shape)
    first_axis = {"GlobalAveragePool": 2, "GroupNormalization": 1, "InstanceNormalization": 2}.get(node.op_type)
    if node.op_type in REDUCTIONS:
        axes = find_reduced_axes(node, graph)
        if axes is None:
            return None
    elif node.op_type == "CumSum":
        constant = find_constant(node.inputs[1], graph)
        return [shape[axis] for axis in (range(rank) if constant is None else constant.reshape(-1).tolist())], True
    elif node.op_type == "MeanVarianceNormalization":
        axes = [axis % rank for axis in node.attributes.get("axes", (0, 2, 3))]
    elif node.op_type in ("LayerNormalization", "RMSNormalization"):
        axes = list(range(node.attributes.get("axis", -1) % rank, rank))
    elif first_axis is not None:
        axes = list(range(first_axis, rank))
    else:
        return None
    return [shape[axis] for axis in axes], rank - 1 not in axes or rank == 1


def _is_long_sum(node: Node, graph: Graph) -> bool:
    summed = _list_summed(node, graph)
    if summed is None:
        return False
    sizes, is_chain = summed
    return prod(size for size in sizes if isinstance(size, int)) > (LONGEST_CHAIN if is_chain else LONGEST_SUM)


@cache
def saturates_bytes(operator: str) -> bool:
    """Says whether the engine saturates sums of 8-bit products on this processor: 64 times 255 x 127 is 2,072,640."""
    import onnx.parser  # heavy, and loaded already with the network

    sizes = {"QLinearMatMul": ("2,64", "64,16"), "QLinearConv": ("1,64,3,3", "16,64,1,1")}[operator]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (uint8[{sizes[0]}] a) => (y) '
        f"<float s = {{1}}, float t = {{8192}}, uint8 z = {{0}}, int8 o = {{0}}> {{ y = {operator}(a, s, z, b, s, o, t, z) }}"
    )
    shapes = [[int(size) for size in text.split(",")] for text in sizes]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(shapes[1], 127, np.int8), "b"))
    core = import_own_names().Core()
    answer = core.compile_model(core.read_model(model.SerializeToString()), "CPU")([np.full(shapes[0], 255, np.uint8)])[0]
    return bool((answer != round(64 * 255 * 127 / 8192)).any())


@dataclass(frozen=True)
class SizeLimit:
    """Bounds of a product of sizes of inputs, each an index of an input and an axis; `factor` is the known part of the product."""

    places: tuple[tuple[int, int], ...]
    factor: int
    least: int
    most: int | None
    reason: str


def list_size_limits(network: Network) -> list[SizeLimit]:
    """Returns the limits of open sizes of inputs within which products and sums over them are right."""
    place_of_size: dict[str, tuple[int, int]] = {}
    for index, spec in enumerate(network.inputs):
        for axis, size in enumerate(spec.shape if spec.shape is not None else ()):
            if isinstance(size, str):
                place_of_size.setdefault(size, (index, axis))
    limits: dict[SizeLimit, None] = {}
    for node in network.nodes:
        if node.domain:
            continue
        if node.op_type in ("Gemm", "MatMul") and (depth := _find_depth(node, network)) in place_of_size:
            limits[SizeLimit((place_of_size[str(depth)],), 1, 1, None, "OpenVINO is wrong about products over no elements")] = None
        summed, is_chain = _list_summed(node, network) or ([], False)
        places = tuple(place_of_size[size] for size in summed if isinstance(size, str) and size in place_of_size)
        if places:
            factor = prod(size for size in summed if isinstance(size, int))
            most = LONGEST_CHAIN if is_chain else LONGEST_SUM
            reason = f"OpenVINO loses 0.1 % and more where it adds up more than {most} numbers in float32"
            limits[SizeLimit(places, factor, 0, most, reason)] = None
    return list(limits)


_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def joins_views(network: Network) -> bool:
    """Says whether a Concat of open sizes reads an input of the network by way of another shape, as torch.stack of inputs does.

    Runs of several threads at once then may return memory that the engine has not written. Seen with OpenVINO 2026.4.1.
    """

    def views_input(value: str) -> bool:
        node = network.find_producer(value)
        if node is None or node.domain or node.op_type not in _VIEWS:
            return False
        return node.inputs[0] in network.index_of_input or views_input(node.inputs[0])

    return any(
        node.op_type == "Concat"
        and not all(isinstance(size, int) for size in find_shape(node, network) or (None,))
        and any(map(views_input, node.inputs))
        for node in network.nodes
    )


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
    order: tuple[int, ...] = (0, 1, 2)
    is_shared = False
    while True:
        others = [other for index in graph.index_of_consumers.get(value, ()) if (other := graph.nodes[index]) is not reader]
        is_read_turned = order == _TURN and (bool(others) or value in graph.names_of_outputs)
        is_shared = is_shared or is_read_turned or any(other.op_type in (*_PASSING, *RECURRENT) for other in others)
        producer = graph.find_producer(value)
        if producer is None or producer.op_type not in _PASSING:
            break
        if producer.op_type == "Transpose":
            perm = producer.attributes.get("perm", (2, 1, 0))
            order = tuple(perm[axis] for axis in order)
        value, reader = producer.inputs[0], producer
    return is_shared and order != _TURN


_FUSED_PAIRS = frozenset({"Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum"})
_BINARY = "Add Div Max Min Mod Mul Pow Sub"
_ELEMENTWISE = _FUSED_PAIRS | frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Ceil", "Clip", "Cos", "Cosh", "Dropout"),
        *("Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mean", "Mish", "Mod"),
        *("Neg", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign"),
        *("Sqrt", "Swish", "Tan", "Tanh"),
    }
)
"""Operators that the engine fuses into the node before them, and through which it moves strides."""
_SEVERAL_OUTPUTS = frozenset({"Split", "SplitToSequence", "TopK", "Unique"})
"""Operators that have several outputs in the engine, whether or not the node names them all."""
_LEAST_RANK = 4
"""The least rank of values that the engine may store with channels last."""
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


def _comes_from_product(value: str, graph: Graph) -> bool:
    """Says whether a value is a product of matrices, or computed from a product element by element."""
    producers = walk_producers(value, graph, lambda node: node.op_type in _ELEMENTWISE and not node.domain)
    return any(node.op_type in ("Gemm", "MatMul") for node in producers)


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


def _has_slopes_of_last_axis(node: Node, graph: Graph) -> bool:
    shape, slopes = find_shape(node, graph), find_shape(node, graph, 1)
    return slopes is None or (len(slopes) == 1 and slopes != (1,) and (shape is None or len(shape) > 2))


def _sums_lone_label(node: Node, graph: Graph) -> bool:
    terms, _, result = str(node.attributes.get("equation", "")).replace(" ", "").partition("->")
    labels = terms.split(",")
    return any(
        letter.isalpha() and letter not in "".join((*labels[:index], *labels[index + 1 :], result))
        for index, term in enumerate(labels)
        for letter in term
    )


def _is_computed_constant(value: str, graph: Graph) -> bool:
    """Says whether nodes compute a value from constants and sizes alone."""

    def reads_size(producer: Node) -> bool:
        return producer.op_type in ("Shape", "Size")

    producers = walk_producers(value, graph, lambda producer: not reads_size(producer))
    return graph.find_producer(value) is not None and all(
        reads_size(producer) or all(read in graph.initializers or graph.find_producer(read) is not None for read in producer.reads)
        for producer in producers
    )


def _reads_computed_constant(node: Node, graph: Graph) -> bool:
    return any(_is_computed_constant(value, graph) for value in node.inputs)


def _shifts_reduced_integers(node: Node, graph: Graph) -> bool:
    """Says whether integers behind a reduction are scaled or shifted by constants, a step that the engine fuses into the reduction."""
    shape = getattr(graph.type_of(node.outputs[0]), "shape", None)
    is_single = shape is not None and all(size == 1 for size in shape)
    sources = [value for value in node.inputs if value not in graph.initializers and not _is_computed_constant(value, graph)]
    if is_single or len(sources) != 1 or not _has_integers(sources[0], graph):
        return False
    producers = walk_producers(sources[0], graph, lambda producer: producer.op_type in _SHIFTED)
    return any(producer.op_type.startswith("Reduce") and _has_integers(producer.inputs[0], graph) for producer in producers)


def _has_integers(value: str, graph: Graph) -> bool:
    return str(dtype_of_value(value, graph)).startswith(("int", "uint"))


def _may_miss_pixels(node: Node, graph: Graph) -> bool:
    factors = list_nearest_factors(node, graph)
    is_old = node.op_type == "Upsample" or node.since_version == 10
    coordinates = node.attributes.get("coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel")
    is_aligned = coordinates not in ("asymmetric", "half_pixel", "pytorch_half_pixel")
    return any(factor is None or (factor != 1 and (is_aligned or not _is_plain(factor))) for factor in factors)


def _is_plain(factor: Fraction) -> bool:
    return factor.denominator == 1 or (factor.numerator == 1 and not factor.denominator & (factor.denominator - 1))


def _strides_last_axis_alone(node: Node, graph: Graph) -> bool:
    strides = node.attributes.get("strides", ())
    filters = getattr(graph.type_of(node.inputs[1]), "shape", None)
    is_last = len(strides) > 1 and strides[-2] == 1 and strides[-1] != 1
    if not is_last or node.attributes.get("group", 1) != 1 or (filters is not None and filters[1] != 1):
        return False
    shape = getattr(graph.type_of(node.outputs[0]), "shape", None)
    return shape is None or shape[-1] == 1 or not isinstance(shape[-1], int)


def _may_keep_states(node: Node, graph: Graph) -> bool:
    lengths = find_constant(node.inputs[4], graph)
    return (has_input(node, 5) or has_input(node, 6)) and (lengths is None or bool((lengths == 0).any()))


def _moves_strides(node: Node, graph: Graph) -> bool:
    filters = find_shape(node, graph, 3 if node.op_type == "QLinearConv" else 1)
    has_one_element = filters is None or all(size == 1 for size in filters[2:])
    return has_one_element and any(stride != 1 for stride in node.attributes.get("strides", ()))


def _rounds_bounds(node: Node, graph: Graph) -> bool:
    """Says whether a constant bound of a Clip of integers is no float32."""
    bounds = [find_constant(name, graph) for name in node.inputs[1:] if name]
    wide = [bound for bound in bounds if bound is not None and bound.dtype.kind in "iu"]
    return any(bool((bound.astype(np.float32).astype(np.float64) != bound).any()) for bound in wide)


def _loses_stride(node: Node, graph: Graph) -> bool:
    """Says whether the engine moves the strides of a Conv with filters of a single element up to an operation with several outputs."""
    if not _moves_strides(node, graph):
        return False
    producers = walk_producers(node.inputs[0], graph, lambda producer: not producer.domain and producer.op_type in _ELEMENTWISE)
    # All but the first stand behind an elementwise node.
    return any(producer.op_type in _SEVERAL_OUTPUTS or len(producer.outputs) > 1 for producer in islice(producers, 1, None))


def _misplaces_transposed(node: Node, graph: Graph) -> bool:
    is_plain = node.attributes.get("auto_pad", "NOTSET") == "NOTSET" and node.attributes.get("group", 1) == 1
    return "output_shape" in node.attributes and not is_plain


def _is_fused_by_channels(node: Node, graph: Graph) -> bool:
    """Says whether a node with a number for each channel stands behind a product of matrices: the engine fuses both.

    It takes the last axis of the product for the channel axis: if sizes differ it does not compile, else values are wrong.
    """
    if node.op_type == "BatchNormalization":
        sources = [node.inputs[0]]
    elif node.op_type in _FUSED_PAIRS:
        sources = [value for value in node.inputs if not _is_per_channel(graph.type_of(value))]
        if len(sources) == len(node.inputs):
            return False
    else:
        return False
    shapes = {value: getattr(graph.type_of(value), "shape", None) for value in sources}
    return any(
        (shape is None or len(shape) >= _LEAST_RANK) and _comes_from_product(value, graph) for value, shape in shapes.items()
    )


def _is_per_channel(value_type: object) -> bool:
    """Says whether a value varies only along the channels of a value of at least four dimensions."""
    if not isinstance(value_type, TensorType) or value_type.shape is None:
        return False
    sizes = value_type.shape
    return any(
        sizes[-spatial - 1] != 1 and all(size == 1 for size in (*sizes[: -spatial - 1], *sizes[-spatial:]))
        for spatial in range(_LEAST_RANK - 2, len(sizes))
    )


def _loses_rounding(node: Node, graph: Graph) -> bool:
    """Says whether a cast from float16 reads the result of a cast to float16, which the engine holds in float32, unrounded."""
    if dtype_of_input(node, graph) != "float16" or dtype_of_value(node.outputs[0], graph) == "float16":
        return False
    for producer in walk_producers(node.inputs[0], graph, lambda producer: producer.op_type in _SELECTING):
        if producer.op_type in _CASTS and dtype_of_input(producer, graph) not in _EXACT:
            return True
    return False


def _list_ends(node: Node, graph: Graph) -> Iterator[tuple[int | None, int | None, int]]:
    """Yields for each axis the end of the input behind the padding before it, the elements beyond the first window, and the stride.

    The first two are None if the size is not known.
    """
    shape, kernel = find_shape(node, graph), node.attributes["kernel_shape"]
    rank = len(kernel)
    strides, dilations = (node.attributes.get(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", (0,) * (2 * rank))
    for axis in range(rank):
        size = None if shape is None else shape[axis + 2]
        end = size + pads[axis] if isinstance(size, int) else None
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        yield end, None if end is None else end + pads[axis + rank] - reach, strides[axis]


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
    """Says whether the engine folds a division of integers by 0, or of the least integer by -1."""
    if len(node.inputs) != 2 or node.attributes.get("fmod", 0):
        return False
    dividend, divisor = (find_constant(name, graph) for name in node.inputs)
    if dividend is None or divisor is None or divisor.dtype.kind not in "iu":
        return False
    least = np.iinfo(dividend.dtype).min
    overflows = divisor.dtype.kind == "i" and bool((dividend == least).any()) and bool((divisor == -1).any())
    return overflows or bool((divisor == 0).any())


def _has_unfit_slopes(node: Node, graph: Graph) -> bool:
    shape, slopes = find_shape(node, graph), find_shape(node, graph, 1)
    if shape is None or slopes is None:
        return False
    pairs = zip(reversed(slopes), reversed(shape), strict=False)
    return len(slopes) > len(shape) or not all(slope in (1, size) for slope, size in pairs)


def _selects_too_many(node: Node, graph: Graph) -> bool:
    constant = find_constant(node.inputs[1], graph) if has_input(node, 1) else None
    count = node.attributes.get("k", 0) if constant is None else int(constant.reshape(-1)[0])
    size = (find_shape(node, graph) or (None,) * 8)[node.attributes.get("axis", -1)]
    return isinstance(size, int) and bool(count > size)


def _has_axis(shape: Sequence[object] | None, axis: int) -> bool:
    return shape is not None and -len(shape) <= axis < len(shape)


def _expands_nothing(node: Node, graph: Graph) -> bool:
    target = graph.initializers.get(node.inputs[1])
    return 0 in (find_shape(node, graph) or ()) or (target is not None and bool((target.array <= 0).any()))


def _has_unfit_window(node: Node, graph: Graph) -> bool:
    if "kernel_shape" not in node.attributes or (node.op_type != "LpPool" and not node.attributes.get("ceil_mode", 0)):
        return False
    shape, rank = find_shape(node, graph), len(node.attributes["kernel_shape"])
    fits = all(len(node.attributes.get(name, (1,) * rank)) == rank for name in ("strides", "dilations"))
    fits = fits and len(node.attributes.get("pads", (0,) * (2 * rank))) == 2 * rank
    return not fits or (shape is not None and len(shape) != rank + 2)


def _counts_behind_padding(node: Node, graph: Graph) -> bool:
    is_counted = all(node.attributes.get(name, 0) for name in ("ceil_mode", "count_include_pad")) and any(
        node.attributes.get("pads", ())
    )
    if not is_counted or _has_unfit_window(node, graph):
        return False
    return not all(rest is not None and rest % stride == 0 for _, rest, stride in _list_ends(node, graph))


def _begins_behind_end(node: Node, graph: Graph) -> bool:
    if not node.attributes.get("ceil_mode", 0) or _has_unfit_window(node, graph):
        return False
    ends = _list_ends(node, graph)
    return not all(end is not None and rest is not None and ceil(rest / stride) * stride < end for end, rest, stride in ends)


def _spreads_pixel(node: Node, graph: Graph) -> bool:
    """Says whether a pooled image of a single pixel is repeated and has a second reader: the engine puts its channels last."""
    if node.op_type == "Concat" and len(set(node.inputs)) != 1:
        return False
    shape, result = find_shape(node, graph), graph.type_of(node.outputs[0])
    sizes = result.shape if isinstance(result, TensorType) else None
    is_pixel = shape is not None and len(shape) >= 4 and all(size == 1 for size in shape[2:])
    readers = set(graph.index_of_consumers.get(node.inputs[0], ()))
    producer = graph.find_producer(node.inputs[0])
    is_pooled = producer is not None and producer.op_type in ("AveragePool", "MaxPool")
    return is_pixel and is_pooled and len(readers) > 1 and (sizes is None or any(size != 1 for size in sizes[2:]))


def _has_open_branches(node: Node, graph: Graph) -> bool:
    if node.inputs[0] in graph.initializers:
        return False
    types = [graph.type_of(name) for name in node.outputs if name]
    return not all(
        isinstance(value, TensorType) and value.shape is not None and all(isinstance(size, int) for size in value.shape)
        for value in types
    )


def _keeps_no_axes(node: Node, graph: Graph) -> bool:
    count = (find_shape(node, graph, 1) or (0,))[0]
    return node.attributes.get("noop_with_empty_axes", 0) == 1 and (not isinstance(count, int) or count == 0)


_row = partial(state_error, versions="2026.4")
_SATURATING = "OpenVINO adds up pairs of 8-bit products in 16 bits on this processor, which saturate"
_TO_CODES = " ".join((*QUANTIZING, *(f"{MICROSOFT}.{name}" for name in QUANTIZING)))
_SUMMING = " ".join((*REDUCTIONS, "CumSum", "GlobalAveragePool", "GroupNormalization", "InstanceNormalization"))
_SUMMING += " LayerNormalization MeanVarianceNormalization RMSNormalization"
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
"""Operators of com.microsoft without a wrong case among 40 that the conformance kit draws; the last two have rows in HALF_ROWS."""

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
    _row("cast_of_nothing", "Cast CastLike",
         both(is_empty(), lambda node, graph: dtype_of_input(node, graph) != dtype_of_value(node.outputs[0], graph)),
         "OpenVINO gives a Cast of no elements another shape"),
    _row("cast_to_bfloat16", "Cast CastLike", _rounds_to_bfloat16, "OpenVINO does not round floats to the nearest bfloat16",
         "cast_FLOAT_to_BFLOAT16"),
    _row("cast_twice", "Cast CastLike", _loses_rounding,
         "OpenVINO does not round what is cast to float16, as it computes float16 in float32 within a network"),
    _row("dft_onesided", "DFT", differs("onesided", 0), "OpenVINO shapes one-sided transforms wrongly", "dft_rfft"),
    _row("dft_axis", "DFT",
         lambda node, graph: node.since_version >= 20 and (has_input(node, 2) or len(find_shape(node, graph) or ()) != 3),
         "OpenVINO ignores the axis of DFT", "dft_axis"),
    _row("recurrent_layout", " ".join(RECURRENT), differs("layout", 0), "OpenVINO ignores the layout of {node.op_type}",
         "gru_batchwise"),
    _row("lstm_peepholes", "LSTM", reads(7), "OpenVINO ignores the peepholes of LSTM", "lstm_with_peepholes"),
    _row("lstm_input_forget", "LSTM", differs("input_forget", 0), "OpenVINO ignores input_forget of LSTM"),
    _row("recurrent_activations", " ".join(RECURRENT), _activates_directions,
         "OpenVINO computes both directions of {node.op_type} with the activations of the first"),
    _row("recurrent_lengths", " ".join(RECURRENT), both(reads(4), is_open(0, slice(2))),
         "OpenVINO ignores the lengths of the sequences of {node.op_type} if length or batch is open"),
    _row("recurrent_states", " ".join(RECURRENT), both(reads(4), _may_keep_states),
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
    _row("scales_of_channels", "QLinearConv", lambda node, graph: find_shape(node, graph, 4) not in ((), (1,)),
         "OpenVINO multiplies filters by the scales of QLinearConv along the input channels"),
    _row("random_normal", "RandomNormal RandomNormalLike", lambda node, graph: float(node.attributes.get("seed", 0.0)) == 0.0,
         "OpenVINO draws {node.op_type} without a seed from two generators that are alike, so that the numbers are not normal"),
    _row("range_stash_type", "Range", both(differs("stash_type", 1), has_dtype("bfloat16", "float16")),
         "OpenVINO ignores stash_type of Range"),
    _row("reduction_axes", "ReduceL1 ReduceLogSum ReduceLogSumExp", differs("axes", None),
         "OpenVINO ignores the attribute axes of {node.op_type}, and reduces all axes"),
    _row("reduction_without_axes", "ReduceL1 ReduceL2 ReduceLogSum", _keeps_no_axes,
         "OpenVINO makes no absolute value and no logarithm of {node.op_type} without axes"),
    _row("resize_antialias", "Resize", differs("antialias", 0), "OpenVINO ignores antialias of Resize",
         "resize_downsample_scales_linear_antialias"),
    _row("resize_outside", "Resize", both(differs("exclude_outside", 0), equals("mode", "cubic")),
         "OpenVINO ignores exclude_outside of Resize", "resize_upsample_scales_cubic_A_n0p5_exclude_outside"),
    _row("resize_aspect", "Resize", differs("keep_aspect_ratio_policy", "stretch"),
         "OpenVINO ignores keep_aspect_ratio_policy of Resize", "resize_upsample_sizes_nearest_not_larger"),
    _row("resize_aligned", "Resize", rounds_aligned_size,
         "OpenVINO scales by the rounded size under align_corners, not by the scales",
         "resize_downsample_scales_cubic_align_corners"),
    _row("roialign_max", "RoiAlign", differs("mode", "avg"),
         "OpenVINO's RoiAlign of mode max interpolates after it takes the maximum", "roialign_mode_max"),
    _row("roialign_coordinates", "RoiAlign", is_open(1, slice(1, 2)),
         "OpenVINO fails to load RoiAlign with boxes of an open number of coordinates", kind="fails"),
    _row("softmax_11", "Softmax", both(flattens_axes, lambda node, graph: node.since_version == 11),
         "OpenVINO computes Softmax-11 along one axis; the standard flattens all from that axis on"),
    _row("spacetodepth_crd", "SpaceToDepth", differs("mode", "DCR"), "OpenVINO ignores the mode of SpaceToDepth",
         "spacetodepth_crd_mode_example"),
    _row("squeeze_of_no_axes", "Squeeze", may_have_empty_axes, EMPTY_AXES),
    _row("col2im_sizes", "Col2Im", computes_input(1, 2), "OpenVINO may end the process on Col2Im whose sizes come with the run",
         kind="ends the process"),
    _row("compress_by_nothing", "Compress", is_empty(1), "OpenVINO ends the process if the condition of Compress has no elements",
         kind="ends the process"),
    _row("division_by_zero", "Div Mod", _divides_by_zero,
         "OpenVINO ends the process if it folds {node.op_type} of integers by 0, or of the least one by -1",
         kind="ends the process"),
    _row("expand_of_nothing", "Expand", _expands_nothing,
         "OpenVINO ends the process, or gives another shape, if Expand makes or reads no elements", kind="ends the process"),
    _row("gather_elements_beside", "GatherElements", _differs_beside_axis,
         "OpenVINO's GatherElements takes no indices with other sizes than the data beside the axis, and these may differ"),
    _row("gather_nd_of_no_coordinates", "GatherND", lambda node, graph: 0 in (find_shape(node, graph, 1) or (0,))[-1:],
         "OpenVINO returns what it has not written from GatherND by indices of no coordinates"),
    _row("global_lp_pool_of_nothing", "GlobalLpPool", lambda node, graph: 0 in (find_shape(node, graph) or (0,)),
         "OpenVINO ends the process on GlobalLpPool of no elements", kind="ends the process"),
    _row("pool_of_unfit_window", "AveragePool LpPool MaxPool", _has_unfit_window,
         "strides, dilations, pads and the input of {node.op_type} have other numbers of dimensions than its kernel"),
    _row("average_behind_padding", "AveragePool", _counts_behind_padding,
         "OpenVINO counts elements behind the padding, under ceil_mode and count_include_pad"),
    _row("max_pool_indices", "MaxPool", both(differs("storage_order", 0), lambda node, graph: len(node.outputs) > 1),
         "OpenVINO returns the indices of MaxPool in another order and shape if storage_order is 1"),
    _row("max_pool_behind_end", "MaxPool", _begins_behind_end,
         "OpenVINO counts a window that begins behind the end of the input, under ceil_mode",
         "maxpool_2d_ceil_output_size_reduce_by_one"),
    _row("prelu_slopes", "PRelu", _has_unfit_slopes,
         "OpenVINO may end the process on PRelu whose slopes do not broadcast to its input", kind="ends the process"),
    _row("top_k_of_fewer", "TopK", _selects_too_many, "OpenVINO may end the process on TopK of more elements than there are",
         kind="ends the process"),
    _row("unique_axis", "Unique",
         both(differs("axis", None), lambda node, graph: not _has_axis(find_shape(node, graph), node.attributes["axis"])),
         "OpenVINO may end the process on Unique of an axis that its input may not have", kind="ends the process"),
    _row("spread_pixel", "Concat Expand Tile", _spreads_pixel,
         "OpenVINO's {node.op_type} of images of one pixel that another node reads is wrong if channels are last"),
    _row("group_of_parts", "Concat", _groups_parts,
         "OpenVINO makes one convolution with groups of what this Concat reads, and not always the right one"),
    _row("conv_strides_last_axis", "Conv", _strides_last_axis_alone,
         "OpenVINO is wrong about a Conv of one channel whose last axis alone has a stride, and ends with one position"),
    _row("conv_lost_stride", "Conv", _loses_stride,
         "OpenVINO cannot move the strides of this Conv to the node before it, which has several outputs", kind="fails"),
    _row("conv_padded_stride", "Conv ConvInteger QLinearConv",
         both(_moves_strides, lambda node, graph: any(node.attributes.get("pads", ()))),
         "OpenVINO moves the strides of {node.op_type} to the node before it, and loses them beside pads"),
    _row("clip_of_wide_bounds", "Clip", _rounds_bounds, "OpenVINO rounds the bounds of Clip to float32"),
    _row("words_to_halves", "DequantizeLinear",
         both(has_dtype("int16", "uint16", "int32"), lambda node, graph: dtype_of_input(node, graph, 1) == "float16"),
         "OpenVINO dequantizes integers of 16 and 32 bits in float16 if their scale is of it, and makes them infinite"),
    _row("flatten_of_nothing", "Flatten",
         both(may_be_empty(), lambda node, graph: node.attributes.get("axis", 1) not in (0, 1)),
         "OpenVINO gives a Flatten of no elements another shape, and there may be none here"),
    _row("groups_of_bits", "com.microsoft.MatMulNBits", reads(4), "OpenVINO may end the process on MatMulNBits with g_idx",
         kind="ends the process"),
    _row("transposed_open_same", "ConvTranspose",
         both(is_open(), lambda node, graph: str(node.attributes.get("auto_pad")).startswith("SAME")),
         "OpenVINO cuts nothing off a ConvTranspose with auto_pad SAME if a size of its input is open"),
    _row("transposed_output_shape", "ConvTranspose", _misplaces_transposed,
         "OpenVINO places the results of ConvTranspose wrongly if output_shape is given with groups or auto_pad"),
    _row("fused_by_channels", " ".join(("BatchNormalization", *sorted(_FUSED_PAIRS))), _is_fused_by_channels,
         "OpenVINO fuses {node.op_type} by channels into the product before it, along its last axis"),
    _row("constant_of_more_dimensions", _BINARY, _raises_rank,
         "OpenVINO folds a constant of more dimensions into the node before {node.op_type}, and loses them"),
    _row("slopes_of_one_dimension", "PRelu", _has_slopes_of_last_axis,
         "OpenVINO takes slopes of one dimension for those of the channels"),
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
         "OpenVINO gives several operators another shape, fails to load them or ends the process if a fixed size is 0",
         kind="ends the process"),
    _row("topk_of_none", "TopK",
         lambda node, graph: (k := find_constant(node.inputs[1], graph) if len(node.inputs) > 1 else None) is not None and k.sum() == 0,
         "OpenVINO fails to load a TopK of no elements", kind="fails"),
    _row("gather_of_nothing", "Gather", is_empty(1), "OpenVINO drops the axis that Gather takes nothing of"),
    _row("dft_of_nothing", "DFT", _may_transform_nothing,
         "OpenVINO may end the process on DFT of length 0, and the length may be 0 or is not known", kind="ends the process"),
    _row("loop_of_constants", "Loop", _is_long_when_compiled,
         f"OpenVINO runs a Loop of constants when it compiles, here with more than {MOST_ITERATIONS} iterations",
         kind="never returns"),
    _row("loop_without_iterations", "Loop", _may_not_run,
         "OpenVINO returns results of an earlier run from a Loop without iterations, and never returns from one with a negative number",
         "openvino#37247", kind="never returns"),
    _row("scan_of_nothing", "Scan", _may_scan_nothing, "OpenVINO fails at Scan of length 0, and the length may be 0",
         kind="fails"),
    _row("unique_of_nothing", "Unique", may_be_empty(),
         "OpenVINO fails at Unique of no elements or ends the process, and there may be none", kind="ends the process"),
    _row("recurrent_of_nothing", " ".join(RECURRENT),
         lambda node, graph: any(is_empty(index)(node, graph) for index in range(len(node.inputs))),
         "OpenVINO returns what it has not written from {node.op_type} of no elements, or ends the process",
         kind="ends the process"),
    _row("hardmax_of_open_sizes", "Hardmax", is_open(),
         "OpenVINO loses the shape of a Hardmax of no elements, and sizes are open"),
    _row("nearest_pixel", "Resize Upsample", _may_miss_pixels,
         "OpenVINO computes the nearest pixel in float32 and may take another one", "onnxruntime#28291"),
    _row("deep_product", "Gemm MatMul",
         lambda node, graph: isinstance(depth := _find_depth(node, graph), int) and depth > DEEPEST_PRODUCT,
         "OpenVINO adds up too many products in float32 for {node.op_type}, which loses 0.1 % and more"),
    _row("long_sum", _SUMMING, _is_long_sum,
         "OpenVINO adds up too many numbers in float32 for {node.op_type}, which loses 0.1 % and more"),
    *(
        _row(f"saturating_{operator.lower()}", operator, lambda node, graph: _are_large(graph.initializers.get(node.inputs[3])),
             _SATURATING, probe=partial(saturates_bytes, operator))
        for operator in ("QLinearConv", "QLinearMatMul")
    ),
)
# fmt: on

# fmt: off
HALF_ROWS = (
    _row("product_between_codes", "QLinearConv QLinearMatMul", _may_halve,
         "OpenVINO may round a product that lies exactly between two codes to the odd one; OPENVINO_QUANTIZED=YES takes it all the same"),
    _row("quotient_between_codes", _TO_CODES, always,
         "OpenVINO multiplies by the reciprocal of the scale, so that a quotient may be on the other side of a half; "
         "OPENVINO_QUANTIZED=YES takes it all the same",
         "quantizelinear_uint16"),
)
# fmt: on
"""Rows of results that are off by a step of the quantization."""

# fmt: off
QUANTIZED_ROWS = (
    _row("saturating_pairs", " ".join(PRODUCTS), _may_saturate_pairs, _SATURATING, probe=partial(saturates_bytes, "QLinearConv")),
    _row("quantized_pair", _TO_CODES,
         lambda node, graph: getattr(_pass_over(node.inputs[0], graph), "op_type", "") == "DequantizeLinear",
         "OpenVINO may end the process on a QuantizeLinear of what was dequantized", kind="ends the process"),
    _row("quantized_to_words", _TO_CODES, lambda node, graph: dtype_of_value(node.outputs[0], graph) in ("int16", "uint16"),
         "OpenVINO does not saturate what it quantizes to 16 bits"),
)
# fmt: on
"""Rows that OPENVINO_QUANTIZED does not lift."""

_check_rows, _check_halves, _check_quantized = tabulate(ROWS), tabulate(HALF_ROWS), tabulate(QUANTIZED_ROWS)
