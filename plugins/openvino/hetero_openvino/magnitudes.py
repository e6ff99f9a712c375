"""Bounds of the integers of a network: an interval for every value, from inputs, constants and sizes to outputs.

A size, and what is computed from sizes and small constants alone, is taken to be below 2^24, whatever it is the size of. What an operator
without an entry here returns is taken to fit into 32 bits, as results of bodies are. Floats have an interval only where they come from
integers and small constants, as in the arithmetic of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isnan, prod
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType

LARGEST = 2**31 - 1
_LARGEST_SIZE = 2**24
_UNKNOWN_COUNT = 2**12
"""The number of elements that a sum of an open size is taken to have."""
_MOST_ELEMENTS = 4096
"""Constants of floats with more elements are weights."""
_RANGES: Mapping[str, tuple[int, int]] = {
    "bool": (0, 1),
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
_LONG = ("int64", "uint32", "uint64")
_COARSE: Mapping[str, float] = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23}
"""By which share a float of a type may be above the integer that it was cast from."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Every element is from `low` to `high`; `is_size` where it comes from sizes and small constants alone."""

    low: float
    high: float
    is_size: bool = False

    @property
    def largest(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))


def find_bounds(network: Network, limits: Mapping[str, int]) -> dict[str, Bound]:
    """Returns the bounds of a network's values, if no integer of an input named in `limits` is above its limit."""
    bounds: dict[str, Bound] = {}
    for spec in network.inputs:
        default = _fit(str(spec.dtype))
        limit = limits.get(spec.name)
        if default is not None:
            bounds[spec.name] = default if limit is None else Bound(max(default.low, -limit), min(default.high, limit))
    for name, constant in network.initializers.items():
        bound = bound_constant(constant)
        if bound is not None:
            bounds[name] = bound
    for node in network.nodes:
        for position, value in enumerate(node.outputs):
            bound = _bound_output(node, position, network, bounds) if value else None
            if bound is not None:
                bounds[value] = bound
    return bounds


def bound_constant(constant: Initializer) -> Bound | None:
    """Returns the bounds of a constant; None for texts, weights and values with NaN."""
    is_integer = constant.dtype in _RANGES
    if not is_integer and (constant.dtype not in ("float16", "float32", "float64") or prod(constant.shape) > _MOST_ELEMENTS):
        return None
    return _bound_array(constant.array)


def is_beyond(bound: Bound | None, dtype: str) -> bool:
    """Says whether a number within bounds may lie outside of an integer type."""
    low, high = _RANGES[dtype]
    return bound is None or bound.low < low or bound.high > high


def _bound_array(array: Any) -> Bound | None:
    if not array.size:
        return Bound(0, 0)
    low, high = array.min().item(), array.max().item()
    return None if isnan(low) or isnan(high) else Bound(low, high)


def _fit(dtype: str) -> Bound | None:
    """Returns the range of an integer type, that of the absolute values of 32 bits at most."""
    limits = _RANGES.get(dtype)
    return None if limits is None else Bound(max(limits[0], -LARGEST), min(limits[1], LARGEST))


def _bound_output(node: Node, position: int, network: Network, bounds: Mapping[str, Bound]) -> Bound | None:
    result_type = network.type_of(node.outputs[position])
    dtype = result_type.dtype if isinstance(result_type, TensorType) else None
    computed = bound_exactly(node, position, network, bounds)
    default = _fit(dtype or "")
    if computed is None:
        return Bound(-inf, inf) if dtype in _LONG and _find_rule(node) is not None else default
    # What is beyond the type wraps around, there as in the standard; int64 is looked at by those who ask.
    if default is None or dtype == "int64" or not is_beyond(computed, str(dtype)):
        return computed
    return Bound(*_RANGES[str(dtype)]) if dtype in _LONG else default


def bound_exactly(node: Node, position: int, network: Network, bounds: Mapping[str, Bound]) -> Bound | None:
    """Returns the bounds of an output as if its type held every number; None if no rule gives bounds."""
    rule = _find_rule(node)
    if position > 0 and node.op_type in ("TopK", "Unique", "MaxPool"):
        return _SIZE
    computed = None if rule is None else rule(node, network, [bounds.get(value) for value in node.inputs])
    if computed is not None and computed.is_size:
        return Bound(max(computed.low, -_LARGEST_SIZE), min(computed.high, _LARGEST_SIZE), True)
    return computed


def _find_rule(node: Node) -> Rule | None:
    return None if node.domain else _RULES.get(node.op_type)


Rule = Callable[[Node, Network, list[Bound | None]], Bound | None]
_SIZE = Bound(-1, _LARGEST_SIZE, True)


def _join(operands: list[Bound | None]) -> Bound | None:
    known = [each for each in operands if each is not None]
    if len(known) < len(operands) or not known:
        return None
    return Bound(min(each.low for each in known), max(each.high for each in known), _are_sizes(known))


def _are_sizes(operands: list[Bound]) -> bool:
    return any(each.is_size for each in operands) and all(each.is_size or each.largest <= _LARGEST_SIZE for each in operands)


def _select(*positions: int) -> Rule:
    """A rule for operators that copy elements of some inputs; empty `positions` stand for all inputs."""

    def rule(node: Node, network: Network, operands: list[Bound | None]) -> Bound | None:
        present = [index for index, value in enumerate(node.inputs) if value]
        return _join([operands[index] for index in (positions or present) if index in present])

    return rule


def _with_zero(*positions: int) -> Rule:
    inner = _select(*positions)

    def rule(node: Node, network: Network, operands: list[Bound | None]) -> Bound | None:
        bound = inner(node, network, operands)
        return None if bound is None else Bound(min(bound.low, 0), max(bound.high, 0), bound.is_size)

    return rule


def _combine(operation: Callable[[Bound, Bound], tuple[float, float]]) -> Rule:
    """A rule for arithmetic of two operands or more, from the left."""

    def rule(node: Node, network: Network, operands: list[Bound | None]) -> Bound | None:
        if any(each is None for each in operands):
            return None
        known = [each for each in operands if each is not None]
        bound = known[0]
        for other in known[1:]:
            bound = Bound(*operation(bound, other))
        return Bound(bound.low, bound.high, _are_sizes(known))

    return rule


def _multiply(a: Bound, b: Bound) -> tuple[float, float]:
    products = [0 if x == 0 or y == 0 else x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(products), max(products)


def _divide(a: Bound, b: Bound) -> tuple[float, float]:
    """The quotient by an integer is never larger than what is divided; by a fraction it may be."""
    if b.low <= 0 <= b.high and not (isinstance(b.low, int) and isinstance(b.high, int)):
        return -inf, inf
    least = 1 if b.low <= 0 <= b.high else min(1, abs(b.low), abs(b.high))
    reach = max(abs(a.low), abs(a.high)) / least
    return (0 if a.low >= 0 and b.low >= 0 else -reach), reach


def _modulo(a: Bound, b: Bound) -> tuple[float, float]:
    reach = min(b.largest, max(a.largest, b.largest))
    return (0 if b.low >= 0 and a.low >= 0 else -reach), reach


def _mask(a: Bound, b: Bound) -> tuple[float, float]:
    reach = 2 ** int(max(a.largest, b.largest)).bit_length()
    return (0 if a.low >= 0 and b.low >= 0 else -reach), reach - 1


def _map(operation: Callable[[Bound], tuple[float, float]]) -> Rule:
    def rule(node: Node, network: Network, operands: list[Bound | None]) -> Bound | None:
        bound = operands[0]
        return None if bound is None else Bound(*operation(bound), bound.is_size)

    return rule


def _fill(node: Node, network: Network, operands: list[Bound | None]) -> Bound | None:
    value = node.attributes.get("value")
    if value is None:
        return Bound(0, 0)
    # An attribute of another kind is for the engine to refuse.
    return _bound_array(value) if hasattr(value, "dtype") else None


def _accumulate(node: Node, network: Network, operands: list[Bound | None]) -> Bound | None:
    """A sum along axes: at most as many elements as the input has."""
    bound, source_type = operands[0], network.type_of(node.inputs[0])
    if bound is None:
        return None
    shape = source_type.shape if isinstance(source_type, TensorType) else None
    sizes = [_UNKNOWN_COUNT] if shape is None else [size if isinstance(size, int) else _UNKNOWN_COUNT for size in shape]
    count = max(1, prod(sizes))
    return Bound(min(bound.low * count, bound.low), max(bound.high * count, bound.high), bound.is_size)


def _cast(node: Node, network: Network, operands: list[Bound | None]) -> Bound | None:
    bound, result_type = operands[0], network.type_of(node.outputs[0])
    dtype = result_type.dtype if isinstance(result_type, TensorType) else None
    if bound is None or dtype is None:
        return None
    if dtype in _COARSE:
        share = 1 + _COARSE[dtype]
        return Bound(bound.low * share, bound.high * share, bound.is_size)
    return Bound(0, 1) if dtype == "bool" else bound


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            "Compress",
            "DepthToSpace",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
            "MaxPool",
            "ReduceMax",
        ),
        _select(0),
    ),
    **dict.fromkeys(
        ("ReduceMean", "ReduceMin", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK"),
        _select(0),
    ),
    **dict.fromkeys(("Transpose", "Unique", "Unsqueeze", "Dropout"), _select(0)),
    **dict.fromkeys(("Clip", "Concat", "Max", "Mean", "Min"), _select()),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _select(0, 2)),
    **dict.fromkeys(("Relu", "Trilu"), _with_zero(0)),
    **dict.fromkeys(("Add", "Sum"), _combine(lambda a, b: (a.low + b.low, a.high + b.high))),
    **dict.fromkeys(("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size"), lambda node, network, operands: _SIZE),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _combine(_mask)),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Ceil", "Floor", "Round"), _map(lambda a: (a.low - 1, a.high + 1))),
    **dict.fromkeys(("CumSum", "ReduceL1", "ReduceSum"), _accumulate),
    "Abs": _map(lambda a: (0, a.largest)),
    "BitwiseNot": _map(lambda a: (-a.high - 1, -a.low - 1)),
    "ConstantOfShape": _fill,
    "Div": _combine(_divide),
    "EyeLike": lambda node, network, operands: Bound(0, 1),
    "Mod": _combine(_modulo),
    "Mul": _combine(_multiply),
    "Neg": _map(lambda a: (-a.high, -a.low)),
    "OneHot": _select(2),
    "Pad": _with_zero(0, 2),
    "Range": lambda node, network, operands: _join(operands[:2]),
    "ReduceProd": lambda node, network, operands: _SIZE if operands[0] is not None and operands[0].is_size else None,
    "Sign": _map(lambda a: (-1, 1)),
    "Sub": _combine(lambda a, b: (a.low - b.high, a.high - b.low)),
    "Where": _select(1, 2),
}
