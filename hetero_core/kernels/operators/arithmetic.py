"""Arithmetic with broadcasting: Div, Mod, Pow, and the variadic Sum, Mean, Max, Min."""

from __future__ import annotations

from functools import reduce

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, narrow, widen
from hetero_core.kernels.registry import FLOATS, INTEGERS, NUMBERS, kernel


@kernel("Div", since=(7, 13, 14), dtypes=NUMBERS)
def div(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns a / b; integers truncate toward zero. Source: ONNX Div-14."""
    if a.dtype.kind not in "iu":
        return narrow(xp.divide(a, b), a.dtype)
    if a.dtype.kind == "u":
        return xp.floor_divide(a, b)
    quotient = xp.floor_divide(a, b)
    # The floor is one too low where the signs differ and something remains.
    remains = (xp.multiply(quotient, b) != a) & ((a < 0) != (b < 0))
    return quotient + remains.astype(a.dtype)


@kernel("Mod", since=(10, 13, 28), dtypes=NUMBERS, choices={"fmod": (0, 1)})
def mod(xp: Namespace, a: Array, b: Array, *, fmod: int = 0) -> Array:
    """Returns the remainder, with the sign of b, or of a where fmod is 1. Source: ONNX Mod-28."""
    dtype = a.dtype
    return narrow(xp.fmod(widen(a), widen(b)) if fmod else xp.mod(widen(a), widen(b)), dtype)


@kernel("Pow", since=(7, 12, 13, 15), dtypes=NUMBERS)
def power(xp: Namespace, x: Array, y: Array) -> Array:
    """Returns x ** y in the type of x. Source: ONNX Pow-15."""
    if x.dtype.kind not in "iu":
        wide = widen(x)
        return narrow(xp.power(wide, y.astype(wide.dtype)), x.dtype)
    if y.dtype.kind in "iu":
        return _raise_integers(xp, x, y)
    return xp.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)


def _raise_integers(xp: Namespace, x: Array, y: Array) -> Array:
    """Returns x ** y for integers; a negative exponent gives what truncating the fraction gives: 1, -1 or 0."""
    if y.dtype.kind == "u":
        return xp.power(x, y.astype(x.dtype))
    magnitude = xp.power(x, xp.maximum(y, 0).astype(x.dtype))
    odd = (y & 1) == 1
    if x.dtype.kind == "u":
        inverse = (x == 1).astype(x.dtype)
    else:
        inverse = (x == 1).astype(x.dtype) + (x == -1).astype(x.dtype) * (1 - 2 * odd.astype(x.dtype))
    return narrow(xp.where(y < 0, inverse, magnitude), x.dtype)


@kernel("Sum", since=(1, 6, 8, 13), dtypes=FLOATS)
def add_all(xp: Namespace, *inputs: Array) -> Array:
    """Returns the sum of all inputs; small floats are summed in float32. Source: ONNX Sum-13."""
    return narrow(reduce(xp.add, [widen(x) for x in inputs]), inputs[0].dtype)


@kernel("Mean", since=(1, 6, 8, 13), dtypes=FLOATS)
def average(xp: Namespace, *inputs: Array) -> Array:
    """Returns the mean of all inputs; small floats are summed in float32. Source: ONNX Mean-13."""
    return narrow(reduce(xp.add, [widen(x) for x in inputs]) / len(inputs), inputs[0].dtype)


@kernel("Max", since=(1, 6, 8, 12, 13), dtypes=NUMBERS)
def maximum(xp: Namespace, *inputs: Array) -> Array:
    """Returns the largest of all inputs; NaN wins. Source: ONNX Max-13."""
    return narrow(reduce(xp.maximum, inputs), inputs[0].dtype)


@kernel("Min", since=(1, 6, 8, 12, 13), dtypes=NUMBERS)
def minimum(xp: Namespace, *inputs: Array) -> Array:
    """Returns the smallest of all inputs; NaN wins. Source: ONNX Min-13."""
    return narrow(reduce(xp.minimum, inputs), inputs[0].dtype)


@kernel("BitShift", since=(11, 28), dtypes=INTEGERS, choices={"direction": ("LEFT", "RIGHT")})
def bit_shift(xp: Namespace, x: Array, y: Array, *, direction: str) -> Array:
    """Returns x shifted by y bits; a shift by the width or more gives zero. Source: ONNX BitShift-28."""
    return xp.left_shift(x, y) if direction == "LEFT" else xp.right_shift(x, y)
