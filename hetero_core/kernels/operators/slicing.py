"""Regular regions of a tensor: Slice, Compress, ReverseSequence, Trilu, CumSum, CumProd."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, integers_of, narrow, normalize_axis, widen
from hetero_core.kernels.registry import ANY, BOOL, INDEX, INT64, NUMBERS, kernel


@kernel("Slice", since=(10, 11, 13), dtypes=(ANY, INDEX), host=(1, 2, 3, 4))
def slice_(xp: Namespace, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    """Returns x[start:end:step] along the axes; ends are clamped, a negative step walks back. Source: ONNX Slice-13."""
    begins, stops = integers_of(starts), integers_of(ends)
    resolved = tuple(range(len(begins))) if axes is None else integers_of(axes)
    strides = (1,) * len(begins) if steps is None else integers_of(steps)
    return _slice(x, begins, stops, resolved, strides)


@kernel("Slice", since=(1,), dtypes=ANY)
def slice_by_attributes(
    xp: Namespace, x: Array, *, axes: tuple[int, ...] | None = None, ends: tuple[int, ...], starts: tuple[int, ...]
) -> Array:
    """Returns x[start:end] along the axes. Source: ONNX Slice-1."""
    return _slice(x, starts, ends, tuple(range(len(starts))) if axes is None else axes, (1,) * len(starts))


def _slice(x: Array, begins: tuple[int, ...], stops: tuple[int, ...], axes: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    picked = [slice(None)] * x.ndim
    for begin, stop, axis, stride in zip(begins, stops, axes, strides, strict=True):
        resolved = normalize_axis(axis, x.ndim)
        picked[resolved] = clamp(begin, stop, stride, x.shape[resolved])
    return x[tuple(picked)]


def clamp(begin: int, stop: int, stride: int, size: int) -> slice:
    """Returns Python's slice of ONNX's bounds: negative ones count from the end once, then both are clamped to the axis."""
    if stride == 0:
        raise ValueError("a step of a slice is 0")
    begin, stop = (bound + size if bound < 0 else bound for bound in (begin, stop))
    if stride > 0:
        return slice(min(max(begin, 0), size), min(max(stop, 0), size), stride)
    begin, stop = min(max(begin, 0), size - 1), min(max(stop, -1), size - 1)
    # Python would read a stop of -1 as the last element.
    return slice(begin, None if stop < 0 else stop, stride)


@kernel("Compress", since=(9, 11, 28), dtypes=(ANY, BOOL), host=(1,))
def compress(xp: Namespace, x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """Returns the slices along the axis, or the elements, where the condition holds. Source: ONNX Compress-28."""
    indices = xp.asarray(np.flatnonzero(condition).tolist(), dtype=np.int64)
    return xp.take(x.reshape(-1) if axis is None else x, indices, axis=0 if axis is None else axis)


@kernel("ReverseSequence", since=(10, 28), dtypes=(ANY, INT64), host=(1,), choices={"time_axis": (0, 1), "batch_axis": (0, 1)})
def reverse_sequence(xp: Namespace, x: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """Returns x with the first sequence_lens[i] steps of batch i reversed. Source: ONNX ReverseSequence-28."""
    y = x.copy()
    for item, length in enumerate(integers_of(sequence_lens)):
        # The batch and time axes are 0 and 1, in either order.
        ahead = (item, slice(length)) if batch_axis == 0 else (slice(length), item)
        y[ahead] = x[ahead][::-1]
    return y


@kernel("Trilu", since=(14,), dtypes=(ANY, INT64), host=(1,), choices={"upper": (0, 1)})
def trilu(xp: Namespace, x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """Returns the upper or lower triangle of the last two axes, k diagonals off; the rest is 0. Source: ONNX Trilu-14."""
    offset = 0 if k is None else integers_of(k)[0]
    rows, columns = x.shape[-2:]
    distance = xp.arange(columns).reshape((1, -1)) - xp.arange(rows).reshape((-1, 1))
    mask = distance >= offset if upper else distance <= offset
    return xp.where(mask, x, xp.zeros((), dtype=x.dtype))


@kernel("CumSum", since=(11, 14), dtypes=(NUMBERS, INDEX), host=(1,), choices={"exclusive": (0, 1), "reverse": (0, 1)})
def cumulative_sum(xp: Namespace, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """Returns running sums along the axis; exclusive ones leave their own element out. Source: ONNX CumSum-14."""
    wide = widen(x)
    return _accumulate(xp, xp.cumsum, x, wide, integers_of(axis)[0], exclusive, reverse, 0)


@kernel("CumProd", since=(26,), dtypes=(NUMBERS, INDEX), host=(1,), choices={"exclusive": (0, 1), "reverse": (0, 1)})
def cumulative_product(xp: Namespace, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """Returns running products along the axis; exclusive ones leave their own element out. Source: ONNX CumProd-26."""
    wide = widen(x)
    return _accumulate(xp, xp.cumprod, x, wide, integers_of(axis)[0], exclusive, reverse, 1)


def _accumulate(
    xp: Namespace, accumulate: Array, x: Array, wide: Array, axis: int, exclusive: int, reverse: int, neutral: int
) -> Array:
    ahead = (slice(None),) * normalize_axis(axis, x.ndim)
    backward = (*ahead, slice(None, None, -1))
    totals = wide[backward] if reverse else wide
    totals = accumulate(totals, axis=axis, dtype=wide.dtype)
    if exclusive:
        first = xp.full_like(totals[(*ahead, slice(0, 1))], neutral)
        totals = xp.concatenate([first, totals[(*ahead, slice(0, -1))]], axis=axis)
    return narrow(totals[backward] if reverse else totals, x.dtype)
