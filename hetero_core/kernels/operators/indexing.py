"""Reading by index: Gather, GatherElements, GatherND. Negative indices count from the end; one outside is an error on the host."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, normalize_axis
from hetero_core.kernels.registry import ANY, INDEX, INT64, kernel


@kernel("Gather", since=(1, 11, 13), dtypes=(ANY, INDEX))
def gather(xp: Namespace, x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Returns the slices of x along the axis that the indices name, in their shape. Source: ONNX Gather-13."""
    return xp.take(x, indices, axis=axis)


@kernel("GatherElements", since=(11, 13), dtypes=(ANY, INDEX))
def gather_elements(xp: Namespace, x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Returns x[..., indices[...], ...] with the index in place of the position along the axis. Source: ONNX GatherElements-13."""
    return x[grid_of(xp, indices, x.ndim, normalize_axis(axis, x.ndim))]


def grid_of(xp: Namespace, indices: Array, rank: int, axis: int) -> tuple[Array, ...]:
    """Returns index arrays that walk the shape of `indices`, with `indices` itself along the axis."""
    grid = []
    for dimension in range(rank):
        if dimension == axis:
            grid.append(indices)
            continue
        shape = [1] * rank
        shape[dimension] = -1
        grid.append(xp.arange(indices.shape[dimension]).reshape(shape))
    return tuple(grid)


@kernel("GatherND", since=(11, 12, 13), dtypes=(ANY, INT64))
def gather_nd(xp: Namespace, x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Returns the slices of x that the last axis of the indices addresses, batch by batch. Source: ONNX GatherND-13."""
    depth = indices.shape[-1]
    coordinates = tuple(indices[..., position] for position in range(depth))
    if batch_dims == 0:
        return xp.asarray(x[coordinates])
    rank = indices.ndim - 1
    batches = []
    for axis in range(batch_dims):
        shape = [1] * rank
        shape[axis] = -1
        batches.append(xp.arange(x.shape[axis], dtype=np.int64).reshape(shape))
    return xp.asarray(x[(*batches, *coordinates)])
