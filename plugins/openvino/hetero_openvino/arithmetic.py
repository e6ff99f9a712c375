"""Integer operators that the engine computes wrongly, and bounds of the integers of a network.

OpenVINO 2026.4 on processors computes int64, uint64 and uint32 in int32, saturates 8-bit integers instead of wrapping them around, and
runs some operators of wide integers in float32, which is exact up to 2^24. A node is refused if a value that it reads or makes may be
larger, because of a constant or of inputs of `_LEAST` and more. Each run checks its inputs against the limit of `settle_limit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from hetero_core.dtypes import bits_of_dtype
from hetero_core.engines.inspection import MOVING, dtype_of_input, dtype_of_value, find_shape
from hetero_core.network.graph import Graph, Network, Node, iterate_graphs

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
_UNSIGNED = frozenset({"uint32", "uint64"})
LONG = _UNSIGNED | {"int64"}
_WIDE = LONG | {"int32"}
_NARROW = frozenset({"int8", "int16", "uint8", "uint16"})
_CASTS = ("Cast", "CastLike")
_SIZING = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size"})
_ADDING = frozenset({"Add", "Sub", "Sum"})
_MASKING = frozenset({"BitwiseAnd", "BitwiseOr", "BitwiseXor"})
_SUMMING = frozenset({"CumSum", "ReduceL1", "ReduceSum"})
_GROWING = frozenset({"Einsum", "Gemm", "MatMul", "Pow", "ReduceProd", "ReduceSumSquare"})
_WRAPPING = _GROWING | _ADDING | _SUMMING | {"Abs", "BitwiseNot", "Div", "Mul", "Neg", "ReduceMean"}
_COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_IN_FLOAT = _COMPARING | frozenset(
    {
        *("Clip", "Div", "Mod", "ReduceL1", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceSum", "Relu", "Resize", "ReverseSequence", "TopK", "Trilu", "Upsample"),
    }
)


def find_arithmetic_error(node: Node, graph: Graph) -> str | None:
    """Returns the text of the engine's error in a node of integers, for any values of its inputs, or None."""
    dtype = dtype_of_input(node, graph) or ""
    limit, where = _limit_node(node, graph)
    # The frontend saturates constants, and an end beyond the end is the end.
    for value in node.inputs[: 1 if node.op_type == "Slice" else None]:
        if _exceeds(value, graph, limit):
            kind = dtype_of_value(value, graph)
            return f"OpenVINO computes {node.op_type} of {kind} in {where}; the constant '{value}' has larger values"
    target = dtype_of_value(node.outputs[0], graph) if node.op_type in _CASTS else dtype
    if not _UNSIGNED.isdisjoint((dtype, target)) and node.op_type not in MOVING | _SIZING:
        kind = dtype if target == dtype else f"{dtype} to {target}"
        return f"OpenVINO computes {node.op_type} of {kind} in int32"
    if "int" not in dtype:
        return None
    if node.op_type == "BitShift":
        # bitshift_right_int8_negative_input; a shift by the width or more, or out of a byte
        return "OpenVINO shifts signed integers, and beyond their width, another way than the standard"
    if target in ("int16", "uint16") and node.op_type in _CASTS:
        is_wrapping = dtype not in ("uint8", target, "int8" if target == "int16" else "uint8")
    else:
        is_wrapping = dtype in _NARROW and node.op_type in _WRAPPING
    if is_wrapping and str(target).endswith("16"):
        return f"OpenVINO holds {target} in 32 bits within a network and does not wrap it around"
    if is_wrapping:
        return f"OpenVINO saturates {dtype}; the standard's reference wraps around"
    return f"OpenVINO computes {node.op_type} of {dtype} in float32" if node.op_type in _GROWING else None


def find_output_excess(network: Network) -> str | None:
    """Returns why the engine cannot return a constant as it is, or None."""
    name = next((spec.name for spec in network.outputs if _exceeds(spec.name, network, LARGEST)), None)
    return None if name is None else f"OpenVINO holds integers in 32 bits; the output '{name}' is a constant with larger values"


def settle_limit(network: Network) -> tuple[int, dict[str, Magnitude]]:
    """Returns how large the absolute integers of all inputs may be, and the magnitudes of all values that follow.

    It is the largest number, `_LEAST` at least, under which no value is too large for the engine; `find_excess` finds the nodes of which
    a value is too large all the same. Up to `LARGEST` int32 needs no check.
    """
    limit, bodies = LARGEST, list(iterate_graphs(network))[1:]
    if any(node.op_type in _CASTS and dtype_of_value(node.outputs[0], network) == "bool" for node in network.nodes):
        limit //= 2  # the lowest number of 32 bits is False as bool
    if any(_limit_node(node, body)[0] == EXACT_FLOAT for body in bodies for node in body.nodes):
        limit = EXACT_FLOAT
    while True:
        magnitudes = find_magnitudes(network, limit)
        if limit == _LEAST or not any(any(_list_excesses(node, network, magnitudes)) for node in network.nodes):
            return limit, magnitudes
        limit = max((limit - 1) // 2, EXACT_FLOAT if limit > EXACT_FLOAT else 0)


def find_excess(node: Node, network: Network, magnitudes: Mapping[str, Magnitude]) -> str | None:
    """Returns why the engine cannot compute a node: a value that it reads or makes may be too large; else None."""
    for value in _list_excesses(node, network, magnitudes):
        return (
            f"OpenVINO computes {node.op_type} of {dtype_of_value(value, network)} in {_limit_node(node, network)[1]}; '{value}' may have "
            f"absolute values up to {magnitudes[value].largest:.17g}"
        )
    return None


def _list_excesses(node: Node, network: Network, magnitudes: Mapping[str, Magnitude]) -> Iterable[str]:
    """Yields the values of a node that may be too large for the engine."""
    limit, _ = _limit_node(node, network)
    for value in filter(None, (*node.inputs, *node.outputs)):
        # Constants have their own reason, and the ends of a Slice are saturated.
        is_held = value in network.initializers or dtype_of_value(value, network) not in (_WIDE if limit == EXACT_FLOAT else LONG)
        if not is_held and value in magnitudes and magnitudes[value].largest > limit:
            yield value


def _limit_node(node: Node, graph: Graph) -> tuple[int, str]:
    """Returns the largest integer up to which the engine computes a node exactly, and the type in which it computes.

    A comparison with constants below 2^24 is right in float32: rounding moves no integer onto such a number, nor past it.
    """
    is_in_float = not node.domain and node.op_type in _IN_FLOAT and dtype_of_input(node, graph) in _WIDE
    if is_in_float and node.op_type in _COMPARING:
        is_in_float = not any(value in graph.initializers and not _exceeds(value, graph, EXACT_FLOAT - 2) for value in node.inputs)
    return (EXACT_FLOAT, "float32, which is exact up to 2^24") if is_in_float else (LARGEST, "32 bits")


def _exceeds(value: str, graph: Graph, limit: int) -> bool:
    constant = graph.initializers.get(value)
    if constant is None or not constant.array.size or constant.dtype not in (LONG if limit == LARGEST else _WIDE):
        return False
    return bool(constant.array.max() > limit or constant.array.min() < np.int64(-limit) - 1)


@dataclass(frozen=True, slots=True)
class Magnitude:
    """The largest absolute value that an element may have; `is_size` if it comes from sizes and small constants alone."""

    largest: float
    is_size: bool = False


def find_magnitudes(network: Network, limit: int) -> dict[str, Magnitude]:
    """Returns the magnitudes of a network's integers, if no integer of an input is above the limit.

    The result of an operator without a rule is taken to fit into 32 bits, as results of bodies are. Floats have a magnitude only if they
    come from integers and small constants, as in the arithmetic of shapes.
    """
    fitting = {spec.name: min(largest, limit) for spec in network.inputs if (largest := _fit(str(spec.dtype))) is not None}
    magnitudes = {name: Magnitude(largest) for name, largest in fitting.items()}
    for name, constant in network.initializers.items():
        # Texts, weights and values with NaN have none.
        is_small_float = constant.dtype in ("float16", "float32", "float64") and prod(constant.shape) <= _MOST_ELEMENTS
        is_measured = is_small_float or constant.dtype == "bool" or "int" in str(constant.dtype)
        if is_measured and (magnitude := _measure(constant.array)) is not None:
            magnitudes[name] = magnitude
    for node in network.nodes:
        for value in filter(None, node.outputs):
            dtype = dtype_of_value(value, network)
            exact, largest = _bound_exactly(node, value, network, magnitudes), _fit(dtype or "")
            if exact is None and largest is not None:
                # Integers that come from floats, and the like.
                exact = Magnitude(inf if dtype in LONG and not node.domain and node.op_type in _RULES else largest)
            elif exact is not None and largest is not None and dtype not in LONG:
                exact = Magnitude(min(exact.largest, largest), exact.is_size)
            if exact is not None:
                magnitudes[value] = exact
    return magnitudes


def _fit(dtype: str) -> int | None:
    """Returns the largest absolute value of a type of integers, up to that of 32 bits; None for other types."""
    if dtype == "bool":
        return 1
    if "int" not in dtype:
        return None
    bits: int = bits_of_dtype(dtype) or 64
    return min((1 << bits) - 1 if dtype.startswith("uint") else 1 << (bits - 1), LARGEST)


def _measure(array: Any) -> Magnitude | None:
    largest = max(abs(array.max().item()), abs(array.min().item())) if array.size else 0
    return None if largest != largest else Magnitude(largest)


_COPIED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(MOVING | {"Abs", "BitwiseNot", "Ceil", "Floor", "MaxPool", "Neg", "ReduceMax", "ReduceMean"}, (0,)),
    **dict.fromkeys((*_CASTS, *_SUMMING, "ReduceMin", "Relu", "Round", "Sign", "TopK", "Unique"), (0,)),
    **dict.fromkeys(("Clip", "Concat", "Max", "Mean", "Min"), ()),
    **dict.fromkeys(("Pad", "Scatter", "ScatterElements", "ScatterND"), (0, 2)),
    "Mod": (1,),
    "OneHot": (2,),
    "Range": (0, 1),
    "Where": (1, 2),
}
"""Operator -> inputs with the magnitude of the result, or an empty tuple for all inputs."""
_RULES = _COPIED.keys() | _SIZING | _ADDING | _MASKING | {"ConstantOfShape", "Div", "EyeLike", "Mul", "ReduceProd"}


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
    positions = _COPIED.get(node.op_type) or range(len(node.inputs))
    names = [node.inputs[index] for index in positions if index < len(node.inputs) and node.inputs[index]]
    if not names or any(name not in magnitudes for name in names):
        return None
    operands = [magnitudes[name] for name in names]
    largest = _grow(node, network, [operand.largest for operand in operands], str(dtype_of_value(value, network)))
    if any(operand.is_size for operand in operands) and all(each.is_size or each.largest <= _LARGEST_SIZE for each in operands):
        return Magnitude(min(largest, _LARGEST_SIZE), is_size=True)
    return Magnitude(largest)


def _grow(node: Node, graph: Graph, operands: list[float], dtype: str) -> float:
    if node.op_type in _ADDING:
        return sum(operands)
    if node.op_type == "Mul":
        return 0 if 0 in operands else prod(operands)
    if node.op_type == "Div":
        # A quotient by a fraction may be larger than the dividend.
        return operands[0] if "int" in dtype else inf
    if node.op_type in _MASKING:
        # A negative number may have the next power of 2 as its absolute value.
        return inf if inf in operands else 2 ** int(max(operands)).bit_length()
    if node.op_type in _SUMMING:
        shape = find_shape(node, graph) or (None,)
        return operands[0] * max(1, prod(size if isinstance(size, int) else _UNKNOWN_COUNT for size in shape))
    if node.op_type in _CASTS:
        # A float is above the integer that was cast to it by 2^-7 at most, that of bfloat16.
        return 1 if dtype == "bool" else operands[0] * (1 + 2**-7 * ("float" in dtype))
    return inf if node.op_type == "ReduceProd" else max(operands)
