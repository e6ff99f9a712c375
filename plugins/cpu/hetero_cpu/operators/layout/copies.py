"""Copies between arrays of one shape that lie differently in memory: by rows where the fastest axis is the same, else by turned blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hetero_cpu.machine.code import FLOAT_BYTES, Code, begin_kernel
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.machine.native import Array, NativeCall, address_of
from hetero_cpu.machine.row_walk import call_rows
from hetero_cpu.machine.rows import cut_rows, find_kind, merge_axes
from hetero_cpu.machine.terms import Floats, Mask, Number
from hetero_cpu.open.arrays import broadcast
from hetero_cpu.open.sizes import largest, least
from hetero_cpu.operators.elementwise.kernel import Expression, make_elementwise
from hetero_cpu.planning.recipe import Recipe

_PARAMETERS = (
    "rows", "columns", "blocks", "middle", "inner", "units", "units_of_chunk",
    "y", "y_outer", "y_middle", "y_inner", "y_row", "x", "x_outer", "x_middle", "x_inner", "x_column",
)  # fmt: skip
"""Of each matrix: y has `rows` at a stride of `y_row` whose elements lie side by side; x has them as columns, `x_column` apart, so that its
elements of one column of y lie side by side. Matrices stand along three axes. A unit is a block of rows of one matrix."""
_CHUNK = 1 << 15
_CHUNKS_OF_WORKER = 8


@dataclass(frozen=True, slots=True)
class Copy:
    """A kernel, and what makes its call for the arrays of a run: `bind(y, x)`, both of one shape."""

    kernel: Kernel
    bind: Callable[[Array, Array], NativeCall]


def plan_copy(y: Array, x: Array, *, workers: int) -> Copy | None:
    """Returns the copy of x, broadcast, into y; None if neither has what a vector could read or write.

    The arrays stand for those that are copied: only their shapes and strides count. Elements have four bytes.
    """
    if y.dtype.itemsize != FLOAT_BYTES or x.dtype != y.dtype or y.size == 0:
        return None
    kind = find_kind(x, y)
    if kind is not None:
        kernel = make_elementwise(Expression(kind, ()))
        if cut_rows(y, [x]) is None:
            return None

        def bind(y: Array, x: Array) -> NativeCall:
            rows = cut_rows(y, [x])
            assert rows is not None
            return call_rows(kernel, rows, [y, x], workers=workers)

        return Copy(kernel, bind)
    if _find_matrices(y, broadcast(x, y.shape)) is None:
        return None
    return Copy(TURN, lambda y, x: _call_turn(y, broadcast(x, y.shape), workers))


def plan_pieces(y: Array, cuts: Sequence[tuple[slice, ...]], sources: Mapping[str, Array], *, workers: int) -> Recipe | None:
    """Returns the recipe that copies each source into its piece of y; None if one of them cannot be copied so."""
    copies = [plan_copy(y[cut], array, workers=workers) for cut, array in zip(cuts, sources.values(), strict=True)]
    plans = [copy for copy in copies if copy is not None]
    # More axes than rows can have may come of it where the result becomes a piece itself.
    if len(plans) != len(copies) or y.ndim > 4:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        return [copy.bind(writes[0][cut], array) for copy, cut, array in zip(plans, cuts, reads, strict=True)]

    return Recipe(tuple(sources), bind, kernels=tuple(dict.fromkeys(copy.kernel for copy in plans)), parts=tuple(cuts))


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Sizes and strides of matrices that are turned: the batch along at most three axes, rows and columns of y."""

    sizes: tuple[int, ...]
    y_bytes: tuple[int, ...]
    x_bytes: tuple[int, ...]
    rows: int
    y_row: int
    columns: int
    x_column: int


def _find_matrices(y: Array, x: Array) -> _Matrices | None:
    sizes, strides = merge_axes([y, x])
    if not sizes or strides[-1][0] != FLOAT_BYTES:
        return None
    row_axis = next((axis for axis in range(len(sizes) - 1) if strides[axis][1] == FLOAT_BYTES), None)
    if row_axis is None or len(sizes) > 5:
        return None
    columns, (_, x_column) = sizes.pop(), strides.pop()
    rows, (y_row, _) = sizes.pop(row_axis), strides.pop(row_axis)
    y_bytes, x_bytes = (tuple(pair[k] for pair in strides) for k in (0, 1))
    return _Matrices(tuple(sizes), y_bytes, x_bytes, rows, y_row, columns, x_column)


def _call_turn(y: Array, x: Array, workers: int) -> NativeCall:
    matrices = _find_matrices(y, x)
    assert matrices is not None
    missing = 3 - len(matrices.sizes)
    _, middle, inner = (1,) * missing + matrices.sizes
    # A block has as many rows as a vector has elements.
    blocks = -(-matrices.rows // find_width())
    units = blocks * prod(matrices.sizes)
    elements = largest(_CHUNK, -(-y.size // (workers * _CHUNKS_OF_WORKER)))
    units_of_chunk = largest(1, least(units, elements * units // y.size))
    zeros = (0,) * missing
    numbers = (matrices.rows, matrices.columns, blocks, middle, inner, units, units_of_chunk)
    places = (address_of(y), *zeros, *matrices.y_bytes, matrices.y_row, address_of(x), *zeros, *matrices.x_bytes, matrices.x_column)
    return NativeCall(TURN, numbers + places, -(-units // units_of_chunk), (y, x))


def _emit_turn(name: str, width: int) -> Code:
    code, p, chunk, _ = begin_kernel(name, width, _PARAMETERS)
    # Whole vectors, whatever the width that the numbers were made for.
    rows_of_block = ((p["rows"] + (p["blocks"] - 1)) // p["blocks"] + (width - 1)) // width * width
    with code.visit_chunk(chunk, p["units_of_chunk"], p["units"]) as unit:
        matrix, block = unit // p["blocks"], unit % p["blocks"]
        line, third = matrix // p["inner"], matrix % p["inner"]
        first, second = line // p["middle"], line % p["middle"]
        y, x = (p[key] + first * p[f"{key}_outer"] + second * p[f"{key}_middle"] + third * p[f"{key}_inner"] for key in ("y", "x"))
        start = (block * rows_of_block).at_most(p["rows"])
        end = (start + rows_of_block).at_most(p["rows"])
        full_columns = p["columns"] - p["columns"] % width
        with code.loop(start, end, width) as begin_row:
            rows = (end - begin_row).at_most(width)
            from_x, to_y = x + begin_row * FLOAT_BYTES, y + begin_row * p["y_row"]

            def turn(column: Number, columns: Number, *, is_full: bool) -> None:
                _emit_block(
                    code,
                    from_x + column * p["x_column"],  # called inside the loop
                    p["x_column"],
                    to_y + column * FLOAT_BYTES,  # called inside the loop
                    p["y_row"],
                    rows,  # called inside the loop
                    columns,
                    is_full=is_full,
                )

            with code.either(rows.equals(width)) as (whole, part):
                with whole:
                    with code.loop(0, full_columns, width) as column:
                        turn(column, code.number(width), is_full=True)
                    with code.when(full_columns < p["columns"]):
                        turn(full_columns, p["columns"] - full_columns, is_full=False)
                with part, code.loop(0, p["columns"], width) as column:
                    turn(column, (p["columns"] - column).at_most(width), is_full=False)
    return code.finish()


def _emit_block(
    code: Code, x: Number, x_column: Number, y: Number, y_row: Number, rows: Number, columns: Number, *, is_full: bool
) -> None:
    """Emits the copy of one block of at most `width` rows and columns; of a part nothing beside it is touched."""
    width = code.width

    def mask(position: int, count: Number, others: Number) -> Mask | None:
        return None if is_full else code.mask_first((count > position).choose(others, code.number(0)))

    vectors = [code.load(x + x_column * column, mask=mask(column, columns, rows)) for column in range(width)]
    for position, vector in enumerate(turn_vectors(vectors)):
        code.store(y + y_row * position, vector, mask=mask(position, rows, columns))


def turn_vectors(vectors: list[Floats]) -> list[Floats]:
    """Returns the columns of the matrix whose rows the vectors are: each round interleaves the halves of what there is."""
    width = len(vectors)
    low = [index // 2 + width * (index % 2) for index in range(width)]
    high = [position + width // 2 for position in low]
    for _ in range(width.bit_length() - 1):
        half = width // 2
        vectors = [vectors[k // 2].shuffle(vectors[k // 2 + half], low if k % 2 == 0 else high) for k in range(width)]
    return vectors


TURN = Kernel("turn_matrices", _emit_turn)
"""The kernel that copies matrices into turned ones."""
