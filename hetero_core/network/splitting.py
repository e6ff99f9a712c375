"""The bytes of a model without its large weights: the proto that is left, and each weight in memory of its own.

protobuf copies every weight out of the bytes that it parses, and a constant copies it once more. Here a weight is read once.
Rules: only the frame of the message is looked at, and protobuf parses all the rest of it; a message with an unusual frame is
not split, so that protobuf sees all of it and words the error. Source: protobuf's encoding, and onnx.proto for the numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
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
_WINDOW = 4096
# protobuf refuses messages of that size.
_LARGEST_MODEL = 2**31 - 1

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
    if not 0 < size <= _LARGEST_MODEL:
        return None
    try:
        return _Splitter(file, size, held).split()
    except _UnusualFrameError:
        return None


class _Splitter:
    def __init__(self, file: IO[bytes], size: int, held: HeldFile | None) -> None:
        self._file, self._size, self._held = file, size, held
        self._window, self._window_begin = b"", 0
        self._raw_data: dict[int, RawData] = {}

    def split(self) -> tuple[bytes, Mapping[int, RawData]]:
        pieces: list[bytes] = []
        has_graph = False
        for number, wire, begin, content, stop in self._walk(0, self._size):
            if number != _GRAPH:
                pieces.append(self._read(begin, stop))
                continue
            # protobuf would merge two graphs.
            if wire != _LENGTH or has_graph:
                raise _UnusualFrameError
            has_graph = True
            graph = self._split_graph(content, stop)
            pieces.append(_encode_field(_GRAPH, graph))
        return b"".join(pieces), self._raw_data

    def _split_graph(self, begin: int, end: int) -> bytes:
        pieces: list[bytes] = []
        position, copied = 0, begin
        for number, wire, start, content, stop in self._walk(begin, end):
            if number != _INITIALIZER:
                continue
            if wire != _LENGTH:
                raise _UnusualFrameError
            raw = self._find_raw(content, stop) if stop - content >= _SMALLEST_SPLIT else None
            if raw is not None:
                tensor = self._read(content, raw[0]) + _encode_field(_RAW, b"") + self._read(raw[2], stop)
                pieces += (self._read(copied, start), _encode_field(_INITIALIZER, tensor))
                copied = stop
                self._raw_data[position] = (
                    self._read(raw[1], raw[2]) if self._held is None else FileSpan(self._held, raw[1], raw[2])
                )
            position += 1
        pieces.append(self._read(copied, end))
        return b"".join(pieces)

    def _find_raw(self, begin: int, end: int) -> tuple[int, int, int] | None:
        """Returns the positions of the `raw_data` of a tensor, of its content and of the next field; None without `raw_data`."""
        raw_range = None
        for number, wire, start, content, stop in self._walk(begin, end):
            if number == _RAW:
                if wire != _LENGTH or raw_range is not None:
                    raise _UnusualFrameError
                raw_range = start, content, stop
        return raw_range

    def _walk(self, begin: int, end: int) -> Iterator[Field]:
        while begin < end:
            field = self._read_field(begin, end)
            yield field
            begin = field[-1]

    def _read_field(self, begin: int, end: int) -> Field:
        offset = begin - self._window_begin
        if offset < 0 or offset + _LONGEST_HEADER > len(self._window):
            self._file.seek(begin)
            self._window, self._window_begin, offset = self._file.read(_WINDOW), begin, 0
        window = self._window
        tag, content = _decode_varint(window, offset, _LONGEST_TAG)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise _UnusualFrameError
        if wire == _LENGTH:
            length, content = _decode_varint(window, content, _LONGEST_LENGTH)
            stop = content + length
        elif wire == _VARINT:
            stop = _decode_varint(window, content, _LONGEST_VARINT)[1]
        elif wire in _FIXED:
            stop = content + _FIXED[wire]
        else:
            raise _UnusualFrameError
        shift = self._window_begin
        if stop + shift > end:
            raise _UnusualFrameError
        return number, wire, begin, content + shift, stop + shift

    def _read(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        content = self._file.read(end - begin)
        if len(content) != end - begin:
            raise _UnusualFrameError
        return content


def _decode_varint(window: bytes, offset: int, longest: int) -> tuple[int, int]:
    """Returns a number of at most `longest` bytes, and the position after it."""
    number = shift = 0
    for byte in window[offset : offset + longest]:
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, offset
        shift += 7
    raise _UnusualFrameError


def _encode_field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | _LENGTH) + encode_varint(len(content)) + content


def encode_varint(number: int) -> bytes:
    """Returns a number of 0 or more as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
