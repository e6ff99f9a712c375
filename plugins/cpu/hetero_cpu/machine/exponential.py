"""Exponential functions and logarithms of float32 vectors.

The errors stated are the largest that were measured, in units in the last place.
"""

from __future__ import annotations

from math import inf, log, nan

from hetero_cpu.machine.code import Code
from hetero_cpu.machine.terms import Floats

_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
# e**r = 1 + r + r**2 * P(r) on |r| <= ln(2)/2, fitted by reweighted least squares: 3e-9 of the result.
_EXPONENTIAL = (0.0013814596459269524, 0.0083687175065279, 0.04166838899254799, 0.1666652113199234, 0.4999999403953552)
# log(1 + f) = f - f**2 / 2 + f**3 * P(f) for 1 + f of sqrt(1/2) to sqrt(2), fitted in the same way: 6e-9 of the result.
_LOGARITHM = (
    -0.07634429633617401, 0.12761549651622772, -0.131601944565773, 0.14201761782169342,
    -0.16623356938362122, 0.20001226663589478, -0.250008225440979, 0.3333333134651184,
)  # fmt: skip
_SMALLEST_NORMAL = 1.1754943508222875e-38


def emit_polynomial(code: Code, x: Floats, coefficients: tuple[float, ...]) -> Floats:
    """Returns the polynomial with these coefficients, that of the highest power first."""
    total = code.constant(coefficients[0], x.width)
    for coefficient in coefficients[1:]:
        total = code.multiply_add(total, x, code.constant(coefficient, x.width))
    return total


def _reduce(code: Code, x: Floats) -> tuple[Floats, Floats]:
    """Returns r and n with x = r + n ln 2, |r| <= ln(2)/2."""
    n = code.call_intrinsic("rint", x * (1 / log(2)))
    r = code.multiply_add(n, code.constant(-_LN2_HIGH, x.width), x)
    return code.multiply_add(n, code.constant(-_LN2_LOW, x.width), r), n


def emit_exponential(code: Code, x: Floats) -> Floats:
    """Returns e**x: 2**n * e**r with n = rint(x / ln 2). 0 below -104, infinity above 88.7228; error 1.0, also where it is subnormal."""
    low, high = -104.0, 88.72283
    # What is far below becomes 0 before: a result that is nearly nothing costs a hundred cycles.
    is_low = x < low
    inside = is_low.choose(code.constant(0.0, x.width), x).at_most(high)
    r, n = _reduce(code, inside)
    total = code.multiply_add(r * r, emit_polynomial(code, r, _EXPONENTIAL), r) + 1.0
    power = code.scale_by_power(total, n)
    power = is_low.choose(code.constant(0.0, x.width), power)
    power = (x > high).choose(code.constant(inf, x.width), power)
    return x.is_nan().choose(x, power)


def emit_exponential_of_negative(code: Code, x: Floats) -> Floats:
    """Returns e**x for x <= 0, 0 below -87.3: what a softmax is made of. NaN gives NaN; error 1.0."""
    low = -87.33654
    is_low = x < low
    r, n = _reduce(code, is_low.choose(code.constant(0.0, x.width), x))
    total = code.multiply_add(r * r, emit_polynomial(code, r, _EXPONENTIAL), r) + 1.0
    return is_low.choose(code.constant(0.0, x.width), code.scale_by_power(total, n))


def emit_exponential_less_one(code: Code, x: Floats) -> Floats:
    """Returns e**x - 1 for x <= 0: 2**n * p + (2**n - 1), where p = e**r - 1. NaN stays NaN; error 1.0."""
    inside = x.at_least(-18.0)
    r, n = _reduce(code, inside)
    p = code.multiply_add(r * r, emit_polynomial(code, r, _EXPONENTIAL), r)
    power = code.scale_by_power(code.constant(1.0, x.width), n)
    return x.is_nan().choose(x, code.multiply_add(power, p, power - 1.0))


def emit_logarithm(code: Code, x: Floats) -> Floats:
    """Returns log(x): -infinity for 0, NaN below it; error 0.9, also for what is subnormal."""
    is_subnormal = x < _SMALLEST_NORMAL
    scaled = is_subnormal.choose(x * 2.0**23, x)
    m, n = code.split_exponent(scaled)
    n = is_subnormal.choose(n - 23.0, n)
    logarithm = _emit_logarithm_parts(code, m - 1.0, n)
    logarithm = (x < 0.0).choose(code.constant(nan, x.width), logarithm)
    logarithm = (x <= -0.0).choose((x < 0.0).choose(logarithm, code.constant(-inf, x.width)), logarithm)
    logarithm = (x >= inf).choose(x, logarithm)
    return x.is_nan().choose(x, logarithm)


def emit_softplus(code: Code, x: Floats) -> Floats:
    """Returns log(1 + e**x) = max(x, 0) + log(1 + e**-|x|); error 1.7."""
    u = emit_exponential(code, -code.call_intrinsic("fabs", x))
    # 1 + u is halved where it is above sqrt(2), and u itself is the fraction where it is not.
    is_large = u > 0.41421354
    f = is_large.choose((u - 1.0) * 0.5, u)
    n = is_large.choose(code.constant(1.0, x.width), code.constant(0.0, x.width))
    return x.at_least(0.0) + _emit_logarithm_parts(code, f, n)


def _emit_logarithm_parts(code: Code, f: Floats, n: Floats) -> Floats:
    """Returns log((1 + f) * 2**n)."""
    square = f * f
    tail = emit_polynomial(code, f, _LOGARITHM) * f * square
    tail = code.multiply_add(n, code.constant(_LN2_LOW, f.width), tail)
    tail = code.multiply_add(square, code.constant(-0.5, f.width), tail)
    return code.multiply_add(n, code.constant(_LN2_HIGH, f.width), f + tail)
