"""Comparison, logic and bits: results are bool, or integers for the bitwise operators. NaN compares as IEEE 754 says."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, widen
from hetero_core.kernels.registry import ANY, BOOL, FLOAT8, FLOATS, INTEGERS, NUMBERS, STRING, kernel

_BOOL = np.dtype(bool)


@kernel("Equal", since=(7, 11, 13, 19), dtypes=NUMBERS | BOOL | STRING)
def equal(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns a == b. Source: ONNX Equal-19."""
    # NumPy compares objects to objects; the element type of strings is object.
    return xp.asarray(xp.equal(a, b), dtype=_BOOL)


@kernel("Not", since=(1,), dtypes=BOOL)
def not_(xp: Namespace, x: Array) -> Array:
    """Returns not x. Source: ONNX Not-1."""
    return xp.logical_not(x)


@kernel("BitwiseNot", since=(18,), dtypes=INTEGERS)
def bitwise_not(xp: Namespace, x: Array) -> Array:
    """Returns all bits flipped. Source: ONNX BitwiseNot-18."""
    return xp.invert(x)


@kernel("IsNaN", since=(9, 13), dtypes=FLOATS)
@kernel("IsNaN", since=(20,), dtypes=FLOATS | FLOAT8)
def is_nan(xp: Namespace, x: Array) -> Array:
    """Returns where x is not a number. Source: ONNX IsNaN-20."""
    return xp.isnan(widen(x))


@kernel("IsInf", since=(10,), dtypes=FLOATS)
@kernel("IsInf", since=(20,), dtypes=FLOATS | FLOAT8)
def is_inf(xp: Namespace, x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Returns where x is an infinity of a wanted sign. Source: ONNX IsInf-20."""
    wide = widen(x)
    infinite = xp.isinf(wide)
    if not detect_negative:
        infinite = infinite & ~(wide < 0)
    if not detect_positive:
        infinite = infinite & ~(wide > 0)
    return infinite


@kernel("Where", since=(9, 16), dtypes=(BOOL, ANY))
def where(xp: Namespace, condition: Array, x: Array, y: Array) -> Array:
    """Returns x where the condition holds, else y. Source: ONNX Where-16."""
    return xp.where(condition, x, y)
