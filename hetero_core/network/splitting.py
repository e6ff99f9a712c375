"""The bytes of a model without its large weights: the proto that is left, and each weight in memory of its own.

protobuf copies every weight out of the bytes that it parses, and a constant copies it once more. Here a weight is read once.
Rules: only the frame of the message is looked at, and protobuf parses all the rest of it; a message with an unusual frame is
not split, so that protobuf sees all of it and words the error. Source: protobuf's encoding, and onnx.proto for the numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO
from weakref import finalize

from hetero_core.errors import NetworkReadError

# The fields ModelProto.graph, GraphProto.initializer and TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW = 7, 5, 9
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_LONGEST_TAG, _LONGEST_LENGTH, _LONGEST_VARINT = 5, 5, 10
_LONGEST_HEADER = _LONGEST_TAG + _LONGEST_VARINT
# A smaller tensor is protobuf's.
_SMALLEST_SPLIT = 4096
LARGEST_MODEL = 2**31 - 1
"""Bytes; protobuf reads and writes no more."""

Field = tuple[int, int, int, int, int]
"""Number, wire type, and the positions of the field, of its content and of the next field."""


class HeldFile:
    """A model's file that stays open while a network reads weights from it, also after its name is gone. Safe for threads.

    Weights that a device packs are read from here when they are needed, so a process does not hold them twice.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        """Duplicates `descriptor`; the caller closes its own."""
        self._descriptor = os.dup(descriptor)
        finalize(self, os.close, self._descriptor)
        self._path = path
        self._state = self._read_state()

    def read(self, begin: int, end: int) -> bytes:
        """Returns the bytes from `begin` to `end`. Raises: NetworkReadError if the file was changed since this object was made."""
        try:
            content = os.pread(self._descriptor, end - begin, begin)
        except OSError as error:
            raise NetworkReadError(
                f"cannot read weights from '{self._path}': {error.strerror}. Check the file, then load the network again."
            ) from error
        # Asked after the read, to see a write that came during it.
        if len(content) < end - begin or self._read_state() != self._state:
            raise NetworkReadError(
                f"cannot read weights from '{self._path}': the file was changed after the network was loaded from it. Load it again; a "
                "network that is to outlive changes of its file is read first: core.load_network(core.read_network(path), ...)."
            )
        return content

    def _read_state(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes of a file, from `begin` to `end`."""

    file: HeldFile
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def read(self) -> bytes:
        """Returns the bytes. Raises: NetworkReadError if the file was changed."""
        return self.file.read(self.begin, self.end)


RawData = bytes | FileSpan
"""The source of a weight: its bytes, or their place in a file."""


NO_RAW_DATA: Mapping[int, RawData] = MappingProxyType({})
"""The raw data beside a proto that holds all of its weights: none."""


class _UnusualFrameError(Exception):
    """The message is damaged, or framed in a legal way that no writer uses."""


def split_model(file: IO[bytes], held: HeldFile | None = None) -> tuple[bytes, Mapping[int, RawData]] | None:
    """Returns a model whose large initializers have an empty `raw_data`, the skeleton, and the removed bytes by their position in the
    graph; None for a model that is to be parsed as a whole, in particular a damaged model.

    A skeleton that protobuf parses stands for a model that it parses, with the same fields except for the weights. With `held`, the same
    file, weights are not read but later, each time when they are needed.

    Raises: OSError of the file.
    """
    size = file.seek(0, os.SEEK_END)
    if not 0 < size <= LARGEST_MODEL:
        return None
    try:
        return _Splitter(file, size, held).split()
    except _UnusualFrameError:
        return None


class _Splitter:
    def __init__(self, file: IO[bytes], size: int, held: HeldFile | None) -> None:
        self._file, self._size, self._held = file, size, held
        self._has_graph = False
        self._position = -1
        self._raw_data: dict[int, RawData] = {}

    def split(self) -> tuple[bytes, Mapping[int, RawData]]:
        return self._replace(0, self._size, _GRAPH, self._split_graph), self._raw_data

    def _split_graph(self, begin: int, end: int) -> bytes:
        # protobuf would merge two graphs.
        if self._has_graph:
            raise _UnusualFrameError
        self._has_graph = True
        return self._replace(begin, end, _INITIALIZER, self._split_tensor)

    def _split_tensor(self, begin: int, end: int) -> bytes | None:
        self._position += 1
        if end - begin < _SMALLEST_SPLIT:
            return None
        tensor = self._replace(begin, end, _RAW, self._take_raw)
        return tensor if self._position in self._raw_data else None

    def _take_raw(self, begin: int, end: int) -> bytes:
        if self._position in self._raw_data:
            raise _UnusualFrameError
        self._raw_data[self._position] = self._read(begin, end) if self._held is None else FileSpan(self._held, begin, end)
        return b""

    def _replace(self, begin: int, end: int, number: int, change: Callable[[int, int], bytes | None]) -> bytes:
        """Returns a message with the content of each field of a number that `change` gives; None leaves the field as it is."""
        pieces: list[bytes] = []
        for field, wire, start, content, stop in self._walk(begin, end):
            if field != number:
                continue
            if wire != _LENGTH:
                raise _UnusualFrameError
            changed = change(content, stop)
            if changed is not None:
                pieces += (self._read(begin, start), encode_varint(number << 3 | _LENGTH), encode_varint(len(changed)), changed)
                begin = stop
        pieces.append(self._read(begin, end))
        return b"".join(pieces)

    def _walk(self, begin: int, end: int) -> Iterator[Field]:
        while begin < end:
            self._file.seek(begin)
            header = self._file.read(_LONGEST_HEADER)
            tag, content = _decode_varint(header, 0, _LONGEST_TAG)
            number, wire = tag >> 3, tag & 7
            if wire == _LENGTH:
                length, content = _decode_varint(header, content, _LONGEST_LENGTH)
                stop = begin + content + length
            elif wire == _VARINT:
                stop = begin + _decode_varint(header, content, _LONGEST_VARINT)[1]
            elif wire in _FIXED:
                stop = begin + content + _FIXED[wire]
            else:
                raise _UnusualFrameError
            if number == 0 or stop > end:
                raise _UnusualFrameError
            yield number, wire, begin, begin + content, stop
            begin = stop

    def _read(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        content = self._file.read(end - begin)
        if len(content) != end - begin:
            raise _UnusualFrameError
        return content


def _decode_varint(encoded: bytes, offset: int, longest: int) -> tuple[int, int]:
    """Returns a number of at most `longest` bytes, and the position after it."""
    number = shift = 0
    for byte in encoded[offset : offset + longest]:
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, offset
        shift += 7
    raise _UnusualFrameError


def encode_varint(number: int) -> bytes:
    """Returns a number of 0 or more as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
