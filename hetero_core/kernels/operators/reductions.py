"""Reductions, Softmax and its kin, and losses.

Small floats are summed in float32; integers keep their type and wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from hetero_core.kernels.precision import Array, Integers, Namespace, integers_of, narrow, normalize_axes, normalize_axis, widen
from hetero_core.kernels.registry import BOOL, FLOATS, INDEX, INT64, NUMBERS, Dtypes, kernel

Axes = Integers
Formula = Callable[[Namespace, Array, Axes, bool], Array]


_MOST_IN_TURN = 1 << 16
"""Elements that are added sequentially in float32: a sum of 2**24 elements of 1 grows no more."""


def _sum(xp: Namespace, x: Array, axes: Axes, keepdims: bool) -> Array:
    """Returns the sum in x's own type; of integers it wraps around."""
    if xp is np and x.dtype == np.float32 and prod(x.shape[axis] for axis in axes) > _MOST_IN_TURN and not _adds_in_pairs(x, axes):
        return narrow(xp.sum(x, axis=axes, keepdims=keepdims, dtype=np.float64), x.dtype)
    return xp.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def _adds_in_pairs(x: Array, axes: Axes) -> bool:
    """Says whether NumPy adds halves of halves, which loses no digits: along the last axes of an array without gaps."""
    return bool(x.flags.c_contiguous) and sorted(axes) == list(range(x.ndim - len(axes), x.ndim))


def _as_float(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind in "iu" else x


def _euclidean_norm(xp: Namespace, x: Array, axes: Axes, keepdims: bool) -> Array:
    wide = _as_float(x)
    return narrow(xp.sqrt(_sum(xp, wide * wide, axes, keepdims)), x.dtype)


def _log_of_sum_of_exponentials(xp: Namespace, x: Array, axes: Axes, keepdims: bool) -> Array:
    """Returns log(sum(exp(x))), shifted by the maximum so that nothing overflows; an infinite maximum is no shift."""
    x = _as_float(x)
    peak = reduce_max(xp, x, axes, True)
    peak = xp.where(xp.isfinite(peak), peak, peak.dtype.type(0))
    total = xp.log(_sum(xp, xp.exp(x - peak), axes, True)) + peak
    return total if keepdims else xp.squeeze(total, axis=axes)


def reduce_mean(xp: Namespace, x: Array, axes: Axes, keepdims: bool) -> Array:
    """Returns the sum divided by the number of elements; of nothing it is NaN, and 0 of integers."""
    count, total = prod(x.shape[axis] for axis in axes), _sum(xp, x, axes, keepdims)
    if x.dtype.kind in "iu":
        # Integers truncate toward zero, as Div does; the least one has no magnitude in its type.
        quotient = total // x.dtype.type(count)
        is_below = (total < 0) & (total % x.dtype.type(count) != 0)
        return narrow(xp.where(is_below, quotient + x.dtype.type(1), quotient), x.dtype)
    return total / count


def reduce_max(xp: Namespace, x: Array, axes: Axes, keepdims: bool, *, is_largest: bool = True) -> Array:
    """Returns the maximum, or else the minimum; of nothing it is minus infinity or the smallest value of the type, or else the opposite."""
    if all(x.shape[axis] for axis in axes):
        return (xp.max if is_largest else xp.min)(x, axis=axes, keepdims=keepdims)
    sizes = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape) if keepdims or axis not in axes)
    limits = (False, True) if x.dtype.kind == "b" else (-np.inf, np.inf)
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
    return xp.full(sizes, limits[0 if is_largest else 1], dtype=x.dtype)


# Operator, formula, versions with the axes as attribute, versions with the axes as input, dtypes.
_REDUCTIONS: tuple[tuple[str, Formula, Integers, Integers, Dtypes], ...] = (
    ("ReduceSum", _sum, (1, 11), (13,), NUMBERS),
    ("ReduceL1", lambda xp, x, *how: _sum(xp, xp.abs(x), *how), (1, 11, 13), (18,), NUMBERS),
    ("ReduceL2", _euclidean_norm, (1, 11, 13), (18,), NUMBERS),
    ("ReduceLogSum", lambda xp, x, *how: xp.log(_sum(xp, _as_float(x), *how)), (1, 11, 13), (18, 28), NUMBERS),
    ("ReduceLogSumExp", _log_of_sum_of_exponentials, (1, 11, 13), (18, 28), NUMBERS),
    ("ReduceMax", reduce_max, (1, 11, 12, 13), (18, 20), NUMBERS | BOOL),
    ("ReduceMean", reduce_mean, (1, 11, 13), (18,), NUMBERS),
    ("ReduceMin", partial(reduce_max, is_largest=False), (1, 11, 12, 13), (18, 20), NUMBERS | BOOL),
    (
        "ReduceProd",
        lambda xp, x, axes, keepdims: xp.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype),
        (1, 11, 13),
        (18,),
        NUMBERS,
    ),
    ("ReduceSumSquare", lambda xp, x, *how: _sum(xp, x * x, *how), (1, 11, 13), (18,), NUMBERS),
)


def _register(op_type: str, formula: Formula, by_attribute: Integers, by_input: Integers, dtypes: Dtypes) -> None:
    @kernel(op_type, since=by_attribute, dtypes=dtypes, as_attributes=("axes",), without=("noop_with_empty_axes",))
    @kernel(op_type, since=by_input, dtypes=(dtypes, INT64), host=(1,))
    def reduce(xp: Namespace, x: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        named = integers_of(axes) or (() if noop_with_empty_axes == 1 else tuple(range(x.ndim)))
        return narrow(formula(xp, widen(x), normalize_axes(named, x.ndim), keepdims == 1), x.dtype)


for _row in _REDUCTIONS:
    _register(*_row)


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
    return (xp.arange(x.shape[axis]).reshape((-1, *(1,) * (x.ndim - axis - 1))) == first).astype(x.dtype)


def _register_softmax(op_type: str, formula: Callable[[Namespace, Array, int], Array]) -> None:
    @kernel(op_type, since=(13,), dtypes=FLOATS)
    def compute_along_axis(xp: Namespace, x: Array, *, axis: int = -1) -> Array:
        return narrow(formula(xp, widen(x), normalize_axis(axis, x.ndim)), x.dtype)

    @kernel(op_type, since=(1, 11), dtypes=FLOATS)
    def compute_flattened(xp: Namespace, x: Array, *, axis: int = 1) -> Array:
        if x.size == 0:
            return x
        # The old operator sees a matrix: all axes before `axis` are rows, the rest are columns. `axis` may equal the rank.
        first = axis if axis >= 0 else axis + x.ndim
        if not 0 <= first <= x.ndim:
            raise ValueError(f"axis {axis} is outside of rank {x.ndim}")
        rows = widen(x).reshape(prod(x.shape[:first]), -1)
        return narrow(formula(xp, rows, 1), x.dtype).reshape(x.shape)


_register_softmax("Softmax", softmax_of)
_register_softmax("LogSoftmax", log_softmax_of)
_register_softmax("Hardmax", _hardmax_of)


_DTYPES = (FLOATS, INDEX, FLOATS)
_REDUCTION = {"reduction": ("none", "mean", "sum")}


@kernel("NegativeLogLikelihoodLoss", since=(12, 13, 22), dtypes=_DTYPES, choices=_REDUCTION)
def negative_log_likelihood_loss(
    xp: Namespace, x: Array, target: Array, weight: Array | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Array:
    """Returns -weight[target] * x[target], or its sum, or its mean by weight."""
    return narrow(_lose(xp, widen(x), target, weight, ignore_index, reduction), x.dtype)


@kernel("SoftmaxCrossEntropyLoss", since=(12, 13), dtypes=_DTYPES, choices=_REDUCTION, outputs=2)
def softmax_cross_entropy_loss(
    xp: Namespace, x: Array, target: Array, weight: Array | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> tuple[Array, Array]:
    """Returns the loss of log(softmax(x)), and that logarithm."""
    logarithm = log_softmax_of(xp, widen(x), 1)
    loss = _lose(xp, logarithm, target, weight, ignore_index, reduction)
    return narrow(loss, x.dtype), narrow(logarithm, x.dtype)


def _lose(xp: Namespace, x: Array, target: Array, weight: Array | None, ignore_index: int | None, reduction: str) -> Array:
    """Returns the loss of log-probabilities x: (batch, classes, *sizes) for targets (batch, *sizes); an ignored target weighs 0."""
    counted = xp.ones(target.shape, dtype=bool) if ignore_index is None else target != ignore_index
    classes = xp.where(counted, target, target.dtype.type(0))
    picked = xp.squeeze(xp.take_along_axis(x, xp.expand_dims(classes, 1), axis=1), axis=1)
    weights = xp.ones(target.shape, dtype=x.dtype) if weight is None else xp.take(widen(weight).astype(x.dtype), classes, axis=0)
    weights = xp.where(counted, weights, weights.dtype.type(0))
    losses = -picked * weights
    if reduction == "none":
        return losses
    total = xp.sum(losses)
    return xp.asarray(total / xp.sum(weights) if reduction == "mean" else total)
