"""Arrays in memory that two processes share. The writer fills a block that the reader has mapped; positions are sent once.

    writer: values ──(a copy each)────> block ══ same pages ══> views: reader
            shared arrays ════════════════════ same pages ══> views: reader

A block grows by being replaced; views of the old block stay valid. An array that lies in a shared block of
the caller's (shared.py) is not copied: the reader maps that block. When that block is freed, the writer says so with the request's
next change of shapes or shared arrays, and the reader drops its mapping.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.remote.values import dump_value, load_value
from hetero_process.shared import SharedBlock, find_block

_ALIGNMENT = 64
_MOST_FILES = 200
"""Descriptors in a message; the kernel takes 253."""
_NO_VIEW = object()
"""Stands for the view of a value that is not copied into the block."""
Signature = tuple[tuple[Any, tuple[int, ...]] | None, ...]


class Writer:
    """The block that this side writes, for a request. `copied_bytes` counts the bytes that the last call of `place` copied."""

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self.views: tuple[Any, ...] = ()
        self.copied_bytes = 0
        self._placed: tuple[tuple[Any, Callable[[], Any] | None, Any, Any], ...] = ()
        """For each value its view in the block, or the array if it lies in a shared block of the caller, and the shape and type."""
        # The blocks of callers that the reader has mapped, by number.
        self._mapped: dict[int, ReferenceType[SharedBlock]] = {}
        self._count = 0

    def place(self, values: Sequence[Any]) -> tuple[bytes, int | None, tuple[int, ...]]:
        """Copies values into the block. Returns the message for the reader, empty if the layout is unchanged; the descriptor of a
        new block, to be sent and closed; and the descriptors of the caller's blocks, to be sent after it.

        An array that lies in the block already, as a preset output, is not copied, nor is an array in a shared block of the caller.
        """
        if self._block is not None and self._fill(values):
            return b"", None, ()
        numbers, files = self._borrow(values)
        signature = tuple(None if number else _describe(value) for value, number in zip(values, numbers, strict=True))
        offsets, size = _lay_out(signature)
        own = self._grow(size) if self._block is None or size > len(self._block) else None
        assert self._block is not None
        self.views = tuple(
            None if each is None else np.ndarray(each[1], each[0], self._block, offset)
            for each, offset in zip(signature, offsets, strict=True)
        )
        self._placed = tuple(map(_describe_place, values, self.views, numbers))
        self._copy(values)
        places = tuple(map(_name_place, values, signature, offsets, numbers))
        gone = [number for number, block in self._mapped.items() if block() is None]
        for number in gone:
            del self._mapped[number]
        return dump_value((places, own is not None, list(files), gone)), own, tuple(files.values())

    def _borrow(self, values: Sequence[Any]) -> tuple[list[int], dict[int, int]]:
        """Returns the number of each value's block, 0 if the value is not in a shared block; and the descriptors of blocks that the
        reader does not have yet, by number.
        """
        number_of_block = {id(block): number for number, held in self._mapped.items() if (block := held()) is not None}
        numbers: list[int] = []
        files: dict[int, int] = {}
        for value in values:
            block = find_block(value) if isinstance(value, np.ndarray) else None
            if block is None or (id(block) not in number_of_block and len(files) == _MOST_FILES):
                numbers.append(0)
                continue
            if id(block) not in number_of_block:
                self._count += 1
                number_of_block[id(block)] = self._count
                self._mapped[self._count] = ref(block)
                files[self._count] = block.file
            numbers.append(number_of_block[id(block)])
        return numbers, files

    def _fill(self, values: Sequence[Any]) -> bool:
        """Copies values over the previous values; False if a value has a new type or shape, or is a new array in a shared block."""
        if len(values) != len(self._placed):
            return False
        copied = 0
        for value, (view, array, shape, dtype) in zip(values, self._placed):  # noqa: B905  # compared above; strict takes 0.13 us
            if value is view:
                continue
            if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
                return False
            if array is not None:
                if array() is not value:
                    return False
                continue
            if value.base is not None and find_block(value) is not None:
                return False
            view[...] = value
            copied += view.nbytes
        self.copied_bytes = copied
        return True

    def _copy(self, values: Sequence[Any]) -> None:
        copied = 0
        for value, view in zip(values, self.views, strict=True):
            if view is not None and value is not view:
                view[...] = value
                copied += view.nbytes
        self.copied_bytes = copied

    def _grow(self, size: int) -> int:
        room = max(size + size // 4, mmap.PAGESIZE)
        file = os.memfd_create("hetero", os.MFD_CLOEXEC)
        os.ftruncate(file, room)
        self._block = mmap.mmap(file, room)
        return file


class Reader:
    """The block that the peer writes, for a request."""

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self._mapped: dict[int, mmap.mmap] = {}
        self._views: tuple[Any, ...] = ()

    def read(self, text: bytes, files: Sequence[int]) -> tuple[Any, ...]:
        """Returns the values that the writer placed; arrays are views, read-only in the caller's blocks. Takes over descriptors."""
        if not text:
            return self._views
        places, is_new, numbers, gone = load_value(text)
        try:
            for number, file in zip(([0] if is_new else []) + numbers, files, strict=True):
                size = os.fstat(file).st_size
                if number:
                    self._mapped[number] = mmap.mmap(file, size, prot=mmap.PROT_READ)
                else:
                    self._block = mmap.mmap(file, size)
        finally:
            for file in files:
                os.close(file)
        self._views = tuple(self._find(place) for place in places)
        for number in gone:
            del self._mapped[number]
        return self._views

    def _find(self, place: tuple[Any, ...]) -> Any:
        if len(place) == 1:
            return place[0]
        number, offset, dtype, shape = place
        return np.ndarray(shape, numpy_dtype(dtype), self._mapped[number] if number else self._block, offset)


def _describe_place(value: Any, view: Any, number: int) -> tuple[Any, Callable[[], Any] | None, Any, Any]:
    """Returns the entry of a value for `_placed`."""
    if number:
        return _NO_VIEW, ref(value), value.shape, value.dtype
    return (_NO_VIEW, None, None, None) if view is None else (view, None, view.shape, view.dtype)


def _name_place(value: Any, description: tuple[Any, tuple[int, ...]] | None, offset: int, number: int) -> tuple[Any, ...]:
    """Returns the place of a value for the reader: the number of its block, 0 for this side's own, its offset, type and shape; or the
    value itself."""
    if number:
        block = find_block(value)
        assert block is not None
        return number, int(value.ctypes.data) - block.address, dtype_of_numpy(value.dtype), value.shape
    if description is None:
        return (value,)
    return 0, offset, dtype_of_numpy(description[0]), description[1]


def _describe(value: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Returns type and shape of an array that can lie in a block; None for texts, lists and absent values, sent in the message."""
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
