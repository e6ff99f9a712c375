"""Arrays in memory that child processes can map: PROCESS lets a device read such an input in place.

create_shared_array ──> array ══ block (a file without a name) ══ the same pages, read-only, in each child that was given it
"""

from __future__ import annotations

import mmap
import os
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero_core.errors import DeviceUnavailableError

Array = np.ndarray[Any, Any]


class SharedBlock(mmap.mmap):
    """The memory of an array. `file` is the descriptor that a child maps it by; both are freed with the last view of the array."""

    file: int
    address: int

    def __del__(self) -> None:
        os.close(self.file)


def create_shared_array(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
    """Returns an array of zeros that a device on PROCESS reads without a copy when it, or a view of it in C order, is an input.

    It is an ordinary array otherwise: fill it, slice it, give it to any device. Do not write to it while a run reads it. Each request that
    is given an array for the first time sends its descriptor to the child, some 20 microseconds; later runs send nothing.

    Raises: DeviceUnavailableError on systems without the kernel's means; TypeError for elements that are Python objects or texts;
    OSError if the system has no memory or descriptor left.
    """
    if not hasattr(os, "memfd_create"):
        raise DeviceUnavailableError("shared arrays need memfd_create, which Linux alone has; use an array of NumPy")
    element, sizes = np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
    if element.kind in "OUS":
        raise TypeError(f"a shared array holds numbers; got elements of type {element}")
    nbytes = max(element.itemsize * prod(sizes), 1)
    file = os.memfd_create("hetero", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, nbytes)
        block = SharedBlock(file, nbytes)
    except BaseException:
        os.close(file)
        raise
    block.file = file
    block.address = int(np.frombuffer(block, np.uint8).ctypes.data)
    return np.ndarray(sizes, element, block)


def find_block(array: Array) -> SharedBlock | None:
    """Returns the block that an array lies in; None for memory that is not shared, or elements that are not in C order."""
    memory: object = array.base
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return memory if isinstance(memory, SharedBlock) and array.flags.c_contiguous else None
