"""Functions of one float32 vector: activations, and the exponential function that most of them are made of.

Each is within a few units in the last place of the exact result and keeps a NaN; the formulas stand at the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log

from hetero_cpu.jit.code import Code, Floats

_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
# Coefficients of the Taylor series of e**r for |r| <= ln(2)/2, where the first term left out is below half a unit in the last place.
_EXPONENTIAL = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of one vector by its name in EMITTERS, with its numbers."""

    operator: str
    numbers: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """What tells it apart."""
        return self.operator + "".join(f"_{number.hex()}" for number in self.numbers).replace("-", "n").replace("+", "").replace(
            ".", "p"
        )


def emit_activations(code: Code, activations: tuple[Activation, ...], x: Floats) -> Floats:
    """Returns the functions one after the other."""
    for activation in activations:
        x = EMITTERS[activation.operator](code, x, *activation.numbers)
    return x


def emit_exponential(code: Code, x: Floats) -> Floats:
    """Returns e**x: 2**n * e**r with n = rint(x / ln 2), r = x - n ln 2 in two steps. 0 below -87.3, infinity above 88.7."""
    low, high = -87.33654, 88.72283
    inside = x.at_least(low).at_most(high)
    n = code.call_intrinsic("rint", inside * (1 / log(2)))
    r = code.multiply_add(n, code.constant(-_LN2_HIGH, x.width), inside)
    r = code.multiply_add(n, code.constant(-_LN2_LOW, x.width), r)
    total = code.constant(_EXPONENTIAL[0], x.width)
    for coefficient in _EXPONENTIAL[1:]:
        total = code.multiply_add(total, r, code.constant(coefficient, x.width))
    # 2**n in two factors, as n may be 128.
    half = code.call_intrinsic("floor", n * 0.5)
    found = total * code.exponent_power(half) * code.exponent_power(n - half)
    found = (x < low).choose(code.constant(0.0, x.width), found)
    found = (x > high).choose(code.constant(float("inf"), x.width), found)
    return x.is_nan().choose(x, found)


def _relu(code: Code, x: Floats) -> Floats:
    return x.at_least(0.0)


def _clip(code: Code, x: Floats, low: float, high: float) -> Floats:
    return x.at_least(low).at_most(high)


def _leaky_relu(code: Code, x: Floats, alpha: float) -> Floats:
    return (x < 0.0).choose(x * alpha, x)


def _sigmoid(code: Code, x: Floats) -> Floats:
    """1 / (1 + e**-x)."""
    return 1.0 / (1.0 + emit_exponential(code, -x))


def _hard_sigmoid(code: Code, x: Floats, alpha: float, beta: float) -> Floats:
    return (x * alpha + beta).at_least(0.0).at_most(1.0)


def _hard_swish(code: Code, x: Floats) -> Floats:
    return x * _hard_sigmoid(code, x, 1 / 6, 0.5)


EMITTERS: Mapping[str, Callable[..., Floats]] = {
    "Relu": _relu,
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "Sigmoid": _sigmoid,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
}
