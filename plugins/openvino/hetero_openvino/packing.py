"""Arrays of element types that the engine packs, two elements to a byte; NumPy holds one element in a byte."""

from __future__ import annotations

from typing import Any

import numpy as np

PACKED = frozenset({"float4e2m1", "int4", "uint4"})


def pack_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the elements two to a byte, the first in the low half; the last half is 0 if their number is odd."""
    halves: np.ndarray[Any, np.dtype[np.uint8]] = array.reshape(-1).view(np.uint8) & np.uint8(0xF)
    if halves.size % 2:
        halves = np.append(halves, np.uint8(0))
    return halves[0::2] | (halves[1::2] << np.uint8(4))


def unpack_array(packed: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns an array of this shape and type from bytes of two elements each."""
    raw = packed.reshape(-1).view(np.uint8)
    halves = np.stack([raw & 0xF, raw >> 4], axis=1).reshape(-1)[: int(np.prod(shape, dtype=np.int64))]
    if dtype.name == "int4":
        # The sign reaches through the upper half of the byte.
        halves = ((halves ^ 8).astype(np.int8) - 8).view(np.uint8)
    return halves.view(dtype).reshape(shape)
