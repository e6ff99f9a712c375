"""How arrays that are computed element by element lie beside each other: as few nested axes of rows as there can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hetero_cpu.machine.chunks import choose_chunk_size
from hetero_cpu.machine.native import Array
from hetero_cpu.open.arrays import broadcast
from hetero_cpu.open.sizes import is_open, largest

FLOAT_BYTES = 4
# Elements of a row that is cut out of what lies in one piece, and the fewest of a chunk: some ten microseconds.
_ROW = 1 << 12
_CHUNK = 1 << 15
_CHUNKS_OF_WORKER = 8


@dataclass(frozen=True, slots=True)
class Rows:
    """`sizes` of the axes outside a row, from the outermost; `length` elements of a row, `last` of the very last one.

    `strides[k]` are those of array k in bytes along these axes.
    """

    sizes: tuple[int, ...]
    length: int
    last: int
    strides: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """The number of rows."""
        return prod(self.sizes)


def find_fastest(y: Array) -> int | None:
    """Returns the axis along which the elements of an array lie side by side; None if no axis has them so."""
    axes = [axis for axis in range(y.ndim) if y.shape[axis] > 1]
    fastest = min(axes, key=lambda axis: (y.strides[axis], -axis), default=None)
    return fastest if fastest is None or y.strides[fastest] == y.itemsize else None


def find_kind(array: Array, y: Array) -> str | None:
    """Returns how an operand lies along the fastest axis of a result that it broadcasts to: "v", "r" or "s"; None for another stride."""
    if array.size == 1:
        return "s"
    fastest = find_fastest(y)
    if fastest is None:
        return None
    stride = broadcast(array, y.shape).strides[fastest]
    # A stride with symbols is compared, not looked up, which would pin it.
    return "r" if stride == 0 else "v" if stride == array.itemsize else None


def cut_rows(y: Array, operands: Sequence[Array]) -> Rows | None:
    """Returns the rows of a result and of what broadcasts to it; None for more than three axes of rows.

    `strides[0]` are those of the result, the others follow.
    """
    arrays = [y, *(broadcast(array, y.shape) for array in operands)]
    sizes, strides = merge_axes(arrays)
    if not sizes:
        return Rows((), 1, 1, ((),) * len(arrays))
    length, steps = sizes.pop(), strides.pop()
    last = length
    if not sizes and (is_open(length) or length > _ROW):
        # One piece: rows are made up, the last of which may be shorter.
        rows = -(-length // _ROW)
        sizes, strides = [rows], [tuple(step * _ROW for step in steps)]
        length, last = _ROW, length - (rows - 1) * _ROW
    return Rows(tuple(sizes), length, last, _turn(strides, len(arrays))) if len(sizes) <= 3 else None


def list_rows(y: Array, operands: Sequence[Array], axis: int) -> Rows | None:
    """Returns the rows along one axis, whole, as `cut_rows` does; None for more than three axes of rows."""
    arrays = [np.moveaxis(broadcast(array, y.shape), axis, -1)[..., 0] for array in (y, *operands)]
    sizes, strides = merge_axes(arrays)
    length = y.shape[axis]
    return Rows(tuple(sizes), length, length, _turn(strides, len(arrays))) if len(sizes) <= 3 else None


def merge_axes(arrays: Sequence[Array]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Returns the fewest axes that arrays of one shape can be walked along, and the strides of each array along every one of them."""
    y = arrays[0]
    sizes: list[int] = []
    strides: list[tuple[int, ...]] = []
    for axis in sorted((axis for axis in range(y.ndim) if y.shape[axis] > 1), key=lambda axis: (-y.strides[axis], axis)):
        size, axis_strides = y.shape[axis], tuple(array.strides[axis] for array in arrays)
        if sizes and all(outer == inner * size for outer, inner in zip(strides[-1], axis_strides, strict=True)):
            sizes[-1] *= size
            strides[-1] = axis_strides
        else:
            sizes.append(size)
            strides.append(axis_strides)
    return sizes, strides


def _turn(strides: Sequence[tuple[int, ...]], count: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(axis[k] for axis in strides) for k in range(count))


def choose_rows_of_chunk(rows: int, length: int, workers: int) -> int:
    """Returns how many rows a chunk has, so that no chunk is tiny and each worker has several."""
    elements = largest(_CHUNK, -(-rows * length // (workers * _CHUNKS_OF_WORKER)))
    return choose_chunk_size(rows, largest(1, rows * length // elements), workers)
