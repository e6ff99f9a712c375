"""Reading, writing and selecting by index; ONNX Runtime's operators on axes and indices, and operators that ONNX took back.

Negative indices count from the end; an index outside is an error on the host. Scatter operators copy their input first.
"""
# ruff: noqa: A002  # ONNX's names of attributes

from __future__ import annotations

import numpy as np

from hetero_core.kernels.arrays import assign, bring, combine, lay_out, require_within, take
from hetero_core.kernels.operators.layout import identity
from hetero_core.kernels.precision import Array, Floats, Integers, Namespace, integers_of, narrow, normalize_axis, widen
from hetero_core.kernels.registry import ANY, BOOL, COMPLEX, FLOAT32, INDEX, INT32, INT64, NUMBERS, STRING, kernel, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType


@kernel("Gather", since=(1, 11, 13), dtypes=(ANY, INDEX))
def gather(xp: Namespace, x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Returns the slices of x along the axis that the indices name, in their shape."""
    return take(xp, x, require_within(indices, x.shape[axis]), axis)


@kernel("GatherElements", since=(11, 13), dtypes=(ANY, INDEX))
def gather_elements(xp: Namespace, x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Returns x[..., indices[...], ...] with the index in place of the position along the axis."""
    return x[grid_of(xp, require_within(indices, x.shape[axis]), x.ndim, normalize_axis(axis, x.ndim))]


def grid_of(xp: Namespace, indices: Array, rank: int, axis: int) -> tuple[Array, ...]:
    """Returns index arrays that walk the shape of `indices`, with `indices` itself along the axis."""
    return tuple(
        indices if place == axis else xp.arange(indices.shape[place]).reshape((-1, *(1,) * (rank - place - 1)))
        for place in range(rank)
    )


@microsoft_kernel("GatherND", dtypes=(ANY, INDEX), without=("batch_dims",))
@kernel("GatherND", since=(11, 12, 13), dtypes=(ANY, INT64))
def gather_nd(xp: Namespace, x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Returns the slices of x that the last axis of the indices addresses, batch by batch."""
    depth = indices.shape[-1]
    coordinates = tuple(require_within(indices[..., position], x.shape[batch_dims + position]) for position in range(depth))
    if batch_dims == 0:
        return xp.asarray(x[coordinates])
    return xp.asarray(x[(*grid_of(xp, indices, indices.ndim - 1, -1)[:batch_dims], *coordinates)])


_REDUCED = ("none", "add", "mul", "max", "min")
_DATA = NUMBERS | BOOL | COMPLEX | STRING


def _refuse_reduction(node: Node, input_types: InputTypes) -> str | None:
    """Refuses reductions without a meaning: sums of strings, the greater of two complex numbers."""
    reduction, data_type = node.attributes.get("reduction", "none"), input_types[0]
    dtype = data_type.dtype if isinstance(data_type, TensorType) else None
    if (dtype == "string" and reduction != "none") or (dtype in COMPLEX and reduction in ("max", "min")):
        return f"reduction '{reduction}' of {node.operator} is not defined for {dtype}"
    return None


@kernel("Scatter", since=(9, 11), dtypes=(ANY, INDEX, ANY), without=("reduction",))
@kernel("ScatterElements", since=(11, 13), dtypes=(ANY, INDEX, ANY), without=("reduction",))
@kernel("ScatterElements", since=(16, 18), dtypes=(_DATA, INDEX, _DATA), choices={"reduction": _REDUCED}, refuse=_refuse_reduction)
def scatter_elements(xp: Namespace, x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    """Returns x with the updates written at the positions that the indices name, or combined with the elements there."""
    grid = grid_of(xp, _wrap(xp, indices, x.shape[axis]), x.ndim, normalize_axis(axis, x.ndim))
    return _write(xp, x, grid, updates, reduction)


@kernel("ScatterND", since=(11, 13), dtypes=(ANY, INT64, ANY), without=("reduction",))
@kernel("ScatterND", since=(16, 18), dtypes=(_DATA, INT64, _DATA), choices={"reduction": _REDUCED}, refuse=_refuse_reduction)
def scatter_nd(xp: Namespace, x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """Returns x with the addressed slices replaced, or combined with the elements there."""
    coordinates = tuple(_wrap(xp, indices[..., axis], x.shape[axis]) for axis in range(indices.shape[-1]))
    return _write(xp, x, coordinates, updates, reduction)


def _wrap(xp: Namespace, indices: Array, size: int) -> Array:
    return xp.where(require_within(indices, size) < 0, indices + size, indices)


def _write(xp: Namespace, x: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        return assign(x.copy(), where, updates)
    function = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}[reduction]
    return narrow(combine(xp, widen(x.copy()), where, widen(updates), function), x.dtype)


@kernel("TensorScatter", since=(24,), dtypes=(ANY, ANY, INT64), host=(2,), choices={"mode": ("linear", "circular")})
def tensor_scatter(
    xp: Namespace, past: Array, update: Array, write_indices: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> Array:
    """Returns the cache with the update written along the axis from each batch's index on."""
    resolved = normalize_axis(axis, past.ndim)
    length, count = past.shape[resolved], update.shape[resolved]
    starts = integers_of(write_indices) or (0,) * past.shape[0]
    present = past.copy()
    ahead = (slice(None),) * (resolved - 1)
    for item, start in enumerate(starts):
        if mode == "linear" and start + count > length:
            raise ValueError(f"batch {item} writes {count} steps from {start} into an axis of {length}")
        places = np.arange(start, start + count) % length
        row = slice(item, item + 1)
        present = assign(present, (row, *ahead, bring(xp, places, np.int64)), update[row])
    return present


def _register_search(op_type: str, search: str) -> None:
    @kernel(op_type, since=(1, 11), dtypes=NUMBERS, without=("select_last_index",))
    @kernel(op_type, since=(12, 13), dtypes=NUMBERS, choices={"select_last_index": (0, 1)})
    def find_extreme(xp: Namespace, x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        wide, place = widen(x), normalize_axis(axis, x.ndim)
        positions = getattr(xp, search)(xp.flip(wide, axis=place) if select_last_index else wide, axis=place)
        positions = xp.asarray(x.shape[place] - 1 - positions if select_last_index else positions, dtype=np.int64)
        return xp.expand_dims(positions, place) if keepdims else positions


_register_search("ArgMax", "argmax")
_register_search("ArgMin", "argmin")


@kernel("TopK", since=(1,), dtypes=NUMBERS, outputs=2, as_attributes=("k",), without=("largest", "sorted"))
@kernel("TopK", since=(10,), dtypes=(NUMBERS, INT64), host=(1,), outputs=2, without=("largest", "sorted"))
@kernel("TopK", since=(11, 24), dtypes=(NUMBERS, INT64), host=(1,), choices={"largest": (0, 1), "sorted": (0, 1)}, outputs=2)
def top_k(xp: Namespace, x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """Returns the k largest (or smallest) elements along the axis in order, and their positions; the lower position wins a tie.

    Without `sorted` any order is allowed; the result is sorted, too.
    """
    count, resolved, wide = integers_of(k)[0], normalize_axis(axis, x.ndim), widen(x)
    if xp is np and 0 < 8 * count <= x.shape[resolved] and x.size >= 2000:  # below, a sort costs less than the calls
        order = np.moveaxis(_select_top(np.moveaxis(wide, resolved, -1), count, largest), -1, resolved)
    else:
        order = _order_stably(xp, wide, resolved, largest)[(*(slice(None),) * resolved, slice(0, count))]
        order = xp.asarray(order, dtype=np.int64)
    return xp.take_along_axis(x, order, axis=resolved), order


def _order_stably(xp: Namespace, x: Array, axis: int, largest: int) -> Array:
    """Returns the positions along the axis in the order of their elements; the lower position comes first among equals."""
    if xp is np and x.dtype in (np.float32, np.int32) and x.size >= 500 and x.shape[axis] < 2**32:
        # Sorts whole numbers, which NumPy does by vectors: the order above, NaN the largest and -0.0 as 0.0, and the position below.
        order = (x + x.dtype.type(0)).view(np.int32).astype(np.int64)
        if x.dtype == np.float32:
            order = np.where(np.isnan(x), 0x7FFFFFFF, np.where(order < 0, -(order & 0x7FFFFFFF), order))
        positions = np.arange(x.shape[axis]).reshape((-1, *(1,) * (x.ndim - axis - 1)))
        return np.sort((-1 - order if largest else order) * 2**32 + positions, axis=axis) & (2**32 - 1)
    if not largest:
        return xp.argsort(x, axis=axis, stable=True)
    # A stable sort of the reversed axis, read backwards, keeps the lower position first among equals.
    order = xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=True)
    return x.shape[axis] - 1 - xp.flip(order, axis=axis)


def _select_top(x: Array, k: int, largest: int) -> Array:
    """Returns the positions of the k largest (or smallest) elements of the last axis in order, like `_order_stably`.

    Only the k selected elements of a row are sorted. A row is sorted whole if more than k elements reach its k-th one: a tie at the limit,
    or a limit that is NaN. NaN is the largest element of all.
    """
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    place = size - k if largest else k - 1
    limits = np.partition(rows, place, axis=1)[:, place : place + 1]
    selected = ~(rows < limits) if largest else rows <= limits
    tied = np.count_nonzero(selected, axis=1) != k
    selected[tied] = np.arange(size) < k  # any k elements: the order of these rows is replaced below
    positions = (np.flatnonzero(selected) % size).reshape(-1, k)
    order = np.take_along_axis(positions, _order_stably(np, np.take_along_axis(rows, positions, axis=1), 1, largest), axis=1)
    if np.any(tied):
        order[tied] = _order_stably(np, rows[tied], 1, largest)[:, :k]
    return order.astype(np.int64, copy=False).reshape(*x.shape[:-1], k)


@kernel("NonZero", since=(9, 13), dtypes=NUMBERS | BOOL | COMPLEX)
def non_zero(xp: Namespace, x: Array) -> Array:
    """Returns the positions of all elements that are not zero, a column for each, in row-major order."""
    flags = (x != 0).reshape(-1)
    positions = xp.asarray(xp.nonzero(flags)[0], dtype=np.int64)
    if x.ndim == 0:
        return xp.zeros((0, positions.shape[0]), dtype=np.int64)
    return xp.stack(xp.unravel_index(positions, x.shape)).astype(np.int64)


@kernel("Unique", since=(11, 28), dtypes=ANY, choices={"sorted": (0, 1)}, outputs=4, runs_on_host=True)
def unique(xp: Namespace, x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, ...]:
    """Returns the distinct slices along the axis (or elements), first positions, inverse positions, and counts.

    In ascending order, or in order of first appearance if sorted is 0.
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


@microsoft_kernel("ExpandDims", dtypes=(ANY, INT32), host=(1,))
def expand_dims(xp: Namespace, x: Array, axis: Array) -> Array:
    """Returns x with a new axis of size 1."""
    return xp.expand_dims(x, normalize_axis(integers_of(axis)[0], x.ndim + 1))


@microsoft_kernel("UnfoldTensor", dtypes=ANY)
def unfold_tensor(xp: Namespace, x: Array, *, dim: int = -1, size: int, step: int = 1) -> Array:
    """Returns all slices of a size along an axis, in a new last axis."""
    axis = normalize_axis(dim, x.ndim)
    count = (x.shape[axis] - size) // step + 1
    if count < 1:
        raise ValueError(f"a slice of {size} does not fit an axis of {x.shape[axis]}")
    indices = xp.arange(count)[:, None] * step + xp.arange(size)[None, :]
    return lay_out(xp, xp.moveaxis(xp.take(x, indices, axis=axis), axis + 1, -1))


_MOST_DIFFERENCES = 1 << 17
"""Numbers of a block of differences, which a cache holds."""


@microsoft_kernel("CDist", dtypes=frozenset({"float32", "float64"}), choices={"metric": ("cityblock", "euclidean", "sqeuclidean")})
def cdist(xp: Namespace, a: Array, b: Array, *, metric: str = "sqeuclidean") -> Array:
    """Returns the distance of each row of a to each row of b, from the differences of a few rows of a at a time.

    The (squared) Euclidean distance, or the sum of magnitudes, which ONNX Runtime's operator does not have.
    """
    step, ones = max(1, _MOST_DIFFERENCES // max(1, b.size)), xp.ones(b.shape[1], dtype=a.dtype)
    # A product with ones sums short rows twice as fast as `sum`.
    measure = xp.abs if metric == "cityblock" else xp.square
    blocks = [xp.matmul(measure(a[row : row + step, None, :] - b), ones) for row in range(0, max(1, len(a)), step)]
    sums = xp.concatenate(blocks, axis=0)
    return narrow(xp.sqrt(sums) if metric == "euclidean" else sums, a.dtype)


@microsoft_kernel("Inverse", dtypes=frozenset({"float16", "float32", "float64"}))
def inverse(xp: Namespace, x: Array) -> Array:
    """Returns the inverse of each matrix."""
    return narrow(xp.linalg.inv(widen(x)), x.dtype)


@microsoft_kernel("Unique", dtypes=FLOAT32, outputs=3, runs_on_host=True)
def microsoft_unique(xp: Namespace, x: Array) -> tuple[Array, Array, Array]:
    """Returns the values in order of first appearance, the index of each element's value, and the count of each value."""
    values, _, places, counts = unique(xp, x, sorted=0)
    return values, places.reshape(x.shape), counts


@microsoft_kernel("DynamicTimeWarping", dtypes=FLOAT32, runs_on_host=True)
def dynamic_time_warping(xp: Namespace, x: Array) -> Array:
    """Returns rows and columns of the cheapest path from corner to corner, by steps right, down or both.

    x: (rows, columns) or (1, rows, columns).
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


@kernel("ScaledTanh", since=(0,), dtypes=FLOAT32)
def scaled_tanh(xp: Namespace, x: Array, *, alpha: float, beta: float) -> Array:
    """Returns alpha tanh(beta x)."""
    return np.float32(alpha) * xp.tanh(np.float32(beta) * x)


@kernel("ParametricSoftplus", since=(0,), dtypes=FLOAT32)
def parametric_softplus(xp: Namespace, x: Array, *, alpha: float, beta: float) -> Array:
    """Returns alpha log(1 + exp(beta x))."""
    return np.float32(alpha) * xp.logaddexp(np.float32(beta) * x, np.float32(0))


@kernel("ImageScaler", since=(0,), dtypes=FLOAT32)
def image_scaler(xp: Namespace, x: Array, *, bias: Floats, scale: float = 1.0) -> Array:
    """Returns scale x plus a bias for each channel."""
    return np.float32(scale) * x + xp.asarray(bias, dtype=np.float32).reshape((-1, 1, 1))


@kernel("Crop", since=(0,), dtypes=FLOAT32)
def crop(xp: Namespace, x: Array, *, border: Integers, scale: Integers = ()) -> Array:
    """Returns the image without its border (left, top, right, bottom), or a piece of the size `scale` from left and top on."""
    left, top, right, bottom = border
    height, width = x.shape[2:]
    lower, outer = (top + scale[0], left + scale[1]) if scale else (height - bottom, width - right)
    if lower > height or outer > width or lower <= top or outer <= left:
        raise ValueError(f"a crop to rows {top} to {lower} and columns {left} to {outer} leaves an image of {height} x {width}")
    return x[:, :, top:lower, left:outer]


kernel("MemcpyFromHost", since=(0,), dtypes=ANY)(identity)
kernel("MemcpyToHost", since=(0,), dtypes=ANY)(identity)
