"""Element by element: arithmetic, logic, comparisons, unary mathematics and activations.

Formulas are computed in float32 or wider and rounded once; none overflows if the result is finite.
"""
# ruff: noqa: A002  # ONNX's names of attributes

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce

import numpy as np

from hetero_core.kernels.arrays import reuse
from hetero_core.kernels.precision import Array, Floats, Integers, Namespace, compute_all, is_float, narrow, normalize_axis, widen
from hetero_core.kernels.registry import ANY, BOOL, FLOAT8, FLOAT32, FLOATS, INTEGERS, NUMBERS, SIGNED, STRING, Dtypes, kernel

# Operators that are a function of the namespace: since-versions, dtypes, operator -> function.
_UNARY: tuple[tuple[Integers, frozenset[str], dict[str, str]], ...] = (
    ((1,), BOOL, {"Not": "logical_not"}),
    ((1, 6, 13), NUMBERS, {"Abs": "abs"}),
    ((1, 6, 13), FLOATS, {"Ceil": "ceil", "Exp": "exp", "Floor": "floor", "Log": "log", "Sqrt": "sqrt", "Tanh": "tanh"}),
    ((1, 6, 13), FLOATS | SIGNED, {"Neg": "negative"}),
    ((7, 22), FLOATS, {"Acos": "arccos", "Asin": "arcsin", "Atan": "arctan", "Cos": "cos", "Sin": "sin", "Tan": "tan"}),
    ((9, 13), NUMBERS, {"Sign": "sign"}),
    ((9, 22), FLOATS, {"Acosh": "arccosh", "Asinh": "arcsinh", "Atanh": "arctanh", "Cosh": "cosh", "Sinh": "sinh"}),
    ((11, 22), FLOATS, {"Round": "rint"}),
    ((18,), INTEGERS, {"BitwiseNot": "invert"}),
)


def _register(op_type: str, function: str, since: Integers, dtypes: frozenset[str]) -> None:
    @kernel(op_type, since=since, dtypes=dtypes)
    def compute(xp: Namespace, x: Array) -> Array:
        return narrow(getattr(xp, function)(widen(x)), x.dtype)


for _since, _dtypes, _functions in _UNARY:
    for _op_type, _function in _functions.items():
        _register(_op_type, _function, _since, _dtypes)


@kernel("Erf", since=(9, 13), dtypes=NUMBERS)
def erf(xp: Namespace, x: Array) -> Array:
    """Returns the error function of each element; that of an integer is truncated."""
    return _in_blocks(xp, x, lambda x: narrow(erf_of(xp, x.astype(np.float64) if x.dtype.kind in "iu" else widen(x)), x.dtype))


_BLOCK = 1 << 15
"""Elements of a block whose intermediate arrays fit into a cache."""


def _in_blocks(xp: Namespace, x: Array, compute: Callable[[Array], Array]) -> Array:
    """Returns a function of each element, in x's type. NumPy computes a large array in blocks, which threads share: a long formula reads
    and writes its intermediate arrays in the cache.
    """
    if xp is not np or x.size <= _BLOCK:
        return compute(x)
    elements, results = x.reshape(-1), np.empty(x.size, x.dtype)

    def compute_block(begin: int) -> None:
        own = slice(begin, begin + _BLOCK)
        results[own] = compute(elements[own])

    compute_all(xp, [partial(compute_block, begin) for begin in range(0, x.size, _BLOCK)])
    return results.reshape(x.shape)


# Polynomials of erf(x) / x in 2 x^2 - 1 for |x| <= 1, and of erfcx(x) in t = 2 / (2 + x), scaled from [1/4, 2/3] to [-1, 1], for
# 1 <= x <= 6. Interpolated in Chebyshev points from double values of erf and erfcx; the largest relative error of erf is 2e-15.
_NEAR = (
    *(0.9654687386698677, -0.14053608902271736, 0.019852496688956323, -0.002285485561140351, 0.00021751715631768143),
    *(-1.7537169479867984e-05, 1.2233818358353687e-06, -7.511555940216871e-08, 4.11694145441288e-09, -2.0369839148770544e-10),
    *(8.692306134131892e-12, -3.0316490059097606e-13),
)
_FAR = (
    *(0.2214295402299315, 0.16189356804102914, 0.038560570425228737, 0.005588816281672, 0.00019713917662976668),
    *(-8.079220228978582e-05, -7.340508073915821e-06, 1.9795516466229764e-06, 1.6345644857222768e-07, -7.002652485368193e-08),
    *(-4.884468283763877e-10, 2.586944321177135e-09, -3.968221149961013e-10, -4.772537755233544e-11, 1.0675430499587134e-10),
    *(-7.119335068421979e-12, -2.348016609017489e-11),
)
# The sum of the left-out terms is below half a unit in the last place of float32.
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


def _evaluate(x: Array, coefficients: Floats) -> Array:
    """Returns a polynomial, lowest coefficient first, by Horner's rule."""
    total = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total = (total + coefficient) * x
    return total + coefficients[0]


@kernel("Clip", since=(11, 12, 13), dtypes=NUMBERS)
def clip(xp: Namespace, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Returns min(max(x, low), high): if low is above high, every element is high. NaN stays.

    An absent bound is the least or largest number of the type, so that infinities become numbers.
    """
    least, most = _range_of(x.dtype) if is_float(x.dtype) else (None, None)
    fresh: dict[str, Array] = {}
    for function, bound, limit in ((xp.maximum, low, least), (xp.minimum, high, most)):
        if bound is not None or limit is not None:
            x = function(x, x.dtype.type(limit) if bound is None else bound.reshape(()), **fresh)
            fresh = reuse(x)
    return x


_MOST = float(np.finfo(np.float64).max)
_MOST_OF_FLOAT32 = float(np.finfo(np.float32).max)


@kernel("Clip", since=(1,), dtypes=FLOATS)
def clip_by_attributes(xp: Namespace, x: Array, *, max: float = _MOST, min: float = -_MOST) -> Array:
    """Returns x limited by the attributes min and max; a finite bound outside the type is its limit."""
    limits = [x.dtype.type(limit if np.isinf(limit) else np.clip(np.float64(limit), *_range_of(x.dtype))) for limit in (min, max)]
    return xp.minimum(xp.maximum(x, limits[0]), limits[1])


kernel("Clip", since=(6,), dtypes=FLOATS)(partial(clip_by_attributes, max=_MOST_OF_FLOAT32, min=-_MOST_OF_FLOAT32))


def _range_of(dtype: np.dtype[np.generic]) -> tuple[float, float]:
    import ml_dtypes  # knows the limits of bfloat16, which NumPy does not

    limits = ml_dtypes.finfo(dtype)
    return float(limits.min), float(limits.max)


@kernel("Det", since=(11, 22), dtypes=FLOATS)
def determinant(xp: Namespace, x: Array) -> Array:
    """Returns the determinant of the last two axes."""
    return narrow(xp.linalg.det(widen(x)), x.dtype)


@kernel("Relu", since=(1, 6, 13, 14), dtypes=FLOATS | SIGNED)
def relu(xp: Namespace, x: Array) -> Array:
    """Returns max(x, 0)."""
    return xp.maximum(x, x.dtype.type(0))


@kernel("PRelu", since=(7, 9, 16), dtypes=NUMBERS)
def prelu(xp: Namespace, x: Array, slope: Array) -> Array:
    """Returns x, negative elements times slope."""
    return narrow(xp.where(x < 0, x * slope, x), x.dtype)


@kernel("PRelu", since=(1, 6), dtypes=FLOATS)
def prelu_by_channel(xp: Namespace, x: Array, slope: Array) -> Array:
    """Returns x, negative elements times the slope of their channel."""
    return prelu(xp, x, slope.reshape((-1, *(1,) * max(x.ndim - 2, 0))))


def sigmoid_of(xp: Namespace, x: Array) -> Array:
    """Returns the sigmoid in x's own type as exp(min(x, 0)) / (1 + exp(-|x|)): no overflow, and exact tails on both sides."""
    return xp.exp(xp.minimum(x, 0)) / (1 + xp.exp(-xp.abs(x)))


def softplus_of(xp: Namespace, x: Array) -> Array:
    """Returns the softplus in x's own type as max(x, 0) + log1p(exp(-|x|)), which does not overflow."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))


def _hard_swish(xp: Namespace, x: Array) -> Array:
    """Returns x * clip(x / 6 + 0.5, 0, 1), in place: memory for each step takes longer than the arithmetic of large images."""
    y = x / 6
    y += 0.5
    y = xp.clip(y, 0, 1, **reuse(y))
    y *= x
    return y


def _rectify(xp: Namespace, x: Array) -> Array:
    """Returns max(x, 0), of NaN and -0 as well."""
    zero = x.dtype.type(0)
    y = xp.fmax(x, zero)
    y += zero
    return y


Formula = Callable[[Namespace, Array, float, float], Array]
"""(namespace, x, first and second parameter of the activation) -> the activation in x's own type."""
_FORMULAS: dict[str, Formula] = {
    "": lambda xp, x, a, b: x,
    "Affine": lambda xp, x, a, b: a * x + b,
    "Celu": lambda xp, x, a, b: xp.maximum(x, 0) + xp.minimum(a * xp.expm1(x / a), 0),
    "Clip": lambda xp, x, a, b: xp.clip(x, a, b),
    "Elu": lambda xp, x, a, b: xp.where(x < 0, a * xp.expm1(xp.minimum(x, 0)), x),
    "HardSigmoid": lambda xp, x, a, b: xp.clip(a * x + b, 0, 1),
    "HardSwish": lambda xp, x, a, b: _hard_swish(xp, x),
    # A choice of each element takes ten times as long as an extreme, as its branches are mispredicted.
    "LeakyRelu": lambda xp, x, a, b: xp.maximum(x, a * x) if 0 < a <= 1 else xp.where(x < 0, a * x, x),
    "Mish": lambda xp, x, a, b: x * xp.tanh(softplus_of(xp, x)),
    "ParametricSoftplus": lambda xp, x, a, b: a * softplus_of(xp, b * x),
    "Reciprocal": lambda xp, x, a, b: 1 / x,
    "Relu": lambda xp, x, a, b: xp.maximum(x, 0),
    "Scale": lambda xp, x, a, b: a * x,
    "ScaledTanh": lambda xp, x, a, b: a * xp.tanh(b * x),
    "Selu": lambda xp, x, a, b: b * xp.where(x > 0, x, a * xp.expm1(xp.minimum(x, 0))),
    "Shrink": lambda xp, x, a, b: xp.where(x < -b, x + a, xp.where(x > b, x - a, x.dtype.type(0))),
    "Sigmoid": lambda xp, x, a, b: sigmoid_of(xp, x),
    "Softplus": lambda xp, x, a, b: softplus_of(xp, x),
    "Softsign": lambda xp, x, a, b: x / (1 + xp.abs(x)),
    "Swish": lambda xp, x, a, b: x * sigmoid_of(xp, a * x),
    "Tanh": lambda xp, x, a, b: xp.tanh(x),
    "ThresholdedRelu": lambda xp, x, a, b: _rectify(xp, x) if a == 0 else xp.where(x > a, x, x.dtype.type(0)),
}
_FORMULA_OF_NAME = {name.casefold(): formula for name, formula in _FORMULAS.items()}


def activate(xp: Namespace, x: Array, name: str, alpha: float, beta: float) -> Array:
    """Returns an activation that fused and recurrent operators name; `name` in small letters, "" for none."""
    return _FORMULA_OF_NAME[name](xp, x, alpha, beta)


# Operator, since-versions, and the parameters of its formula with their defaults.
_ACTIVATIONS: tuple[tuple[str, Integers, dict[str, float]], ...] = (
    ("Celu", (12, 28), {"alpha": 1.0}),
    ("Elu", (1, 6, 22), {"alpha": 1.0}),
    ("HardSigmoid", (1, 6, 22), {"alpha": 0.2, "beta": 0.5}),
    ("HardSwish", (14, 22), {}),
    ("LeakyRelu", (1, 6, 16), {"alpha": 0.01}),
    ("Mish", (18, 22), {}),
    ("Reciprocal", (1, 6, 13), {}),
    ("Selu", (1,), {"alpha": 1.6732, "gamma": 1.0507}),
    ("Selu", (6, 22), {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    ("Sigmoid", (1, 6, 13), {}),
    ("Softplus", (1, 22), {}),
    ("Softsign", (1, 22), {}),
    ("Swish", (24,), {"alpha": 1.0}),
    ("ThresholdedRelu", (0, 10, 22), {"alpha": 1.0}),
)


def _register_activation(op_type: str, since: Integers, defaults: dict[str, float], dtypes: Dtypes = FLOATS) -> None:
    formula, is_long = _FORMULAS[op_type], op_type in ("Sigmoid", "Swish")
    first, second = (*defaults, "", "")[:2]
    first_default, second_default = (defaults.get(name, 0.0) for name in (first, second))

    @kernel(op_type, since=since, dtypes=dtypes, shared=defaults)
    def compute(xp: Namespace, x: Array, **parameters: float) -> Array:
        a, b = parameters.get(first, first_default), parameters.get(second, second_default)
        if is_long:
            return _in_blocks(xp, x, lambda x: narrow(formula(xp, widen(x), a, b), x.dtype))
        return narrow(formula(xp, widen(x), a, b), x.dtype)


for _row in _ACTIVATIONS:
    _register_activation(*_row)
_register_activation("Shrink", (9,), {"bias": 0.0, "lambd": 0.5}, NUMBERS)
# ONNX took these back.
_register_activation("Affine", (0,), {"alpha": 1.0, "beta": 0.0}, FLOAT32)
_register_activation("Scale", (0,), {"scale": 1.0}, FLOAT32)


@kernel("Gelu", since=(20,), dtypes=FLOATS, choices={"approximate": ("none", "tanh")})
def gelu(xp: Namespace, x: Array, *, approximate: str = "none") -> Array:
    """Returns x * (1 + erf(x / sqrt(2))) / 2, or its approximation by tanh."""

    def compute(x: Array) -> Array:
        wide = widen(x)
        if approximate == "tanh":
            bounded = xp.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * _cube(wide)))
        else:
            bounded = erf_of(xp, wide * math.sqrt(0.5))
        return narrow(0.5 * wide * (1 + bounded), x.dtype)

    return _in_blocks(xp, x, compute)


def _cube(x: Array) -> Array:
    """Returns x ** 3; NumPy's power takes 70 times longer for negative numbers."""
    return x * x * x


@kernel("Div", since=(7, 13, 14), dtypes=NUMBERS)
def div(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns a / b; integers truncate toward zero."""
    if a.dtype.kind not in "iu":
        return narrow(xp.divide(a, b), a.dtype)
    if a.dtype.kind == "u":
        return xp.floor_divide(a, b)
    quotient = xp.floor_divide(a, b)
    # The floor is too low by 1 if the signs differ and there is a remainder.
    remains = (xp.multiply(quotient, b) != a) & ((a < 0) != (b < 0))
    return quotient + remains.astype(a.dtype)


@kernel("Mod", since=(10, 13, 28), dtypes=NUMBERS, choices={"fmod": (0, 1)})
def mod(xp: Namespace, a: Array, b: Array, *, fmod: int = 0) -> Array:
    """Returns the remainder, with the sign of b, or of a if fmod is 1."""
    dtype = a.dtype
    return narrow(xp.fmod(widen(a), widen(b)) if fmod else xp.mod(widen(a), widen(b)), dtype)


@kernel("Pow", since=(7, 12, 13, 15), dtypes=NUMBERS)
def power(xp: Namespace, x: Array, y: Array) -> Array:
    """Returns x ** y in the type of x."""
    if x.dtype.kind not in "iu":
        wide = widen(x)
        if xp is np and y.size == 1 and y.ndim <= x.ndim and y.reshape(()) == 3:
            return narrow(_cube(wide), x.dtype)
        return narrow(xp.power(wide, y.astype(wide.dtype)), x.dtype)
    if y.dtype.kind in "iu":
        return _raise_integers(xp, x, y)
    return xp.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)


def _raise_integers(xp: Namespace, x: Array, y: Array) -> Array:
    """Returns x ** y for integers; the fraction of a negative exponent is truncated to 1, -1 or 0."""
    if y.dtype.kind == "u":
        return xp.power(x, y.astype(x.dtype))
    magnitude = xp.power(x, xp.maximum(y, 0).astype(x.dtype))
    odd = (y & 1) == 1
    if x.dtype.kind == "u":
        inverse = (x == 1).astype(x.dtype)
    else:
        inverse = (x == 1).astype(x.dtype) + (x == -1).astype(x.dtype) * (1 - 2 * odd.astype(x.dtype))
    return narrow(xp.where(y < 0, inverse, magnitude), x.dtype)


def _register_fold(op_type: str, function: str, since: Integers, dtypes: frozenset[str]) -> None:
    @kernel(op_type, since=since, dtypes=dtypes)
    def fold(xp: Namespace, *inputs: Array) -> Array:
        """Returns the sum, mean, maximum or minimum of all inputs; small floats are summed in float32, NaN is the extreme."""
        total = reduce(getattr(xp, function), map(widen, inputs))
        return narrow(total / len(inputs) if op_type == "Mean" else total, inputs[0].dtype)


_register_fold("Sum", "add", (1, 6, 8, 13), FLOATS)
_register_fold("Mean", "add", (1, 6, 8, 13), FLOATS)
_register_fold("Max", "maximum", (1, 6, 8, 12, 13), NUMBERS)
_register_fold("Min", "minimum", (1, 6, 8, 12, 13), NUMBERS)


@kernel("BitShift", since=(11, 28), dtypes=INTEGERS, choices={"direction": ("LEFT", "RIGHT")})
def bit_shift(xp: Namespace, x: Array, y: Array, *, direction: str) -> Array:
    """Returns x shifted by y bits; a shift by the width or more gives zero."""
    return xp.left_shift(x, y) if direction == "LEFT" else xp.right_shift(x, y)


Binary = Callable[[Namespace, Array, Array], Array]


def _declare(op_type: str, function: str, since: Integers, dtypes: frozenset[str]) -> Binary:
    """Declares a kernel that is this function of the namespace, and returns it."""

    @kernel(op_type, since=since, dtypes=dtypes)
    def compute(xp: Namespace, a: Array, b: Array) -> Array:
        return getattr(xp, function)(a, b)

    return compute


# As `_UNARY`, of two arrays. Integers wrap.
_BINARY: tuple[tuple[Integers, frozenset[str], dict[str, str]], ...] = (
    ((7, 13, 14), NUMBERS, {"Add": "add", "Mul": "multiply", "Sub": "subtract"}),
    ((7, 9, 13), NUMBERS, {"Greater": "greater", "Less": "less"}),
    ((12, 16), NUMBERS, {"GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal"}),
    ((7,), BOOL, {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"}),
    ((18,), INTEGERS, {"BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor"}),
)
_COMPUTE = {
    op_type: _declare(op_type, function, since, dtypes)
    for since, dtypes, functions in _BINARY
    for op_type, function in functions.items()
}


@kernel("Equal", since=(7, 11, 13, 19), dtypes=NUMBERS | BOOL | STRING)
def equal(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns a == b."""
    # NumPy compares objects to objects; the element type of strings is object.
    return xp.asarray(xp.equal(a, b), dtype=bool)


@kernel("IsNaN", since=(9, 13), dtypes=FLOATS)
@kernel("IsNaN", since=(20,), dtypes=FLOATS | FLOAT8)
def is_nan(xp: Namespace, x: Array) -> Array:
    """Returns whether each element is NaN."""
    return xp.isnan(widen(x))


@kernel("IsInf", since=(10,), dtypes=FLOATS)
@kernel("IsInf", since=(20,), dtypes=FLOATS | FLOAT8)
def is_inf(xp: Namespace, x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Returns whether each element is an infinity of a detected sign."""
    wide = widen(x)
    infinite = xp.isinf(wide)
    if not detect_negative:
        infinite = infinite & ~(wide < 0)
    if not detect_positive:
        infinite = infinite & ~(wide > 0)
    return infinite


@kernel("Where", since=(9, 16), dtypes=(BOOL, ANY))
def where(xp: Namespace, condition: Array, x: Array, y: Array) -> Array:
    """Returns x if the condition holds, else y."""
    return xp.where(condition, x, y)


_COMPUTE |= {"Div": div, "Equal": equal, "Pow": power}
_ALIGNED: tuple[tuple[Integers, frozenset[str], tuple[str, ...]], ...] = (
    ((1, 6), NUMBERS, ("Add", "Div", "Mul", "Sub")),
    ((1,), FLOATS, ("Greater", "Less", "Pow")),
    ((1,), BOOL, ("And", "Or", "Xor")),
    ((1,), frozenset({"bool", "int32", "int64"}), ("Equal",)),
)


def align(a: Array, b: Array, axis: int | None) -> Array:
    """Returns b with the axes that make it broadcast over a: at `axis`, or at the end. Source: ONNX Add-6."""
    begin = a.ndim - b.ndim if axis is None else normalize_axis(axis, a.ndim)
    return b.reshape((*b.shape, *(1,) * (a.ndim - begin - b.ndim)))


def _register_aligned(op_type: str, since: Integers, dtypes: frozenset[str], compute: Binary) -> None:
    @kernel(op_type, since=since, dtypes=dtypes, choices={"broadcast": (0, 1)})
    def compute_aligned(xp: Namespace, a: Array, b: Array, *, axis: int | None = None, broadcast: int = 0) -> Array:
        if not broadcast and a.shape != b.shape:
            raise ValueError(f"shapes {a.shape} and {b.shape} differ, and broadcast is 0")
        return compute(xp, a, align(a, b, axis) if broadcast else b)


for _since, _dtypes, _op_types in _ALIGNED:
    for _op_type in _op_types:
        _register_aligned(_op_type, _since, _dtypes, _COMPUTE[_op_type])
