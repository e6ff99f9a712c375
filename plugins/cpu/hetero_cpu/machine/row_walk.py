"""Kernels walk over rows: a chunk is a range of rows in three nested axes, along each of which every array has a stride of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hetero_cpu.machine.code import Code
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.native import Array, NativeCall, address_of
from hetero_cpu.machine.rows import Rows, choose_rows_of_chunk
from hetero_cpu.machine.terms import Number

PARAMETERS = ("middle", "inner", "rows", "rows_of_chunk", "length", "last")
"""Sizes of the second and the third axis of rows, rows in all and of one chunk, elements of a row and of the very last one."""
ARRAY_PARAMETERS = ("address", "outer_bytes", "middle_bytes", "inner_bytes")
"""The numbers of each array: its address, and its strides in bytes along the three axes of rows. A kernel's own numbers come last."""

RESULT_PARAMETERS = (*PARAMETERS, "y", "y_outer", "y_middle", "y_inner")
"""The first numbers of a row: the result is the first array."""


class RowWalk:
    """The numbers of a row as a kernel sees them, and the walk over the rows of its chunk."""

    def __init__(self, code: Code, arrays: int) -> None:
        self._code = code
        self._row, self._chunk, self.worker = code.parameters
        self._numbers = {key: code.load_number(self._row, 8 * position) for position, key in enumerate(PARAMETERS)}
        self._places = [
            {
                key: code.load_number(self._row, 8 * (len(PARAMETERS) + index * len(ARRAY_PARAMETERS) + position))
                for position, key in enumerate(ARRAY_PARAMETERS)
            }
            for index in range(arrays)
        ]

    def address(self, index: int) -> Number:
        """Returns the address of an array."""
        return self._places[index]["address"]

    def own_number(self, position: int) -> Number:
        """Returns one of the kernel's own numbers."""
        before = len(PARAMETERS) + len(self._places) * len(ARRAY_PARAMETERS)
        return self._code.load_number(self._row, 8 * (before + position))

    @contextmanager
    def visit(self, moving: Sequence[int]) -> Iterator[tuple[Mapping[int, Number], Number]]:
        """Repeats what is emitted inside for each row; yields the addresses of the `moving` arrays there, and the elements of the row."""
        code, p = self._code, self._numbers
        position = code.variable(self._chunk * p["rows_of_chunk"])
        end = ((self._chunk + 1) * p["rows_of_chunk"]).at_most(p["rows"])
        with code.repeat() as leave_if:
            current = position.get()
            leave_if(current >= end)
            # Rows that follow one another along the innermost axis are reached by one stride.
            line, first = current // p["inner"], current % p["inner"]
            count = (p["inner"] - first).at_most(end - current)
            outer, middle = line // p["middle"], line % p["middle"]
            pointers = {}
            for index in moving:
                place = self._places[index]
                start = place["address"] + outer * place["outer_bytes"] + middle * place["middle_bytes"]
                pointers[index] = code.variable(start + first * place["inner_bytes"])
            with code.loop(current, current + count) as here:
                length = here.equals(p["rows"] - 1).choose(p["last"], p["length"])
                yield {index: pointer.get() for index, pointer in pointers.items()}, length
                for index, pointer in pointers.items():
                    pointer.set(pointer.get() + self._places[index]["inner_bytes"])
            position.set(current + count)


def call_rows(kernel: Kernel, rows: Rows, arrays: Sequence[Array], own: Sequence[int] = (), *, workers: int) -> NativeCall:
    """Returns the call of a kernel that walks over `rows` of `arrays`; `own` are its own numbers."""
    missing = 3 - len(rows.sizes)
    _, middle, inner = (1,) * missing + rows.sizes
    rows_of_chunk = choose_rows_of_chunk(rows.count, rows.length, workers)
    numbers = [middle, inner, rows.count, rows_of_chunk, rows.length, rows.last]
    for array, strides in zip(arrays, rows.strides, strict=True):
        numbers += [address_of(array), *(0,) * missing, *strides]
    return NativeCall(kernel, (*numbers, *own), -(-rows.count // rows_of_chunk), tuple(arrays))
