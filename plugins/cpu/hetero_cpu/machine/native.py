"""Calls of machine code, as a run makes them: which kernel, its numbers, and into how many chunks its work is cut.

Among its numbers an address is an `Address`, which knows its array, and every other integer is a size, a stride, a count or the bits of a
float. Arrays that a call reads hold no addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.planning.addresses import Address

if TYPE_CHECKING:
    from hetero_cpu.open.arrays import OpenArray
    from hetero_cpu.planning.weights import LaterArray

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """One call of a kernel for each of `chunks` chunks, in any order, by any thread; the call is over when all of them are.

    The kernel gets the address of `numbers` (int64), the chunk, and the number of the thread, below the `workers` that the plan was
    made for. Chunks write to different memory; what is only of a thread, as working memory, is told apart by its number. `keep` holds
    what the addresses point to.
    """

    kernel: Kernel
    numbers: tuple[int, ...]
    chunks: int
    keep: tuple[object, ...] = field(default=(), repr=False)


def address_of(array: Array | LaterArray | OpenArray) -> int:
    """Returns the address of the first element: an `Address`, or an expression of symbols where the array is open.

    An array that is only promised is made now.
    """
    if isinstance(array, np.ndarray):
        return Address(array.__array_interface__["data"][0], array)
    from hetero_cpu.open.arrays import OpenArray  # a plan that is read has neither of the two

    if isinstance(array, OpenArray):
        address: int = array.address
        return address
    memory = array.get()
    return Address(memory.__array_interface__["data"][0], memory)


def list_strides(name: str, array: Array | None) -> dict[str, int]:
    """Returns the address of images and their strides from image to image, row to row and pixel to pixel; nothing for no array."""
    if array is None:
        return {}
    image, _, row, pixel = array.strides
    return {name: address_of(array), f"{name}_image": image, f"{name}_row": row, f"{name}_pixel": pixel}


def list_addresses(call: NativeCall) -> Iterator[tuple[int, Address]]:
    """Yields the addresses among the numbers of a call, each with its position."""
    for position, number in enumerate(call.numbers):
        if isinstance(number, Address):
            yield position, number


def bits_of(number: float) -> int:
    """Returns the bits of a float32 as a number of a row; `Code.float_of` turns it back."""
    return int(np.float32(number).view(np.int32))


NativeStepFunction = Callable[[Any], Any]
NATIVE_STEP_FUNCTIONS: dict[str, list[NativeStepFunction]] = {}


def native_step(*op_types: str) -> Callable[[NativeStepFunction], NativeStepFunction]:
    """Registers a function Site -> Recipe (with `kernels`) or None for operators of ONNX's own domain, as `recipe.step` does."""

    def register(function: NativeStepFunction) -> NativeStepFunction:
        for op_type in op_types:
            NATIVE_STEP_FUNCTIONS.setdefault(op_type, []).append(function)
        return function

    return register
