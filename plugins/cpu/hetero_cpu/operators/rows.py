"""How arrays that are computed element by element lie beside each other: as few nested axes of rows as there can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Number
from hetero_cpu.operators.recipe import Recipe
from hetero_cpu.symbols.arrays import broadcast
from hetero_cpu.symbols.sizes import is_open, largest, least, value_of

# Multiplications of a chunk below which handing it to a thread costs more than it saves: about 10 microseconds.
_SMALLEST_CHUNK = 1 << 20
_CHUNKS_OF_WORKER = 8


def choose_chunk_size(units: int, chunks: int, workers: int) -> int:
    """Returns how many of `units` equal units a chunk has, so that there are about `chunks` chunks, half as many to twice as many.

    Seven chunks keep two workers as long as eight would.
    """
    size: int = -(-units // largest(1, chunks))
    if workers == 1 or is_open(units) or is_open(size) or size >= units:
        return size

    def count_rounds(candidate: int) -> int:
        return -(-units // (candidate * workers)) * candidate

    candidates = range(-(-size // 2), min(2 * size, units) + 1)
    return min(candidates, key=lambda candidate: (count_rounds(candidate), abs(candidate - size)))


def cut_products(units: int, products: int, workers: int) -> int:
    """Returns how many of `units` units, of so many multiplications in all, a chunk has."""
    chunks = largest(1, least(units, products // _SMALLEST_CHUNK, _CHUNKS_OF_WORKER * workers)) if workers > 1 else 1
    return choose_chunk_size(units, chunks, workers)


ROWS_OF_CHUNK = 64
"""Rows of a chunk of a model of rows, which has few numbers for each."""
# The least time of a chunk, and about that of an instruction; both in nanoseconds.
_CHUNK_TIME, _INSTRUCTION_TIME = 4000.0, 0.25
_CHUNKS_OF_LINES = 16


def cut_lines(lines: int, instructions: float, workers: int) -> int:
    """Returns how many lines a chunk has, if all of them take so many vector instructions."""
    target = max(1, int(value_of(instructions) * _INSTRUCTION_TIME / _CHUNK_TIME))
    return choose_chunk_size(lines, least(lines, target, _CHUNKS_OF_LINES * workers), workers)


# Elements of a row that is cut out of a contiguous piece, and the fewest of a chunk: some ten microseconds.
_ROW = 1 << 12
_CHUNK = 1 << 15


@dataclass(frozen=True, slots=True)
class Rows:
    """`sizes` of the axes outside a row, from the outermost; `length` elements of a row, `last` of the very last row.

    `strides[k]` are the strides of all arrays in bytes along axis k.
    """

    sizes: tuple[int, ...]
    length: int
    last: int
    strides: tuple[tuple[int, ...], ...]


def find_kind(array: Array, y: Array) -> str | None:
    """Returns how an operand lies along the fastest axis of a result that it broadcasts to: "v", "r" or "s"; None for another stride."""
    if array.size == 1:
        return "s"
    axes = [axis for axis in range(y.ndim) if y.shape[axis] > 1]
    fastest = min(axes, key=lambda axis: (y.strides[axis], -axis), default=None)
    if fastest is None or y.strides[fastest] != y.itemsize:
        return None
    stride = broadcast(array, y.shape).strides[fastest]
    # A stride with symbols is compared, not looked up, which would pin it.
    return "r" if stride == 0 else "v" if stride == array.itemsize else None


_MOST_SINGLES = 1 << 10
"""Elements up to which each may be a row of its own; the toolkit is faster for more."""


def find_kinds(arrays: Sequence[Array], y: Array) -> list[str] | None:
    """Returns how operands lie along the fastest axis of a result; None for an operand with gaps between its elements.

    A small result of up to three axes may have such operands: each of its elements is a row.
    """
    kinds = [find_kind(array, y) for array in arrays]
    if None in kinds and not is_open(y.size) and y.size <= _MOST_SINGLES and sum(size > 1 for size in y.shape) <= 3:
        return ["s" if array.size == 1 else "v" for array in arrays]
    return None if None in kinds else [kind for kind in kinds if kind is not None]


def cut_rows(y: Array, operands: Sequence[Array]) -> Rows | None:
    """Returns the rows of a result and of its operands, broadcast; None for more than three axes of rows.

    The result is the first array, followed by the operands in order.
    """
    arrays = [y, *(broadcast(array, y.shape) for array in operands)]
    sizes, strides = merge_axes(arrays)
    if not sizes:
        return Rows((), 1, 1, ())
    if strides[-1][0] != y.itemsize or any(
        stride not in (0, array.itemsize) for stride, array in zip(strides[-1], arrays, strict=True)
    ):
        # Each element is a row if there are gaps: the halo of a narrow image of one channel, or between the elements of an operand.
        sizes, strides = [*sizes, 1], [*strides, (y.itemsize,) * len(arrays)]
    length, steps = sizes.pop(), strides.pop()
    last = length
    if not sizes and (is_open(length) or length > _ROW):
        # Contiguous: rows are made up, the last of which may be shorter.
        rows = -(-length // _ROW)
        sizes, strides = [rows], [tuple(step * _ROW for step in steps)]
        length, last = _ROW, length - (rows - 1) * _ROW
    return Rows(tuple(sizes), length, last, tuple(strides)) if len(sizes) <= 3 else None


def list_rows(y: Array, operands: Sequence[Array], axis: int) -> Rows | None:
    """Returns the rows along one axis, whole, as `cut_rows` does; None for more than three axes of rows."""
    arrays = [np.moveaxis(broadcast(array, y.shape), axis, -1)[..., 0] for array in (y, *operands)]
    sizes, strides = merge_axes(arrays)
    length = y.shape[axis]
    return Rows(tuple(sizes), length, length, tuple(strides)) if len(sizes) <= 3 else None


def merge_axes(arrays: Sequence[Array]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Returns the fewest axes that arrays of one shape can be walked along, and the strides of each array along them."""
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


def choose_rows_of_chunk(rows: int, length: int, workers: int) -> int:
    """Returns how many rows a chunk has, so that no chunk is tiny and each worker has several."""
    elements = largest(_CHUNK, -(-rows * length // (workers * _CHUNKS_OF_WORKER)))
    return choose_chunk_size(rows, largest(1, rows * length // elements), workers)


def make_unit_kernel(
    title: str, names: Sequence[str], emit: Callable[[Code, dict[str, Number], Number], None], *, unit: str = "row", size: int = 0
) -> Kernel:
    """Returns the kernel of a row of numbers with these names; `emit(code, numbers by their names, unit)` emits a unit of a chunk.

    There are `units` in all, and `units_of_chunk` or `size` in a chunk; `unit` is the name of one, as "row".
    """

    def emit_chunk(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, names)
        with code.visit_chunk(chunk, code.number(size) if size else p[f"{unit}s_of_chunk"], p[f"{unit}s"]) as place:
            emit(code, p, place)
        return code.finish()

    return Kernel(title, emit_chunk)


def plan_call(
    kernel: Kernel,
    values: tuple[str, ...],
    chunks: int,
    list_numbers: Callable[..., tuple[int, ...]],
    *,
    scratch: int = 0,
    keep: tuple[object, ...] = (),
    is_channels_last: bool = False,
) -> Recipe:
    """Returns the recipe of a single call.

    `list_numbers` gets the arrays that are read, those that are written, and the working memory if there is any.
    """

    def bind(reads: Sequence[Array], writes: Sequence[Array], memory: Array) -> list[NativeCall]:
        arrays = (*reads, *writes, memory) if scratch else (*reads, *writes)
        return [NativeCall(kernel, list_numbers(*arrays), chunks, (*arrays, *keep))]

    return Recipe(values, bind, scratch, is_channels_last=is_channels_last, kernels=(kernel,))


PARAMETERS = ("middle", "inner", "rows", "rows_of_chunk", "length", "last")
"""Sizes of the second and the third axis of rows, rows in all and of a chunk, elements of a row and of the very last row.

For each array follow its address and its strides in bytes along the three axes of rows; a kernel's own numbers come last.
"""


class RowWalk:
    """The numbers of a kernel over rows: the `addresses` of arrays, its `own` numbers; and the walk over the rows of its chunk."""

    def __init__(self, code: Code, arrays: int, own: int = 0) -> None:
        self._code = code
        row, self._chunk, _ = code.parameters
        places = [f"{key}_{index}" for index in range(arrays) for key in ("address", "outer", "middle", "inner")]
        self._p = code.load_row(row, (*PARAMETERS, *places, *(f"own_{position}" for position in range(own))))
        self.addresses = [self._p[f"address_{index}"] for index in range(arrays)]
        self.own = [self._p[f"own_{position}"] for position in range(own)]

    @contextmanager
    def visit(self, moving: Sequence[int]) -> Iterator[tuple[Mapping[int, Number], Number]]:
        """Repeats the body for each row; yields the addresses of the `moving` arrays there, and the elements of the row."""
        code, p = self._code, self._p
        position = code.variable(self._chunk * p["rows_of_chunk"])
        end = ((self._chunk + 1) * p["rows_of_chunk"]).at_most(p["rows"])
        with code.repeat() as leave_if:
            current = position.get()
            leave_if(current >= end)
            # Consecutive rows along the innermost axis are a fixed stride apart.
            line, first = current // p["inner"], current % p["inner"]
            count = (p["inner"] - first).at_most(end - current)
            outer, middle = line // p["middle"], line % p["middle"]
            pointers = {}
            for index in moving:
                start = self.addresses[index] + outer * p[f"outer_{index}"] + middle * p[f"middle_{index}"]
                pointers[index] = code.variable(start + first * p[f"inner_{index}"])
            with code.loop(current, current + count) as here:
                length = here.equals(p["rows"] - 1).choose(p["last"], p["length"])
                yield {index: pointer.get() for index, pointer in pointers.items()}, length
                for index, pointer in pointers.items():
                    pointer.set(pointer.get() + p[f"inner_{index}"])
            position.set(current + count)


def call_rows(kernel: Kernel, rows: Rows | None, arrays: Sequence[Array], own: Sequence[int] = (), *, workers: int) -> NativeCall:
    """Returns the call of a kernel that walks over `rows` of `arrays`, as planned; `own` are its own numbers."""
    assert rows is not None
    missing, count = 3 - len(rows.sizes), prod(rows.sizes)
    _, middle, inner = (1,) * missing + rows.sizes
    rows_of_chunk = choose_rows_of_chunk(count, rows.length, workers)
    numbers = [middle, inner, count, rows_of_chunk, rows.length, rows.last]
    for index, array in enumerate(arrays):
        numbers += [address_of(array), *(0,) * missing, *(strides[index] for strides in rows.strides)]
    return NativeCall(kernel, (*numbers, *own), -(-count // rows_of_chunk), tuple(arrays))
