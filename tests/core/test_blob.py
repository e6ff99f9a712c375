from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError, BlobMismatchError
from hetero_core.runtime.blob import ALIGNMENT, BlobHeader, read_blob, write_blob

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


def test_every_truncation_and_addition_is_caught() -> None:
    blob = make_blob()
    for size in range(len(blob)):
        with pytest.raises(BlobDamagedError):
            read_blob(blob[:size])
    with pytest.raises(BlobDamagedError, match=f"its header says {len(blob)} bytes, it has {len(blob) + 1}"):
        read_blob(blob + b"\0")


def test_other_format_version_says_which_one_is_read() -> None:
    blob = bytearray(make_blob())
    blob[8] = 9
    with pytest.raises(BlobMismatchError, match="has container format 9; this hetero-core reads format 1"):
        read_blob(bytes(blob))


def test_foreign_file_shows_what_it_begins_with(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(os.urandom(0) + b"PK\x03\x04" + bytes(200))
    with pytest.raises(BlobDamagedError, match=r"is no exported network: it begins with b'PK.*expected b'HETEROBL'"):
        read_blob(path)


def test_missing_and_empty_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(BlobDamagedError, match="cannot read the blob '.*nothing': No such file"):
        read_blob(tmp_path / "nothing")
    (tmp_path / "empty").touch()
    with pytest.raises(BlobDamagedError, match="it has 0 bytes"):
        read_blob(tmp_path / "empty")
