"""The sources of external weights: files of the model's folder, or a buffer.

Rules: a file is mapped on the first use of a weight, once for all weights in it; nothing outside the folder is ever opened;
offsets and lengths are checked against the file when the model is read.
"""

from __future__ import annotations

import io
import mmap
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hetero_core.errors import NetworkNotFoundError, NetworkReadError
from hetero_core.files import open_unlinked

if TYPE_CHECKING:
    import onnx

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Located: TypeAlias = tuple[Callable[[], Bytes], Callable[[], None] | None]

# ONNX Runtime writes such locations for weights that live in its process; the offset is a raw address.
_MEMORY_ADDRESS = "_ORT_MEM_ADDR_"


class WeightFiles:
    """The external weights of a model in a folder; without a folder there are no weights."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._files: dict[str, MappedFile] = {}

    def locate(self, entries: Iterable[onnx.StringStringEntryProto], size: int, owner: str) -> Located:
        """Returns a function that maps the file and gives a view of it, and one that gives its memory back to the system.

        Raises: NetworkReadError for a place that is not there.
        """
        fields = {entry.key: entry.value for entry in entries}
        location = fields.get("location", "")
        file = self._files.get(location)
        if file is None:
            file = self._files[location] = MappedFile(self._resolve(location, owner))
        offset = read_span(fields, size, file.size, owner, f"weights file '{location}'")
        return partial(file.view, offset, size), partial(file.drop_pages, offset, size)

    def _resolve(self, location: str, owner: str) -> str:
        if _MEMORY_ADDRESS in location:
            raise NetworkReadError(
                f"{owner} points into the memory of another program (location '{location}'); "
                "write the model out with its weights, then read that."
            )
        if not location:
            raise NetworkReadError(f"{owner} has external weights without a location; write the model again with its weights.")
        if "\0" in location:
            raise NetworkReadError(f"{owner} has its weights in {location!r}; a path holds no zero byte. Export the model again.")
        inside = os.path.normpath(location.replace("\\", "/"))
        first = inside.split("/")[0]
        if os.path.isabs(inside) or ":" in first or first == "..":
            raise NetworkReadError(
                f"{owner} has its weights in '{location}'; expected a path inside the folder of the model. "
                "Move the weights beside the model."
            )
        if self._folder is None:
            raise NetworkReadError(
                f"{owner} has its weights in the file '{location}', but the model was not read from a file; "
                "pass base=FOLDER with the folder that holds it."
            )
        folder = os.path.realpath(self._folder)
        path = os.path.realpath(os.path.join(folder, inside))
        if os.path.commonpath([folder, path]) != folder:
            raise NetworkReadError(
                f"{owner} has its weights in '{location}', a link to '{path}' outside the folder '{folder}' of the model. "
                "Copy the weights beside the model."
            )
        if not os.path.isfile(path):
            raise NetworkNotFoundError(f"{owner} has its weights in '{path}', which is missing. Put the file there.")
        return path


class MappedFile:
    """A file that is mapped into memory, read-only, when its bytes are first asked for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self.size = os.path.getsize(path)

    def view(self, offset: int, size: int) -> Bytes:
        """Returns `size` bytes at `offset` without a copy. Raises: NetworkReadError."""
        if not size:
            return np.empty(0, np.uint8)
        mapping = self._map = self._map or self._map_file()
        if mapping is None or len(mapping) < offset + size:
            raise NetworkReadError(f"weights file '{self._path}' became shorter since the model was read; read the model again.")
        return np.frombuffer(mapping, np.uint8, size, offset)

    def drop_pages(self, offset: int, size: int) -> None:
        """Gives the memory of `size` bytes at `offset` back to the system; views of them stay valid and read the file again."""
        begin = offset - offset % mmap.PAGESIZE
        # Only Linux has this call; the rest take pages back by themselves when memory is short.
        if self._map is not None and hasattr(self._map, "madvise") and size:
            self._map.madvise(mmap.MADV_DONTNEED, begin, offset + size - begin)

    def _map_file(self) -> mmap.mmap | None:
        try:
            # The path was resolved: a link in its place was put there afterwards.
            with io.FileIO(open_unlinked(self._path, os.O_RDONLY)) as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else None
        except OSError as error:
            raise NetworkReadError(
                f"cannot read weights from '{self._path}': {error.strerror}. Check the file and who may read it."
            ) from error


class WeightBuffer:
    """External weights in a buffer; their location is ignored."""

    def __init__(self, buffer: Bytes) -> None:
        self._buffer = buffer

    def locate(self, entries: Iterable[onnx.StringStringEntryProto], size: int, owner: str) -> Located:
        """Returns a function that gives a view of the buffer. Raises: NetworkReadError."""
        fields = {entry.key: entry.value for entry in entries}
        offset = read_span(fields, size, self._buffer.size, owner, "the weights section")
        return lambda: self._buffer[offset : offset + size], None


WeightSource = WeightFiles | WeightBuffer


def read_span(fields: dict[str, str], size: int, available: int, owner: str, place: str) -> int:
    """Returns the offset of a weight of `size` bytes after checking that it lies within the `available` bytes of `place`.

    Raises: NetworkReadError.
    """
    offset = _read_count(fields, "offset", 0, owner)
    length = _read_count(fields, "length", size, owner)
    if length != size:
        raise NetworkReadError(
            f"{owner} takes {size} bytes by its type and shape, but {length} are stored for it in {place}. "
            "Copy the weights again, or export the model again."
        )
    if offset + length > available:
        raise NetworkReadError(
            f"{owner} takes bytes {offset} to {offset + length} of {place}, which has only {available}. "
            "Copy the weights again, or export the model again."
        )
    return offset


def _read_count(fields: dict[str, str], key: str, default: int, owner: str) -> int:
    text = fields.get(key)
    if text is None:
        return default
    # Not int(): it takes signs, spaces and underscores, and a very long text takes it long.
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise NetworkReadError(f"{owner} has the external {key} '{text[:40]}'; expected a number of bytes. Export the model again.")
    return int(text)
