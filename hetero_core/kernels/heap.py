"""The heap of the C library: memory of arrays that were freed stays with the process, for the next results of kernels.

glibc gives each block of 128 KiB or more memory of its own from the system, and gives it back when the block is freed, until a larger
block was freed once. Each page of a new block then costs a page fault: a network of 48 QuantizeLinear and DequantizeLinear nodes on
400 KB took 35 ms of processor time a run, 16 of them in the system, and 14 in processes where another engine had freed a large block.
Source: mallopt(3), M_MMAP_THRESHOLD, "dynamic mmap threshold".
"""

from __future__ import annotations

from functools import cache

import numpy as np

_LARGEST_BLOCK = 2**25 - 2**16
"""Bytes: glibc looks at freed blocks of up to 32 MiB, with their headers."""


@cache
def keep_freed_memory() -> None:
    """Frees one block of nearly 32 MiB that nobody has touched: blocks below it then come from the heap, which keeps up to 64 MiB free.

    Takes some microseconds, once in a process. Other C libraries ignore it.
    """
    np.empty(_LARGEST_BLOCK, np.uint8)
