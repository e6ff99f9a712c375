"""Shape and order: the elements stay the same, only where they lie changes. Many results are views of the input."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, integers_of, normalize_axes, normalize_axis
from hetero_core.kernels.registry import ANY, FLOATS, INDEX, INT64, NOT_STRING, NUMBERS, STRING, kernel
from hetero_core.kernels.sizes import broadcast_sizes, product
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

_NEW = (21, 23, 24, 25)
Sizes = tuple[int, ...]


@kernel("Identity", since=(1, 13, 14, 16, 19, *_NEW), dtypes=ANY)
def identity(xp: Namespace, x: Array) -> Array:
    """Returns x itself: tensor, sequence or optional. Source: ONNX Identity-25."""
    return x


@kernel("Reshape", since=(5, 13, 14, 19, *_NEW), dtypes=(ANY, INT64), host=(1,), choices={"allowzero": (0, 1)})
def reshape(xp: Namespace, x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Returns x in a shape in which 0 keeps a size unless allowzero, and -1 takes the rest. Source: ONNX Reshape-25."""
    return _reshape(x, integers_of(shape), keeps_zero=bool(allowzero))


@kernel("Reshape", since=(1,), dtypes=ANY)
def reshape_by_attribute(xp: Namespace, x: Array, *, shape: Sizes) -> Array:
    """Returns x in the shape of the attribute. Source: ONNX Reshape-1."""
    return _reshape(x, shape, keeps_zero=False)


def _reshape(x: Array, shape: Sizes, *, keeps_zero: bool) -> Array:
    sizes = [x.shape[axis] if size == 0 and not keeps_zero else size for axis, size in enumerate(shape)]
    if -1 in sizes and 0 in sizes:
        if keeps_zero:
            raise ValueError(f"shape {list(shape)} has both -1 and 0, which leaves the size of -1 open where allowzero is 1")
        # NumPy cannot infer a size beside an empty one; ONNX gives it what the other sizes leave.
        others = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = x.size // others if others else 0
    return x.reshape(tuple(sizes))


@kernel("Flatten", since=(1, 9, 11, 13, *_NEW), dtypes=ANY)
def flatten(xp: Namespace, x: Array, *, axis: int = 1) -> Array:
    """Returns x as a matrix: the axes before `axis` are rows, the others columns. Source: ONNX Flatten-25."""
    first = axis if axis >= 0 else axis + x.ndim
    return x.reshape((prod(x.shape[:first]), prod(x.shape[first:])))


@kernel("Transpose", since=(1, 13, *_NEW), dtypes=ANY)
def transpose(xp: Namespace, x: Array, *, perm: Sizes | None = None) -> Array:
    """Returns x with its axes in the order `perm`, reversed without it. Source: ONNX Transpose-25."""
    return xp.transpose(x, perm)


@kernel("Squeeze", since=(13, *_NEW), dtypes=(ANY, INT64), host=(1,))
def squeeze(xp: Namespace, x: Array, axes: Array | None = None) -> Array:
    """Returns x without the axes, or without every axis of size 1. Source: ONNX Squeeze-25."""
    return _squeeze(x, None if axes is None else integers_of(axes))


@kernel("Squeeze", since=(1, 11), dtypes=ANY)
def squeeze_by_attribute(xp: Namespace, x: Array, *, axes: Sizes | None = None) -> Array:
    """Returns x without the axes, or without every axis of size 1. Source: ONNX Squeeze-11."""
    return _squeeze(x, axes)


def _squeeze(x: Array, axes: Sizes | None) -> Array:
    dropped = {axis for axis, size in enumerate(x.shape) if size == 1} if axes is None else set(normalize_axes(axes, x.ndim))
    wrong = [axis for axis in sorted(dropped) if x.shape[axis] != 1]
    if wrong:
        raise ValueError(f"axis {wrong[0]} has size {x.shape[wrong[0]]}, which cannot be squeezed")
    return x.reshape(tuple(size for axis, size in enumerate(x.shape) if axis not in dropped))


@kernel("Unsqueeze", since=(13, *_NEW), dtypes=(ANY, INT64), host=(1,))
def unsqueeze(xp: Namespace, x: Array, axes: Array) -> Array:
    """Returns x with new axes of size 1, which the axes name in the result. Source: ONNX Unsqueeze-25."""
    return unsqueeze_by_attribute(xp, x, axes=integers_of(axes))


@kernel("Unsqueeze", since=(1, 11), dtypes=ANY)
def unsqueeze_by_attribute(xp: Namespace, x: Array, *, axes: Sizes) -> Array:
    """Returns x with new axes of size 1, which the axes name in the result. Source: ONNX Unsqueeze-11."""
    rank = x.ndim + len(axes)
    added = normalize_axes(axes, rank)
    if len(set(added)) != len(added):
        raise ValueError(f"axes {axes} name one axis twice")
    sizes = iter(x.shape)
    return x.reshape(tuple(1 if axis in added else next(sizes) for axis in range(rank)))


def _count_expanded(x: Array, shape: Array) -> int:
    """The bytes of the view's elements, which exist only once a reader copies them."""
    return product(broadcast_sizes(x.shape, integers_of(shape))) * int(x.itemsize)


def _count_tiles(x: Array, repeats: Array, axis: Array | None = None) -> int:
    return int(x.nbytes) * product(integers_of(repeats))


@kernel("Expand", since=(8, 13), dtypes=(ANY, INT64), host=(1,), count_bytes=_count_expanded)
def expand(xp: Namespace, x: Array, shape: Array) -> Array:
    """Returns x broadcast together with a shape; a size of 1 there keeps x's. Source: ONNX Expand-13."""
    return xp.broadcast_to(x, np.broadcast_shapes(x.shape, integers_of(shape)))


@kernel("Tile", since=(6, 13), dtypes=(ANY, INT64), host=(1,), count_bytes=_count_tiles)
def tile(xp: Namespace, x: Array, repeats: Array) -> Array:
    """Returns x repeated along each axis. Source: ONNX Tile-13."""
    return xp.tile(x, integers_of(repeats))


@kernel("Tile", since=(1,), dtypes=(NOT_STRING, NUMBERS, NUMBERS), host=(1, 2), count_bytes=_count_tiles)
def tile_along_axis(xp: Namespace, x: Array, tiles: Array, axis: Array) -> Array:
    """Returns x repeated along one axis. Source: ONNX Tile-1."""
    repeats = [1] * x.ndim
    repeats[integers_of(axis)[0]] = integers_of(tiles)[0]
    return xp.tile(x, tuple(repeats))


@kernel("Concat", since=(4, 11, 13), dtypes=ANY)
def concat(xp: Namespace, *inputs: Array, axis: int) -> Array:
    """Returns the inputs one after another along the axis. Source: ONNX Concat-13."""
    return xp.concatenate(inputs, axis=axis)


@kernel("Concat", since=(1,), dtypes=ANY)
def concat_first(xp: Namespace, *inputs: Array, axis: int = 1) -> Array:
    """Returns what Concat returns; the axis has a default. Source: ONNX Concat-1."""
    return xp.concatenate(inputs, axis=axis)


@kernel("Split", since=(18,), dtypes=(ANY, INT64), host=(1,), outputs=None, counts_outputs=True)
def split(
    xp: Namespace, x: Array, sizes: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, output_count: int = 1
) -> tuple[Array, ...]:
    """Returns parts of the given sizes, or num_outputs parts of which the last may be smaller. Source: ONNX Split-18."""
    if sizes is not None:
        return _split(x, integers_of(sizes), axis)
    count = output_count if num_outputs is None else num_outputs
    length = x.shape[normalize_axis(axis, x.ndim)]
    part = -(-length // count)
    return _split(x, tuple(max(min(part, length - part * index), 0) for index in range(count)), axis)


@kernel("Split", since=(13,), dtypes=(ANY, INT64), host=(1,), outputs=None, counts_outputs=True)
def split_equally(
    xp: Namespace, x: Array, sizes: Array | None = None, *, axis: int = 0, output_count: int = 1
) -> tuple[Array, ...]:
    """Returns parts of the given sizes, or one equal part per output. Source: ONNX Split-13."""
    return split_by_attribute(xp, x, axis=axis, split=integers_of(sizes), output_count=output_count)


@kernel("Split", since=(2, 11), dtypes=ANY, outputs=None, counts_outputs=True)
def split_by_attribute(
    xp: Namespace, x: Array, *, axis: int = 0, split: Sizes | None = None, output_count: int = 1
) -> tuple[Array, ...]:
    """Returns parts of the given sizes, or one equal part per output. Source: ONNX Split-11."""
    if split:
        return _split(x, split, axis)
    length = x.shape[normalize_axis(axis, x.ndim)]
    if length % output_count:
        raise ValueError(f"an axis of {length} cannot be split into {output_count} equal parts")
    return _split(x, (length // output_count,) * output_count, axis)


def _refuse_two_splits(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses lengths as an attribute and as an input: ONNX does not say which of them count."""
    if "split" in node.attributes and any(node.inputs[1:]):
        return f"{node.operator} has lengths both as the attribute split and as an input"
    return None


@kernel("Split", since=(1,), dtypes=(ANY, FLOATS | INDEX), host=(1,), outputs=None, counts_outputs=True, refuse=_refuse_two_splits)
def split_by_either(
    xp: Namespace, x: Array, sizes: Array | None = None, *, axis: int = 0, split: Sizes | None = None, output_count: int = 1
) -> tuple[Array, ...]:
    """Returns parts of the sizes, of the attribute or the input, or one equal part per output; axis is 0 by default, as in version 2.

    Source: ONNX Split-1.
    """
    return split_by_attribute(xp, x, axis=axis, split=split or integers_of(sizes), output_count=output_count)


def _split(x: Array, sizes: Sizes, axis: int) -> tuple[Array, ...]:
    ahead = (slice(None),) * normalize_axis(axis, x.ndim)
    if sum(sizes) != x.shape[len(ahead)]:
        raise ValueError(f"parts of {sizes} do not make up an axis of {x.shape[len(ahead)]}")
    parts, begin = [], 0
    for size in sizes:
        parts.append(x[(*ahead, slice(begin, begin + size))])
        begin += size
    return tuple(parts)


@kernel("DepthToSpace", since=(1, 11, 13, 28), dtypes=ANY, choices={"mode": ("DCR", "CRD")})
def depth_to_space(xp: Namespace, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Returns blocks of channels as blocks of pixels; mode says which channel axis is outer. Source: ONNX DepthToSpace-28."""
    batch, channels, height, width = x.shape
    depth = channels // blocksize**2
    if mode == "DCR":
        blocks = xp.transpose(x.reshape((batch, blocksize, blocksize, depth, height, width)), (0, 3, 4, 1, 5, 2))
    else:
        blocks = xp.transpose(x.reshape((batch, depth, blocksize, blocksize, height, width)), (0, 1, 4, 2, 5, 3))
    return blocks.reshape((batch, depth, height * blocksize, width * blocksize))


@kernel("SpaceToDepth", since=(1, 13, 28), dtypes=ANY, choices={"mode": ("DCR", "CRD")})
def space_to_depth(xp: Namespace, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Returns blocks of pixels as channels, the block (DCR) or the old channel (CRD) outermost. Source: ONNX SpaceToDepth-28."""
    batch, channels, height, width = x.shape
    blocks = x.reshape((batch, channels, height // blocksize, blocksize, width // blocksize, blocksize))
    moved = xp.transpose(blocks, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return moved.reshape((batch, channels * blocksize**2, height // blocksize, width // blocksize))


@kernel("Dropout", since=(7,), dtypes=FLOATS, outputs=2)
def drop_nothing(xp: Namespace, x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """Returns x and a mask of ones: the operator is in test mode, where the mask has no meaning. Source: ONNX Dropout-7."""
    return x, xp.broadcast_to(xp.ones((), dtype=x.dtype), x.shape)


@kernel("Dropout", since=(10,), dtypes=FLOATS, outputs=2)
def drop_nothing_masked(xp: Namespace, x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """Returns x and a mask of true: the operator is in test mode. Source: ONNX Dropout-10."""
    return x, xp.broadcast_to(xp.ones((), dtype=bool), x.shape)


@kernel("Dropout", since=(1, 6), dtypes=FLOATS, choices={"is_test": (1,)}, outputs=2)
def drop_nothing_in_test(xp: Namespace, x: Array, *, is_test: int, ratio: float = 0.5) -> tuple[Array, Array]:
    """Returns x and a mask of ones, which has no meaning; the operator trains unless is_test is 1. Source: ONNX Dropout-6."""
    return drop_nothing(xp, x)


@kernel("Shape", since=(1, 13, 15, 19, *_NEW), dtypes=ANY, reads_shapes=True)
def shape_of(xp: Namespace, x: Array, *, end: int | None = None, start: int = 0) -> Array:
    """Returns the sizes of the axes from start to end. Source: ONNX Shape-25."""
    return xp.asarray(x.shape[start:end], dtype=np.int64)


@kernel("Size", since=(1, 13, 19, *_NEW), dtypes=ANY, reads_shapes=True)
def size_of(xp: Namespace, x: Array) -> Array:
    """Returns the number of elements. Source: ONNX Size-25."""
    return xp.asarray(x.size, dtype=np.int64)


def _count_sequence(sequence: list[Array], **_: Any) -> int:
    """The bytes of all elements: one tensor may stand in the list many times."""
    return sum(int(x.nbytes) for x in sequence)


@kernel("ConcatFromSequence", since=(11,), dtypes=ANY - STRING, choices={"new_axis": (0, 1)}, count_bytes=_count_sequence)
def concat_from_sequence(xp: Namespace, sequence: list[Array], *, axis: int, new_axis: int = 0) -> Array:
    """Returns the elements concatenated, or stacked along a new axis. Source: ONNX ConcatFromSequence-11."""
    return xp.stack(sequence, axis=axis) if new_axis else xp.concatenate(sequence, axis=axis)
