"""Bytes in and out of the streams that a container is written to and read from. Raw, short and closed streams are met here."""

from __future__ import annotations

import io
from typing import IO, Any

from hetero_core.errors import BlobDamagedError, BlobError

_PIECE_SIZE = 1 << 24


def require_binary(stream: object) -> None:
    """Raises BlobError for a stream of text."""
    if isinstance(stream, io.TextIOBase):
        raise BlobError(f"cannot write a blob to {name_stream(stream)}: it takes text; open it for bytes, as with mode 'wb'")


def write_whole(stream: IO[bytes], piece: bytes | memoryview) -> None:
    """Writes all of a piece; a raw stream, such as an unbuffered pipe, may take a part of it at a time."""
    rest = memoryview(piece)
    while rest.nbytes:
        # Of a raw stream None says that nothing was written; other streams take everything, and some return nothing.
        count = stream.write(rest)
        if not isinstance(stream, io.RawIOBase):
            return
        if not count:
            raise BlobError(
                f"cannot write a blob to {name_stream(stream)}: it takes no more bytes; use one that waits until it can"
            )
        rest = rest[count:]


def read_bytes(stream: IO[bytes], count: int) -> bytearray:
    """Returns so many bytes, or all there are; a stream may give fewer at a time. Memory is for what is there, not for what is said."""
    content = bytearray()
    while len(content) < count:
        try:
            piece = stream.read(min(count - len(content), _PIECE_SIZE))
        except (OSError, ValueError) as error:  # ValueError for a closed stream
            raise BlobDamagedError(f"cannot read the blob from {name_stream(stream)}: {error}") from error
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise BlobDamagedError(
                f"cannot read the blob from {name_stream(stream)}: expected bytes, got {type(piece).__name__}; open it for bytes, as "
                "with mode 'rb', and so that it waits for them"
            )
        if not piece:
            break
        content += piece
    return content


def name_stream(stream: Any) -> str:
    """Returns the words for a stream in errors."""
    return f"the stream {getattr(stream, 'name', '')}".strip()
