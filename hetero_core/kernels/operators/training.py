"""Adagrad, Adam and Momentum: a step of an optimizer on any number of tensors.

Inputs are the learning rate, the number of steps done, then all tensors, all gradients and all states, kind by kind; outputs are the new
tensors, then the new states. Gradient is no kernel: it differentiates the graph around it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt

from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import INT64, Dtypes, kernel

_WIDE: Dtypes = frozenset({"float32", "float64"})
_optimizer = partial(kernel, domain="ai.onnx.preview.training", since=(1,), dtypes=(_WIDE, INT64, _WIDE), host=(0, 1), outputs=None)


def _step_all(tensors: tuple[Array, ...], kinds: int, step: Callable[..., tuple[Array, ...]]) -> tuple[Array, ...]:
    """Returns the results of a step on each group of tensor, gradient and states, kind by kind. Raises: ValueError."""
    count, remainder = divmod(len(tensors), kinds)
    if remainder or not count:
        raise ValueError(f"{len(tensors)} tensors are given; expected a multiple of {kinds}: tensors, gradients and states")
    results = [step(*tensors[index::count]) for index in range(count)]
    return tuple(value for kind in zip(*results, strict=True) for value in kind)


def _scalar(value: Array) -> float:
    return float(value.reshape(-1)[0])


@_optimizer("Adagrad")
def adagrad(
    xp: Namespace, r: Array, t: Array, *rest: Array, decay_factor: float = 0.0, epsilon: float = 1e-6, norm_coefficient: float = 0.0
) -> tuple[Array, ...]:
    """Returns x - r / (1 + t decay) g / (sqrt(h) + epsilon) with h the sum of squared gradients, and h."""
    rate = _scalar(r) / (1 + _scalar(t) * decay_factor)

    def step(x: Array, g: Array, h: Array) -> tuple[Array, ...]:
        regularized = norm_coefficient * x + g
        total = h + regularized * regularized
        return x - rate * regularized / (xp.sqrt(total) + epsilon), total

    return _step_all(rest, 3, step)


@_optimizer("Adam")
def adam(
    xp: Namespace,
    r: Array,
    t: Array,
    *rest: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    """Returns x - r' v / (sqrt(h) + epsilon) with both running means, of gradients and of their squares.

    From the first step on the rate r' corrects the bias of the means: r sqrt(1 - beta^t) / (1 - alpha^t).
    """
    rate, steps = _scalar(r), _scalar(t)
    if steps > 0:
        rate *= sqrt(1 - beta**steps) / (1 - alpha**steps)

    def step(x: Array, g: Array, v: Array, h: Array) -> tuple[Array, ...]:
        regularized = norm_coefficient * x + g
        mean = alpha * v + (1 - alpha) * regularized
        square = beta * h + (1 - beta) * (regularized * regularized)
        moved = x - rate * (mean / (xp.sqrt(square) + epsilon))
        return (1 - norm_coefficient_post) * moved, mean, square

    return _step_all(rest, 4, step)


@_optimizer("Momentum", choices={"mode": ("standard", "nesterov")})
def momentum(
    xp: Namespace, r: Array, t: Array, *rest: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    """Returns x - r v with v = alpha v + beta g; nesterov looks ahead: x - r (g + alpha v)."""
    rate = _scalar(r)
    weight = beta if _scalar(t) > 0 else 1.0

    def step(x: Array, g: Array, v: Array) -> tuple[Array, ...]:
        regularized = norm_coefficient * x + g
        velocity = alpha * v + weight * regularized
        direction = regularized + alpha * velocity if mode == "nesterov" else velocity
        return x - rate * direction, velocity

    return _step_all(rest, 3, step)
