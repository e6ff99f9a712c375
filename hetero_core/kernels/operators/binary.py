"""Operators that are one function of two arrays, with broadcasting: sums and products, comparisons, logic and bits."""

from __future__ import annotations

from collections.abc import Callable

from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import BOOL, INTEGERS, NUMBERS, Dtypes, kernel

Binary = Callable[[Namespace, Array, Array], Array]
_BROADCAST = (7, 13, 14)
_ORDERED = (7, 9, 13)


def _declare(op_type: str, function: str, since: tuple[int, ...], dtypes: Dtypes) -> Binary:
    """Declares a kernel that is this function of the namespace, and returns it."""

    @kernel(op_type, since=since, dtypes=dtypes)
    def compute(xp: Namespace, a: Array, b: Array) -> Array:
        return getattr(xp, function)(a, b)

    compute.__doc__ = f"Returns {function}(a, b) of each pair of elements. Source: ONNX {op_type}-{since[-1]}."
    return compute


# Integers wrap.
add = _declare("Add", "add", _BROADCAST, NUMBERS)
sub = _declare("Sub", "subtract", _BROADCAST, NUMBERS)
mul = _declare("Mul", "multiply", _BROADCAST, NUMBERS)
greater = _declare("Greater", "greater", _ORDERED, NUMBERS)
less = _declare("Less", "less", _ORDERED, NUMBERS)
_declare("GreaterOrEqual", "greater_equal", (12, 16), NUMBERS)
_declare("LessOrEqual", "less_equal", (12, 16), NUMBERS)
and_ = _declare("And", "logical_and", (7,), BOOL)
or_ = _declare("Or", "logical_or", (7,), BOOL)
xor = _declare("Xor", "logical_xor", (7,), BOOL)
_declare("BitwiseAnd", "bitwise_and", (18,), INTEGERS)
_declare("BitwiseOr", "bitwise_or", (18,), INTEGERS)
_declare("BitwiseXor", "bitwise_xor", (18,), INTEGERS)
