"""Tensors made from sizes, numbers or indices: Range, ConstantOfShape, EyeLike, OneHot."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.precision import Array, Namespace, integers_of, normalize_axis, widen
from hetero_core.kernels.registry import ANY, INT64, NOT_STRING, NUMBERS, kernel
from hetero_core.kernels.sizes import product

_NUMBERS_OF_RANGE = frozenset({"float32", "float64", "int16", "int32", "int64"})


def count_range(start: Array, limit: Array, delta: Array | None = None, **_: Any) -> int:
    """Returns the bytes of the numbers, counted in int64 before they are in the type of the result."""
    first, end, step = (1 if value is None else np.asarray(value).reshape(-1)[0].item() for value in (start, limit, delta))
    is_whole = all(isinstance(value, int) for value in (first, end, step))
    steps = -((first - end) // step) if is_whole else ceil((end - first) / step)
    return max(int(steps), 0) * (8 + int(start.itemsize))


@kernel("Range", since=(11,), dtypes=_NUMBERS_OF_RANGE, host=(0, 1, 2), count_bytes=count_range)
def range_(xp: Namespace, start: Array, limit: Array, delta: Array) -> Array:
    """Returns start, start + delta, ... below the limit (above it for a negative delta). Source: ONNX Range-11."""
    first, end, step = (np.asarray(value).reshape(-1)[0] for value in (start, limit, delta))
    if start.dtype.kind == "i":
        # The same numbers in a third of the time, which a decoder takes for each token.
        return xp.arange(int(first), int(end), int(step), dtype=start.dtype)
    count = max(int(np.ceil((float(end) - float(first)) / float(step))), 0)
    return xp.asarray(xp.arange(count).astype(start.dtype) * step + first, dtype=start.dtype)


@kernel(
    "Range",
    since=(27,),
    dtypes=_NUMBERS_OF_RANGE | {"float16", "bfloat16"},
    host=(0, 1, 2),
    choices={"stash_type": (1,)},
    count_bytes=count_range,
)
def range_stashed(xp: Namespace, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    """Returns what Range-11 returns; small floats are computed in float32. Source: ONNX Range-27."""
    return range_(xp, widen(start), widen(limit), widen(delta)).astype(start.dtype)


def _count_filled(shape: Array, *, value: Any = None) -> int:
    return product(integers_of(shape)) * (4 if value is None else int(value.itemsize))


@kernel("ConstantOfShape", since=(9, 20, 21, 23, 24, 25), dtypes=INT64, host=(0,), count_bytes=_count_filled)
def constant_of_shape(xp: Namespace, shape: Array, *, value: Any = None) -> Array:
    """Returns a tensor of one value, float32 zero by default. Source: ONNX ConstantOfShape-25."""
    fill = np.zeros(1, dtype=np.float32) if value is None else np.asarray(value).reshape(-1)
    return xp.full(integers_of(shape), fill[0], dtype=fill.dtype)


@kernel("EyeLike", since=(9, 22), dtypes=NOT_STRING)
def eye_like(xp: Namespace, x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    """Returns ones on the k-th diagonal of a matrix like x. Source: ONNX EyeLike-22."""
    name = None if dtype is None else dtype_of_onnx(dtype)
    return xp.eye(*x.shape, k=k, dtype=x.dtype if name is None else numpy_dtype(name))


def _count_one_hot(indices: Array, depth: Array, values: Array, **_: Any) -> int:
    """The result, and the comparison that is made first."""
    return int(indices.size) * integers_of(depth)[0] * (1 + int(values.itemsize))


@kernel("OneHot", since=(9, 11, 28), dtypes=(NUMBERS, NUMBERS, ANY), host=(1,), count_bytes=_count_one_hot)
def one_hot(xp: Namespace, indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """Returns values[1] where the new axis equals the index and values[0] elsewhere.

    Negative indices count from the depth; those outside select nothing. Source: ONNX OneHot-28.
    """
    count = integers_of(depth)[0]
    place = normalize_axis(axis, indices.ndim + 1)
    shape = [1] * (indices.ndim + 1)
    shape[place] = count
    indices = indices.astype(np.int64)
    wrapped = xp.expand_dims(xp.where(indices < 0, indices + count, indices), place)
    hot = xp.arange(count, dtype=np.int64).reshape(shape) == wrapped
    return xp.where(hot, values[1], values[0])
