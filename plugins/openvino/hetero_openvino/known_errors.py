"""The table of what OpenVINO computes wrongly, fails at in a run or ends the process at; such nodes are refused with the reason.

Each row was found on OpenVINO 2026.4 by a case of ONNX's own backend suite, which it names, by a report, or by a drawn comparison with
NumPy. It goes when a newer engine is right. `arithmetic`: errors by the magnitude of integers; `corrections`: rewrites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    find_shape,
    has_input,
    scales_are_whole,
)
from hetero_core.engines.known_errors import Condition, KnownError, always, find_error, refuse_empty_axes, tabulate
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType
from hetero_core.transforms.transposes import compose
from hetero_openvino.arithmetic import find_arithmetic_error
from hetero_openvino.pixels import RESIZING, may_miss_pixels
from hetero_openvino.producers import walk_producers

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


Probe = Callable[[], bool]

LONGEST_SUM = 2**20
"""Elements that a sum in float32 may have: the engine adds eight numbers side by side, and is off by 0.1 % where all are alike."""
LONGEST_CHAIN = 2**17
"""The same for sums that it adds one by one: those that leave the last axis, and those of one dimension."""

DEEPEST_PRODUCT = 2**22
"""The same for products of matrices."""

REDUCTIONS = tuple(f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Mean", "Sum", "SumSquare"))
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
RECURRENT = ("GRU", "LSTM", "RNN")


def _is_positive(size: int | str | None) -> bool:
    return isinstance(size, int) and size > 0


def _may_transform_nothing(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph)
    if shape is None or not all(map(_is_positive, shape)):
        return True
    if not has_input(node, 1):
        return False
    length = find_constant(node.inputs[1], graph, graph.initializers)
    return length is None or int(length.reshape(-1)[0]) <= 0


def _may_not_run(node: Node, graph: Graph) -> bool:
    """Says whether a Loop may end before its first iteration."""
    values = [(0, 1), (1, True)]
    for position, least in values:
        if has_input(node, position):
            value = find_constant(node.inputs[position], graph, graph.initializers)
            if value is None or value.size != 1 or value.reshape(-1)[0] < least:
                return True
    return False


def _may_scan_nothing(node: Node, graph: Graph) -> bool:
    count = node.attributes.get("num_scan_inputs", 1)
    first = len(node.inputs) - count
    axes = node.attributes.get("scan_input_axes", (0,) * count)
    for index, axis in zip(range(first, len(node.inputs)), axes, strict=False):
        shape = find_shape(node, graph, index)
        if not shape or not -len(shape) <= axis < len(shape) or not _is_positive(shape[axis]):
            return True
    return False


def _may_be_empty(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph)
    return shape is None or not all(map(_is_positive, shape))


def _forgets_sizes(node: Node, graph: Graph) -> bool:
    """Says whether a value of a node has an axis of length 0 and an open one, which the engine makes a 0, too."""
    shapes = [value.shape for name in (*node.reads, *node.writes) if isinstance(value := graph.type_of(name), TensorType)]
    return any(0 in shape and not all(isinstance(size, int) for size in shape) for shape in shapes if shape is not None)


def _gathers_nothing(node: Node, graph: Graph) -> bool:
    return 0 in (find_shape(node, graph, 1) or ())


def _is_product_of_nothing(node: Node, graph: Graph) -> bool:
    return _find_depth(node, graph) == 0


def _find_depth(node: Node, graph: Graph) -> int | str | None:
    """Returns the size that a product of matrices sums over."""
    shape = find_shape(node, graph)
    if not shape:
        return None
    return shape[0] if node.op_type == "Gemm" and node.attributes.get("transA", 0) else shape[-1]


def _reads_empty_constant(node: Node, graph: Graph) -> bool:
    constants = (graph.initializers[name] for name in node.reads if name in graph.initializers)
    return any(0 in constant.shape and constant.shape != (0,) for constant in constants)


def _is_empty(node: Node, graph: Graph) -> bool:
    return any(0 in (find_shape(node, graph, index) or ()) for index in range(len(node.inputs)))


def _may_saturate(node: Node, graph: Graph) -> bool:
    """Says whether two neighbouring products of 8 bits may leave 16 bits: not with weights from -64 to 64."""
    return _are_large(graph.initializers.get(node.inputs[3]))


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


def _has_open_size(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph)
    return shape is None or not all(isinstance(size, int) for size in shape)


def _list_summed(node: Node, graph: Graph) -> tuple[list[int | str | None], bool] | None:
    """Returns the sizes that a node sums over, and whether it adds number by number; None if it is no sum or its axes are unknown."""
    shape = find_shape(node, graph)
    if node.domain or shape is None:
        return None
    rank = len(shape)
    if node.op_type in REDUCTIONS:
        axes = node.attributes.get("axes")
        if axes is None and has_input(node, 1):
            constant = find_constant(node.inputs[1], graph, graph.initializers)
            if constant is None:
                return None
            axes = constant.reshape(-1).tolist()
        if not axes:
            axes = () if node.attributes.get("noop_with_empty_axes", 0) else range(rank)
        summed = {axis % rank for axis in axes} if rank else set()
    elif node.op_type == "CumSum":
        constant = find_constant(node.inputs[1], graph, graph.initializers)
        summed = set(range(rank)) if constant is None else {int(constant.reshape(-1)[0]) % rank} if rank else set()
        return [shape[axis] for axis in sorted(summed)], True
    elif node.op_type in ("GlobalAveragePool", "InstanceNormalization", "GroupNormalization"):
        summed = set(range(2 if node.op_type != "GroupNormalization" else 1, rank))
    elif node.op_type == "MeanVarianceNormalization":
        summed = {axis % rank for axis in node.attributes.get("axes", (0, 2, 3))} if rank else set()
    elif node.op_type in ("LayerNormalization", "RMSNormalization"):
        summed = set(range(node.attributes.get("axis", -1) % rank, rank)) if rank else set()
    elif node.op_type == "Einsum":
        return _list_labels(node, graph), True
    else:
        return None
    return [shape[axis] for axis in sorted(summed)], rank - 1 not in summed or rank == 1


def _list_labels(node: Node, graph: Graph) -> list[int | str | None]:
    """Returns the sizes of the labels of an Einsum that its result has not."""
    terms, _, result = str(node.attributes.get("equation", "")).replace(" ", "").partition("->")
    sizes: dict[str, int | str | None] = {}
    for index, term in enumerate(terms.split(",")):
        shape = find_shape(node, graph, index)
        if shape is not None and "." not in term and len(term) == len(shape):
            sizes.update({label: size for label, size in zip(term, shape, strict=True) if label not in result})
    return list(sizes.values())


def _is_deep_product(node: Node, graph: Graph) -> bool:
    depth = _find_depth(node, graph)
    return isinstance(depth, int) and depth > DEEPEST_PRODUCT


def _is_long_sum(node: Node, graph: Graph) -> bool:
    summed = _list_summed(node, graph)
    if summed is None:
        return False
    sizes, is_chain = summed
    return prod(size for size in sizes if isinstance(size, int)) > (LONGEST_CHAIN if is_chain else LONGEST_SUM)


@cache
def saturates_bytes(operator: str) -> bool:
    """Says whether the engine saturates sums of 8-bit products on this processor: 64 times 255 x 127 is 2,072,640."""
    import onnx.parser  # heavy, and loaded already where there is a network
    from openvino import Core  # the engine; loaded already

    sizes = {"QLinearMatMul": ("2,64", "64,16"), "QLinearConv": ("1,64,3,3", "16,64,1,1")}[operator]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (uint8[{sizes[0]}] a) => (y) '
        f"<float s = {{1}}, float t = {{8192}}, uint8 z = {{0}}, int8 o = {{0}}> {{ y = {operator}(a, s, z, b, s, o, t, z) }}"
    )
    shapes = [[int(size) for size in text.split(",")] for text in sizes]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(shapes[1], 127, np.int8), "b"))
    core = Core()
    answer = core.compile_model(core.read_model(model.SerializeToString()), "CPU")([np.full(shapes[0], 255, np.uint8)])[0]
    return bool((answer != round(64 * 255 * 127 / 8192)).any())


@dataclass(frozen=True)
class SizeLimit:
    """Bounds of the product of some sizes of inputs, each an index of an input and an axis; `factor` is the part that is known."""

    places: tuple[tuple[int, int], ...]
    factor: int
    least: int
    most: int | None
    reason: str


def list_size_limits(network: Network) -> list[SizeLimit]:
    """Returns what the open sizes of inputs must be in a run, so that the engine is right about products and sums over them."""
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


_TURN = (1, 0, 2)
"""(length, batch, width) to (batch, length, width)."""
Order = tuple[int, ...]


def _shares_turned_input(node: Node, graph: Graph) -> bool:
    """Says whether something else reads the input of a recurrent node of one direction, turned to (batch, length, width).

    The engine turns that input, merges this Transpose with any equal one, and makes a Reshape of it, which reads by other strides: the
    other readers get the numbers in the wrong order. Right if length or batch is 1.
    """
    shape = find_shape(node, graph)
    if node.attributes.get("direction", "forward") == "bidirectional" or (shape is not None and 1 in shape[:2]):
        return False
    root, order = _find_root(node.inputs[0], graph)
    turned = compose(order, _TURN)
    if turned == (0, 1, 2):
        return False
    orders: dict[str, Order] = {root: (0, 1, 2)}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if value in graph.names_of_outputs and orders[value] == turned:
            return True
        for reader in (graph.nodes[index] for index in graph.index_of_consumers.get(value, ())):
            if _is_passing(reader, graph):
                orders[reader.outputs[0]] = compose(orders[value], _read_order(reader))
                waiting.append(reader.outputs[0])
                continue
            is_turned_again = reader.op_type in RECURRENT and not reader.domain and reader.inputs[0] == value
            order = compose(orders[value], _TURN) if is_turned_again else orders[value]
            if reader is not node and order == turned:
                return True
    return False


def _find_root(value: str, graph: Graph) -> tuple[str, Order]:
    """Returns the value that a value is a transposition of, and the order of its axes."""
    order: Order = (0, 1, 2)
    while (node := graph.find_producer(value)) is not None and _is_passing(node, graph):
        order = compose(_read_order(node), order)
        value = node.inputs[0]
    return value, order


def _is_passing(node: Node, graph: Graph) -> bool:
    """Says whether a node gives its input of three dimensions as it is, or with its axes in another order."""
    if node.domain or len(find_shape(node, graph) or (0, 0, 0)) != 3:
        return False
    if node.op_type in ("Cast", "CastLike"):
        return dtype_of_input(node, graph) == dtype_of_value(node.outputs[0], graph)
    return node.op_type in ("Identity", "Transpose") or (node.op_type == "Dropout" and len(node.inputs) < 3)


def _read_order(node: Node) -> Order:
    return tuple(node.attributes.get("perm", (2, 1, 0))) if node.op_type == "Transpose" else (0, 1, 2)


_ELEMENTWISE = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Add", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Ceil", "Clip", "Cos", "Cosh"),
        *("Div", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSwish", "Identity", "Log", "Max", "Mean", "Min", "Mish"),
        *("Mod", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus"),
        *("Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh"),
    }
)
"""Operators through which the engine moves strides, and those that it takes away before."""
_SEVERAL_OUTPUTS = frozenset({"Split", "SplitToSequence", "TopK", "Unique"})
"""Operators that have several outputs in the engine, whether or not the node names them all."""


def _strides_last_axis_alone(node: Node, graph: Graph) -> bool:
    strides = node.attributes.get("strides", ())
    filters = getattr(graph.type_of(node.inputs[1]), "shape", None)
    is_last = len(strides) > 1 and strides[-2] == 1 and strides[-1] != 1
    if not is_last or node.attributes.get("group", 1) != 1 or (filters is not None and filters[1] != 1):
        return False
    shape = getattr(graph.type_of(node.outputs[0]), "shape", None)
    return shape is None or shape[-1] == 1 or not isinstance(shape[-1], int)


def _loses_stride(node: Node, graph: Graph) -> bool:
    """Says whether the engine moves the strides of a Conv of one element up to an operation with several outputs, which has none."""
    filters = getattr(graph.type_of(node.inputs[1]), "shape", None)
    has_one_element = filters is None or all(size == 1 for size in filters[2:])
    if not has_one_element or all(stride == 1 for stride in node.attributes.get("strides", ())):
        return False
    producers = walk_producers(node.inputs[0], graph, lambda producer: not producer.domain and producer.op_type in _ELEMENTWISE)
    # All but the first stand behind an elementwise node.
    return any(producer.op_type in _SEVERAL_OUTPUTS or len(producer.outputs) > 1 for producer in islice(producers, 1, None))


def _pads_open_transposed(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph)
    is_open = shape is None or not all(isinstance(size, int) for size in shape)
    return is_open and str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME")


def _misplaces_transposed(node: Node, graph: Graph) -> bool:
    is_plain = node.attributes.get("auto_pad", "NOTSET") == "NOTSET" and node.attributes.get("group", 1) == 1
    return "output_shape" in node.attributes and not is_plain


_LEAST_RANK = 4
"""From which on the engine puts the channels elsewhere than last."""
_FUSED_PAIRS = frozenset({"Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum"})
_FUSED = _FUSED_PAIRS | {
    "Abs", "BatchNormalization", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish",
    "Neg", "QuantizeLinear", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh",
}  # fmt: skip


def _is_fused_by_channels(node: Node, graph: Graph) -> bool:
    """Says whether a node has one number for each channel, and stands behind a product of matrices: the engine fuses both.

    It takes the last axis of the product for that of the channels: if sizes differ it does not compile, else values are wrong.
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


def _comes_from_product(value: str, graph: Graph) -> bool:
    """Says whether a value is a product of matrices, or made of one element by element."""
    producers = walk_producers(value, graph, lambda node: node.op_type in _FUSED and not node.domain)
    return any(node.op_type in ("Gemm", "MatMul") for node in producers)


def _groups_open_parts(node: Node, graph: Graph) -> bool:
    """Says whether a Concat joins convolutions of parts whose sizes come with the run, which `groups` cannot put right."""
    producers = [_pass_over(value, graph) for value in node.inputs]
    convolutions = [each for each in producers if each is not None]
    if any(each.op_type != "Conv" for each in convolutions) or not convolutions:
        return False
    parting = [_pass_over(each.inputs[0], graph) for each in convolutions]
    if any(each is None or each.op_type not in frozenset({"Slice", "Split"}) for each in parting):
        return False
    sizes = {value for each in parting if each is not None for value in each.inputs[1:] if value}
    return not sizes <= graph.initializers.keys()


def _pass_over(value: str, graph: Graph) -> Node | None:
    while (producer := graph.find_producer(value)) is not None:
        if producer.op_type not in frozenset({"Dropout", "Identity"}):
            return producer
        value = producer.inputs[0]
    return None


_CASTS = ("Cast", "CastLike")
_EXACT = frozenset({"bool", "float16", "float8e4m3fn", "float8e5m2", "int4", "int8", "uint4", "uint8"})
"""Types of which every number is one of float16."""
_SELECTING = MOVING | {"Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu", "TopK"}
"""Operators whose elements are elements of their inputs, as they were rounded."""


def _loses_rounding(node: Node, graph: Graph) -> bool:
    """Says whether a cast from float16 reads what was cast to float16: the engine holds float16 in float32 and does not round it."""
    if dtype_of_input(node, graph) != "float16" or dtype_of_value(node.outputs[0], graph) == "float16":
        return False
    for producer in walk_producers(node.inputs[0], graph, lambda producer: producer.op_type in _SELECTING.union(_CASTS)):
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


def _differs(attribute: str, usual: object) -> Condition:
    """Returns the condition that an attribute has another value than the usual one."""
    return lambda node, graph: node.attributes.get(attribute, usual) != usual


def _reads(position: int) -> Condition:
    """Returns the condition that a node has its input at this position."""
    return lambda node, graph: has_input(node, position)


def _computes_input(*positions: int) -> Condition:
    """Returns the condition that some of these inputs come with the run."""
    return lambda node, graph: any(has_input(node, index) and node.inputs[index] not in graph.initializers for index in positions)


def _casts_to(*targets: str, source: str = "") -> Condition:
    """Returns the condition of a Cast to one of these types, from a type whose name holds `source`."""

    def condition(node: Node, graph: Graph) -> bool:
        before, after = dtype_of_input(node, graph), dtype_of_value(node.outputs[0], graph)
        return after in targets and before != after and source in (before or source)

    return condition


def _counts_from_first_query(node: Node, graph: Graph) -> bool:
    return bool(node.attributes.get("is_causal", 0)) and has_input(node, 4)


def _pads_keys_coarsely(node: Node, graph: Graph) -> bool:
    return has_input(node, 6) and dtype_of_input(node, graph) in ("bfloat16", None)


def _has_window(node: Node, graph: Graph) -> bool:
    return any(node.attributes.get(f"{side}_window_size", -1) != -1 for side in ("left", "right"))


def _casts_nothing(node: Node, graph: Graph) -> bool:
    return 0 in (find_shape(node, graph) or ()) and dtype_of_input(node, graph) != dtype_of_value(node.outputs[0], graph)


def _casts_saturated(node: Node, graph: Graph) -> bool:
    return _casts_to("float8e4m3fn", "float8e5m2")(node, graph) and bool(node.attributes.get("saturate", 1))


def _casts_up(node: Node, graph: Graph) -> bool:
    return _casts_to("float8e8m0")(node, graph) and node.attributes.get("round_mode", "up") == "up"


def _names_axis(node: Node, graph: Graph) -> bool:
    return node.since_version >= 20 and has_input(node, 2)


def _activates_directions(node: Node, graph: Graph) -> bool:
    activations = node.attributes.get("activations", ())
    half = len(activations) // 2
    return node.attributes.get("direction") == "bidirectional" and activations[:half] != activations[half:]


def _has_open_lengths(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph)
    return has_input(node, 4) and (shape is None or not all(isinstance(size, int) for size in shape[:2]))


def _has_zero_factor(node: Node, graph: Graph) -> bool:
    return any(node.attributes.get(name) == 0 for name in ("alpha", "beta", "gamma"))


def _scales_channels(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph, 4)
    return shape is None or any(size != 1 for size in shape)


def _has_no_seed(node: Node, graph: Graph) -> bool:
    return float(node.attributes.get("seed", 0.0)) == 0.0


def _excludes_outside(node: Node, graph: Graph) -> bool:
    return bool(node.attributes.get("exclude_outside", 0)) and node.attributes.get("mode", "nearest") == "cubic"


def _scales_aligned(node: Node, graph: Graph) -> bool:
    is_aligned = node.attributes.get("coordinate_transformation_mode") == "align_corners" and has_input(node, 2)
    return is_aligned and not scales_are_whole(node, graph)


def _flattens(node: Node, graph: Graph) -> bool:
    shape, axis = find_shape(node, graph), node.attributes.get("axis", 1)
    is_last = bool(shape) and all(size == 1 for size in (shape or ())[axis % len(shape or (0,)) + 1 :])
    return node.since_version == 11 and not is_last


def _stashes(node: Node, graph: Graph) -> bool:
    return node.attributes.get("stash_type", 1) != 1 and dtype_of_input(node, graph) in ("bfloat16", "float16")


def _has_fraction(node: Node, graph: Graph) -> bool:
    return not float(node.attributes.get("bias", 1.0)).is_integer()


def _has_empty_axes(node: Node, graph: Graph) -> bool:
    return refuse_empty_axes(node, graph) is not None


def _indexes_by_nothing(node: Node, graph: Graph) -> bool:
    shape = find_shape(node, graph, 1)
    return not shape or shape[-1] == 0


def _differs_beside_axis(node: Node, graph: Graph) -> bool:
    shape, indices, axis = find_shape(node, graph), find_shape(node, graph, 1), node.attributes.get("axis", 0)
    if not shape or indices is None or len(shape) != len(indices):
        return True
    beside = [pair for index, pair in enumerate(zip(shape, indices, strict=True)) if index != axis % len(shape)]
    return not all(size is not None and size == other for size, other in beside)


def _may_lack_axis(node: Node, graph: Graph) -> bool:
    shape, axis = find_shape(node, graph), node.attributes.get("axis")
    return axis is not None and not (shape and -len(shape) <= axis < len(shape))


def _has_unfit_slopes(node: Node, graph: Graph) -> bool:
    shape, slopes = find_shape(node, graph), find_shape(node, graph, 1)
    if shape is None or slopes is None:
        return False
    pairs = zip(reversed(slopes), reversed(shape), strict=False)
    return len(slopes) > len(shape) or not all(slope in (1, size) for slope, size in pairs)


def _selects_too_many(node: Node, graph: Graph) -> bool:
    shape, count = find_shape(node, graph), node.attributes.get("k")
    if len(node.inputs) > 1 and node.inputs[1] in graph.initializers:
        count = int(graph.initializers[node.inputs[1]].array.reshape(-1)[0])
    axis = node.attributes.get("axis", -1)
    if count is None or not shape or not -len(shape) <= axis < len(shape):
        return False
    size = shape[axis]
    return isinstance(size, int) and bool(count > size)


def _divides_by_zero(node: Node, graph: Graph) -> bool:
    """Says whether the engine folds a division of integers by 0, or of the least one by -1; of values of the run it makes some number."""
    if len(node.inputs) != 2 or node.attributes.get("fmod", 0):
        return False
    dividend, divisor = (find_constant(name, graph, graph.initializers) for name in node.inputs)
    if dividend is None or divisor is None or divisor.dtype.kind not in "iu":
        return False
    least = np.iinfo(dividend.dtype).min
    overflows = divisor.dtype.kind == "i" and bool((dividend == least).any()) and bool((divisor == -1).any())
    return overflows or bool((divisor == 0).any())


def _compresses_by_nothing(node: Node, graph: Graph) -> bool:
    return 0 in (find_shape(node, graph, 1) or ())


def _expands_nothing(node: Node, graph: Graph) -> bool:
    target = graph.initializers.get(node.inputs[1])
    return 0 in (find_shape(node, graph) or ()) or (target is not None and bool((target.array <= 0).any()))


def _pools_nothing(node: Node, graph: Graph) -> bool:
    return 0 in (find_shape(node, graph) or (0,))


def _has_no_kernel(node: Node, graph: Graph) -> bool:
    return "kernel_shape" not in node.attributes  # it may be missing in the first version of LpPool


def _has_unfit_window(node: Node, graph: Graph) -> bool:
    if _has_no_kernel(node, graph) or (node.op_type != "LpPool" and not node.attributes.get("ceil_mode", 0)):
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


def _orders_by_columns(node: Node, graph: Graph) -> bool:
    return bool(node.attributes.get("storage_order", 0)) and len(node.outputs) > 1


def _begins_behind_end(node: Node, graph: Graph) -> bool:
    if not node.attributes.get("ceil_mode", 0) or _has_unfit_window(node, graph):
        return False
    ends = _list_ends(node, graph)
    return not all(end is not None and rest is not None and ceil(rest / stride) * stride < end for end, rest, stride in ends)


def _spreads_pixel(node: Node, graph: Graph) -> bool:
    """Says whether an image of one pixel is repeated, comes from a pooling and has another reader: the engine puts its channels last."""
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


def _rounds_quotient(node: Node, graph: Graph) -> bool:
    producer = graph.find_producer(node.inputs[0])
    return producer is not None and producer.op_type == "Div"


def _keeps_no_axes(node: Node, graph: Graph) -> bool:
    count = (find_shape(node, graph, 1) or (0,))[0]
    return node.attributes.get("noop_with_empty_axes", 0) == 1 and (not isinstance(count, int) or count == 0)


_FLAGS = (
    *("align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box", "count_include_pad"),
    *("detect_negative", "detect_positive", "exclude_outside", "exclusive", "fmod", "inverse", "is_causal"),
    *("keepdims", "largest", "linear_before_reset", "noop_with_empty_axes", "onesided", "periodic", "reverse"),
    *("select_last_index", "sorted", "training_mode", "transA", "transB", "upper"),
)


def _has_odd_flag(node: Node, graph: Graph) -> bool:
    return any(node.attributes.get(name, 0) not in (0, 1) for name in _FLAGS)


def _quantizes_pair(node: Node, graph: Graph) -> bool:
    producer = graph.find_producer(node.inputs[0])
    while producer is not None and producer.op_type in ("Dropout", "Identity"):
        producer = graph.find_producer(producer.inputs[0])
    return producer is not None and producer.op_type == "DequantizeLinear"


def _quantizes_to_words(node: Node, graph: Graph) -> bool:
    return bool(node.outputs) and dtype_of_value(node.outputs[0], graph) in ("int16", "uint16")


def _hides_twice(node: Node, graph: Graph) -> bool:
    return bool(node.attributes.get("unidirectional", 0)) and has_input(node, 4)


def _moves_batch(node: Node, graph: Graph) -> bool:
    return any(node.attributes.get(name, 0) for name in ("transBatchA", "transBatchB"))


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
        _has_window,
    ),
    _row(
        "attention_causal_past",
        ("Attention",),
        "OpenVINO counts the positions of causal Attention from the first query, not from the end of past_key",
        "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
        _counts_from_first_query,
    ),
    _row(
        "attention_of_no_keys",
        ("Attention",),
        "OpenVINO attends to padded keys in bfloat16 if no key is left",
        "attention_4d_causal_padded_kv_bf16",
        _pads_keys_coarsely,
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
        _casts_nothing,
    ),
    _row(
        "cast_to_bfloat16",
        ("Cast", "CastLike"),
        "OpenVINO does not round floats to the nearest bfloat16",
        "cast_FLOAT_to_BFLOAT16",
        _casts_to("bfloat16", source="float"),
    ),
    _row(
        "cast_to_float8",
        ("Cast", "CastLike"),
        "OpenVINO does not saturate what is too large for a float of 8 bits",
        "cast_FLOAT_to_FLOAT8E4M3FN",
        _casts_saturated,
    ),
    _row(
        "cast_to_int4",
        ("Cast", "CastLike"),
        "OpenVINO rounds to integers of 4 bits; the standard cuts fractions off",
        "drawn",
        _casts_to("int4", "uint4", source="float"),
    ),
    _row(
        "cast_to_float4",
        ("Cast", "CastLike"),
        "OpenVINO makes NaN the largest float4e2m1",
        "cast_FLOAT_to_FLOAT4E2M1",
        _casts_to("float4e2m1"),
    ),
    _row(
        "cast_to_e8m0",
        ("Cast", "CastLike"),
        "OpenVINO rounds to the nearest float8e8m0, not up",
        "cast_e8m0_FLOAT_to_FLOAT8E8M0",
        _casts_up,
    ),
    _row(
        "cast_twice",
        ("Cast", "CastLike"),
        "OpenVINO does not round what is cast to float16, as it computes float16 in float32 within a network",
        "drawn",
        _loses_rounding,
    ),
    _row("dft_onesided", ("DFT",), "OpenVINO shapes one-sided transforms wrongly", "dft_rfft", _differs("onesided", 0)),
    _row("dft_axis", ("DFT",), "OpenVINO ignores the axis of DFT", "dft_axis", _names_axis),
    _row("recurrent_layout", RECURRENT, "OpenVINO ignores the layout of {node.op_type}", "gru_batchwise", _differs("layout", 0)),
    _row("lstm_peepholes", ("LSTM",), "OpenVINO ignores the peepholes of LSTM", "lstm_with_peepholes", _reads(7)),
    _row("lstm_input_forget", ("LSTM",), "OpenVINO ignores input_forget of LSTM", "drawn", _differs("input_forget", 0)),
    _row(
        "recurrent_activations",
        RECURRENT,
        "OpenVINO computes both directions of {node.op_type} with the activations of the first",
        "drawn",
        _activates_directions,
    ),
    _row(
        "recurrent_lengths",
        RECURRENT,
        "OpenVINO ignores the lengths of the sequences of {node.op_type} if length or batch is open",
        "drawn",
        _has_open_lengths,
    ),
    _row(
        "recurrent_shared_input",
        RECURRENT,
        "OpenVINO reorders what a recurrent node of one direction reads, and another node or an output has the same numbers, transposed",
        "drawn",
        _shares_turned_input,
    ),
    _row(
        "zero_factor",
        ("HardSigmoid", "Selu"),
        "OpenVINO takes the default of {node.op_type} for a factor of 0",
        "drawn",
        _has_zero_factor,
    ),
    _row("lrn_bias", ("LRN",), "OpenVINO cuts the fraction of the bias of LRN off", "drawn", _has_fraction),
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
        _scales_channels,
    ),
    _row(
        "random_normal",
        ("RandomNormal", "RandomNormalLike"),
        "OpenVINO draws {node.op_type} without a seed from two generators that are alike, so that the numbers are not normal",
        "drawn",
        _has_no_seed,
    ),
    _row("range_stash_type", ("Range",), "OpenVINO ignores stash_type of Range", "drawn", _stashes),
    _row(
        "reduction_axes",
        ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp"),
        "OpenVINO ignores the attribute axes of {node.op_type}, and reduces all axes",
        "drawn",
        _differs("axes", None),
    ),
    _row(
        "reduction_without_axes",
        ("ReduceL1", "ReduceL2", "ReduceLogSum"),
        "OpenVINO makes no absolute value and no logarithm of {node.op_type} without axes",
        "drawn",
        _keeps_no_axes,
    ),
    _row(
        "resize_antialias",
        ("Resize",),
        "OpenVINO ignores antialias of Resize",
        "resize_downsample_scales_linear_antialias",
        _differs("antialias", 0),
    ),
    _row(
        "resize_outside",
        ("Resize",),
        "OpenVINO ignores exclude_outside of Resize",
        "resize_upsample_scales_cubic_A_n0p5_exclude_outside",
        _excludes_outside,
    ),
    _row(
        "resize_aspect",
        ("Resize",),
        "OpenVINO ignores keep_aspect_ratio_policy of Resize",
        "resize_upsample_sizes_nearest_not_larger",
        _differs("keep_aspect_ratio_policy", "stretch"),
    ),
    _row(
        "resize_aligned",
        ("Resize",),
        "OpenVINO scales by the rounded size under align_corners, not by the scales",
        "resize_downsample_scales_cubic_align_corners",
        _scales_aligned,
    ),
    _row(
        "roialign_max",
        ("RoiAlign",),
        "OpenVINO's RoiAlign of mode max interpolates after it takes the maximum",
        "roialign_mode_max",
        _differs("mode", "avg"),
    ),
    _row(
        "softmax_11",
        ("Softmax",),
        "OpenVINO computes Softmax-11 along one axis; the standard flattens all from that axis on",
        "drawn",
        _flattens,
    ),
    _row(
        "spacetodepth_crd",
        ("SpaceToDepth",),
        "OpenVINO ignores the mode of SpaceToDepth",
        "spacetodepth_crd_mode_example",
        _differs("mode", "DCR"),
    ),
    _row(
        "squeeze_of_no_axes",
        ("Squeeze",),
        "the engine takes an empty list of axes for all axes of size 1, and here the list may be empty",
        "drawn",
        _has_empty_axes,
    ),
    _row(
        "col2im_sizes",
        ("Col2Im",),
        "OpenVINO may end the process on Col2Im whose sizes come with the run",
        "drawn",
        _computes_input(1, 2),
    ),
    _row(
        "compress_by_nothing",
        ("Compress",),
        "OpenVINO ends the process if the condition of Compress has no elements",
        "drawn",
        _compresses_by_nothing,
    ),
    _row(
        "division_by_zero",
        ("Div", "Mod"),
        "OpenVINO ends the process if it folds {node.op_type} of integers by 0, or of the least one by -1",
        "drawn",
        _divides_by_zero,
    ),
    _row(
        "expand_of_nothing",
        ("Expand",),
        "OpenVINO ends the process, or gives another shape, if Expand makes or reads no elements",
        "drawn",
        _expands_nothing,
    ),
    _row(
        "gather_elements_beside",
        ("GatherElements",),
        "OpenVINO's GatherElements takes no indices with other sizes than the data beside the axis, and these may differ",
        "drawn",
        _differs_beside_axis,
    ),
    _row(
        "gather_nd_of_no_coordinates",
        ("GatherND",),
        "OpenVINO returns what it has not written from GatherND by indices of no coordinates",
        "drawn",
        _indexes_by_nothing,
    ),
    _row(
        "global_lp_pool_of_nothing",
        ("GlobalLpPool",),
        "OpenVINO ends the process on GlobalLpPool of no elements",
        "drawn",
        _pools_nothing,
    ),
    _row(
        "prelu_slopes",
        ("PRelu",),
        "OpenVINO may end the process on PRelu whose slopes do not broadcast to its input",
        "drawn",
        _has_unfit_slopes,
    ),
    _row(
        "top_k_of_fewer",
        ("TopK",),
        "OpenVINO may end the process on TopK of more elements than there are",
        "drawn",
        _selects_too_many,
    ),
    _row(
        "unique_axis",
        ("Unique",),
        "OpenVINO may end the process on Unique of an axis that its input may not have",
        "drawn",
        _may_lack_axis,
    ),
    _row(
        "pool_without_kernel",
        ("AveragePool", "LpPool", "MaxPool"),
        "{node.op_type} has no kernel_shape",
        "drawn",
        _has_no_kernel,
    ),
    _row(
        "pool_of_unfit_window",
        ("AveragePool", "LpPool", "MaxPool"),
        "strides, dilations, pads and the input of {node.op_type} have other numbers of dimensions than its kernel",
        "drawn",
        _has_unfit_window,
    ),
    _row(
        "average_behind_padding",
        ("AveragePool",),
        "OpenVINO counts elements behind the padding, under ceil_mode and count_include_pad",
        "drawn",
        _counts_behind_padding,
    ),
    _row(
        "max_pool_indices",
        ("MaxPool",),
        "OpenVINO returns the indices of MaxPool in another order and shape if storage_order is 1",
        "drawn",
        _orders_by_columns,
    ),
    _row(
        "max_pool_behind_end",
        ("MaxPool",),
        "OpenVINO counts a window that begins behind the end of the input, under ceil_mode",
        "maxpool_2d_ceil_output_size_reduce_by_one",
        _begins_behind_end,
    ),
    _row(
        "spread_pixel",
        ("Concat", "Expand", "Tile"),
        "OpenVINO's {node.op_type} of images of one pixel that another node reads is wrong if channels are last",
        "drawn",
        _spreads_pixel,
    ),
    _row(
        "group_of_open_parts",
        ("Concat",),
        "OpenVINO makes one convolution with groups of what this Concat reads, and not always the right one",
        "drawn",
        _groups_open_parts,
    ),
    _row(
        "conv_strides_last_axis",
        ("Conv",),
        "OpenVINO is wrong about a Conv of one channel whose last axis alone has a stride, and ends with one position",
        "drawn",
        _strides_last_axis_alone,
    ),
    _row(
        "conv_lost_stride",
        ("Conv",),
        "OpenVINO cannot move the strides of this Conv to the node before it, which has several outputs",
        "drawn",
        _loses_stride,
    ),
    _row(
        "transposed_open_same",
        ("ConvTranspose",),
        "OpenVINO cuts nothing off a ConvTranspose with auto_pad SAME if a size of its input is open",
        "drawn",
        _pads_open_transposed,
    ),
    _row(
        "transposed_output_shape",
        ("ConvTranspose",),
        "OpenVINO places the results of ConvTranspose wrongly if output_shape is given with groups or auto_pad",
        "drawn",
        _misplaces_transposed,
    ),
    _row(
        "fused_by_channels",
        ("Add", "BatchNormalization", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum"),
        "OpenVINO fuses {node.op_type} by channels into the product before it, along its last axis",
        "drawn",
        _is_fused_by_channels,
    ),
    _row(
        "if_of_open_sizes",
        ("If",),
        "OpenVINO lets other values overwrite what an If with open sizes returns",
        "drawn",
        _has_open_branches,
    ),
    _row("lp_normalization", ("LpNormalization",), "OpenVINO adds to the norm that LpNormalization divides by", "drawn"),
    _row(
        "round_of_quotient",
        ("Round",),
        "OpenVINO divides by a multiplication, so that a quotient may be on the other side of a half",
        "dynamicquantizelinear_expanded",
        _rounds_quotient,
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
        _computes_input(1),
    ),
    _row("odd_flag", ("*",), "OpenVINO may read a flag that is neither 0 nor 1 otherwise than 1", "drawn", _has_odd_flag),
    _row(
        "contrib_attention_masks",
        ("com.microsoft.MultiHeadAttention",),
        "OpenVINO differs in rows of unidirectional MultiHeadAttention of which the mask of padded keys leaves none",
        "drawn",
        _hides_twice,
    ),
    _row(
        "contrib_product_of_batches",
        ("com.microsoft.FusedMatMul",),
        "OpenVINO ignores transBatchA and transBatchB of FusedMatMul",
        "drawn",
        _moves_batch,
    ),
    _row(
        "product_of_nothing",
        ("Gemm", "MatMul"),
        "OpenVINO is wrong about products over an axis of length 0",
        "drawn",
        _is_product_of_nothing,
    ),
    _row(
        "empty_constant",
        ("*",),
        "OpenVINO forgets the shape of a constant of no elements",
        "drawn",
        _reads_empty_constant,
    ),
    _row("open_size_beside_0", ("*",), "OpenVINO takes an open size for 0 if another size is 0", "drawn", _forgets_sizes),
    _row(
        "gather_of_nothing",
        ("Gather",),
        "OpenVINO drops the axis that Gather takes nothing of",
        "drawn",
        _gathers_nothing,
    ),
    _row(
        "dft_of_nothing",
        ("DFT",),
        "OpenVINO may end the process on DFT of length 0, and the length may be 0 or is not known",
        "drawn",
        _may_transform_nothing,
    ),
    _row(
        "loop_without_iterations",
        ("Loop",),
        "OpenVINO returns results of an earlier run from a Loop without iterations, and never returns from one with a negative number",
        "openvino#37247",
        _may_not_run,
    ),
    _row(
        "scan_of_nothing",
        ("Scan",),
        "OpenVINO fails at Scan of length 0, and the length may be 0",
        "drawn",
        _may_scan_nothing,
    ),
    _row(
        "unique_of_nothing",
        ("Unique",),
        "OpenVINO fails at Unique of no elements or ends the process, and there may be none",
        "drawn",
        _may_be_empty,
    ),
    _row(
        "recurrent_of_nothing",
        RECURRENT,
        "OpenVINO returns what it has not written from {node.op_type} of no elements, or ends the process",
        "drawn",
        _is_empty,
    ),
    _row(
        "hardmax_of_open_sizes",
        ("Hardmax",),
        "OpenVINO loses the shape of a Hardmax of no elements, and sizes are open",
        "drawn",
        _has_open_size,
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
        _is_deep_product,
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
        _is_long_sum,
    ),
    *(
        _row(
            f"saturating_{operator.lower()}",
            (operator,),
            "OpenVINO adds up pairs of 8-bit products in 16 bits on this processor, which saturate",
            "drawn",
            _may_saturate,
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
        _may_halve,
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
        _may_saturate_pairs,
        partial(saturates_bytes, "QLinearConv"),
    ),
    _row(
        "quantized_pair",
        (*QUANTIZING, *(f"{MICROSOFT}.{name}" for name in QUANTIZING)),
        "OpenVINO may end the process on a QuantizeLinear of what was dequantized",
        "drawn",
        _quantizes_pair,
    ),
    _row(
        "quantized_to_words",
        (*QUANTIZING, *(f"{MICROSOFT}.{name}" for name in QUANTIZING)),
        "OpenVINO does not saturate what it quantizes to 16 bits",
        "drawn",
        _quantizes_to_words,
    ),
)
"""Rows of what is refused although the user takes a step of the quantization."""

_check_rows, _check_halves, _check_quantized = tabulate(ROWS), tabulate(HALF_ROWS), tabulate(QUANTIZED_ROWS)
