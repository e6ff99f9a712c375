"""Integer operators that the engine computes wrongly, and bounds of the integers of a network.

OpenVINO 2026.4 on processors computes int64, uint64 and uint32 in int32, saturates 8-bit integers instead of wrapping them around, and
runs some operators of wide integers in float32, which is exact up to 2^24. A node is refused if a value that it reads or makes may be
larger, because of a constant or of inputs of `_LEAST` and more. Each run checks its inputs against the limits of `settle_limits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from hetero_core.dtypes import bits_of_dtype
from hetero_core.engines.inspection import MOVING, dtype_of_input, dtype_of_value, find_shape, walk_producers
from hetero_core.network.graph import Graph, Network, Node, iterate_graphs
from hetero_core.network.initializers import Initializer

LARGEST = 2**31 - 1
EXACT_FLOAT = 2**24
_LARGEST_SIZE = 2**24
"""The bound of a size and of all that is computed from sizes and small constants alone."""
_UNKNOWN_COUNT = 2**12
"""The number of elements that a sum of an open size is taken to have."""
_MOST_ELEMENTS = 4096
"""Constants of floats with more elements are weights."""
_LEAST = 2**18 - 1
"""The lowest limit of an input; indices of the largest vocabularies are no larger."""
_LONG = frozenset({"int64", "uint32", "uint64"})
_WIDE = _LONG | {"int32"}
_NARROW = ("int16", "uint16")
_GROWING = frozenset({"Einsum", "Gemm", "MatMul", "Pow", "ReduceProd", "ReduceSumSquare"})
_COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_IN_FLOAT = _COMPARING | frozenset(
    {
        *("Div", "Mod", "ReduceL1", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceSum", "Relu", "Resize", "ReverseSequence", "TopK", "Trilu", "Upsample"),
    }
)
_SATURATING = _GROWING | {"Add", "Mul", "ReduceMean", "Sub", "Sum"}


def find_arithmetic_error(node: Node, graph: Graph) -> str | None:
    """Returns the text of the engine's error in a node of integers, for any values of its inputs, or None."""
    dtype = dtype_of_input(node, graph) or ""
    is_in_float = _is_inexact(node, graph)
    for position, value in enumerate(node.inputs):
        # The frontend saturates constants, and an end beyond the end is the end.
        if node.op_type == "Slice" and position > 0:
            break
        if _exceeds(value, graph, EXACT_FLOAT if is_in_float else LARGEST):
            limit = "float32, which is exact up to 2^24" if is_in_float else "32 bits"
            kind = dtype_of_value(value, graph)
            return f"OpenVINO computes {node.op_type} of {kind} in {limit}; the constant '{value}' has larger values"
    if "int" not in dtype:
        return None
    if node.op_type == "BitShift":
        # bitshift_right_int8_negative_input; a shift by the width or more, or out of a byte
        return "OpenVINO shifts signed integers, and beyond their width, another way than the standard"
    if dtype in ("int8", "uint8"):
        if node.op_type == "Div":
            # div_int8, since the engine's fusion is off
            return f"OpenVINO rounds quotients of {dtype}; the standard cuts them off"
        is_saturating = node.op_type in _SATURATING or (dtype == "int8" and node.op_type in ("Abs", "Neg"))
        return f"OpenVINO saturates {dtype}; the standard's reference wraps around" if is_saturating else None
    return f"OpenVINO computes {node.op_type} of {dtype} in float32" if node.op_type in _GROWING else None


def find_output_excess(network: Network) -> str | None:
    """Returns why the engine cannot return a constant as it is, or None."""
    names = (spec.name for spec in network.outputs if _exceeds(spec.name, network, LARGEST))
    return next(
        (f"OpenVINO holds integers in 32 bits; the output '{name}' is a constant with larger values" for name in names), None
    )


def settle_limits(network: Network) -> tuple[dict[str, int], dict[str, Magnitude]]:
    """Returns how large the absolute integers of inputs may be, and the magnitudes of all values that follow.

    Inputs that are not named may be anything. Under these limits no value is too large for the engine, as long as they can be `_LEAST` or
    more; `find_excess` finds the remaining nodes.
    """
    # The lowest number of 32 bits is False as bool.
    has_bools = any(
        node.op_type in ("Cast", "CastLike") and dtype_of_value(node.outputs[0], network) == "bool" for node in network.nodes
    )
    limited = _WIDE if has_bools else _LONG
    if all(node.op_type in MOVING and not node.domain for node in network.nodes):
        limited -= {"uint32"}  # all bits are there; only numbers are wrong
    limits = {spec.name: LARGEST for spec in network.inputs if spec.dtype in limited}
    for value in _list_values_in_float(network):
        for name in _list_origins(value, network):
            if network.inputs[network.index_of_input[name]].dtype in _WIDE:
                limits[name] = EXACT_FLOAT
    dtypes = {spec.name: spec.dtype for spec in network.inputs}
    while True:
        magnitudes = find_magnitudes(network, limits)
        excesses = {value for node in network.nodes for value, _ in _list_excesses(node, network, magnitudes)}
        origins = sorted({name for value in excesses for name in _list_origins(value, network) if dtypes[name] in _WIDE})
        lowered = {name: half for name in origins if (half := limits.get(name, LARGEST) // 2) >= _LEAST}
        if not lowered:
            return limits, magnitudes
        limits.update(lowered)


def find_excess(node: Node, network: Network, magnitudes: Mapping[str, Magnitude]) -> str | None:
    """Returns why the engine cannot compute a node: a value that it reads or makes may be too large, or is not cut off; else None."""
    dtype = ""
    for value, limit in _list_excesses(node, network, magnitudes):
        kind = "float32, which is exact up to 2^24" if limit == EXACT_FLOAT else "32 bits"
        dtype = str(dtype_of_value(value, network))
        return f"OpenVINO computes {node.op_type} of {dtype} in {kind}; {_describe(value, magnitudes[value])}"
    for value in node.outputs:
        dtype = str(dtype_of_value(value, network)) if value else ""
        if dtype in _NARROW and value in network.index_of_consumers and not node.domain and _wraps_around(node, network, dtype):
            return f"OpenVINO holds {dtype} in 32 bits within a network and does not wrap it around, as '{value}' may have to"
    return None


def _wraps_around(node: Node, graph: Graph, dtype: str) -> bool:
    if node.op_type in ("Cast", "CastLike"):
        source = str(dtype_of_input(node, graph))
        return "int" in source and source not in ("uint8", dtype, "int8" if dtype == "int16" else "uint8")
    return node.op_type in (*_ADDING, *_SUMMING, "Abs", "BitwiseNot", "Mul", "Neg")


def _describe(value: str, magnitude: Magnitude) -> str:
    return f"'{value}' may have absolute values up to {magnitude.largest:.17g}"


def _list_excesses(node: Node, network: Network, magnitudes: Mapping[str, Magnitude]) -> Iterable[tuple[str, int]]:
    """Yields the values of a node that may be too large for the engine, each with the largest exact integer."""
    is_in_float = not node.domain and _is_inexact(node, network)
    for value in (*node.inputs, *node.outputs):
        dtype = dtype_of_value(value, network) if value else None
        # Constants have their own reason, and the ends of a Slice are saturated.
        if dtype not in _WIDE or value in network.initializers or (dtype == "int32" and not is_in_float):
            continue
        limit = EXACT_FLOAT if is_in_float else LARGEST
        if value in magnitudes and magnitudes[value].largest > limit:
            yield value, limit


def _is_inexact(node: Node, graph: Graph) -> bool:
    """Says whether the engine computes a node of integers in float32 and its result is wrong for some of 32 bits.

    A comparison with constants below 2^24 is right: rounding moves no integer onto such a number, nor past it.
    """
    if node.op_type not in _IN_FLOAT or dtype_of_input(node, graph) not in _WIDE:
        return False
    is_exact = any(value in graph.initializers and not _exceeds(value, graph, EXACT_FLOAT - 2) for value in node.inputs)
    return not (node.op_type in _COMPARING and is_exact)


def _list_values_in_float(network: Network) -> Iterable[str]:
    """Yields the values that some node, or some node of its bodies, computes in float32 though they are integers."""
    for node in network.nodes:
        if _is_inexact(node, network):
            yield from node.inputs
        bodies = [body for outer in node.bodies.values() for body in iterate_graphs(outer)]
        if any(_is_inexact(inner, body) for body in bodies for inner in body.nodes):
            yield from node.reads


def _list_origins(value: str, network: Network) -> set[str]:
    """Returns the inputs that a value is computed from. Inputs of Shape and Size do not count: every size is below the limit."""
    producers = walk_producers(value, network, lambda node: node.op_type not in ("Shape", "Size"))
    reads = {name for node in producers if node.op_type not in ("Shape", "Size") for name in node.reads}
    return {value, *reads} & network.index_of_input.keys()


def _exceeds(value: str, graph: Graph, limit: int) -> bool:
    constant = graph.initializers.get(value)
    if constant is None or constant.dtype not in _WIDE or not constant.array.size:
        return False
    if limit == LARGEST and constant.dtype not in _LONG:
        return False
    return bool(constant.array.max() > limit or constant.array.min() < np.int64(-limit) - 1)


@dataclass(frozen=True, slots=True)
class Magnitude:
    """The largest absolute value that an element may have; `is_size` if it comes from sizes and small constants alone."""

    largest: float
    is_size: bool = False


def find_magnitudes(network: Network, limits: Mapping[str, int]) -> dict[str, Magnitude]:
    """Returns the magnitudes of a network's integers, if no integer of an input named in `limits` is above its limit.

    The result of an operator without a rule is taken to fit into 32 bits, as results of bodies are. Floats have a magnitude only if they
    come from integers and small constants, as in the arithmetic of shapes.
    """
    magnitudes: dict[str, Magnitude] = {}
    for spec in network.inputs:
        default = _fit(str(spec.dtype))
        if default is not None:
            magnitudes[spec.name] = Magnitude(min(default.largest, limits.get(spec.name, LARGEST)))
    for name, constant in network.initializers.items():
        if (magnitude := _measure_constant(constant)) is not None:
            magnitudes[name] = magnitude
    for node in network.nodes:
        for value in filter(None, node.outputs):
            dtype = dtype_of_value(value, network)
            exact, default = _bound_exactly(node, value, network, magnitudes), _fit(dtype or "")
            if exact is None:
                has_rule = not node.domain and node.op_type in _RULES
                magnitude = Magnitude(inf) if dtype in _LONG and has_rule else default
            elif default is None or dtype == "int64":
                magnitude = exact
            elif dtype in _LONG:
                magnitude = Magnitude(inf) if _changes_sign(node, network) else exact
            else:
                magnitude = Magnitude(min(exact.largest, default.largest), exact.is_size)
            if magnitude is not None:
                magnitudes[value] = magnitude
    return magnitudes


def _fit(dtype: str) -> Magnitude | None:
    if dtype == "bool":
        return Magnitude(1)
    if "int" not in dtype:
        return None
    bits = bits_of_dtype(dtype) or 64
    return Magnitude(min(2**bits - 1 if dtype.startswith("uint") else 2 ** (bits - 1), LARGEST))


def _changes_sign(node: Node, graph: Graph) -> bool:
    is_cast = node.op_type in ("Cast", "CastLike")
    return node.op_type in ("BitwiseNot", "Neg", "Sub") or (is_cast and str(dtype_of_input(node, graph)).startswith("int"))


def _measure_constant(constant: Initializer) -> Magnitude | None:
    """Returns the magnitude of a constant; None for texts, weights and values with NaN."""
    is_small_float = constant.dtype in ("float16", "float32", "float64") and prod(constant.shape) <= _MOST_ELEMENTS
    return _measure(constant.array) if is_small_float or "int" in str(constant.dtype) or constant.dtype == "bool" else None


def _measure(array: Any) -> Magnitude | None:
    largest = max(abs(array.max().item()), abs(array.min().item())) if array.size else 0
    return None if largest != largest else Magnitude(largest)


_COPIED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(MOVING | {"Abs", "BitwiseNot", "Ceil", "Floor", "MaxPool", "Neg", "ReduceMax", "ReduceMean"}, (0,)),
    **dict.fromkeys(("ReduceMin", "Relu", "Round", "Sign", "TopK", "Unique"), (0,)),
    **dict.fromkeys(("Clip", "Concat", "Max", "Mean", "Min"), ()),
    **dict.fromkeys(("Pad", "Scatter", "ScatterElements", "ScatterND"), (0, 2)),
    "Mod": (1,),
    "OneHot": (2,),
    "Range": (0, 1),
    "Where": (1, 2),
}
"""Operator -> inputs with the magnitude of the result, or an empty tuple for all inputs."""
_SIZING = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size"})
_ADDING = frozenset({"Add", "Sub", "Sum"})
_MASKING = frozenset({"BitwiseAnd", "BitwiseOr", "BitwiseXor"})
_SUMMING = frozenset({"CumSum", "ReduceL1", "ReduceSum"})
_OTHERS = frozenset({"Cast", "CastLike", "ConstantOfShape", "Div", "EyeLike", "Mul", "ReduceProd"})
_RULES = _COPIED.keys() | _SIZING | _ADDING | _MASKING | _SUMMING | _OTHERS
_COARSE: Mapping[str | None, float] = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23}
"""The largest relative excess of a float of a type over the integer that was cast to it."""


def _bound_exactly(node: Node, value: str, network: Network, magnitudes: Mapping[str, Magnitude]) -> Magnitude | None:
    """Returns the magnitude of an output as if its type held every number; None without a rule."""
    if node.domain or node.op_type not in _RULES:
        return None
    if node.op_type in _SIZING or (value != node.outputs[0] and node.op_type in ("MaxPool", "TopK", "Unique")):
        return Magnitude(_LARGEST_SIZE, is_size=True)
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get("value")
        return Magnitude(0) if fill is None else _measure(fill) if hasattr(fill, "dtype") else None
    if node.op_type == "EyeLike":
        return Magnitude(1)
    positions = _COPIED.get(node.op_type) or ((0,) if node.op_type in ("Cast", "CastLike", *_SUMMING) else range(len(node.inputs)))
    names = [node.inputs[index] for index in positions if index < len(node.inputs) and node.inputs[index]]
    if not names or any(name not in magnitudes for name in names):
        return None
    operands = [magnitudes[name] for name in names]
    largest = _grow(node, network, [operand.largest for operand in operands], dtype_of_value(value, network))
    if any(operand.is_size for operand in operands) and all(each.is_size or each.largest <= _LARGEST_SIZE for each in operands):
        return Magnitude(min(largest, _LARGEST_SIZE), is_size=True)
    return Magnitude(largest)


def _grow(node: Node, graph: Graph, operands: list[float], dtype: str | None) -> float:
    if node.op_type in _ADDING:
        return sum(operands)
    if node.op_type == "Mul":
        return 0 if 0 in operands else prod(operands)
    if node.op_type == "Div":
        # A quotient by a fraction may be larger than the dividend.
        return operands[0] if "int" in str(dtype) else inf
    if node.op_type in _MASKING:
        # A negative number may have the next power of 2 as its absolute value.
        return inf if inf in operands else 2 ** int(max(operands)).bit_length() - str(dtype).startswith("uint")
    if node.op_type in _SUMMING:
        shape = find_shape(node, graph) or (None,)
        return operands[0] * max(1, prod(size if isinstance(size, int) else _UNKNOWN_COUNT for size in shape))
    if node.op_type in ("Cast", "CastLike"):
        return 1 if dtype == "bool" else operands[0] * (1 + _COARSE.get(dtype, 0))
    return inf if node.op_type == "ReduceProd" else max(operands)
