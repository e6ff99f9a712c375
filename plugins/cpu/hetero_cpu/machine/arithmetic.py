"""Functions of one float32 vector by their names in ONNX: activations, roots, roundings. Each keeps a NaN, except ThresholdedRelu,
which is 0 there by its formula.

Beside the functions that are exact (Abs, Relu, Clip, Round, ...) the results are within a few units in the last place of the exact
ones; the errors stated are the largest that were measured, in such units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from math import factorial, inf, isinf, log, nan, pi, sqrt

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
    first, *others = map(x.constant, coefficients)
    return reduce(lambda total, coefficient: code.multiply_add(total, x, coefficient), others, first)


def _reduce(code: Code, x: Floats) -> tuple[Floats, Floats]:
    """Returns r and n with x = r + n ln 2, |r| <= ln(2)/2."""
    n = code.call_intrinsic("rint", x * (1 / log(2)))
    r = code.multiply_add(n, code.constant(-_LN2_HIGH, x.width), x)
    return code.multiply_add(n, code.constant(-_LN2_LOW, x.width), r), n


def emit_exponential(code: Code, x: Floats) -> Floats:
    """Returns e**x: 2**n * e**r with n = rint(x / ln 2). 0 below -104, infinity above 88.7228; error 1.0, also if it is subnormal."""
    low, high = -104.0, 88.72283
    # Far smaller values become 0 before: a subnormal result costs a hundred cycles.
    is_low = x < low
    inside = is_low.choose(code.constant(0.0, x.width), x).at_most(high)
    r, n = _reduce(code, inside)
    total = code.multiply_add(r * r, emit_polynomial(code, r, _EXPONENTIAL), r) + 1.0
    power = code.scale_by_power(total, n)
    power = is_low.choose(code.constant(0.0, x.width), power)
    power = (x > high).choose(code.constant(inf, x.width), power)
    return x.is_nan().choose(x, power)


_LN2_OF_DOUBLE = (0.6931471803691238, 1.9082149292705877e-10)
_SERIES_OF_EXPONENTIAL = tuple(1 / factorial(power) for power in range(13, -1, -1))


def emit_double_exponential(code: Code, x: Floats) -> Floats:
    """Returns e**x of float64 by its series: 0 below -745.13, infinity above 709.78; error 1, also if it is subnormal. NaN stays NaN."""
    inside = x.at_least(-746.0).at_most(710.0)
    n = code.call_intrinsic("rint", inside * (1 / log(2)))
    r = inside
    for part in _LN2_OF_DOUBLE:
        r = code.multiply_add(n, x.constant(-part), r)
    return code.scale_by_power(emit_polynomial(code, r, _SERIES_OF_EXPONENTIAL), n)


def emit_exponential_of_negative(code: Code, x: Floats) -> Floats:
    """Returns e**x for x <= 0, 0 below -87.3, for a softmax. NaN gives NaN; error 1.0."""
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
    """Returns log(x): -infinity for 0, NaN below it; error 0.9, also for a subnormal x."""
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
    # 1 + u is halved if it is above sqrt(2); otherwise u itself is the fraction.
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


# f(x) = x P(x**2) / Q(x**2), fitted by reweighted least squares in double precision: within 2.1e-8 of tanh for |x| <= 9.02 and of erf for
# |x| <= 3.93, beyond which both are 1.
_TANH_EDGE, _ERF_EDGE = 9.02, 3.93
_TANH_UPPER = (1.3319065850225797e-08, 2.0583476725732908e-05, 0.0034940342884510756, 0.13379716873168945, 1.0)
_TANH_LOWER = (7.762016593915178e-07, 0.0003283092228230089, 0.025871071964502335, 0.4671303331851959, 1.0)
_ERF_UPPER = (
    2.041971583821578e-06, 0.00028480871696956456, 0.003779610386118293, 0.052790287882089615, 0.19078384339809418, 1.1283791065216064,
)  # fmt: skip
_ERF_LOWER = (3.800409103860147e-05, 0.0011652131797745824, 0.014997439458966255, 0.11425752937793732, 0.5024105310440063, 1.0)


def emit_erf(code: Code, x: Floats) -> Floats:
    """Returns erf(x), error 6 just below 1 and 3 elsewhere; at most 1."""
    return _emit_quotient(code, x, _ERF_UPPER, _ERF_LOWER, edge=_ERF_EDGE)


def _emit_quotient(code: Code, x: Floats, upper: tuple[float, ...], lower: tuple[float, ...], *, edge: float) -> Floats:
    square = x * x
    unit = code.constant(1.0, x.width)
    quotient = x * emit_polynomial(code, square, upper) / emit_polynomial(code, square, lower)
    quotient = (x > edge).choose(unit, quotient.at_most(1.0))
    return (x < -edge).choose(-unit, quotient.at_least(-1.0))


# The first 203 bits of 2 / pi behind the point, 29 at a time: a product with the 24 bits of a float32 is exact in float64.
_BITS_OF_TWO_BY_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163
_TWO_BY_PI = tuple((_BITS_OF_TWO_BY_PI >> (187 - 29 * place) & (1 << 29) - 1) * 2.0 ** (-29 * place - 29) for place in range(7))
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
_LARGEST_ANGLE = 2.0**28
"""Up to which an angle less its quarter turns is exact by two summands of pi / 2."""
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
# Source of both: Moshier, Cephes, sinf.c.


def emit_sine(code: Code, x: Floats, ahead: float = 0.0) -> Floats:
    """Returns sin(x + `ahead` quarter turns) for 0 and 1; NaN for an infinity. Error 1.5, for angles of any size."""
    size = code.call_intrinsic("fabs", x)
    largest = size.is_nan().choose(x.constant(0.0), size).fold(lambda a, b: b.at_least(a))
    turns, rest = _reduce_turns(code, code.widen(x), largest)
    turns = turns + ahead
    quarter = code.narrow(turns - code.call_intrinsic("rint", turns * 0.25) * 4.0)
    r = code.narrow(rest)
    square = r * r
    sine = code.multiply_add(emit_polynomial(code, square, _SINE) * square, r, r)
    cosine = code.multiply_add(emit_polynomial(code, square, _COSINE), square * square, 1.0 - square * 0.5)
    result = code.call_intrinsic("fabs", quarter).equals(1.0).choose(cosine, sine)
    return ((quarter < 0.0) | (quarter > 1.0)).choose(-result, result)


def _reduce_turns(code: Code, x: Floats, largest: Floats) -> tuple[Floats, Floats]:
    """Returns n, or n less a multiple of 4, and r with x = (n + 4 k) pi / 2 + r, |r| <= pi / 4. x: float64 of float32."""
    n = code.call_intrinsic("rint", x * (2 / pi))
    r = code.multiply_add(n, x.constant(-_HALF_PI[1]), code.multiply_add(n, x.constant(-_HALF_PI[0]), x))
    turns, rest = code.variable(n), code.variable(r)
    with code.when(largest > _LARGEST_ANGLE):
        # The quotient by pi / 2, part by part without multiples of 4, and without the whole part of the sum. Source: Payne & Hanek 1983.
        n, r = x.constant(0.0), x.constant(0.0)
        for part in _TWO_BY_PI:
            product = x * part
            r = r + (product - code.call_intrinsic("rint", product * 0.25) * 4.0)
            whole = code.call_intrinsic("rint", r)
            n, r = n + whole, r - whole
        turns.set(n)
        rest.set(r * _HALF_PI[0])
    return turns.get(), rest.get()


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of one vector by its name in EMITTERS, with its numbers."""

    operator: str
    numbers: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        numbers = "".join(f"_{number.hex()}" for number in self.numbers)
        return self.operator + numbers.translate({ord("-"): "n", ord("+"): "", ord("."): "p"})


def emit_activations(code: Code, activations: tuple[Activation, ...], x: Floats) -> Floats:
    """Returns the functions in order."""
    for activation in activations:
        x = EMITTERS[activation.operator](code, x, *activation.numbers)
    return x


def _clip(code: Code, x: Floats, low: float, high: float) -> Floats:
    x = x if isinf(low) and low < 0 else x.at_least(low)
    return x if isinf(high) and high > 0 else x.at_most(high)


def _swish(code: Code, x: Floats, alpha: float = 1.0) -> Floats:
    """x / (1 + e**(-alpha x)), 0 if alpha x is below -88.7; error 2 for alpha 1."""
    return x / (1.0 + emit_exponential(code, x * -alpha))


def _hard_sigmoid(code: Code, x: Floats, alpha: float, beta: float) -> Floats:
    line = code.multiply_add(x, code.constant(alpha, x.width), code.constant(beta, x.width))
    return line.at_least(0.0).at_most(1.0)


def _elu(code: Code, x: Floats, alpha: float, gamma: float = 1.0, beta: float = 1.0) -> Floats:
    """gamma x, but alpha gamma (e**(x / beta) - 1) below 0; error 1 for 1."""
    scaled = x if beta == 1.0 else x / beta
    return (x < 0.0).choose(emit_exponential_less_one(code, scaled) * (alpha * gamma), x if gamma == 1.0 else x * gamma)


def _gelu(code: Code, x: Floats) -> Floats:
    """x (1 + erf(x / sqrt 2)) / 2, error 4 * 2**-24 |x|: the sum cancels if x is negative, as in every engine that has this formula."""
    half = x * 0.5
    return code.multiply_add(half, emit_erf(code, x * sqrt(0.5)), half)


def _gelu_tanh(code: Code, x: Floats) -> Floats:
    """x (1 + tanh u) / 2 = x / (1 + e**(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x**3); error 2 * 2**-24 |x|."""
    factor = -2 * sqrt(2 / pi)
    inner = code.multiply_add(x * x, code.constant(factor * 0.044715, x.width), code.constant(factor, x.width))
    return x / (1.0 + emit_exponential(code, x * inner))


def _mish(code: Code, x: Floats) -> Floats:
    """x tanh(log(1 + e**x)) = x n / (n + 2) with n = e**x (e**x + 2), which is 1 above 20; error 5."""
    e = emit_exponential(code, x.at_most(20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def _power(code: Code, x: Floats, exponent: float) -> Floats:
    """x**n for n of -2, -1, 1, 2, 3, 4."""
    if exponent < 0:
        return 1.0 / _power(code, x, -exponent)
    square = x * x
    return {1.0: x, 2.0: square, 3.0: square * x, 4.0: square * square}[exponent]


def _call(code: Code, x: Floats, *, name: str) -> Floats:
    return code.call_intrinsic(name, x)


_INTRINSICS = {"Abs": "fabs", "Ceil": "ceil", "Floor": "floor", "Round": "roundeven", "Sqrt": "sqrt"}
EMITTERS: Mapping[str, Callable[..., Floats]] = {
    **{operator: partial(_call, name=name) for operator, name in _INTRINSICS.items()},
    "Celu": lambda code, x, alpha: _elu(code, x, alpha, beta=alpha),
    "Clip": _clip,
    "Cos": lambda code, x: emit_sine(code, x, 1.0),
    "Elu": _elu,
    "Erf": emit_erf,
    "Exp": emit_exponential,
    "Gelu": _gelu,
    "GeluTanh": _gelu_tanh,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda code, x: x * _hard_sigmoid(code, x, 1 / 6, 0.5),
    "LeakyRelu": lambda code, x, alpha: (x < 0.0).choose(x * alpha, x),
    "Log": emit_logarithm,
    "Mish": _mish,
    "Neg": lambda code, x: -x,
    "Power": _power,
    "Reciprocal": lambda code, x: 1.0 / x,
    "Relu": lambda code, x: x.at_least(0.0),
    "Selu": _elu,
    # 0 below -88.7; error 2.
    "Sigmoid": lambda code, x: 1.0 / (1.0 + emit_exponential(code, -x)),
    "Sign": lambda code, x: (x > 0.0).choose(x.constant(1.0), (x < 0.0).choose(x.constant(-1.0), x)),
    "Sin": emit_sine,
    "Softplus": emit_softplus,
    "Softsign": lambda code, x: x / (code.call_intrinsic("fabs", x) + 1.0),
    "Swish": _swish,
    # Error 5 just below 1 and 3 elsewhere; at most 1.
    "Tanh": lambda code, x: _emit_quotient(code, x, _TANH_UPPER, _TANH_LOWER, edge=_TANH_EDGE),
    # A NaN is not above alpha.
    "ThresholdedRelu": lambda code, x, alpha: (x > alpha).choose(x, x.constant(0.0)),
}
