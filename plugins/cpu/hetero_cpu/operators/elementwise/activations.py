"""Activations as calls on arrays that are there: out = f(x), x and out may be the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hetero_core.kernels.operators.activations import elu, leaky_relu
from hetero_core.network.graph import Node
from hetero_cpu.operators.elementwise.bare_calls import make_number
from hetero_cpu.operators.elementwise.error_function import write_erf
from hetero_cpu.planning.recipe import Array, Call

ZERO, ONE, HALF, INFINITY = (make_number(number) for number in (0, 1, 0.5, np.inf))
# Elements from which `np.clip` is the fastest for one bound and for two.
_FEWEST_BOUND_BY_CLIP, _FEWEST_CLIPPED = 1 << 15, 1 << 13

Binder = Callable[[Node, Mapping[str, Array], Array, Array, Array], list[Call]]
"""Takes the node, the constants, x, out, and a spare array like them."""


def _bind_relu(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    return [bind_bound(x, ZERO, None, out)]


def _bind_clip(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    low, high = map(make_number, read_clip(node, constants))
    if x.size >= _FEWEST_CLIPPED:
        return [bind_bound(x, low, high, out)]
    return [partial(np.maximum, x, low, out=out), partial(np.minimum, out, high, out=out)]


def bind_bound(x: Array, low: Array | None, high: Array | None, out: Array) -> Call:
    """Returns the call that keeps x between one or two bounds; NaN stays NaN.

    `np.clip` compares 8 elements in a nanosecond, `np.maximum` and `np.minimum` 5, but it begins 1.4 us later.
    """
    if high is None and x.size < _FEWEST_BOUND_BY_CLIP:
        return partial(np.maximum, x, low, out=out)
    if low is None and x.size < _FEWEST_BOUND_BY_CLIP:
        return partial(np.minimum, x, high, out=out)
    return partial(np.clip, x, -INFINITY if low is None else low, INFINITY if high is None else high, out)


def read_clip(node: Node, constants: Mapping[str, Array]) -> tuple[Any, Any]:
    """Returns the two bounds; those of float32 if they are absent. Source: ONNX Clip-6 has attributes, Clip-11 inputs."""
    limits = np.finfo(np.float32)
    if node.since_version < 11:
        return node.attributes.get("min", limits.min), node.attributes.get("max", limits.max)
    low, high = (*[constants[name].reshape(-1)[0] if name else None for name in node.inputs[1:3]], None, None)[:2]
    return limits.min if low is None else low, limits.max if high is None else high


def _bind_leaky_relu(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    alpha = make_number(node.attributes.get("alpha", 0.01))
    if not np.isfinite(alpha):
        return [partial(_write_result, leaky_relu, x, float(alpha), out)]
    if alpha == 0:
        # 0 * infinity would be NaN on the side that is not multiplied.
        return [
            partial(np.minimum, x, ZERO, out=spare),
            partial(np.multiply, spare, alpha, spare),
            partial(np.maximum, x, ZERO, out=out),
            partial(np.add, out, spare, out),
        ]
    pick = np.maximum if alpha <= 1 else np.minimum
    return [partial(np.multiply, x, alpha, spare), partial(pick, x, spare, out=out)]


def _bind_sigmoid(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    # exp(-x) overflows to infinity for x < -88, and 1 / infinity is the right 0.
    return [
        partial(np.negative, x, out),
        partial(np.exp, out, out),
        partial(np.add, out, ONE, out),
        partial(np.reciprocal, out, out),
    ]


def _bind_hard_sigmoid(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    alpha, beta = (make_number(node.attributes.get(name, default)) for name, default in (("alpha", 0.2), ("beta", 0.5)))
    return [
        partial(np.multiply, x, alpha, out),
        partial(np.add, out, beta, out),
        partial(np.maximum, out, ZERO, out=out),
        partial(np.minimum, out, ONE, out=out),
    ]


def _bind_hard_swish(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    return [
        partial(np.multiply, x, make_number(1 / 6), spare),
        partial(np.add, spare, HALF, spare),
        partial(np.maximum, spare, ZERO, out=spare),
        partial(np.minimum, spare, ONE, out=spare),
        partial(np.multiply, x, spare, out),
    ]


def _bind_swish(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    """x / (1 + exp(-alpha x)); where the exponential overflows the quotient is the right 0. Source: ONNX Swish-24."""
    return [
        partial(np.multiply, x, make_number(-node.attributes.get("alpha", 1.0)), spare),
        partial(np.exp, spare, spare),
        partial(np.add, spare, ONE, spare),
        partial(np.divide, x, spare, out),
    ]


def _bind_elu(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    alpha = make_number(node.attributes.get("alpha", 1.0))
    if not np.isfinite(alpha):
        return [partial(_write_result, elu, x, float(alpha), out)]
    # alpha (exp(min(x, 0)) - 1) is 0 where x is positive, so that the parts add up.
    return [
        partial(np.minimum, x, ZERO, out=spare),
        partial(np.expm1, spare, spare),
        partial(np.multiply, spare, alpha, spare),
        partial(np.maximum, x, ZERO, out=out),
        partial(np.add, out, spare, out),
    ]


def _write_result(kernel: Callable[..., Array], x: Array, alpha: float, out: Array) -> None:
    """Writes what a kernel of the toolkit returns; for numbers that make 0 times infinity on the side that is not taken."""
    np.copyto(out, kernel(np, x, alpha=alpha))


def _bind_tanh(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    return [partial(np.tanh, x, out)]


def _bind_gelu(node: Node, constants: Mapping[str, Array], x: Array, out: Array, spare: Array) -> list[Call]:
    """x (1 + erf(x / sqrt 2)) / 2, or with tanh. Source: ONNX Gelu-20."""
    if node.attributes.get("approximate", "none") == "tanh":
        return [
            partial(np.multiply, x, x, spare),
            partial(np.multiply, spare, make_number(0.044715), spare),
            partial(np.add, spare, ONE, spare),
            partial(np.multiply, spare, x, spare),
            partial(np.multiply, spare, make_number(np.sqrt(2 / np.pi)), spare),
            partial(np.tanh, spare, spare),
            partial(np.add, spare, ONE, spare),
            partial(np.multiply, spare, HALF, spare),
            partial(np.multiply, x, spare, out),
        ]

    return [
        partial(np.multiply, x, make_number(np.sqrt(0.5)), spare),
        partial(write_erf, spare),
        partial(np.add, spare, ONE, spare),
        partial(np.multiply, spare, HALF, spare),
        partial(np.multiply, x, spare, out),
    ]


BINDERS: Mapping[str, Binder] = {
    "Clip": _bind_clip,
    "Elu": _bind_elu,
    "Gelu": _bind_gelu,
    "HardSigmoid": _bind_hard_sigmoid,
    "HardSwish": _bind_hard_swish,
    "LeakyRelu": _bind_leaky_relu,
    "Relu": _bind_relu,
    "Sigmoid": _bind_sigmoid,
    "Swish": _bind_swish,
    "Tanh": _bind_tanh,
}
NEEDS_SPARE = frozenset({"Elu", "Gelu", "HardSwish", "LeakyRelu", "Swish"})
"""The activations that use the spare array."""
