"""Blobs of format 3 as hetero 0.2.0 wrote them: later versions read them, and import the split network with the same answers.

`golden` holds the blobs as texts: headers and indexes as JSON, models as ONNX text. The writer below puts them together by the words of
docs/reference/blob-format.md, and uses no code of hetero.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import struct
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core, Payload
from hetero_core.blobs.container import BlobHeader, digest_sections, read_blob, write_blob

GOLDEN = Path(__file__).with_name("golden")
PLAIN_SECTIONS = {"model": b"\x08\x0a" * 21, "empty": b"", "weights": bytes(range(200)), "one/two": b"z"}

# SHA-256 of the two blobs. Another digest is another format, which needs a new version.
DIGESTS = {
    "plain-3": "d5e617185ece66bd276dd1701d82d53a8df8632030c775a3fe1514178b788341",
    "nested-3": "c3bb352984568ed688c2eee8b2af3c3c343788cf11d1157571a021d3928b5aa5",
}


def read_golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def digest_of_pieces(section: bytes) -> str:
    """Returns the digest of a section by the definition of the reference page."""
    pieces = [section[begin : begin + 2**20] for begin in range(0, len(section), 2**20)]
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()


def write_container(header: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """Returns a container by the words of the reference page; the table of its sections is written anew."""
    table, content = [], b""
    for name, section in sections.items():
        table.append({"name": name, "offset": len(content), "size": len(section), "digest": digest_of_pieces(section)})
        content += section + bytes(-len(section) % 64)
    text = json.dumps({**header, "sections": table}, sort_keys=True).encode()
    gap = bytes(-(32 + len(text)) % 64)
    total = 32 + len(text) + len(gap) + len(content) + 32
    beginning = struct.pack("<8sIIQQ", b"HETEROBL", 3, 0, len(text), total) + text + gap
    return beginning + content + hashlib.sha256(beginning).digest()


def make_blobs() -> dict[str, bytes]:
    plain = write_container(read_golden("plain-3.json"), PLAIN_SECTIONS)
    return {"plain-3": plain, "nested-3": write_container(read_golden("nested-3.json"), {"index": b"{}", "stage/0": plain})}


def make_header(name: str) -> BlobHeader:
    """Returns the header of a golden file without the table of its sections."""
    fields = read_golden(f"{name}.json")
    del fields["sections"]
    return BlobHeader(**{**fields, "inputs": tuple(fields["inputs"]), "outputs": tuple(fields["outputs"])})


@pytest.mark.parametrize("name", DIGESTS)
def test_texts_give_the_golden_bytes(name: str) -> None:
    assert hashlib.sha256(make_blobs()[name]).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("name", DIGESTS)
def test_core_still_writes_the_golden_bytes(name: str) -> None:
    sections = PLAIN_SECTIONS if name == "plain-3" else {"index": b"{}", "stage/0": make_blobs()["plain-3"]}
    header, stream = make_header(name), io.BytesIO()
    write_blob(header, Payload(sections, version=header.payload_version), stream)
    assert stream.getvalue() == make_blobs()[name]


def test_core_still_reads_the_golden_bytes() -> None:
    blobs = make_blobs()
    header, payload = read_blob(blobs["plain-3"])
    assert (header, payload.version) == (make_header("plain-3"), 3)
    assert {name: bytes(section) for name, section in payload.sections.items()} == PLAIN_SECTIONS
    outer, nested = read_blob(blobs["nested-3"])
    assert outer == make_header("nested-3")
    assert list(nested.sections) == ["index", "stage/0"]
    assert read_blob(nested.sections["stage/0"])[0] == header


def make_split() -> bytes:
    """Returns the blob of a network that is split over TEMPLATE and CPU; the large constant of its first part lies in "weights"."""
    parts = {}
    for index, weights in enumerate((np.arange(256, dtype="<f4").tobytes(), b"")):
        text = (GOLDEN / f"split-3-stage-{index}.onnxtxt").read_text(encoding="utf-8")
        sections = {"model": onnx.parser.parse_model(text).SerializeToString(), "weights": weights}
        parts[f"stage/{index}"] = write_container(read_golden(f"split-3-stage-{index}.json"), sections)
    index_text = json.dumps(read_golden("split-3-index.json")).encode()
    return write_container(read_golden("split-3.json"), {"index": index_text, **parts})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the part of CPU was compiled for x86_64")
def test_split_blob_of_0_2_0_imports_with_the_same_answers() -> None:
    x = np.arange(32, dtype=np.float32).reshape(2, 16) - 16
    w = np.arange(256, dtype=np.float32).reshape(16, 16)
    b = np.array([0, -100, -200, -300, -400, -500, -600, -700, 0, 1, 2, 3, 4, 5, 6, 7], np.float32)
    with Core() as core, core.import_network(io.BytesIO(make_split())) as network:
        assert network.get_metric("HETERO_SUBGRAPHS") == (("TEMPLATE", ("product", "shift")), ("CPU", ("positive",)))
        assert network.infer({"x": x})["y"].tolist() == np.maximum(x @ w + b, 0).tolist()


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 9 * 2**20 + 5])
def test_digest_of_a_section_covers_its_pieces(size: int) -> None:
    section = Random(size).randbytes(size)
    digests = digest_sections({"one": memoryview(section), "none": memoryview(b""), "two": memoryview(section)[: size // 2]})
    assert [digests[name].hex() for name in ("one", "none", "two")] == [
        digest_of_pieces(section), hashlib.sha256().hexdigest(), digest_of_pieces(section[: size // 2])
    ]  # fmt: skip
