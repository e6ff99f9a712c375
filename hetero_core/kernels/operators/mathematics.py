"""Unary mathematics: roots, exponentials, trigonometry, rounding, signs, Erf and Clip."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, is_float, narrow, widen
from hetero_core.kernels.registry import FLOATS, NUMBERS, SIGNED, Dtypes, kernel

# Operators whose result is one function of the namespace: operator, function, since-versions, dtypes.
_UNARY: tuple[tuple[str, str, tuple[int, ...], Dtypes], ...] = (
    ("Abs", "abs", (1, 6, 13), NUMBERS),
    ("Acos", "arccos", (7, 22), FLOATS),
    ("Acosh", "arccosh", (9, 22), FLOATS),
    ("Asin", "arcsin", (7, 22), FLOATS),
    ("Asinh", "arcsinh", (9, 22), FLOATS),
    ("Atan", "arctan", (7, 22), FLOATS),
    ("Atanh", "arctanh", (9, 22), FLOATS),
    ("Ceil", "ceil", (1, 6, 13), FLOATS),
    ("Cos", "cos", (7, 22), FLOATS),
    ("Cosh", "cosh", (9, 22), FLOATS),
    ("Exp", "exp", (1, 6, 13), FLOATS),
    ("Floor", "floor", (1, 6, 13), FLOATS),
    ("Log", "log", (1, 6, 13), FLOATS),
    ("Neg", "negative", (1, 6, 13), FLOATS | SIGNED),
    ("Round", "rint", (11, 22), FLOATS),
    ("Sign", "sign", (9, 13), NUMBERS),
    ("Sin", "sin", (7, 22), FLOATS),
    ("Sinh", "sinh", (9, 22), FLOATS),
    ("Sqrt", "sqrt", (1, 6, 13), FLOATS),
    ("Tan", "tan", (7, 22), FLOATS),
    ("Tanh", "tanh", (1, 6, 13), FLOATS),
)


def _register(op_type: str, function: str, since: tuple[int, ...], dtypes: Dtypes) -> None:
    @kernel(op_type, since=since, dtypes=dtypes)
    def compute(xp: Namespace, x: Array) -> Array:
        return narrow(getattr(xp, function)(widen(x)), x.dtype)

    compute.__doc__ = f"Returns {function}(x) of each element. Source: ONNX {op_type}-{since[-1]}."


for _row in _UNARY:
    _register(*_row)


@kernel("Reciprocal", since=(1, 6, 13), dtypes=FLOATS)
def reciprocal(xp: Namespace, x: Array) -> Array:
    """Returns 1 / x. Source: ONNX Reciprocal-13."""
    return narrow(1 / widen(x), x.dtype)


@kernel("Erf", since=(9, 13), dtypes=NUMBERS)
def erf(xp: Namespace, x: Array) -> Array:
    """Returns the error function of each element; that of an integer is truncated. Source: ONNX Erf-13."""
    return narrow(erf_of(xp, x.astype(np.float64) if x.dtype.kind in "iu" else widen(x)), x.dtype)


# erf(x) / x as a polynomial of 2 x^2 - 1 for |x| <= 1, and erfcx(x) as one of t = 2 / (2 + x) scaled from [1/4, 2/3] to [-1, 1] for
# 1 <= x <= 6. Interpolated in Chebyshev points from double values of erf and erfcx; the largest relative error of erf is 2e-15.
_NEAR = (
    0.9654687386698677,
    -0.14053608902271736,
    0.019852496688956323,
    -0.002285485561140351,
    0.00021751715631768143,
    -1.7537169479867984e-05,
    1.2233818358353687e-06,
    -7.511555940216871e-08,
    4.11694145441288e-09,
    -2.0369839148770544e-10,
    8.692306134131892e-12,
    -3.0316490059097606e-13,
)
_FAR = (
    0.2214295402299315,
    0.16189356804102914,
    0.038560570425228737,
    0.005588816281672,
    0.00019713917662976668,
    -8.079220228978582e-05,
    -7.340508073915821e-06,
    1.9795516466229764e-06,
    1.6345644857222768e-07,
    -7.002652485368193e-08,
    -4.884468283763877e-10,
    2.586944321177135e-09,
    -3.968221149961013e-10,
    -4.772537755233544e-11,
    1.0675430499587134e-10,
    -7.119335068421979e-12,
    -2.348016609017489e-11,
)
# Terms whose sum stays below half a unit in the last place of float32.
_FLOAT32_TERMS = (8, 9)


def erf_of(xp: Namespace, x: Array) -> Array:
    """Returns erf(x) in x's own type, float32 or float64; NaN stays NaN. erf(x) = 1 - exp(-x^2) erfcx(x) away from zero."""
    near_terms, far_terms = _FLOAT32_TERMS if x.dtype.itemsize == 4 else (len(_NEAR), len(_FAR))
    magnitude = xp.minimum(xp.abs(x), 6)
    inner = xp.minimum(magnitude, 1)
    near = magnitude * _evaluate(2 * inner * inner - 1, _NEAR[:near_terms])
    outer = xp.maximum(magnitude, 1)
    scaled = (2 / (2 + outer) - 11 / 24) * (24 / 5)
    far = 1 - xp.exp(-outer * outer) * _evaluate(scaled, _FAR[:far_terms])
    return xp.copysign(xp.where(magnitude < 1, near, far), x)


def _evaluate(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Returns a polynomial, lowest coefficient first, by Horner's rule."""
    total = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total = (total + coefficient) * x
    return total + coefficients[0]


@kernel("Clip", since=(11, 12, 13), dtypes=NUMBERS)
def clip(xp: Namespace, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Returns min(max(x, low), high): where low is above high, every element is high. NaN stays.

    An absent bound is the least or largest number of the type, so that infinities become numbers. Source: ONNX Clip-13.
    """
    least, most = _range_of(x.dtype) if is_float(x.dtype) else (None, None)
    for function, bound, limit in ((xp.maximum, low, least), (xp.minimum, high, most)):
        if bound is not None:
            x = function(x, bound.reshape(()))
        elif limit is not None:
            x = function(x, x.dtype.type(limit))
    return x


@kernel("Clip", since=(1,), dtypes=FLOATS)
def clip_by_bounds(
    xp: Namespace,
    x: Array,
    *,
    max: float | None = None,  # noqa: A002 - ONNX's name
    min: float | None = None,  # noqa: A002 - ONNX's name
) -> Array:
    """Returns x limited by the attributes min and max; an absent bound is the limit of the type. Source: ONNX Clip-1."""
    least, most = _range_of(x.dtype)
    return clip_by_attributes(xp, x, max=most if max is None else max, min=least if min is None else min)


@kernel("Clip", since=(6,), dtypes=FLOATS)
def clip_by_attributes(
    xp: Namespace,
    x: Array,
    *,
    max: float = float(np.finfo(np.float32).max),  # noqa: A002 - ONNX's name
    min: float = float(np.finfo(np.float32).min),  # noqa: A002 - ONNX's name
) -> Array:
    """Returns x limited by the attributes min and max; a finite bound outside the type is its limit. Source: ONNX Clip-6."""
    limits = [x.dtype.type(limit if np.isinf(limit) else np.clip(np.float64(limit), *_range_of(x.dtype))) for limit in (min, max)]
    return xp.minimum(xp.maximum(x, limits[0]), limits[1])


def _range_of(dtype: np.dtype[np.generic]) -> tuple[float, float]:
    import ml_dtypes  # knows the limits of bfloat16, which NumPy does not

    limits = ml_dtypes.finfo(dtype)
    return float(limits.min), float(limits.max)


@kernel("Det", since=(11, 22), dtypes=FLOATS)
def determinant(xp: Namespace, x: Array) -> Array:
    """Returns the determinant of the last two axes. Source: ONNX Det-22."""
    return narrow(xp.linalg.det(widen(x)), x.dtype)
