"""The container of exported networks: the same format at every level, checked before it is used.

Layout, all numbers little-endian:

    bytes 0-7     magic, b"HETEROBL"
    bytes 8-11    format version
    bytes 12-15   zero
    bytes 16-23   length of the header in bytes
    bytes 24-31   length of the whole container in bytes
    header        JSON in UTF-8: origin, device, network, and the table of sections (name, offset, size, digest)
    sections      each at a multiple of 64 from the start of the container, gaps filled with zeros
    last 32       SHA-256 over everything before the sections

The digest of a section is SHA-256 over the SHA-256 of each of its pieces, so that several processors share the work.

HETERO's sections hold containers of the same format. A container carries data; code is marked in the table of sections,
and is used only if the user trusts it.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import IO, Any

from hetero_core.contract import Payload
from hetero_core.devices.processors import count_processors
from hetero_core.errors import BlobDamagedError, BlobError, BlobMismatchError, UntrustedBlobError
from hetero_core.files import open_plain
from hetero_core.network.types import read_record, write_record

MAGIC = b"HETEROBL"
FORMAT_VERSION = 3
ALIGNMENT = 64
_HEAD = struct.Struct("<8sIIQQ")
_DIGEST_SIZE = 32


def write_blob(header: BlobHeader, payload: Payload, stream: IO[bytes] | io.RawIOBase | io.TextIOBase) -> None:
    """Writes a container. The stream need not be seekable. Raises: BlobError for a text stream; OSError, ValueError of the stream."""
    if isinstance(stream, io.TextIOBase):
        raise BlobError(f"cannot write a blob to {name_stream(stream)}: it takes text; open it for bytes, as with mode 'wb'")
    if isinstance(stream, io.RawIOBase):  # which may take a part of a piece at a time
        buffer = io.BufferedWriter(stream)
        try:
            write_blob(header, payload, buffer)
        finally:
            buffer.detach()
        return
    views = {name: memoryview(section).cast("B") for name, section in payload.sections.items()}
    prefix = _lay_out(header, views, payload)
    stream.write(prefix)
    for view in views.values():
        stream.write(view)
        stream.write(b"\0" * (_align(view.nbytes) - view.nbytes))
    stream.write(sha256(prefix).digest())


def _lay_out(header: BlobHeader, views: Mapping[str, memoryview], payload: Payload) -> bytes:
    """Returns head and header as bytes. Offsets count from the end of the header."""
    table: list[dict[str, Any]] = []
    offset = 0
    digests = digest_sections(views)
    for name, view in views.items():
        # Sections without code have no mark, as in blobs from before the marks were introduced.
        mark = {mark: True for mark, names in (("code", payload.code), ("spare", payload.spare)) if name in names}
        table.append({"name": name, "offset": offset, "size": view.nbytes, "digest": digests[name].hex(), **mark})
        offset = _align(offset + view.nbytes)
    text = json.dumps({**write_record(header, write_row=dict), "sections": table}, sort_keys=True).encode()
    start = _align(_HEAD.size + len(text))
    total = start + offset + _DIGEST_SIZE
    head = _HEAD.pack(MAGIC, FORMAT_VERSION, 0, len(text), total)
    return (head + text).ljust(start, b"\0")


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def is_blob(path: str | os.PathLike[str]) -> bool:
    """Says whether a plain file begins like an exported network. Returns False without waiting for a pipe."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def read_blob(source: str | os.PathLike[str] | IO[bytes] | bytes | memoryview) -> tuple[BlobHeader, Payload]:
    """Returns header and sections of a container after checking all of it; a file is memory-mapped, sections are views.

    A stream is read from its current position to the end of the container; other bytes may precede and follow the container.

    Raises: BlobDamagedError for bytes that are no container, are cut off or were changed; BlobMismatchError for another format version.
    """
    return check_container(*_open_view(source))


def read_undigested(source: str | os.PathLike[str] | IO[bytes] | bytes | memoryview) -> tuple[BlobHeader, Payload]:
    """Returns header and sections as `read_blob` does, without a look into the sections, which costs the time of reading them all.

    An import or a check of the same file has to come before a use of the sections. Raises: as `read_blob`.
    """
    header, _, payload, _ = _check_head(*_open_view(source))
    return header, payload


def check_container(name: str, view: memoryview) -> tuple[BlobHeader, Payload]:
    """Returns header and sections of a container in memory; `name` is used in error messages. Raises: as `read_blob`."""
    header, rows, payload, begin = _check_head(name, view)
    digests = digest_sections(payload.sections)
    for row in rows:
        if row.digest != digests[row.name].hex():
            raise BlobDamagedError(
                f"{name} is damaged: the digest of its section '{row.name}' differs from its content; export the network again"
            )
    # No digest covers the gaps.
    room = view[begin:-_DIGEST_SIZE]
    spans = (0, 0), *((row.offset, row.offset + row.size) for row in rows), (len(room), 0)
    for (_, end), (following, _) in pairwise(spans):
        if following != _align(end) or any(room[end:following]):
            raise BlobDamagedError(
                f"{name} is damaged: between {end} and {following} of its sections there is more than zeros to the next {ALIGNMENT}"
            )
    return header, replace(payload, digests=digests)


def _check_head(name: str, view: memoryview) -> tuple[BlobHeader, list[SectionEntry], Payload, int]:
    """Returns the header of a container, its table, its sections and their begin, after checking all bytes before the sections."""
    if len(view) < _HEAD.size + _DIGEST_SIZE:
        raise BlobDamagedError(
            f"{name} is no exported network: it has {len(view)} bytes, a container has at least {_HEAD.size + _DIGEST_SIZE}"
        )
    magic, version, _, header_size, total = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise BlobDamagedError(
            f"{name} is no exported network: it begins with {bytes(magic)!r}, expected {MAGIC!r}. Give a file that hetero compile or "
            "export_network has written."
        )
    if version != FORMAT_VERSION:
        raise BlobMismatchError(
            f"{name} has container format {version}; this hetero-core reads format {FORMAT_VERSION}; load the model again and export it"
        )
    if total != len(view):
        raise BlobDamagedError(f"{name} is cut off or has bytes added: its header says {total} bytes, it has {len(view)}")
    if header_size > len(view) - _HEAD.size - _DIGEST_SIZE:
        raise BlobDamagedError(f"{name} is damaged: its header of {header_size} bytes does not fit into {len(view)} bytes")
    begin = _align(_HEAD.size + header_size)
    if sha256(view[: min(begin, len(view) - _DIGEST_SIZE)]).digest() != view[-_DIGEST_SIZE:]:
        raise BlobDamagedError(f"{name} is damaged: its digest differs from its content; export the network again")
    return *_parse(name, view, header_size), begin


def _open_view(source: Any) -> tuple[str, memoryview]:
    if isinstance(source, bytes | bytearray | memoryview):
        return "the blob", memoryview(source).cast("B")
    if hasattr(source, "read"):
        # No container is shorter. The stream is then at the end of its container.
        content = read_bytes(source, _HEAD.size + _DIGEST_SIZE)
        if len(content) >= _HEAD.size and content.startswith(MAGIC):
            content += read_bytes(source, _HEAD.unpack_from(content)[-1] - len(content))
        return name_stream(source), memoryview(content)
    path = os.fspath(source)
    try:
        descriptor = open_plain(path)
        try:
            return f"'{path}'", map_file(descriptor)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError for a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BlobDamagedError(f"cannot read the blob '{path}': {reason}") from error


def map_file(descriptor: int) -> memoryview:
    """Returns the bytes of an open file, mapped into memory; they outlive the descriptor. Raises: OSError."""
    # An empty file cannot be mapped.
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if os.fstat(descriptor).st_size else b"")


def _parse(name: str, view: memoryview, header_size: int) -> tuple[BlobHeader, list[SectionEntry], Payload]:
    start = _align(_HEAD.size + header_size)
    room = len(view) - _DIGEST_SIZE - start
    try:
        fields = json.loads(bytes(view[_HEAD.size : _HEAD.size + header_size]))
        table = [read_record(SectionEntry, row) for row in fields.pop("sections")]
        header = read_record(BlobHeader, fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BlobDamagedError(f"{name} has a header that cannot be read: {error}") from error
    names = sorted(row.name for row in table)
    if len(set(names)) < len(names):
        raise BlobDamagedError(f"{name} has two sections of one name: {', '.join(names)}")
    end = 0
    for row in table:
        where = f"section '{row.name}' at {row.offset}"
        if row.offset % ALIGNMENT or row.offset + row.size > room:
            raise BlobDamagedError(f"{name}: {where} with {row.size} bytes does not fit into {room} bytes")
        # If sections could share bytes, a small file could stand for endlessly nested containers.
        if row.offset < end:
            raise BlobDamagedError(f"{name}: {where} begins within the one before, which ends at {end}")
        end = row.offset + row.size
    sections = {row.name: view[start + row.offset : start + row.offset + row.size] for row in table}
    code, spare = (tuple(row.name for row in table if getattr(row, mark)) for mark in ("code", "spare"))
    return header, table, Payload(sections, header.payload_version, code, spare=spare)


def find_code(payload: Payload) -> tuple[str, ...]:
    """Returns the sections of code that cannot be left out; a section of a nested container is named "stage/0: kernels".

    Costs no digest.
    """
    marked: list[str] = []
    open_payloads = [("", payload)]
    while open_payloads:
        where, inner_payload = open_payloads.pop()
        marked += [where + name for name in inner_payload.code if name not in inner_payload.spare]
        for name, section in inner_payload.sections.items():
            view = memoryview(section).cast("B")
            if len(view) >= _HEAD.size + _DIGEST_SIZE and view[: len(MAGIC)] == MAGIC:
                with suppress(BlobError):  # a damaged container is none
                    open_payloads.append((f"{where}{name}: ", _parse("a section", view, _HEAD.unpack_from(view)[3])[2]))
    return tuple(marked)


# Permission to use code: only within an import that the user called with `trust=True`, nested containers included.

# The parts of a split network are imported within the import of the whole network, by a plugin that does not know if the user
# trusts the blob.
_is_trusted: ContextVar[bool] = ContextVar("hetero_blob_is_trusted", default=False)


@contextmanager
def require_trust(header: BlobHeader, payload: Payload, *, trust: bool) -> Iterator[Payload]:
    """Gives the payload to import. Inside the context, nested imports are trusted as the whole blob is.

    Without trust the payload omits code that its plugin does not require.

    Raises: UntrustedBlobError if there is code in the blob, or in a container within it, and no trust.
    """
    if not trust and not _is_trusted.get():
        code = find_code(payload)
        if code:
            raise UntrustedBlobError(
                f"cannot import network '{header.network}' on {header.device}: the blob holds code, in the sections {', '.join(code)}, "
                "which would run with all your rights. Import it with trust=True (on the command line: --trust) if you trust whoever "
                "made it and every place where it was kept; else load the model"
            )
        payload = payload.without_spare_code()
    with trust_imports(trust or _is_trusted.get()):
        yield payload


def describe_omission(payload: Payload, trusted: Payload) -> str:
    """Returns why an import compiles the network again though the blob has its compiled form; "" if that form is used."""
    if len(trusted.code) == len(payload.code):
        return ""
    return (
        "the blob holds what compiling made, which is code and not trusted; import it with trust=True (on the command line: --trust) to "
        "use that"
    )


def are_imports_trusted() -> bool:
    """Says whether the current import of this thread may use code; for a plugin that hands a blob to another process."""
    return _is_trusted.get()


@contextmanager
def trust_imports(is_trusted: bool) -> Iterator[None]:
    """Sets whether imports within the block may use code."""
    token = _is_trusted.set(is_trusted)
    try:
        yield
    finally:
        _is_trusted.reset(token)


@dataclass(frozen=True, slots=True)
class BlobHeader:
    """The header of a container. `inputs` and `outputs` are names; `config` is the complete configuration.

    `device_id` and `architecture` describe the device that compiled. `device_id` is "" if the device string has no id,
    `architecture` is "" if the device is made of devices; their own containers name theirs.
    """

    device: str
    distribution: str
    plugin_version: str
    core_version: str
    payload_version: int
    network: str
    fingerprint: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    config: Mapping[str, Any]
    device_id: str = ""
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """A section in the table: its offset from the end of the header, its size, its digest in hex, and its marks."""

    name: str
    offset: int
    size: int
    digest: str = ""
    code: bool = False
    spare: bool = False


PIECE_BYTES = 1 << 20
"""Part of the format: a change of this size changes the digests."""
# With more threads, memory bandwidth is the limit.
_MOST_THREADS = 8


def digest_sections(sections: Mapping[str, memoryview]) -> dict[str, bytes]:
    """Returns the digest of each section (one-dimensional bytes), computed on the available processors."""
    pieces = [
        (name, section[begin : begin + PIECE_BYTES])
        for name, section in sections.items()
        for begin in range(0, section.nbytes, PIECE_BYTES)
    ]
    threads = min(count_processors(), _MOST_THREADS)
    if len(pieces) <= threads:  # a thread takes longer to start than such pieces
        digests = [sha256(piece).digest() for _, piece in pieces]
    else:
        from concurrent.futures import ThreadPoolExecutor  # only large blobs need it

        with ThreadPoolExecutor(threads, "hetero-digest") as pool:
            digests = list(pool.map(lambda piece: sha256(piece[1]).digest(), pieces))
    joined = {name: sha256() for name in sections}
    for (name, _), digest in zip(pieces, digests, strict=True):
        joined[name].update(digest)
    return {name: digest.digest() for name, digest in joined.items()}


_PIECE_SIZE = 1 << 24


def read_bytes(stream: IO[bytes], count: int) -> bytearray:
    """Returns so many bytes, or fewer at the end of the stream. Memory is allocated for existing bytes only, not for `count`."""
    content = bytearray()
    try:
        while len(content) < count and (piece := stream.read(min(count - len(content), _PIECE_SIZE))):
            content += piece
    except (OSError, ValueError, TypeError) as error:  # ValueError for a closed stream, TypeError for a stream of text
        raise BlobDamagedError(f"cannot read the blob from {name_stream(stream)}: {error}; open it for bytes") from error
    return content


def name_stream(stream: Any) -> str:
    """Returns the words for a stream in errors."""
    return f"the stream {getattr(stream, 'name', '')}".strip()
