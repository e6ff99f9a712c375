"""Memory of caches that grow: with room for more keys, so that a step appends and copies nothing.

A cache is (batch, heads, length, width) and grows along its length. It is handed out as a view, from the begin of each head, of memory
with a larger length. Rules: what was handed out is never written again, so every view keeps its values. Only behind the newest view
there is room, and one run alone gets it, by `CacheMemory.claim`; a run with an older view, or a second one, copies.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from hetero_cpu.planning.arena import ALIGNMENT

Array = np.ndarray[Any, Any]

_LEAST_ROOM = 64


class CacheMemory(np.ndarray[Any, Any]):
    """The bytes of one growing cache; the views of it hold them. `length`: of the newest view. Safe for threads."""

    length: int
    lock: Lock

    def claim(self, begin: int, end: int, capacity: int) -> bool:
        """Says whether the caller may write from `begin` to `end`: True if the newest view ends at `begin`, which is then `end`."""
        with self.lock:
            if self.length != begin or end > capacity:
                return False
            self.length = end
            return True


def open_cache(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns a cache of a shape, contents undefined, in new memory with room for half as many keys again, at an aligned address."""
    batch, heads, length, width = shape
    capacity = length + max(length // 2, _LEAST_ROOM)
    row_bytes = width * dtype.itemsize
    memory = CacheMemory((batch * heads * capacity * row_bytes + ALIGNMENT,), np.uint8)
    memory.length, memory.lock = length, Lock()
    begin = -memory.__array_interface__["data"][0] % ALIGNMENT
    whole: Array = np.ndarray((batch, heads, capacity, width), dtype, memory, begin)
    cache: Array = whole[:, :, :length]
    return cache


def extend_cache(cache: Array, length: int) -> Array | None:
    """Returns the view of a longer cache in the same memory, whose end the caller has to write; None if it cannot grow there."""
    whole = cache.base
    memory = getattr(whole, "base", None)
    if type(memory) is not CacheMemory or type(whole) is not np.ndarray or cache.strides != whole.strides:
        return None
    if cache.ndim != 4 or cache.dtype != whole.dtype or cache.shape[:2] + cache.shape[3:] != whole.shape[:2] + whole.shape[3:]:
        return None
    # A view may begin at another key, which has the same strides.
    if cache.__array_interface__["data"][0] != whole.__array_interface__["data"][0]:
        return None
    if not memory.claim(cache.shape[2], length, whole.shape[2]):
        return None
    longer: Array = whole[:, :, :length]
    return longer
