"""The namespace `xp` of kernels on a card: the library's own, except for its differences from NumPy, which stand here with the reason.

An entry can go when the library does the same as NumPy, without a wait.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from hetero_core.kernels.registry import BOOL, COMPLEX, INTEGERS
from hetero_cupy.cupy_runtime import CupyCard

DTYPES = INTEGERS | COMPLEX | BOOL | {"float16", "float32", "float64"}
"""The element types of models that run on a card. CuPy 14.2 has bfloat16 in some functions only, and no 8-bit and 4-bit floats."""

# CuPy 14.2 writes at repeated indices by atomic instructions. Products and further element types have no atomic instruction.
ATOMIC_REDUCTIONS = frozenset({"none", "add", "max", "min"})
ATOMIC_DTYPES = frozenset({"float16", "float32", "float64", "int32", "uint32", "uint64"})


class CopyCounts:
    """Numbers and bytes of the copies of runs inside a network; the core counts the copies at the network's border."""

    def __init__(self) -> None:
        self._totals = [0, 0, 0, 0]
        self._lock = threading.Lock()

    def count(self, nbytes: int, *, is_write: bool) -> None:
        """Counts one copy from the host to the card, or else from the card to the host."""
        with self._lock:
            self._totals[2 * is_write] += 1
            self._totals[2 * is_write + 1] += nbytes

    def snapshot(self) -> tuple[int, ...]:
        """Returns reads, their bytes, writes, their bytes."""
        with self._lock:
            return tuple(self._totals)


class CardNamespace:
    """The namespace of a card, with the copies that kernels ask for counted in `traffic`."""

    def __init__(self, card: CupyCard, traffic: CopyCounts) -> None:
        self._card = card
        self._traffic = traffic

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._card.xp, name)
        setattr(self, name, attribute)
        return attribute

    def asarray(self, value: Any, dtype: Any = None, order: str | None = None) -> Any:
        """Returns an array on the card.

        CuPy would copy a Python number or a list from the host uncounted. Here a kernel fills in a number, its argument; a list or a
        host array is a counted copy.
        """
        if self._card.owns(value):
            # An array without elements, or with a single axis of size 1, counts as C-contiguous for any strides.
            array = value if dtype is None or value.dtype == dtype else value.astype(dtype)
            return array if order is None else self._card.xp.ascontiguousarray(array).reshape(array.shape)
        if isinstance(value, bool | int | float | complex | np.generic):
            return self._card.xp.full((), value, dtype=np.asarray(value).dtype if dtype is None else dtype)
        if isinstance(value, list | tuple) and any(hasattr(each, "dtype") and not isinstance(each, np.generic) for each in value):
            return self._card.xp.stack([self.asarray(element, dtype) for element in value])
        host = np.asarray(value, dtype=dtype)
        self._traffic.count(host.nbytes, is_write=True)
        return self._card.from_host(host)

    def argsort(self, array: Any, axis: int = -1, *, stable: bool = True) -> Any:
        """Returns the positions in ascending order. CuPy has no keyword `stable`: it always sorts so."""
        return self._card.xp.argsort(array, axis=axis, kind="stable")

    def nonzero(self, flags: Any) -> tuple[Any, ...]:
        """Returns the positions in a vector. The host needs their number for the next step: a counted read."""
        self._traffic.count(8, is_write=False)
        return (self._card.find_nonzero(flags),)
