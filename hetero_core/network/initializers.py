"""Initializer: a constant of a network. Its type is known at once, its array is made on first use. Imports no array library at run time."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from hetero_core.dtypes import bits_of_dtype
from hetero_core.network.arrays import digest_array, require_dtype
from hetero_core.network.types import TensorType


class Initializer:
    """A constant of a network: its type is known at once, its array is made on first use and kept, read-only and shared.

    Networks and their parts hold the same object, so weights are never copied between parts. A *renewable* constant can make its
    array again, the same each time, and drops it on `release`.
    """

    __slots__ = ("_array", "_digest", "_drop_pages", "_let_go", "_load", "dtype", "is_renewable", "shape")

    def __init__(
        self,
        dtype: str,
        shape: tuple[int, ...],
        load: Callable[[], np.ndarray[Any, Any]],
        *,
        is_renewable: bool = False,
        array: np.ndarray[Any, Any] | None = None,
        drop_pages: Callable[[], None] | None = None,
    ) -> None:
        """`load` makes the array, if `is_renewable` as often as it is called; `array` is the array if it is made already.

        `drop_pages` gives the memory of an array in a mapped file back to the system.
        """
        self.dtype = dtype
        self.shape = shape
        self._load: Callable[[], np.ndarray[Any, Any]] | None = load
        self.is_renewable = is_renewable
        """Says whether `release` frees memory."""
        self._drop_pages = drop_pages
        self._array = None if array is None else _protect(array)
        self._let_go: ReferenceType[np.ndarray[Any, Any]] | None = None
        self._digest: bytes | None = None

    @classmethod
    def of_array(cls, array: np.ndarray[Any, Any]) -> Initializer:
        """Returns an initializer over the array's own memory; the caller must not write to it afterwards.

        Raises: InvalidNetworkError when ONNX has no such element type.
        """
        return cls(require_dtype(array), tuple(array.shape), lambda: array)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The array, C-contiguous and read-only; made on the first call. Two threads may both make it; a single result stays."""
        array = self._array
        if array is None:
            # Another thread may have just made it, and dropped `load`; or an earlier caller still holds it.
            load, let_go = self._load, self._let_go
            array = self._array if let_go is None else let_go()
            if array is None:
                assert load is not None
                array = _protect(load())
            self._array = array
            if not self.is_renewable:
                self._load = None
        return array

    @property
    def held(self) -> np.ndarray[Any, Any] | None:
        """The array if it is in memory; None if it would have to be made."""
        array = self._array
        return array if array is not None or self._let_go is None else self._let_go()

    def release(self) -> None:
        """Drops the reference to an array that can be made again: holders keep theirs, the next access returns the same array or
        makes it again."""
        array = self._array
        if self.is_renewable and array is not None:
            self._let_go, self._array = ref(array), None
        self.drop_pages()

    def drop_pages(self) -> None:
        """Gives the memory of an array in a mapped file back to the system: the array stays valid, and its next reader reads the file."""
        if self._drop_pages is not None and self._array is not None:
            self._drop_pages()

    @property
    def is_mapped(self) -> bool:
        """Says whether `drop_pages` frees memory."""
        return self._drop_pages is not None

    @property
    def digest(self) -> bytes:
        """SHA-256 over type, shape and contents; made on the first call and kept, as parts of a network share their constants."""
        if self._digest is None:
            is_held = self._array is not None
            self._digest = digest_array(self.array)
            if not is_held:
                self.release()
        return self._digest

    @property
    def type(self) -> TensorType:
        """The type of the constant."""
        return TensorType(self.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array in memory; a string counts as a pointer."""
        bits = bits_of_dtype(self.dtype)
        return prod(self.shape) * (8 if bits is None else max(bits // 8, 1))


def _protect(array: np.ndarray[Any, Any] | np.generic[Any]) -> np.ndarray[Any, Any]:
    array = np.asarray(array)  # NumPy's arithmetic returns a scalar for arrays without dimensions
    view = array.view() if array.flags.c_contiguous else array.copy(order="C")
    view.flags.writeable = False
    return view
