"""Functions of one float32 vector by their names in ONNX: activations, roots, roundings. Each keeps a NaN, but for ThresholdedRelu,
which is 0 there by its formula.

Beside the functions that are exact (Abs, Relu, Clip, Round, ...) the results are within a few units in the last place of the exact
ones; the errors stated are the largest that were measured, in such units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isinf, pi, sqrt

from hetero_cpu.machine.code import Code
from hetero_cpu.machine.exponential import emit_exponential, emit_exponential_less_one, emit_logarithm, emit_softplus
from hetero_cpu.machine.rational import emit_erf, emit_tanh
from hetero_cpu.machine.terms import Floats


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of one vector by its name in EMITTERS, with its numbers."""

    operator: str
    numbers: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name, which no kernel of other parameters has."""
        return self.operator + "".join(f"_{number.hex()}" for number in self.numbers).replace("-", "n").replace("+", "").replace(
            ".", "p"
        )


def emit_activations(code: Code, activations: tuple[Activation, ...], x: Floats) -> Floats:
    """Returns the functions in order."""
    for activation in activations:
        x = EMITTERS[activation.operator](code, x, *activation.numbers)
    return x


def _clip(code: Code, x: Floats, low: float, high: float) -> Floats:
    x = x if isinf(low) and low < 0 else x.at_least(low)
    return x if isinf(high) and high > 0 else x.at_most(high)


def _leaky_relu(code: Code, x: Floats, alpha: float) -> Floats:
    return (x < 0.0).choose(x * alpha, x)


def _thresholded_relu(code: Code, x: Floats, alpha: float) -> Floats:
    # A NaN is not above alpha.
    return (x > alpha).choose(x, code.constant(0.0, x.width))


def _sigmoid(code: Code, x: Floats) -> Floats:
    """1 / (1 + e**-x), 0 below -88.7; error 2."""
    return 1.0 / (1.0 + emit_exponential(code, -x))


def _swish(code: Code, x: Floats, alpha: float = 1.0) -> Floats:
    """x / (1 + e**(-alpha x)), 0 if alpha x is below -88.7; error 2 for alpha 1."""
    return x / (1.0 + emit_exponential(code, x * -alpha))


def _hard_sigmoid(code: Code, x: Floats, alpha: float, beta: float) -> Floats:
    line = code.multiply_add(x, code.constant(alpha, x.width), code.constant(beta, x.width))
    return line.at_least(0.0).at_most(1.0)


def _hard_swish(code: Code, x: Floats) -> Floats:
    return x * _hard_sigmoid(code, x, 1 / 6, 0.5)


def _elu(code: Code, x: Floats, alpha: float) -> Floats:
    """alpha (e**x - 1) below 0; error 1 for alpha 1."""
    return (x < 0.0).choose(emit_exponential_less_one(code, x) * alpha, x)


def _selu(code: Code, x: Floats, alpha: float, gamma: float) -> Floats:
    return (x < 0.0).choose(emit_exponential_less_one(code, x) * (alpha * gamma), x * gamma)


def _celu(code: Code, x: Floats, alpha: float) -> Floats:
    """alpha (e**(x / alpha) - 1) below 0."""
    return (x < 0.0).choose(emit_exponential_less_one(code, x / alpha) * alpha, x)


def _gelu(code: Code, x: Floats) -> Floats:
    """x (1 + erf(x / sqrt 2)) / 2, error 4 * 2**-24 |x|: the sum cancels where x is negative, as in every engine that has this formula."""
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


def _softsign(code: Code, x: Floats) -> Floats:
    return x / (code.call_intrinsic("fabs", x) + 1.0)


def _sign(code: Code, x: Floats) -> Floats:
    ones = code.constant(1.0, x.width)
    return (x > 0.0).choose(ones, (x < 0.0).choose(-ones, x))


def _power(code: Code, x: Floats, exponent: float) -> Floats:
    """x**n for n of -2, -1, 1, 2, 3, 4."""
    if exponent < 0:
        return 1.0 / _power(code, x, -exponent)
    square = x * x
    return {1.0: x, 2.0: square, 3.0: square * x, 4.0: square * square}[exponent]


def _intrinsic(name: str) -> Callable[[Code, Floats], Floats]:
    return lambda code, x: code.call_intrinsic(name, x)


EMITTERS: Mapping[str, Callable[..., Floats]] = {
    "Abs": _intrinsic("fabs"),
    "Ceil": _intrinsic("ceil"),
    "Celu": _celu,
    "Clip": _clip,
    "Elu": _elu,
    "Erf": emit_erf,
    "Exp": emit_exponential,
    "Floor": _intrinsic("floor"),
    "Gelu": _gelu,
    "GeluTanh": _gelu_tanh,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "Log": emit_logarithm,
    "Mish": _mish,
    "Neg": lambda code, x: -x,
    "Power": _power,
    "Reciprocal": lambda code, x: 1.0 / x,
    "Relu": lambda code, x: x.at_least(0.0),
    "Round": _intrinsic("roundeven"),
    "Selu": _selu,
    "Sigmoid": _sigmoid,
    "Sign": _sign,
    "Softplus": emit_softplus,
    "Softsign": _softsign,
    "Sqrt": _intrinsic("sqrt"),
    "Swish": _swish,
    "Tanh": emit_tanh,
    "ThresholdedRelu": _thresholded_relu,
}
