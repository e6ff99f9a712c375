from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetero_core.blobs.container import ALIGNMENT, BlobHeader, read_blob, write_blob
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError, BlobError, BlobMismatchError

HEADER = BlobHeader(
    device="X",
    distribution="hetero-x",
    plugin_version="1.2",
    core_version="0.1.0",
    payload_version=3,
    network="net",
    fingerprint="ab" * 32,
    inputs=("a", "b"),
    outputs=("c",),
    config={"KEY": ["p", "q"], "FLAG": True, "NONE": None},
)
SECTIONS = {"first": b"12345", "empty": b"", "second": bytes(range(200))}


def make_blob() -> bytes:
    stream = io.BytesIO()
    write_blob(HEADER, Payload(SECTIONS, version=3), stream)
    return stream.getvalue()


def test_header_and_sections_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "x.blob"
    path.write_bytes(make_blob())
    for source in (path, str(path), make_blob(), io.BytesIO(make_blob())):
        header, payload = read_blob(source)
        assert header == HEADER
        assert payload.version == 3
        assert {name: bytes(section) for name, section in payload.sections.items()} == SECTIONS


def test_sections_are_aligned() -> None:
    blob = make_blob()
    read_blob(blob)
    assert blob.find(SECTIONS["second"]) % ALIGNMENT == 0
    assert blob.find(SECTIONS["first"]) % ALIGNMENT == 0


def test_every_flipped_byte_is_caught() -> None:
    blob = bytearray(make_blob())
    for position in range(len(blob)):
        blob[position] ^= 0x20
        with pytest.raises((BlobDamagedError, BlobMismatchError)):
            read_blob(bytes(blob))
        blob[position] ^= 0x20
    read_blob(bytes(blob))


def test_flipped_bytes_of_fifty_kilobytes_are_caught() -> None:
    """Changes each byte of the head, the header, the padding and the digest, and every 17th of the sections, by a bit or several bits."""
    stream = io.BytesIO()
    write_blob(HEADER, Payload({"weights": bytes(range(256)) * 190, "rest": b"x" * 900}, version=3), stream)
    blob = bytearray(stream.getvalue())
    assert len(blob) > 50_000
    missed = []
    for position in (*range(2000), *range(2000, len(blob) - 1500, 17), *range(len(blob) - 1500, len(blob))):
        mask = 1 << position % 8 if position % 3 else position % 255 + 1
        blob[position] ^= mask
        try:
            read_blob(blob)
        except (BlobDamagedError, BlobMismatchError):
            pass
        else:
            missed.append(position)
        blob[position] ^= mask
    assert missed == []
    read_blob(blob)


def test_every_truncation_and_addition_is_caught() -> None:
    blob = make_blob()
    for size in range(len(blob)):
        with pytest.raises(BlobDamagedError):
            read_blob(blob[:size])
    with pytest.raises(BlobDamagedError, match=f"its header says {len(blob)} bytes, it has {len(blob) + 1}"):
        read_blob(blob + b"\0")


def test_other_format_version_names_the_readable_version() -> None:
    blob = bytearray(make_blob())
    blob[8] = 9
    with pytest.raises(BlobMismatchError, match="has container format 9; this hetero-core reads format 3; load the model"):
        read_blob(bytes(blob))


def test_foreign_file_is_refused_with_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(os.urandom(0) + b"PK\x03\x04" + bytes(200))
    with pytest.raises(
        BlobDamagedError, match=r"is no exported network: it begins with b'PK.*expected b'HETEROBL'\. Give a file that"
    ):
        read_blob(path)


def test_missing_and_empty_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(BlobDamagedError, match="cannot read the blob '.*nothing': No such file"):
        read_blob(tmp_path / "nothing")
    (tmp_path / "empty").touch()
    with pytest.raises(BlobDamagedError, match="it has 0 bytes"):
        read_blob(tmp_path / "empty")


def rewrite_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    """Returns a blob with a changed header and a valid digest."""
    blob = make_blob()
    size = int.from_bytes(blob[16:24], "little")
    fields = json.loads(blob[32 : 32 + size])
    change(fields)
    text = json.dumps(fields).encode()
    body = blob[-(-(32 + size) // ALIGNMENT) * ALIGNMENT : -32]
    start = -(-(32 + len(text)) // ALIGNMENT) * ALIGNMENT
    head = blob[:16] + struct.pack("<QQ", len(text), start + len(body) + 32)
    prefix = (head + text).ljust(start, b"\0")
    return prefix + body + hashlib.sha256(prefix).digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.pop("device"), "missing 1 required positional argument: 'device'"),
        (lambda fields: fields.update(inputs=5), "its field 'inputs' has 5; expected tuple"),
        (lambda fields: fields.update(inputs=["a", 1]), "its field 'inputs' has 1; expected <class 'str'>"),
        (lambda fields: fields.update(payload_version=True), "its field 'payload_version' has True; expected <class 'int'>"),
        (lambda fields: fields.update(config=[["KEY", 1]]), r"its field 'config' has \[\['KEY', 1\]\]; expected .*Mapping"),
        (lambda fields: fields.update(more=1), "unexpected keyword argument 'more'"),
        (lambda fields: fields["sections"][0].update(offset=float("inf")), "its field 'offset' has inf; expected <class 'int'>"),
        (lambda fields: fields["sections"][0].update(size="5"), "its field 'size' has '5'; expected <class 'int'>"),
        (lambda fields: fields.update(sections=[[]]), "argument 2 is shorter than argument 1"),
        (
            lambda fields: fields["sections"][0].update(size=10**30),
            "section 'first' at 0 with 1" + "0" * 30 + " bytes does not fit into",
        ),
        (lambda fields: fields["sections"][0].update(offset=-64), "its field 'offset' has -64; expected"),
        (
            lambda fields: fields["sections"][0].update(digest=0),
            "its field 'digest' has 0; expected <class 'str'>",
        ),
        (lambda fields: fields["sections"][0].pop("digest"), "the digest of its section 'first' differs from its content"),
        (
            lambda fields: fields["sections"][2].update(digest="ab" * 32),
            "the digest of its section 'second' differs from its content",
        ),
        (lambda fields: fields["sections"].pop(0), "between 0 and 64 of its sections there is more than zeros to the next 64"),
        (lambda fields: fields["sections"][1].update(name="first"), "has two sections of one name: first, first, second"),
    ],
)
def test_forged_header_with_a_valid_digest_is_checked(change: Callable[[Any], object], message: str) -> None:
    read_blob(rewrite_header(lambda fields: None))
    with pytest.raises(BlobDamagedError, match=message):
        read_blob(rewrite_header(change))


class Trickle(io.RawIOBase):
    """A stream that returns at most seven bytes per read, like a slow pipe."""

    def __init__(self, content: bytes) -> None:
        self._stream = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(min(size, 7))


@pytest.mark.parametrize("open_stream", [io.BytesIO, Trickle])
def test_two_containers_in_a_stream_are_read_in_order(open_stream: Callable[[bytes], Any]) -> None:
    blob = make_blob()
    stream = open_stream(b"before" + blob + blob + b"behind")
    assert stream.read(6) == b"before"
    first, second = read_blob(stream), read_blob(stream)
    assert first[0] == second[0] == read_blob(blob)[0]
    assert {name: bytes(view) for name, view in second[1].sections.items()} == {
        name: bytes(view) for name, view in read_blob(blob)[1].sections.items()
    }
    assert stream.read(6) == b"behind"


def test_stream_that_ends_early_or_promises_too_much_is_damaged() -> None:
    blob = bytearray(make_blob())
    with pytest.raises(BlobDamagedError, match="is cut off or has bytes added"):
        read_blob(io.BytesIO(bytes(blob[:-1])))
    blob[24:32] = (2**62).to_bytes(8, "little")
    with pytest.raises(BlobDamagedError, match=f"its header says {2**62} bytes, it has {len(blob)}"):
        read_blob(io.BytesIO(bytes(blob)))
    with pytest.raises(BlobDamagedError, match="begins with b'nothing"):
        read_blob(io.BytesIO(b"nothing of the kind" * 10))


def test_stream_of_text_is_an_error_of_the_export() -> None:
    with pytest.raises(BlobError, match="it takes text; open it for bytes, as with mode 'wb'"):
        write_blob(HEADER, Payload(SECTIONS), io.StringIO())  # type: ignore[arg-type]  # the wrong type is intended


def test_unreadable_stream_is_an_error_of_the_import(tmp_path: Path) -> None:
    path = tmp_path / "x.blob"
    path.write_bytes(make_blob())
    with (
        path.open(errors="replace") as text,
        pytest.raises(BlobDamagedError, match="x.blob: .*; open it for bytes"),
    ):
        read_blob(text)  # type: ignore[arg-type]  # the wrong type is intended
    stream = path.open("rb")
    stream.close()
    with pytest.raises(BlobDamagedError, match="x.blob: read of closed file"):
        read_blob(stream)
    with path.open("ab") as written, pytest.raises(BlobDamagedError, match="cannot read the blob from the stream .*x.blob: read"):
        read_blob(written)
