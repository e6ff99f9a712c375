"""CuPy's arrays at places that somebody else chooses: an allocator that hands out pieces of one block. Has not run on a card.

What it makes of addresses was tried without one: CuPy's memory objects need no driver as long as nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_cupy.arena import ArrayAllocator


def make_allocator(
    cupy: Any, places: ArrayAllocator, block: Any, *, index: int, allocate: Callable[[int], Any]
) -> Callable[[int], Any]:
    """Returns an allocator for `cupy.cuda.using_allocator`. `allocate` is the pool's, for what has no place; `index` the card's number.

    The memory of an array keeps its allocation, and what it is a piece of.
    """
    begin = 0 if block is None else int(block.data.ptr)

    def give(nbytes: int) -> Any:
        if not nbytes:
            return allocate(nbytes)
        allocation = places.take(nbytes)
        if allocation.offset is not None:
            memory = cupy.cuda.UnownedMemory(begin + allocation.offset, nbytes, (block, allocation), index)
        else:
            pointer = allocate(nbytes)
            allocation.stand_at(int(pointer.ptr))
            memory = cupy.cuda.UnownedMemory(int(pointer.ptr), nbytes, (pointer, allocation), index)
        return cupy.cuda.MemoryPointer(memory, 0)

    return give
