"""Elementwise activations.

Formulas are computed in float32 or wider and rounded once; none overflows where the result is finite.
"""

from __future__ import annotations

import math

from hetero_core.kernels.operators.mathematics import erf_of
from hetero_core.kernels.precision import Array, Namespace, narrow, widen
from hetero_core.kernels.registry import FLOATS, NUMBERS, SIGNED, kernel


@kernel("Relu", since=(1, 6, 13, 14), dtypes=FLOATS | SIGNED)
def relu(xp: Namespace, x: Array) -> Array:
    """Returns max(x, 0). Source: ONNX Relu-14."""
    return xp.maximum(x, x.dtype.type(0))


@kernel("LeakyRelu", since=(1, 6, 16), dtypes=FLOATS)
def leaky_relu(xp: Namespace, x: Array, *, alpha: float = 0.01) -> Array:
    """Returns x, times alpha where it is negative. Source: ONNX LeakyRelu-16."""
    wide = widen(x)
    return narrow(xp.where(wide < 0, wide * alpha, wide), x.dtype)


@kernel("PRelu", since=(7, 9, 16), dtypes=NUMBERS)
def prelu(xp: Namespace, x: Array, slope: Array) -> Array:
    """Returns x, times slope where it is negative. Source: ONNX PRelu-16."""
    return narrow(xp.where(x < 0, x * slope, x), x.dtype)


@kernel("PRelu", since=(1, 6), dtypes=FLOATS)
def prelu_by_channel(xp: Namespace, x: Array, slope: Array) -> Array:
    """Returns x, times its channel's slope (or the only one) where it is negative. Source: ONNX PRelu-6."""
    return prelu(xp, x, slope.reshape((-1, *(1,) * max(x.ndim - 2, 0))))


@kernel("ThresholdedRelu", since=(0, 10, 22), dtypes=FLOATS)
def thresholded_relu(xp: Namespace, x: Array, *, alpha: float = 1.0) -> Array:
    """Returns x where it is above alpha, else 0. Source: ONNX ThresholdedRelu-22."""
    wide = widen(x)
    return narrow(xp.where(wide > alpha, wide, wide.dtype.type(0)), x.dtype)


@kernel("Elu", since=(1, 6, 22), dtypes=FLOATS)
def elu(xp: Namespace, x: Array, *, alpha: float = 1.0) -> Array:
    """Returns x, alpha * (exp(x) - 1) where it is negative. Source: ONNX Elu-22."""
    wide = widen(x)
    return narrow(xp.where(wide < 0, alpha * xp.expm1(xp.minimum(wide, 0)), wide), x.dtype)


@kernel("Celu", since=(12, 28), dtypes=FLOATS)
def celu(xp: Namespace, x: Array, *, alpha: float = 1.0) -> Array:
    """Returns max(0, x) + min(0, alpha * (exp(x / alpha) - 1)). Source: ONNX Celu-28."""
    wide = widen(x)
    return narrow(xp.maximum(wide, 0) + xp.minimum(alpha * xp.expm1(wide / alpha), 0), x.dtype)


_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


@kernel("Selu", since=(6, 22), dtypes=FLOATS)
def selu(xp: Namespace, x: Array, *, alpha: float = _SELU_ALPHA, gamma: float = _SELU_GAMMA) -> Array:
    """Returns gamma * (alpha * exp(x) - alpha) for x <= 0, else gamma * x. Source: ONNX Selu-22."""
    wide = widen(x)
    return narrow(gamma * xp.where(wide > 0, wide, alpha * xp.expm1(xp.minimum(wide, 0))), x.dtype)


@kernel("Selu", since=(1,), dtypes=FLOATS)
def selu_first(xp: Namespace, x: Array, *, alpha: float = 1.6732, gamma: float = 1.0507) -> Array:
    """Returns what Selu returns, with rounder defaults. Source: ONNX Selu-1."""
    return selu(xp, x, alpha=alpha, gamma=gamma)


@kernel("Sigmoid", since=(1, 6, 13), dtypes=FLOATS)
def sigmoid(xp: Namespace, x: Array) -> Array:
    """Returns 1 / (1 + exp(-x)). Source: ONNX Sigmoid-13."""
    return narrow(sigmoid_of(xp, widen(x)), x.dtype)


def sigmoid_of(xp: Namespace, x: Array) -> Array:
    """Returns the sigmoid in x's own type as exp(min(x, 0)) / (1 + exp(-|x|)): no overflow, and exact tails on both sides."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small, 1) / (1 + small)


@kernel("HardSigmoid", since=(1, 6, 22), dtypes=FLOATS)
def hard_sigmoid(xp: Namespace, x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """Returns alpha * x + beta, clipped to 0 and 1. Source: ONNX HardSigmoid-22."""
    return narrow(xp.clip(alpha * widen(x) + beta, 0, 1), x.dtype)


@kernel("HardSwish", since=(14, 22), dtypes=FLOATS)
def hard_swish(xp: Namespace, x: Array) -> Array:
    """Returns x * clip(x / 6 + 0.5, 0, 1). Source: ONNX HardSwish-22."""
    wide = widen(x)
    return narrow(wide * xp.clip(wide / 6 + 0.5, 0, 1), x.dtype)


@kernel("Swish", since=(24,), dtypes=FLOATS)
def swish(xp: Namespace, x: Array, *, alpha: float = 1.0) -> Array:
    """Returns x * sigmoid(alpha * x). Source: ONNX Swish-24."""
    wide = widen(x)
    return narrow(wide * sigmoid_of(xp, alpha * wide), x.dtype)


@kernel("Softplus", since=(1, 22), dtypes=FLOATS)
def softplus(xp: Namespace, x: Array) -> Array:
    """Returns log(1 + exp(x)). Source: ONNX Softplus-22."""
    return narrow(softplus_of(xp, widen(x)), x.dtype)


def softplus_of(xp: Namespace, x: Array) -> Array:
    """Returns the softplus in x's own type as max(x, 0) + log1p(exp(-|x|)), which does not overflow."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))


@kernel("Softsign", since=(1, 22), dtypes=FLOATS)
def softsign(xp: Namespace, x: Array) -> Array:
    """Returns x / (1 + |x|). Source: ONNX Softsign-22."""
    wide = widen(x)
    return narrow(wide / (1 + xp.abs(wide)), x.dtype)


@kernel("Mish", since=(18, 22), dtypes=FLOATS)
def mish(xp: Namespace, x: Array) -> Array:
    """Returns x * tanh(softplus(x)). Source: ONNX Mish-22."""
    wide = widen(x)
    return narrow(wide * xp.tanh(softplus_of(xp, wide)), x.dtype)


@kernel("Gelu", since=(20,), dtypes=FLOATS, choices={"approximate": ("none", "tanh")})
def gelu(xp: Namespace, x: Array, *, approximate: str = "none") -> Array:
    """Returns x * (1 + erf(x / sqrt(2))) / 2, or its approximation by tanh. Source: ONNX Gelu-20."""
    wide = widen(x)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        return narrow(0.5 * wide * (1 + xp.tanh(inner)), x.dtype)
    return narrow(0.5 * wide * (1 + erf_of(xp, wide * math.sqrt(0.5))), x.dtype)


@kernel("Shrink", since=(9,), dtypes=NUMBERS)
def shrink(xp: Namespace, x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """Returns x + bias below -lambd, x - bias above lambd, else 0. Source: ONNX Shrink-9."""
    wide = widen(x)
    zero = wide.dtype.type(0)
    return narrow(xp.where(wide < -lambd, wide + bias, xp.where(wide > lambd, wide - bias, zero)), x.dtype)
