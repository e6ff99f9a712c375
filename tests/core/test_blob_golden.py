"""The container format is frozen: the golden files are read, and writing them again gives the same bytes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from random import Random

import pytest

from hetero_core.blobs.container import digest_sections, read_blob

GOLDEN = Path(__file__).with_name("golden")
_spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
assert _spec is not None
assert _spec.loader is not None
make_golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_golden)

# Digests of the golden files. A changed digest means a changed format, which needs a new version.
DIGESTS = {
    "plain-3.blob": "d5e617185ece66bd276dd1701d82d53a8df8632030c775a3fe1514178b788341",
    "nested-3.blob": "c3bb352984568ed688c2eee8b2af3c3c343788cf11d1157571a021d3928b5aa5",
}


def test_golden_files_equal_the_list() -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in GOLDEN.glob("*.blob")}
    assert digests == DIGESTS


@pytest.mark.parametrize("name", make_golden.GOLDEN)
def test_writer_still_writes_the_golden_bytes(name: str) -> None:
    assert make_golden.GOLDEN[name]() == (GOLDEN / name).read_bytes()


def test_reader_still_reads_the_golden_files() -> None:
    header, payload = read_blob(GOLDEN / "plain-3.blob")
    assert header == make_golden.PLAIN_HEADER
    assert payload.version == 3
    assert {name: bytes(section) for name, section in payload.sections.items()} == make_golden.PLAIN_SECTIONS
    outer, nested = read_blob(GOLDEN / "nested-3.blob")
    assert outer == make_golden.NESTED_HEADER
    assert list(nested.sections) == ["index", "stage/0"]
    assert read_blob(nested.sections["stage/0"])[0] == header


def test_every_byte_follows_the_layout_of_the_format() -> None:
    content, size = (GOLDEN / "plain-3.blob").read_bytes(), 953
    begin = -(-(32 + size) // 64) * 64
    assert content[:8] == b"HETEROBL"
    assert content[8:12] == (3).to_bytes(4, "little"), "the format's version"
    assert content[12:16] == bytes(4)
    assert content[16:24] == size.to_bytes(8, "little"), "the size of the header"
    assert content[24:32] == len(content).to_bytes(8, "little") == (begin + 384 + 32).to_bytes(8, "little")
    header = json.loads(content[32 : 32 + size])
    assert content[32 + size : begin] == bytes(begin - 32 - size), "the sections begin at the next multiple of 64"
    sections = {"model": (0, b"\x08\x0a" * 21), "empty": (64, b""), "weights": (64, bytes(range(200))), "one/two": (320, b"z")}
    assert header["sections"] == [
        {"name": name, "offset": offset, "size": len(section), "digest": digest_of_pieces(section)}
        for name, (offset, section) in sections.items()
    ]
    assert content[begin:-32] == ((b"\x08\x0a" * 21).ljust(64, b"\0") + bytes(range(200)).ljust(256, b"\0") + b"z".ljust(64, b"\0"))
    assert content[-32:] == hashlib.sha256(content[:begin]).digest()


def digest_of_pieces(section: bytes) -> str:
    """Returns the digest of a section by the definition of the reference page."""
    pieces = [section[begin : begin + 2**20] for begin in range(0, len(section), 2**20)]
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 9 * 2**20 + 5])
def test_digest_of_a_section_covers_its_pieces(size: int) -> None:
    section = Random(size).randbytes(size)
    digests = digest_sections({"one": memoryview(section), "none": memoryview(b""), "two": memoryview(section)[: size // 2]})
    assert [digests[name].hex() for name in ("one", "none", "two")] == [
        digest_of_pieces(section), hashlib.sha256().hexdigest(), digest_of_pieces(section[: size // 2])
    ]  # fmt: skip
