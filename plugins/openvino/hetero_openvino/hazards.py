"""Known errors that hang on sizes, on numbers of iterations or on the processor, and limits of open sizes that each run checks."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from math import prod

from hetero_core.engines.inspection import find_constant, find_shape, has_input
from hetero_core.engines.known_errors import KnownError
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType
from hetero_openvino.pixels import RESIZING, may_miss_pixels
from hetero_openvino.producers import walk_producers

LONGEST_SUM = 2**20
"""Elements that a sum in float32 may have: the engine adds eight numbers side by side, and is off by 0.1 % where all are alike."""
LONGEST_CHAIN = 2**17
"""The same for sums that it adds one by one: those that leave the last axis, and those of one dimension."""

_REDUCTIONS = tuple(f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Mean", "Sum", "SumSquare"))
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RECURRENT = ("GRU", "LSTM", "RNN")


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


def may_not_run(node: Node, graph: Graph) -> bool:
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
    if any(scale is None or scale.array.size != 1 for scale in scales):
        return True
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


def list_summed(node: Node, graph: Graph) -> tuple[list[int | str | None], bool] | None:
    """Returns the sizes that a node sums over, and whether one by one; None if it sums nothing, or its axes are not known."""
    shape = find_shape(node, graph)
    if node.domain or shape is None:
        return None
    rank = len(shape)
    if node.op_type in _REDUCTIONS:
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
    else:
        return None
    return [shape[axis] for axis in sorted(summed)], rank - 1 not in summed or rank == 1


def _is_long_sum(node: Node, graph: Graph) -> bool:
    summed = list_summed(node, graph)
    if summed is None:
        return False
    sizes, is_chain = summed
    return prod(size for size in sizes if isinstance(size, int)) > (LONGEST_CHAIN if is_chain else LONGEST_SUM)


@cache
def saturates_bytes(operator: str) -> bool:
    """Says whether the engine saturates sums of 8-bit products on this processor: 64 times 255 x 127 is 2,072,640."""
    import numpy as np
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
        summed, is_chain = list_summed(node, network) or ([], False)
        places = tuple(place_of_size[size] for size in summed if isinstance(size, str) and size in place_of_size)
        if places:
            factor = prod(size for size in summed if isinstance(size, int))
            most = LONGEST_CHAIN if is_chain else LONGEST_SUM
            reason = f"OpenVINO loses 0.1 % and more where it adds up more than {most} numbers in float32"
            limits[SizeLimit(places, factor, 0, most, reason)] = None
    return list(limits)


ROWS = (
    KnownError(
        "product_of_nothing",
        ("Gemm", "MatMul"),
        "OpenVINO is wrong about products over an axis of length 0",
        "2026.4",
        "drawn",
        _is_product_of_nothing,
    ),
    KnownError(
        "empty_constant",
        ("*",),
        "OpenVINO forgets the shape of a constant of no elements",
        "2026.4",
        "drawn",
        _reads_empty_constant,
    ),
    KnownError(
        "open_size_beside_0", ("*",), "OpenVINO takes an open size for 0 if another size is 0", "2026.4", "drawn", _forgets_sizes
    ),
    KnownError(
        "gather_of_nothing",
        ("Gather",),
        "OpenVINO drops the axis that Gather takes nothing of",
        "2026.4",
        "drawn",
        _gathers_nothing,
    ),
    KnownError(
        "dft_of_nothing",
        ("DFT",),
        "OpenVINO may end the process on DFT of length 0, and the length may be 0 or is not known",
        "2026.4",
        "drawn",
        _may_transform_nothing,
    ),
    KnownError(
        "loop_without_iterations",
        ("Loop",),
        "OpenVINO returns results of an earlier run from a Loop without iterations, and never returns from one with a negative number",
        "2026.4",
        "openvino#37247",
        may_not_run,
    ),
    KnownError(
        "scan_of_nothing",
        ("Scan",),
        "OpenVINO fails at Scan of length 0, and the length may be 0",
        "2026.4",
        "drawn",
        _may_scan_nothing,
    ),
    KnownError(
        "unique_of_nothing",
        ("Unique",),
        "OpenVINO fails at Unique of no elements or ends the process, and there may be none",
        "2026.4",
        "drawn",
        _may_be_empty,
    ),
    KnownError(
        "recurrent_of_nothing",
        _RECURRENT,
        "OpenVINO returns what it has not written from {node.op_type} of no elements, or ends the process",
        "2026.4",
        "drawn",
        _is_empty,
    ),
    KnownError(
        "hardmax_of_open_sizes",
        ("Hardmax",),
        "OpenVINO loses the shape of a Hardmax of no elements, and sizes are open",
        "2026.4",
        "drawn",
        _has_open_size,
    ),
    KnownError(
        "nearest_pixel",
        RESIZING,
        "OpenVINO computes the nearest pixel in float32 and may take another one, and sizes are open or within a body",
        "2026.4",
        "onnxruntime#28291",
        may_miss_pixels,
    ),
    KnownError(
        "long_sum",
        (
            *_REDUCTIONS,
            *("CumSum", "GlobalAveragePool", "GroupNormalization", "InstanceNormalization", "LayerNormalization"),
            *("MeanVarianceNormalization", "RMSNormalization"),
        ),
        "OpenVINO adds up too many numbers in float32 for {node.op_type}, which loses 0.1 % and more",
        "2026.4",
        "drawn",
        _is_long_sum,
    ),
    *(
        KnownError(
            f"saturating_{operator.lower()}",
            (operator,),
            "OpenVINO adds up pairs of 8-bit products in 16 bits on this processor, which saturate",
            "2026.4",
            "drawn",
            _may_saturate,
            partial(saturates_bytes, operator),
        )
        for operator in ("QLinearConv", "QLinearMatMul")
    ),
)

HALF_ROWS = (
    KnownError(
        "product_between_codes",
        ("QLinearConv", "QLinearMatMul"),
        "OpenVINO may round a product that lies exactly between two codes to the odd one; OPENVINO_QUANTIZED=YES takes it all the same",
        "2026.4",
        "drawn",
        _may_halve,
    ),
)
"""Rows of results that are one step of a quantization away from the right one."""

QUANTIZED_ROWS = (
    KnownError(
        "saturating_pairs",
        PRODUCTS,
        "OpenVINO adds up pairs of 8-bit products in 16 bits on this processor, which saturate",
        "2026.4",
        "drawn",
        _may_saturate_pairs,
        partial(saturates_bytes, "QLinearConv"),
    ),
)
"""Rows of products that the engine computes in 8 bits only where it may quantize."""
