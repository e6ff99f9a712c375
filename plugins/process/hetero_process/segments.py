"""Arrays in memory that two processes share. One side writes a block, the other reads it; what stands where is said once.

    writer: values ──(one copy each)──> block ══ same pages ══> views: reader

A block grows by being replaced; views of the old one stay good as long as somebody holds them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.remote.values import dump_value, load_value

_ALIGNMENT = 64
Signature = tuple[tuple[Any, tuple[int, ...]] | None, ...]


class Writer:
    """The block that this side writes, for one request."""

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self.views: tuple[Any, ...] = ()

    def place(self, values: Sequence[Any]) -> tuple[bytes, int | None]:
        """Copies values into the block. Returns what to tell the reader, empty where all lies as before, and a new block's descriptor.

        The descriptor is to be sent and closed. An array that lies in the block already, as a preset output, is not copied.
        """
        if self._block is not None and self._fill(values):
            return b"", None
        signature = tuple(_describe(value) for value in values)
        offsets, size = _lay_out(signature)
        file = self._grow(size) if self._block is None or size > len(self._block) else None
        assert self._block is not None
        self.views = tuple(
            None if each is None else np.ndarray(each[1], each[0], self._block, offset)
            for each, offset in zip(signature, offsets, strict=True)
        )
        for value, view in zip(values, self.views, strict=True):
            if view is not None:
                view[...] = value
        places = tuple(
            (offset, dtype_of_numpy(each[0]), each[1]) if each is not None else (value,)
            for each, offset, value in zip(signature, offsets, values, strict=True)
        )
        return dump_value(places), file

    def _fill(self, values: Sequence[Any]) -> bool:
        """Copies values to where those before them lie; False, and it is all to be done anew, where one has another type or shape."""
        if len(values) != len(self.views):
            return False
        for value, view in zip(values, self.views, strict=True):
            if view is None or not isinstance(value, np.ndarray) or value.shape != view.shape or value.dtype != view.dtype:
                return False
            if value is not view:
                view[...] = value
        return True

    def _grow(self, size: int) -> int:
        room = max(size + size // 4, mmap.PAGESIZE)
        file = os.memfd_create("hetero", os.MFD_CLOEXEC)
        os.ftruncate(file, room)
        self._block = mmap.mmap(file, room)
        return file


class Reader:
    """The block that the other side writes, for one request."""

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self._views: tuple[Any, ...] = ()

    def read(self, text: bytes, file: int | None) -> tuple[Any, ...]:
        """Returns the values that the writer placed; arrays are views. Takes over the descriptor."""
        if file is not None:
            try:
                self._block = mmap.mmap(file, os.fstat(file).st_size)
            finally:
                os.close(file)
        if text:
            self._views = tuple(self._find(place) for place in load_value(text))
        return self._views

    def _find(self, place: tuple[Any, ...]) -> Any:
        if len(place) == 1:
            return place[0]
        assert self._block is not None
        offset, dtype, shape = place
        return np.ndarray(shape, numpy_dtype(dtype), self._block, offset)


def _describe(value: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Returns type and shape of an array that can lie in a block; None for texts, lists and absent values, which are told."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
        return value.dtype, value.shape
    return None


def _lay_out(signature: Signature) -> tuple[list[int], int]:
    offsets, end = [], 0
    for each in signature:
        offsets.append(end)
        if each is not None:
            nbytes = each[0].itemsize * int(np.prod(each[1], dtype=np.int64))
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end
