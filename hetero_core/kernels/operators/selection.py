"""Selection of elements: ArgMax, ArgMin, TopK, NonZero, Unique."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, integers_of, normalize_axis, widen
from hetero_core.kernels.registry import ANY, BOOL, COMPLEX, INT64, NUMBERS, kernel


@kernel("ArgMax", since=(12, 13), dtypes=NUMBERS, choices={"select_last_index": (0, 1)})
def arg_max(xp: Namespace, x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Returns the position of the first (or last) largest element along the axis. Source: ONNX ArgMax-13."""
    return _find_extreme(xp, xp.argmax, x, axis, keepdims, select_last_index)


@kernel("ArgMin", since=(12, 13), dtypes=NUMBERS, choices={"select_last_index": (0, 1)})
def arg_min(xp: Namespace, x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
    """Returns the position of the first (or last) smallest element along the axis. Source: ONNX ArgMin-13."""
    return _find_extreme(xp, xp.argmin, x, axis, keepdims, select_last_index)


@kernel("ArgMax", since=(1, 11), dtypes=NUMBERS)
def arg_max_first(xp: Namespace, x: Array, *, axis: int = 0, keepdims: int = 1) -> Array:
    """Returns the position of the first largest element along the axis. Source: ONNX ArgMax-11."""
    return _find_extreme(xp, xp.argmax, x, axis, keepdims, 0)


@kernel("ArgMin", since=(1, 11), dtypes=NUMBERS)
def arg_min_first(xp: Namespace, x: Array, *, axis: int = 0, keepdims: int = 1) -> Array:
    """Returns the position of the first smallest element along the axis. Source: ONNX ArgMin-11."""
    return _find_extreme(xp, xp.argmin, x, axis, keepdims, 0)


def _find_extreme(xp: Namespace, search: Array, x: Array, axis: int, keepdims: int, last: int) -> Array:
    wide = widen(x)
    resolved = normalize_axis(axis, x.ndim)
    positions = search(xp.flip(wide, axis=resolved) if last else wide, axis=resolved)
    positions = xp.asarray(x.shape[resolved] - 1 - positions if last else positions, dtype=np.int64)
    return xp.expand_dims(positions, resolved) if keepdims else positions


@kernel("TopK", since=(11, 24), dtypes=(NUMBERS, INT64), host=(1,), choices={"largest": (0, 1), "sorted": (0, 1)}, outputs=2)
def top_k(
    xp: Namespace,
    x: Array,
    k: Array,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002 - ONNX's name
) -> tuple[Array, Array]:
    """Returns the k largest (or smallest) elements along the axis in order, and their positions; the lower position wins a tie.

    Without `sorted` any order is allowed; this one is sorted, too. Source: ONNX TopK-24.
    """
    return _sort_top(xp, x, integers_of(k)[0], axis, largest)


@kernel("TopK", since=(10,), dtypes=(NUMBERS, INT64), host=(1,), outputs=2)
def top_k_largest(xp: Namespace, x: Array, k: Array, *, axis: int = -1) -> tuple[Array, Array]:
    """Returns the k largest elements along the axis, and their positions. Source: ONNX TopK-10."""
    return _sort_top(xp, x, integers_of(k)[0], axis, 1)


@kernel("TopK", since=(1,), dtypes=NUMBERS, outputs=2)
def top_k_by_attribute(xp: Namespace, x: Array, *, axis: int = -1, k: int) -> tuple[Array, Array]:
    """Returns the k largest elements along the axis, and their positions. Source: ONNX TopK-1."""
    return _sort_top(xp, x, k, axis, 1)


def _sort_top(xp: Namespace, x: Array, k: int, axis: int, largest: int) -> tuple[Array, Array]:
    resolved = normalize_axis(axis, x.ndim)
    wide = widen(x)
    if largest:
        # A stable sort of the reversed axis, read backwards, keeps the lower position first among equals.
        order = xp.argsort(xp.flip(wide, axis=resolved), axis=resolved, kind="stable")
        order = x.shape[resolved] - 1 - xp.flip(order, axis=resolved)
    else:
        order = xp.argsort(wide, axis=resolved, kind="stable")
    order = xp.asarray(order[(*(slice(None),) * resolved, slice(0, k))], dtype=np.int64)
    return xp.take_along_axis(x, order, axis=resolved), order


@kernel("NonZero", since=(9, 13), dtypes=NUMBERS | BOOL | COMPLEX)
def non_zero(xp: Namespace, x: Array) -> Array:
    """Returns the positions of all elements that are not zero, one column each, in row-major order. Source: ONNX NonZero-13."""
    flags = (x != 0).reshape(-1)
    positions = xp.asarray(xp.nonzero(flags)[0], dtype=np.int64)
    if x.ndim == 0:
        return xp.zeros((0, positions.shape[0]), dtype=np.int64)
    return xp.stack(xp.unravel_index(positions, x.shape)).astype(np.int64)


@kernel("Unique", since=(11, 28), dtypes=ANY, choices={"sorted": (0, 1)}, outputs=4, runs_on_host=True)
def unique(
    xp: Namespace,
    x: Array,
    *,
    axis: int | None = None,
    sorted: int = 1,  # noqa: A002 - ONNX's name
) -> tuple[Array, ...]:
    """Returns the distinct slices along the axis (or elements), first positions, inverse positions, and counts.

    In ascending order, or in order of first appearance where sorted is 0. Source: ONNX Unique-28.
    """
    wide = widen(x)
    _, first, inverse, counts = np.unique(wide, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first, inverse, counts = first[order], rank[inverse], counts[order]
    values = np.take(x.reshape(-1) if axis is None else x, first, axis=0 if axis is None else axis)
    return (values, *(np.asarray(part, dtype=np.int64) for part in (first, inverse, counts)))
