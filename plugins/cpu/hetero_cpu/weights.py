"""Weights in the form in which kernels read them, made once for all plans of a network.

Steps of NumPy take the array at once. Machine code needs only an address when a plan is bound, so that its arrays are promised first: a
plan, and with it the list of its kernels, is there before anything is packed, and what is promised is made by several threads at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


_BLOCK_ROWS = 32
"""Of a matrix that is turned: so many rows are still near the processor when their next elements are read."""


def turn_matrix(w: Array) -> Array:
    """Returns the transpose of a matrix in C order, copied in blocks: three times as fast as all at once where it is large."""
    turned = np.empty(w.shape[::-1], w.dtype)
    for begin in range(0, len(w), _BLOCK_ROWS):
        turned[:, begin : begin + _BLOCK_ROWS] = w[begin : begin + _BLOCK_ROWS].T
    return turned


class LaterArray:
    """An array that is made when it is first asked for, read-only. Safe for threads."""

    __slots__ = ("_array", "_constants", "_lock", "_make")

    def __init__(self, constants: tuple[Array, ...], make: Callable[..., Array]) -> None:
        self._constants, self._make = constants, make
        self._array: Array | None = None
        self._lock = threading.Lock()

    def get(self) -> Array:
        """Returns the array."""
        with self._lock:
            if self._array is None:
                made = self._make(*self._constants)
                made.flags.writeable = False
                self._array = made
            return self._array

    @property
    def nbytes(self) -> int:
        """The bytes of the array; 0 before it is made."""
        array = self._array
        return 0 if array is None else array.nbytes

    @property
    def constants(self) -> tuple[Array, ...]:
        """What it is made of."""
        return self._constants

    @property
    def source_bytes(self) -> int:
        """The bytes of what it is made of."""
        return sum(constant.nbytes for constant in self._constants)


class PackedWeights:
    """Arrays by (constants, purpose). Threads may both ask for one; it is made once."""

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        # The constants are kept beside what was made of them: an id is only theirs while they live.
        self._arrays: dict[tuple[object, ...], LaterArray] = {}

    def pack(self, constants: tuple[Array, ...], purpose: tuple[object, ...], make: Callable[..., Array]) -> Array:
        """Returns `make(*constants)`, read-only; `purpose` tells apart what is made of the same constants."""
        return self.pack_later(constants, purpose, make).get()

    def pack_later(self, constants: tuple[Array, ...], purpose: tuple[object, ...], make: Callable[..., Array]) -> LaterArray:
        """Returns the promise of `make(*constants)`: what is promised is made by `pack_all`, or when it is asked for."""
        key = (*map(id, constants), *purpose)
        found = self._arrays.get(key)
        return self._arrays.setdefault(key, LaterArray(constants, make)) if found is None else found

    def pack_all(self, workers: int) -> None:
        """Makes what is promised, the largest first, with up to `workers` threads."""
        left = list(self._arrays.values())
        left.sort(key=lambda later: -later.source_bytes)
        if workers <= 1 or len(left) <= 1:
            for later in left:
                later.get()
            return
        with ThreadPoolExecutor(min(workers, len(left)), thread_name_prefix="hetero-CPU-weights") as pool:
            for future in [pool.submit(later.get) for later in left]:
                future.result()

    def list_made(self) -> list[tuple[tuple[Array, ...], tuple[object, ...], Array]]:
        """Returns what is made already, in the order in which it was asked for: the constants, the purpose, the array."""
        made = [(later.constants, key[len(later.constants) :], later) for key, later in list(self._arrays.items()) if later.nbytes]
        return [(constants, purpose, later.get()) for constants, purpose, later in made]

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays that are held."""
        return sum(later.nbytes for later in list(self._arrays.values()))
