"""Softmax, LogSoftmax and Hardmax: along one axis since opset 13, over all axes from one on before."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from hetero_core.kernels.precision import Array, Namespace, narrow, normalize_axis, widen
from hetero_core.kernels.registry import FLOATS, kernel


def softmax_of(xp: Namespace, x: Array, axis: int) -> Array:
    """Returns exp(x - max) / sum(exp(x - max)) in x's own type; an array without elements as it is."""
    if x.size == 0:
        return x
    exponentials = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return exponentials / xp.sum(exponentials, axis=axis, keepdims=True)


def log_softmax_of(xp: Namespace, x: Array, axis: int) -> Array:
    """Returns x - max - log(sum(exp(x - max))) in x's own type; an array without elements as it is."""
    if x.size == 0:
        return x
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def _hardmax_of(xp: Namespace, x: Array, axis: int) -> Array:
    """Returns 1 at the first maximum and 0 elsewhere; an array without elements as it is."""
    if x.size == 0:
        return x
    first = xp.expand_dims(xp.argmax(x, axis=axis), axis)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return (xp.arange(x.shape[axis]).reshape(shape) == first).astype(x.dtype)


_FORMULAS: tuple[tuple[str, Callable[[Namespace, Array, int], Array]], ...] = (
    ("Softmax", softmax_of),
    ("LogSoftmax", log_softmax_of),
    ("Hardmax", _hardmax_of),
)


def _register(op_type: str, formula: Callable[[Namespace, Array, int], Array]) -> None:
    @kernel(op_type, since=(13,), dtypes=FLOATS)
    def compute_along_axis(xp: Namespace, x: Array, *, axis: int = -1) -> Array:
        return narrow(formula(xp, widen(x), normalize_axis(axis, x.ndim)), x.dtype)

    @kernel(op_type, since=(1, 11), dtypes=FLOATS)
    def compute_flattened(xp: Namespace, x: Array, *, axis: int = 1) -> Array:
        if x.size == 0:
            return x
        # The old operator sees a matrix: all axes before `axis` are rows, all others one column axis. `axis` may equal the rank.
        first = axis if axis >= 0 else axis + x.ndim
        if not 0 <= first <= x.ndim:
            raise ValueError(f"axis {axis} is outside of rank {x.ndim}")
        rows = widen(x).reshape(prod(x.shape[:first]), -1)
        return narrow(formula(xp, rows, 1), x.dtype).reshape(x.shape)


for _row in _FORMULAS:
    _register(*_row)
