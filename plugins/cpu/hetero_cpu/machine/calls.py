"""Calls of machine code, as a run makes them: which kernel, its numbers, and into how many chunks its work is cut.

A number is an address, a size, a stride, a count or the bits of a float. Arrays that a call reads hold no addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_cpu.machine.compiler import Kernel

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """One call of a kernel for each of `chunks` chunks, in any order, by any thread; the call is over when all of them are.

    The kernel gets the address of `numbers` (int64), the chunk, and the number of the thread, below the `workers` that the plan was
    made for. Chunks write to different memory; working memory of a thread is found by its number. `keep` holds
    the memory that the addresses point to.
    """

    kernel: Kernel
    numbers: tuple[int, ...]
    chunks: int
    keep: tuple[object, ...] = field(default=(), repr=False)


def address_of(array: Any) -> int:
    """Returns the address of the first element of an array; of an open or a lazy array what it says, symbols or that of the made array."""
    address: int = array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.address
    return address


def list_strides(name: str, array: Array | None) -> dict[str, int]:
    """Returns the address of images and their strides from image to image, row to row and pixel to pixel; nothing for no array."""
    if array is None:
        return {}
    image, _, row, pixel = array.strides
    return {name: address_of(array), f"{name}_image": image, f"{name}_row": row, f"{name}_pixel": pixel}


def bits_of(number: float) -> int:
    """Returns the bits of a float32 as a number of a row; `Code.float_of` turns it back."""
    return int(np.float32(number).view(np.int32))
