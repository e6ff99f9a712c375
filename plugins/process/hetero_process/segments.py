"""Arrays in memory that two processes share. The writer fills a block that the reader has mapped; positions are sent once.

    writer: values ──(a copy each)────> block ══ same pages ══> views: reader
            shared arrays ════════════════════ same pages ══> views: reader

A block, a file without a name, grows by being replaced; views of the old block stay valid. An array of `create_shared_array` is not
copied: the reader maps its block, read-only. When that block is freed, the writer says so with the request's next change of shapes or
shared arrays, and the reader drops its mapping.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt

from hetero_core.dtypes import dtype_of_numpy, numpy_dtype
from hetero_core.errors import DeviceUnavailableError
from hetero_core.remote.values import dump_value, load_value

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


_ALIGNMENT = 64
_MOST_FILES = 200
"""Descriptors in a message; the kernel takes 253."""
_NO_VIEW = object()
"""Stands for the view of a value that is not copied into the block."""


class Writer:
    """The block that this side writes, for a request. `copied_bytes` counts the bytes that the last call of `place` copied."""

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self.views: tuple[Any, ...] = ()
        self.copied_bytes = 0
        self._placed: tuple[tuple[Any, ...], ...] = ()
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
        # Texts, lists and absent values are sent in the message.
        is_copied = [
            not number and isinstance(value, np.ndarray) and value.dtype.kind not in "OUS"
            for value, number in zip(values, numbers, strict=True)
        ]
        sizes = (-(-value.nbytes // _ALIGNMENT) * _ALIGNMENT if own else 0 for value, own in zip(values, is_copied, strict=True))
        *offsets, size = accumulate(sizes, initial=0)
        file = None
        if self._block is None or size > len(self._block):
            room = max(size + size // 4, mmap.PAGESIZE)
            file = os.memfd_create("hetero", os.MFD_CLOEXEC)
            os.ftruncate(file, room)
            self._block = mmap.mmap(file, room)
        views, placed, places = [], [], []
        self.copied_bytes = 0
        view: Any
        place: tuple[Any, ...]
        entry: tuple[Any, ...]
        for value, number, offset, is_own in zip(values, numbers, offsets, is_copied, strict=True):
            view, place, entry = None, (value,), (_NO_VIEW, None, None, None)
            if number:
                entry = _NO_VIEW, ref(value), value.shape, value.dtype
                block = find_block(value)
                assert block is not None
                place = number, int(value.ctypes.data) - block.address, dtype_of_numpy(value.dtype), value.shape
            elif is_own:
                view = np.ndarray(value.shape, value.dtype, self._block, offset)
                view[...] = value
                self.copied_bytes += view.nbytes
                entry = view, None, view.shape, view.dtype
                place = 0, offset, dtype_of_numpy(value.dtype), value.shape
            views.append(view)
            placed.append(entry)
            places.append(place)
        self.views, self._placed = tuple(views), tuple(placed)
        gone = [number for number, block in self._mapped.items() if block() is None]
        for number in gone:
            del self._mapped[number]
        return dump_value((tuple(places), file is not None, list(files), gone)), file, tuple(files.values())

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
