"""ONNX Runtime's own operators on axes, indices and small matrices: ExpandDims, UnfoldTensor, CDist, Inverse and their like."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.operators.generation import count_range, range_
from hetero_core.kernels.operators.indexing import gather_nd
from hetero_core.kernels.operators.padding import count_padded, pad_all
from hetero_core.kernels.precision import Array, Namespace, integers_of, narrow, normalize_axis, widen
from hetero_core.kernels.registry import ANY, FLOAT32, INDEX, INT32, INT64, microsoft_kernel

_TRILU = frozenset({"float32", "float64", "int64", "bool"})


@microsoft_kernel("ExpandDims", dtypes=(ANY, INT32), host=(1,))
def expand_dims(xp: Namespace, x: Array, axis: Array) -> Array:
    """Returns x with a new axis of size 1. Source: ONNX Runtime, com.microsoft.ExpandDims-1."""
    return xp.expand_dims(x, normalize_axis(integers_of(axis)[0], x.ndim + 1))


@microsoft_kernel("GatherND", dtypes=(ANY, INDEX))
def microsoft_gather_nd(xp: Namespace, x: Array, indices: Array) -> Array:
    """Returns the slices of x that the last axis of the indices addresses. Source: ONNX Runtime, com.microsoft.GatherND-1."""
    return gather_nd(xp, x, indices.astype(np.int64))


@microsoft_kernel("Trilu", halves=(0,), dtypes=(_TRILU, INT64), host=(1,), choices={"upper": (0, 1)})
def microsoft_trilu(xp: Namespace, x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """Returns the triangle above or below a diagonal. Source: ONNX Runtime, com.microsoft.Trilu-1."""
    diagonal = 0 if k is None else integers_of(k)[0]
    return xp.triu(x, diagonal) if upper else xp.tril(x, diagonal)


@microsoft_kernel("UnfoldTensor", dtypes=ANY)
def unfold_tensor(xp: Namespace, x: Array, *, dim: int = -1, size: int, step: int = 1) -> Array:
    """Returns all slices of a size along an axis, in a new last axis. Source: ONNX Runtime, com.microsoft.UnfoldTensor-1."""
    axis = normalize_axis(dim, x.ndim)
    count = (x.shape[axis] - size) // step + 1
    if count < 1:
        raise ValueError(f"a slice of {size} does not fit an axis of {x.shape[axis]}")
    indices = xp.arange(count)[:, None] * step + xp.arange(size)[None, :]
    return xp.ascontiguousarray(xp.moveaxis(xp.take(x, indices, axis=axis), axis + 1, -1))


@microsoft_kernel("CDist", dtypes=frozenset({"float32", "float64"}), choices={"metric": ("euclidean", "sqeuclidean")})
def cdist(xp: Namespace, a: Array, b: Array, *, metric: str = "sqeuclidean") -> Array:
    """Returns the (squared) Euclidean distance of each row of a to each row of b. Source: ONNX Runtime, com.microsoft.CDist-1."""
    squares = xp.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=-1)
    return narrow(squares if metric == "sqeuclidean" else xp.sqrt(squares), a.dtype)


@microsoft_kernel("Inverse", dtypes=frozenset({"float16", "float32", "float64"}))
def inverse(xp: Namespace, x: Array) -> Array:
    """Returns the inverse of each matrix. Source: ONNX Runtime, com.microsoft.Inverse-1."""
    return narrow(xp.linalg.inv(widen(x)), x.dtype)


@microsoft_kernel(
    "Range", dtypes=frozenset({"int16", "int32", "int64", "float32", "float64"}), host=(0, 1, 2), count_bytes=count_range
)
def microsoft_range(xp: Namespace, start: Array, limit: Array, delta: Array | None = None) -> Array:
    """Returns the numbers from start up to limit by delta, 1 where it is absent. Source: ONNX Runtime, com.microsoft.Range-1."""
    step = np.asarray(1, start.dtype) if delta is None else delta.reshape(())
    return range_(xp, start.reshape(()), limit.reshape(()), step)


@microsoft_kernel(
    "Pad",
    halves=(0,),
    dtypes=(FLOAT32, INT64, FLOAT32),
    host=(1,),
    choices={"mode": ("constant", "edge", "reflect")},
    count_bytes=count_padded,
)
def microsoft_pad(xp: Namespace, x: Array, pads: Array, value: Array | None = None, *, mode: str = "constant") -> Array:
    """Returns x with a border. Source: ONNX Runtime, com.microsoft.Pad-1."""
    filler = None if value is None else value.reshape(())
    return pad_all(xp, x, pads.reshape(-1), filler, mode=mode)


@microsoft_kernel("Unique", dtypes=FLOAT32, outputs=3, runs_on_host=True)
def microsoft_unique(xp: Namespace, x: Array) -> tuple[Array, Array, Array]:
    """Returns the values in the order in which they come first, for each element where its value stands, and how often each occurs.

    Source: ONNX Runtime, com.microsoft.Unique-1.
    """
    values, first, places, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return values[order], ranks[places.reshape(x.shape)].astype(np.int64), counts[order].astype(np.int64)


@microsoft_kernel("DynamicTimeWarping", dtypes=FLOAT32, runs_on_host=True)
def dynamic_time_warping(xp: Namespace, x: Array) -> Array:
    """Returns rows and columns of the cheapest path from corner to corner, by steps right, down or both.

    x: (rows, columns) or (1, rows, columns). Source: ONNX Runtime, com.microsoft.DynamicTimeWarping-1.
    """
    costs = x.reshape(x.shape[-2:])
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    moves = np.full((rows + 1, columns + 1), -1, np.int8)
    for column in range(1, columns + 1):
        for row in range(1, rows + 1):
            both, down, right = total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
            move = 0 if both < down and both < right else 1 if down < both and down < right else 2
            total[row, column] = (both, down, right)[move] + costs[row - 1, column - 1]
            moves[row, column] = move
    moves[0, :], moves[:, 0] = 2, 1
    path = []
    row, column = rows, columns
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        move = moves[row, column]
        row, column = (row - 1, column - 1) if move == 0 else (row - 1, column) if move == 1 else (row, column - 1)
    return np.asarray(path[::-1], np.int32).T.reshape(2, -1).copy()
