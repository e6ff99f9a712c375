"""Writing by index: Scatter, ScatterElements, ScatterND, TensorScatter. The input is copied first."""

from __future__ import annotations

from hetero_core.kernels.operators.indexing import grid_of
from hetero_core.kernels.precision import Array, Namespace, narrow, normalize_axis, widen
from hetero_core.kernels.registry import ANY, BOOL, COMPLEX, INDEX, INT64, NUMBERS, STRING, Dtypes, kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType

_REDUCTION = ("none", "add", "mul", "max", "min")
_DATA: Dtypes = NUMBERS | BOOL | COMPLEX | STRING


def _refuse_reduction(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses what has no meaning: sums of strings, the greater of two complex numbers."""
    reduction, data_type = node.attributes.get("reduction", "none"), input_types[0]
    dtype = data_type.dtype if isinstance(data_type, TensorType) else None
    if (dtype == "string" and reduction != "none") or (dtype in COMPLEX and reduction in ("max", "min")):
        return f"reduction '{reduction}' of {node.operator} is not defined for {dtype}"
    return None


@kernel("Scatter", since=(9, 11), dtypes=(ANY, INDEX, ANY))
@kernel("ScatterElements", since=(11, 13), dtypes=(ANY, INDEX, ANY))
def scatter_elements(xp: Namespace, x: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    """Returns x with the updates written at the positions that the indices name. Source: ONNX ScatterElements-13."""
    y = x.copy()
    y[grid_of(xp, _wrap(xp, indices, x.shape[axis]), x.ndim, normalize_axis(axis, x.ndim))] = updates
    return y


@kernel(
    "ScatterElements", since=(16, 18), dtypes=(_DATA, INDEX, _DATA), choices={"reduction": _REDUCTION}, refuse=_refuse_reduction
)
def scatter_reduced_elements(
    xp: Namespace, x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """Returns x with the updates written, or combined with what lies there. Source: ONNX ScatterElements-18."""
    grid = grid_of(xp, _wrap(xp, indices, x.shape[axis]), x.ndim, normalize_axis(axis, x.ndim))
    return _write(xp, x, grid, updates, reduction)


@kernel("ScatterND", since=(11, 13), dtypes=(ANY, INT64, ANY))
def scatter_nd(xp: Namespace, x: Array, indices: Array, updates: Array) -> Array:
    """Returns x with the slices that the last axis of the indices addresses replaced. Source: ONNX ScatterND-13."""
    y = x.copy()
    y[_coordinates(xp, x, indices)] = updates
    return y


@kernel("ScatterND", since=(16, 18), dtypes=(_DATA, INT64, _DATA), choices={"reduction": _REDUCTION}, refuse=_refuse_reduction)
def scatter_reduced_nd(xp: Namespace, x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """Returns x with the addressed slices replaced, or combined with what lies there. Source: ONNX ScatterND-18."""
    return _write(xp, x, _coordinates(xp, x, indices), updates, reduction)


def _wrap(xp: Namespace, indices: Array, size: int) -> Array:
    return xp.where(indices < 0, indices + size, indices)


def _coordinates(xp: Namespace, x: Array, indices: Array) -> tuple[Array, ...]:
    return tuple(_wrap(xp, indices[..., axis], x.shape[axis]) for axis in range(indices.shape[-1]))


def _write(xp: Namespace, x: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    y = widen(x.copy())
    if reduction == "none":
        y[where] = widen(updates)
        return narrow(y, x.dtype)
    function = {"add": xp.add, "mul": xp.multiply, "max": xp.maximum, "min": xp.minimum}[reduction]
    function.at(y, where, widen(updates))
    return narrow(y, x.dtype)


@kernel("TensorScatter", since=(24,), dtypes=(ANY, ANY, INT64), host=(2,), choices={"mode": ("linear", "circular")})
def tensor_scatter(
    xp: Namespace, past: Array, update: Array, write_indices: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> Array:
    """Returns the cache with the update written along the axis from each batch's index on. Source: ONNX TensorScatter-24."""
    resolved = normalize_axis(axis, past.ndim)
    length, count = past.shape[resolved], update.shape[resolved]
    starts = [0] * past.shape[0] if write_indices is None else [int(start) for start in write_indices]
    present = past.copy()
    ahead = (slice(None),) * (resolved - 1)
    for item, start in enumerate(starts):
        if mode == "linear" and start + count > length:
            raise ValueError(f"batch {item} writes {count} steps from {start} into an axis of {length}")
        for step in range(count):
            present[(item, *ahead, (start + step) % length)] = update[(item, *ahead, step)]
    return present
