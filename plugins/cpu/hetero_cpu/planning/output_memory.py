"""Memory of outputs that is used again when nobody holds an array in it any more.

New memory costs a page fault for every few kilobytes when it is first written, several times as much as the write itself.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from hetero_cpu.planning.arena import ALIGNMENT
from hetero_cpu.planning.recipe import Array

# Callers hold the last result while the next one is made.
_MOST_KEPT = 2


class OutputMemory:
    """Hands out arrays of one shape, each in memory where no other one that is alive lies. Used by one run at a time."""

    __slots__ = ("_dtype", "_kept", "_nbytes", "_shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> None:
        self._shape, self._dtype, self._nbytes = shape, dtype, nbytes
        # Memory, its address, and the array that was handed out; the last one comes last.
        self._kept: list[tuple[memoryview, int, weakref.ref[Array]]] = []

    def take(self) -> tuple[Array, int]:
        """Returns an array in C order and its address, a multiple of the alignment; contents undefined."""
        free = next((place for place, (_, _, lent) in enumerate(self._kept) if lent() is None), None)
        memory, address = _allocate(self._nbytes) if free is None else self._kept.pop(free)[:2]
        # Every view of it holds this very array: NumPy's chain of bases ends with the one whose memory is no array's.
        lent: Array = np.frombuffer(memory, self._dtype)
        self._kept.append((memory, address, weakref.ref(lent)))
        del self._kept[:-_MOST_KEPT]
        return lent.reshape(self._shape), address

    def fits(self, array: Array) -> bool:
        """Says whether an array of the caller's can be written in place of one from here."""
        flags = array.flags
        return (
            array.shape == self._shape and array.dtype == self._dtype and flags.c_contiguous and flags.aligned and flags.writeable
        )


def _allocate(nbytes: int) -> tuple[memoryview, int]:
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    address = memory.ctypes.data
    begin = -address % ALIGNMENT
    return memory[begin : begin + nbytes].data, address + begin
