"""Shape, order and regions of tensors; tensors made from sizes; sequences and optionals. Many results are views of the input."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from math import ceil, prod
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.arrays import assign, bring
from hetero_core.kernels.precision import Array, Integers, Namespace, integers_of, narrow, normalize_axes, normalize_axis, widen
from hetero_core.kernels.registry import ANY, BOOL, FLOAT32, FLOATS, INDEX, INT64, NOT_STRING, NUMBERS, kernel, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.graph import Node

_NEW = (21, 23, 24, 25)


@kernel("Identity", since=(1, 13, 14, 16, 19, *_NEW), dtypes=ANY)
def identity(xp: Namespace, x: Array) -> Array:
    """Returns x itself: tensor, sequence or optional."""
    return x


@kernel("Reshape", since=(1,), dtypes=ANY, as_attributes=("shape",), without=("allowzero",))
@kernel("Reshape", since=(5, 13, 14, 19, *_NEW), dtypes=(ANY, INT64), host=(1,), choices={"allowzero": (0, 1)})
def reshape(xp: Namespace, x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Returns x in a shape in which 0 keeps a size unless allowzero, and -1 takes the rest."""
    targets = integers_of(shape)
    copied = [axis for axis, size in enumerate(targets) if size == 0 and not allowzero]
    sizes = [x.shape[axis] if axis in copied else size for axis, size in enumerate(targets)]
    if -1 in sizes and 0 in sizes:
        if allowzero:
            raise ValueError(f"shape {list(targets)} has both -1 and 0, which leaves the size of -1 open where allowzero is 1")
        # NumPy cannot infer a size beside an empty axis. An axis that is copied leaves the others' elements, so that a batch of 0 has the
        # sizes of any other batch.
        rest = prod(size for axis, size in enumerate(x.shape) if axis not in copied)
        sizes[sizes.index(-1)] = rest // prod(size for axis, size in enumerate(targets) if axis not in copied and size != -1)
    return x.reshape(tuple(sizes))


@kernel("Flatten", since=(1, 9, 11, 13, *_NEW), dtypes=ANY)
def flatten(xp: Namespace, x: Array, *, axis: int = 1) -> Array:
    """Returns x as a matrix: the axes before `axis` are rows, the rest are columns."""
    first = axis if axis >= 0 else axis + x.ndim
    return x.reshape((prod(x.shape[:first]), prod(x.shape[first:])))


@kernel("Transpose", since=(1, 13, *_NEW), dtypes=ANY)
def transpose(xp: Namespace, x: Array, *, perm: Integers | None = None) -> Array:
    """Returns x with its axes in the order `perm`, reversed without it."""
    return xp.transpose(x, perm)


@kernel("Squeeze", since=(1, 11), dtypes=ANY, as_attributes=("axes",))
@kernel("Squeeze", since=(13, *_NEW), dtypes=(ANY, INT64), host=(1,))
def squeeze(xp: Namespace, x: Array, axes: Array | None = None) -> Array:
    """Returns x without the axes, or without every axis of size 1."""
    units = (axis for axis, size in enumerate(x.shape) if size == 1)
    dropped = set(units if axes is None else normalize_axes(integers_of(axes), x.ndim))
    wrong = [axis for axis in sorted(dropped) if x.shape[axis] != 1]
    if wrong:
        raise ValueError(f"axis {wrong[0]} has size {x.shape[wrong[0]]}, which cannot be squeezed")
    return x.reshape(tuple(size for axis, size in enumerate(x.shape) if axis not in dropped))


@kernel("Unsqueeze", since=(1, 11), dtypes=ANY, as_attributes=("axes",))
@kernel("Unsqueeze", since=(13, *_NEW), dtypes=(ANY, INT64), host=(1,))
def unsqueeze(xp: Namespace, x: Array, axes: Array) -> Array:
    """Returns x with new axes of size 1, which the axes name in the result."""
    named = integers_of(axes)
    rank = x.ndim + len(named)
    added = normalize_axes(named, rank)
    if len(set(added)) != len(added):
        raise ValueError(f"axes {named} name one axis twice")
    sizes = iter(x.shape)
    return x.reshape(tuple(1 if axis in added else next(sizes) for axis in range(rank)))


@kernel("Expand", since=(8, 13), dtypes=(ANY, INT64), host=(1,))
def expand(xp: Namespace, x: Array, shape: Array) -> Array:
    """Returns x broadcast together with a shape; a size of 1 there keeps x's."""
    return xp.broadcast_to(x, np.broadcast_shapes(x.shape, integers_of(shape)))


@kernel("Tile", since=(6, 13), dtypes=(ANY, INT64), host=(1,))
def tile(xp: Namespace, x: Array, repeats: Array) -> Array:
    """Returns x repeated along each axis."""
    return xp.tile(x, integers_of(repeats))


@kernel("Tile", since=(1,), dtypes=(NOT_STRING, NUMBERS, NUMBERS), host=(1, 2))
def tile_along_axis(xp: Namespace, x: Array, tiles: Array, axis: Array) -> Array:
    """Returns x repeated along an axis."""
    repeats = [1] * x.ndim
    repeats[integers_of(axis)[0]] = integers_of(tiles)[0]
    return xp.tile(x, tuple(repeats))


@kernel("Concat", since=(4, 11, 13), dtypes=ANY)
def concat(xp: Namespace, *inputs: Array, axis: int) -> Array:
    """Returns the inputs in sequence along the axis."""
    return xp.concatenate(inputs, axis=axis)


kernel("Concat", since=(1,), dtypes=ANY)(partial(concat, axis=1))


@kernel("Split", since=(18,), dtypes=(ANY, INT64), host=(1,), outputs=None)
def split_unevenly(
    xp: Namespace, x: Array, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, output_count: int = 1
) -> tuple[Array, ...]:
    """Returns parts of the given sizes, or num_outputs parts of which the last may be smaller."""
    if split is not None:
        return _split(x, integers_of(split), axis)
    count = output_count if num_outputs is None else num_outputs
    length = x.shape[normalize_axis(axis, x.ndim)]
    part = -(-length // count)
    return _split(x, tuple(max(min(part, length - part * index), 0) for index in range(count)), axis)


@kernel("Split", since=(13,), dtypes=(ANY, INT64), host=(1,), outputs=None)
@kernel("Split", since=(2, 11), dtypes=ANY, outputs=None, as_attributes=("split",))
def split_evenly(xp: Namespace, x: Array, split: Array | None = None, *, axis: int = 0, output_count: int = 1) -> tuple[Array, ...]:
    """Returns parts of the given sizes, or equal parts for all outputs."""
    if sizes := integers_of(split):
        return _split(x, sizes, axis)
    length = x.shape[normalize_axis(axis, x.ndim)]
    if length % output_count:
        raise ValueError(f"an axis of {length} cannot be split into {output_count} equal parts")
    return _split(x, (length // output_count,) * output_count, axis)


def _refuse_two_splits(node: Node, input_types: InputTypes) -> str | None:
    """Refuses lengths as an attribute and as an input: ONNX does not say which of them count."""
    if "split" in node.attributes and any(node.inputs[1:]):
        return f"{node.operator} has lengths both as the attribute split and as an input"
    return None


@kernel("Split", since=(1,), dtypes=(ANY, FLOATS | INDEX), host=(1,), outputs=None, refuse=_refuse_two_splits)
def split_by_either(
    xp: Namespace, x: Array, sizes: Array | None = None, *, axis: int = 0, split: Integers | None = None, output_count: int = 1
) -> tuple[Array, ...]:
    """Returns parts of the sizes, of the attribute or the input, or equal parts for all outputs; axis is 0 by default, as in version 2."""
    return split_evenly(xp, x, split or sizes, axis=axis, output_count=output_count)


def _split(x: Array, sizes: Integers, axis: int) -> tuple[Array, ...]:
    ahead = (slice(None),) * normalize_axis(axis, x.ndim)
    if sum(sizes) != x.shape[len(ahead)]:
        raise ValueError(f"parts of {sizes} do not make up an axis of {x.shape[len(ahead)]}")
    return tuple(x[(*ahead, slice(end - size, end))] for size, end in zip(sizes, accumulate(sizes), strict=True))


@kernel("DepthToSpace", since=(1, 11, 13, 28), dtypes=ANY, choices={"mode": ("DCR", "CRD")})
def depth_to_space(xp: Namespace, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Returns blocks of channels as blocks of pixels; mode says which channel axis is outer."""
    batch, channels, height, width = x.shape
    depth = channels // blocksize**2
    if mode == "DCR":
        blocks = xp.transpose(x.reshape((batch, blocksize, blocksize, depth, height, width)), (0, 3, 4, 1, 5, 2))
    else:
        blocks = xp.transpose(x.reshape((batch, depth, blocksize, blocksize, height, width)), (0, 1, 4, 2, 5, 3))
    return blocks.reshape((batch, depth, height * blocksize, width * blocksize))


@kernel("SpaceToDepth", since=(1, 13, 28), dtypes=ANY, choices={"mode": ("DCR", "CRD")})
def space_to_depth(xp: Namespace, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Returns blocks of pixels as channels, the block (DCR) or the old channel (CRD) outermost."""
    batch, channels, height, width = x.shape
    blocks = x.reshape((batch, channels, height // blocksize, blocksize, width // blocksize, blocksize))
    moved = xp.transpose(blocks, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return moved.reshape((batch, channels * blocksize**2, height // blocksize, width // blocksize))


@kernel("Dropout", since=(7,), dtypes=FLOATS, outputs=2)
def drop_nothing(xp: Namespace, x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """Returns x and a mask of ones, which has no meaning in test mode."""
    return x, xp.broadcast_to(xp.ones((), dtype=x.dtype), x.shape)


@kernel("Dropout", since=(1, 6), dtypes=FLOATS, choices={"is_test": (1,)}, outputs=2)
def drop_nothing_in_test(xp: Namespace, x: Array, *, is_test: int, ratio: float = 0.5) -> tuple[Array, Array]:
    """Returns x and a mask of ones, which has no meaning; the operator trains unless is_test is 1."""
    return drop_nothing(xp, x)


@kernel("Shape", since=(1, 13, 15, 19, *_NEW), dtypes=ANY, reads_shapes=True)
def shape_of(xp: Namespace, x: Array, *, end: int | None = None, start: int = 0) -> Array:
    """Returns the sizes of the axes from start to end."""
    return xp.asarray(x.shape[start:end], dtype=np.int64)


@kernel("Size", since=(1, 13, 19, *_NEW), dtypes=ANY, reads_shapes=True)
def size_of(xp: Namespace, x: Array) -> Array:
    """Returns the number of elements."""
    return xp.asarray(x.size, dtype=np.int64)


def _count_sequence(sequence: list[Array], **_: Any) -> int:
    """The bytes of all elements: a tensor may stand in the list many times."""
    return sum(int(x.nbytes) for x in sequence)


@kernel("ConcatFromSequence", since=(11,), dtypes=ANY, choices={"new_axis": (0, 1)}, count_bytes=_count_sequence)
def concat_from_sequence(xp: Namespace, sequence: list[Array], *, axis: int, new_axis: int = 0) -> Array:
    """Returns the elements concatenated, or stacked along a new axis."""
    return xp.stack(sequence, axis=axis) if new_axis else xp.concatenate(sequence, axis=axis)


@kernel("DynamicSlice", since=(0,), dtypes=(ANY, INDEX, INDEX, INDEX), host=(1, 2, 3), without=("steps",))
@kernel("Slice", since=(1,), dtypes=ANY, as_attributes=("starts", "ends", "axes"), without=("steps",))
@kernel("Slice", since=(10, 11, 13), dtypes=(ANY, INDEX), host=(1, 2, 3, 4))
def slice_(xp: Namespace, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    """Returns x[start:end:step] along the axes; ends are clamped, a negative step walks back."""
    begins, stops = integers_of(starts), integers_of(ends)
    named = tuple(range(len(begins))) if axes is None else integers_of(axes)
    strides = (1,) * len(begins) if steps is None else integers_of(steps)
    picked = [slice(None)] * x.ndim
    for begin, stop, axis, stride in zip(begins, stops, named, strides, strict=True):
        place = normalize_axis(axis, x.ndim)
        picked[place] = clamp(begin, stop, stride, x.shape[place])
    return x[tuple(picked)]


def clamp(begin: int, stop: int, stride: int, size: int) -> slice:
    """Returns Python's slice of ONNX's bounds: negative bounds count from the end once, then both are clamped to the axis."""
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
    """Returns the slices along the axis, or the elements, for which the condition holds."""
    indices = bring(xp, np.flatnonzero(condition), np.int64)
    return xp.take(x.reshape(-1) if axis is None else x, indices, axis=0 if axis is None else axis)


@kernel("ReverseSequence", since=(10, 28), dtypes=(ANY, INT64), host=(1,), choices={"time_axis": (0, 1), "batch_axis": (0, 1)})
def reverse_sequence(xp: Namespace, x: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """Returns x with the first sequence_lens[i] steps of batch i reversed."""
    y = x.copy()
    for item, length in enumerate(integers_of(sequence_lens)):
        # The batch and time axes are 0 and 1, in either order.
        ahead = (item, slice(length)) if batch_axis == 0 else (slice(length), item)
        y = assign(y, ahead, x[ahead][::-1])
    return y


_TRIANGLE_ROWS = 64
"""Rows of a triangle that are copied together."""
_TRIANGLES = BOOL | INT64 | {"float32", "float64"}


@microsoft_kernel("Trilu", halves=(0,), dtypes=(_TRIANGLES, INT64), host=(1,), choices={"upper": (0, 1)})
@kernel("Trilu", since=(14,), dtypes=(ANY, INT64), host=(1,), choices={"upper": (0, 1)})
def trilu(xp: Namespace, x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """Returns the upper or lower triangle of the last two axes, k diagonals off; the rest is 0."""
    offset = 0 if k is None else integers_of(k)[0]
    rows, columns = x.shape[-2:]
    y = xp.zeros_like(x)
    for first in range(0, rows, _TRIANGLE_ROWS):
        last = min(first + _TRIANGLE_ROWS, rows)
        # The columns of which some rows of the block keep elements and some do not; all rows keep those on the other side.
        begin, end = (min(max(edge + offset, 0), columns) for edge in ((first, last - 1) if upper else (first + 1, last)))
        block, band = (..., slice(first, last)), (..., slice(first, last), slice(begin, end))
        whole = (*block, slice(end, columns) if upper else slice(0, begin))
        distance = xp.arange(begin, end).reshape((1, -1)) - xp.arange(first, last).reshape((-1, 1))
        mask = distance >= offset if upper else distance <= offset
        y = assign(assign(y, whole, x[whole]), band, xp.where(mask, x[band], y[band]))
    return y


def _register_running(op_type: str, since: Integers, function: str, neutral: int) -> None:
    @kernel(op_type, since=since, dtypes=(NUMBERS, INDEX), host=(1,), choices={"exclusive": (0, 1), "reverse": (0, 1)})
    def accumulate_along(xp: Namespace, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
        """Returns running sums or products along the axis; exclusive ones leave their own element out."""
        place, wide = normalize_axis(integers_of(axis)[0], x.ndim), widen(x)
        ahead = (slice(None),) * place
        backward = (*ahead, slice(None, None, -1))
        totals = getattr(xp, function)(wide[backward] if reverse else wide, axis=place, dtype=wide.dtype)
        if exclusive:
            first = xp.full_like(totals[(*ahead, slice(0, 1))], neutral)
            totals = xp.concatenate([first, totals[(*ahead, slice(0, -1))]], axis=place)
        return narrow(totals[backward] if reverse else totals, x.dtype)


_register_running("CumSum", (11, 14), "cumsum", 0)
_register_running("CumProd", (26,), "cumprod", 1)


_MODES = ("constant", "reflect", "edge", "wrap")
"""ONNX has `wrap` since version 19; PyTorch exports it in version 18, and ONNX Runtime runs it in every version."""


def _count_padded(x: Array, pads: Array, value: Array | None = None, *, mode: str = "constant") -> int:
    begins, ends = np.asarray(pads).reshape((2, -1)).tolist()
    return int(prod(size + begin + end for size, begin, end in zip(x.shape, begins, ends, strict=True))) * int(x.itemsize)


_pad_kernel = partial(microsoft_kernel, "Pad", halves=(0,), dtypes=(FLOAT32, INT64, FLOAT32), host=(1,), count_bytes=_count_padded)


@_pad_kernel(choices={"mode": ("constant", "edge", "reflect")}, without=("axes",))
@kernel("Pad", since=(11, 13), dtypes=(ANY, INT64, ANY), host=(1,), choices={"mode": _MODES}, without=("axes",))
@kernel("Pad", since=(18, 19, 21, 23, 24, 25), dtypes=(ANY, INT64, ANY, INDEX), host=(1, 3), choices={"mode": _MODES})
def pad(
    xp: Namespace, x: Array, pads: Array, constant_value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Array:
    """Returns x with a border on the axes; negative pads cut."""
    return _pad(xp, x, _spread_pads(integers_of(pads), axes, x.ndim), constant_value, mode)


@kernel("Pad", since=(2,), dtypes=FLOATS, choices={"mode": _MODES})
def pad_by_attributes(xp: Namespace, x: Array, *, mode: str = "constant", pads: Integers, value: float = 0.0) -> Array:
    """Returns x with a border on every axis; negative pads cut."""
    return pad(xp, x, pads, xp.full((), value, dtype=x.dtype), mode=mode)


@kernel("Pad", since=(1,), dtypes=FLOATS, choices={"mode": _MODES})
def pad_by_first_attributes(xp: Namespace, x: Array, *, mode: str = "constant", paddings: Integers, value: float = 0.0) -> Array:
    """Returns the result of Pad-2; the attribute is named `paddings`."""
    return pad_by_attributes(xp, x, mode=mode, pads=paddings, value=value)


def _spread_pads(pads: Integers, axes: Array | None, rank: int) -> list[tuple[int, int]]:
    """Returns (begin, end) for every axis."""
    named = tuple(range(rank)) if axes is None else normalize_axes(integers_of(axes), rank)
    if len(pads) != 2 * len(named):
        raise ValueError(f"{len(pads)} pads are given for {len(named)} axes")
    pairs = dict(zip(named, zip(pads[: len(named)], pads[len(named) :], strict=True), strict=True))
    return [pairs.get(axis, (0, 0)) for axis in range(rank)]


def _pad(xp: Namespace, x: Array, pads: list[tuple[int, int]], value: Array | None, mode: str) -> Array:
    if any(size + begin + end < 0 for size, (begin, end) in zip(x.shape, pads, strict=True)):
        raise ValueError(f"pads {pads} take away more than there is of a tensor of shape {tuple(x.shape)}")
    # Cutting comes first: removed elements are not mirrored or repeated. A cut beyond the elements goes on in the other border.
    y = x[tuple(slice(max(-begin, 0), max(size + min(end, 0), 0)) for size, (begin, end) in zip(x.shape, pads, strict=True))]
    grown = [
        (max(begin + min(size + end, 0), 0), max(end + min(size + begin, 0), 0))
        for size, (begin, end) in zip(x.shape, pads, strict=True)
    ]
    if mode == "constant":
        return _surround(xp, y, grown, value)
    for axis, (begin, end) in enumerate(grown):
        if begin or end:
            sources = find_sources(y.shape[axis], begin, end, mode)
            y = xp.take(y, xp.asarray(sources, dtype=np.int64), axis=axis)
    return y


def _surround(xp: Namespace, x: Array, pads: list[tuple[int, int]], value: Array | None) -> Array:
    shape = tuple(size + begin + end for size, (begin, end) in zip(x.shape, pads, strict=True))
    inner = tuple(slice(begin, begin + size) for size, (begin, _) in zip(x.shape, pads, strict=True))
    if value is None:
        y = xp.full(shape, "", dtype=object) if x.dtype.kind == "O" else xp.zeros(shape, dtype=x.dtype)
    else:
        y = assign(xp.empty(shape, dtype=x.dtype), ..., value.reshape(()))
    return assign(y, inner, x)


def find_sources(size: int, begin: int, end: int, mode: str) -> list[int]:
    """Returns for each element of the padded axis the position that it is read from."""
    if size == 0:
        raise ValueError(f"an empty axis cannot be padded in mode {mode}")
    positions = range(-begin, size + end)
    if mode == "edge":
        return [min(max(position, 0), size - 1) for position in positions]
    if mode == "wrap":
        return [position % size for position in positions]
    # Reflection has the period 2 (size - 1); the border elements are not repeated.
    period = max(2 * (size - 1), 1)
    return [min(position % period, period - position % period) if size > 1 else 0 for position in positions]


@kernel("CenterCropPad", since=(18,), dtypes=(ANY, INDEX), host=(1,))
def center_crop_pad(xp: Namespace, x: Array, shape: Array, *, axes: Integers | None = None) -> Array:
    """Returns the center of x in the wanted sizes, cut or surrounded by zeros."""
    named = tuple(range(x.ndim)) if axes is None else normalize_axes(axes, x.ndim)
    pads = [(0, 0)] * x.ndim
    for axis, size in zip(named, integers_of(shape), strict=True):
        missing = size - x.shape[axis]
        # Both halves of a crop and of a pad begin with the smaller half.
        begin = missing // 2 if missing >= 0 else -((-missing) // 2)
        pads[axis] = (begin, missing - begin)
    return _pad(xp, x, pads, None, "constant")


_RANGED = frozenset({"float32", "float64", "int16", "int32", "int64"})


def _count_range(start: Array, limit: Array, delta: Array | None = None) -> int:
    """Returns the bytes of the numbers in int64 and in the type of the result."""
    first, end, step = (1 if value is None else np.asarray(value).reshape(-1)[0].item() for value in (start, limit, delta))
    return max(ceil((end - first) / step), 0) * (8 + int(start.itemsize))


@kernel("Range", since=(11,), dtypes=_RANGED, host=(0, 1, 2), without=("stash_type",))
@kernel("Range", since=(27,), dtypes=_RANGED | {"float16", "bfloat16"}, host=(0, 1, 2), choices={"stash_type": (1,)})
@microsoft_kernel("Range", dtypes=_RANGED, host=(0, 1, 2), count_bytes=_count_range, without=("stash_type",))
def range_(xp: Namespace, start: Array, limit: Array, delta: Array | None = None, *, stash_type: int = 1) -> Array:
    """Returns start, start + delta, ... below the limit (above it for a negative delta), which is 1 by default."""
    delta = np.asarray(1, start.dtype) if delta is None else delta
    first, end, step = (np.asarray(value).reshape(-1)[0] for value in (start, limit, delta))
    if start.dtype.kind == "i":
        # The same numbers in a third of the time, which a decoder takes for each token.
        return xp.arange(int(first), int(end), int(step), dtype=start.dtype)
    first, end, step = map(widen, (first, end, step))
    count = max(int(np.ceil((float(end) - float(first)) / float(step))), 0)
    return xp.asarray(xp.arange(count).astype(first.dtype) * step + first, dtype=start.dtype)


@kernel("ConstantOfShape", since=(9, 20, 21, 23, 24, 25), dtypes=INT64, host=(0,))
def constant_of_shape(xp: Namespace, shape: Array, *, value: Any = None) -> Array:
    """Returns a tensor of a single value, float32 zero by default."""
    fill = np.zeros(1, dtype=np.float32) if value is None else np.asarray(value).reshape(-1)
    return xp.full(integers_of(shape), fill[0], dtype=fill.dtype)


@kernel("EyeLike", since=(9, 22), dtypes=NOT_STRING)
def eye_like(xp: Namespace, x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    """Returns ones on the k-th diagonal of a matrix like x."""
    name = None if dtype is None else dtype_of_onnx(dtype)
    return xp.eye(*x.shape, k=k, dtype=x.dtype if name is None else numpy_dtype(name))


def _count_one_hot(indices: Array, depth: Array, values: Array, **_: Any) -> int:
    """Returns the bytes of the result and of the comparison before it."""
    return int(indices.size) * integers_of(depth)[0] * (1 + int(values.itemsize))


@kernel("OneHot", since=(9, 11, 28), dtypes=(NUMBERS, NUMBERS, ANY), host=(1,), count_bytes=_count_one_hot)
def one_hot(xp: Namespace, indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """Returns values[1] at the index along the new axis, else values[0].

    Negative indices count from the depth; those outside select nothing.
    """
    count = integers_of(depth)[0]
    place = normalize_axis(axis, indices.ndim + 1)
    indices = indices.astype(np.int64)
    wrapped = xp.expand_dims(xp.where(indices < 0, indices + count, indices), place)
    hot = xp.arange(count, dtype=np.int64).reshape((-1, *(1,) * (indices.ndim - place))) == wrapped
    return xp.where(hot, values[1], values[0])


_INDEX = (ANY, INDEX)


@kernel("SequenceConstruct", since=(11,), dtypes=ANY)
def sequence_construct(xp: Namespace, *inputs: Array) -> list[Array]:
    """Returns the inputs as a sequence."""
    return list(inputs)


@kernel("SequenceEmpty", since=(11,), dtypes=ANY)
def sequence_empty(xp: Namespace, *, dtype: int = 1) -> list[Array]:
    """Returns a sequence without elements."""
    return []


@kernel("SequenceAt", since=(11,), dtypes=_INDEX, host=(1,))
def sequence_at(xp: Namespace, sequence: list[Array], position: Array) -> Array:
    """Returns an element; a negative position counts from the end."""
    return sequence[integers_of(position)[0]]


@kernel("SequenceErase", since=(11,), dtypes=_INDEX, host=(1,))
def sequence_erase(xp: Namespace, sequence: list[Array], position: Array | None = None) -> list[Array]:
    """Returns the sequence without an element, the last by default."""
    index = len(sequence) - 1 if position is None else integers_of(position)[0]
    if not -len(sequence) <= index < len(sequence):
        raise ValueError(f"position {index} is outside of a sequence of {len(sequence)}")
    index %= len(sequence)
    return [*sequence[:index], *sequence[index + 1 :]]


@kernel("SequenceInsert", since=(11,), dtypes=(ANY, ANY, INDEX), host=(2,))
def sequence_insert(xp: Namespace, sequence: list[Array], tensor: Array, position: Array | None = None) -> list[Array]:
    """Returns the sequence with a tensor before the position, at the end by default."""
    index = len(sequence) if position is None else integers_of(position)[0]
    if not -len(sequence) <= index <= len(sequence):
        raise ValueError(f"position {index} is outside of a sequence of {len(sequence)}")
    index = index + len(sequence) if index < 0 else index
    return [*sequence[:index], tensor, *sequence[index:]]


@kernel("SequenceLength", since=(11,), dtypes=ANY, reads_shapes=True)
def sequence_length(xp: Namespace, sequence: list[Array]) -> Array:
    """Returns the number of elements."""
    return xp.asarray(len(sequence), dtype=np.int64)


@kernel("SplitToSequence", since=(11, 24), dtypes=_INDEX, host=(1,), choices={"keepdims": (0, 1)})
def split_to_sequence(xp: Namespace, x: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    """Returns slices along the axis: of size 1, of equal size, or of the sizes given."""
    place = normalize_axis(axis, x.ndim)
    ahead = (slice(None),) * place
    length = x.shape[place]
    if split is None and not keepdims:
        return [xp.asarray(x[(*ahead, index)], dtype=x.dtype) for index in range(length)]
    sizes = (1,) if split is None else integers_of(split)
    if split is None or split.ndim == 0:
        sizes = tuple(min(sizes[0], length - begin) for begin in range(0, length, sizes[0]))
    return list(_split(x, sizes, axis))


@kernel("Optional", since=(15, 28), dtypes=ANY)
def optional(xp: Namespace, value: Any = None, *, type: Any = None) -> Any:  # noqa: A002 - ONNX's name
    """Returns the value as an optional; an absent optional without a value."""
    return value


@kernel("OptionalGetElement", since=(15, 18, 28), dtypes=ANY)
def optional_get_element(xp: Namespace, value: Any) -> Any:
    """Returns the value of an optional."""
    if value is None:
        raise ValueError("the optional has no element")
    return value


@kernel("OptionalHasElement", since=(15, 18, 28), dtypes=ANY, reads_shapes=True)
def optional_has_element(xp: Namespace, value: Any = None) -> Array:
    """Returns whether the optional has a value."""
    return xp.asarray(value is not None)
