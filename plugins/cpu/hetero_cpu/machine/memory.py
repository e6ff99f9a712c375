"""Memory at multiples of the alignment: of arenas, of scratch and of outputs."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector."""


def align(nbytes: int) -> int:
    """Returns the next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def allocate_arena(nbytes: int) -> Array:
    """Returns bytes that begin at a multiple of the alignment."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    aligned: Array = memory[begin : begin + nbytes]
    return aligned


_open_first = ctypes.c_char.from_buffer


def find_address(array: Array) -> int:
    """Returns the address of the first element."""
    try:
        # NumPy's own ways to tell it take four times as long.
        return ctypes.addressof(_open_first(array))  # type: ignore[arg-type]  # NumPy declares it for Python 3.12 only
    except (TypeError, ValueError):
        # Read-only, empty, not in C order, or of a type that other libraries do not know.
        address: int = array.__array_interface__["data"][0]
        return address


Shape = tuple[int, ...]


def measure_scratch(shapes: Sequence[Shape]) -> int:
    """Returns the bytes that arrays of these shapes take."""
    return sum(align(prod(shape) * 4) for shape in shapes)


def cut_scratch(scratch: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Returns float32 arrays of these shapes, side by side in `scratch`."""
    arrays, begin = [], 0
    for shape in shapes:
        nbytes = prod(shape) * 4
        arrays.append(scratch[begin : begin + nbytes].view(np.float32).reshape(shape))
        begin += align(nbytes)
    return arrays


# Callers hold the last result while the next one is made.
_MOST_KEPT = 2
SMALL_BYTES = 1 << 12
"""Of an array that NumPy allocates in less time than it takes to find memory that is free again."""


class OutputMemory:
    """Hands out arrays of one type, each in memory that no living array uses. Used by one run at a time."""

    __slots__ = ("_kept", "_room", "dtype")

    def __init__(self, dtype: np.dtype[Any], *, room: float = 1.0) -> None:
        """`room`: the size of new memory over that of the array, for larger arrays that follow."""
        self.dtype, self._room = dtype, room
        # Memory, its address, and the array that was handed out; the newest comes last.
        self._kept: list[tuple[memoryview, int, weakref.ref[Array]]] = []

    def take(self, shape: tuple[int, ...]) -> tuple[Array, int]:
        """Returns an array in C order and its address, a multiple of the alignment unless it is small; contents undefined."""
        count = prod(shape)
        need = count * self.dtype.itemsize
        if need <= SMALL_BYTES:
            small: Array = np.empty(shape, self.dtype)
            return small, find_address(small)
        for place, (kept, _, user) in enumerate(self._kept):
            if user() is None and need <= kept.nbytes:
                memory, address, _ = self._kept.pop(place)
                break
        else:
            new = allocate_arena(int(need * self._room))
            memory, address = new.data, new.ctypes.data
        # Every view of it holds this very array: NumPy's chain of bases ends at memory that is no array's.
        lent: Array = np.frombuffer(memory, self.dtype, count)
        self._kept.append((memory, address, weakref.ref(lent)))
        del self._kept[:-_MOST_KEPT]
        return lent.reshape(shape), address
