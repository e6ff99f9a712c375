"""Writes the golden blobs of format 3 beside this file, whose bytes may never change again.

    python tests/core/golden/make_golden.py

A new format gets new files.
"""

from __future__ import annotations

import io
from pathlib import Path

from hetero_core.blobs.container import BlobHeader, write_blob
from hetero_core.contract import Payload

PLAIN_HEADER = BlobHeader(
    device="CPU",
    distribution="hetero-cpu",
    plugin_version="0.1.0",
    core_version="0.1.0",
    payload_version=3,
    network="größer",
    fingerprint="ab" * 32,
    inputs=("x", "größe"),
    outputs=("y",),
    config={"FLAG": True, "COUNT": 7, "SHARE": 0.5, "LIST": ["p", "q"], "TEXT": "", "UNSET": None},
    device_id="1",
    architecture="größer-2",
)
PLAIN_SECTIONS = {"model": b"\x08\x0a" * 21, "empty": b"", "weights": bytes(range(200)), "one/two": b"z"}

NESTED_HEADER = BlobHeader(
    device="HETERO",
    distribution="hetero-hetero",
    plugin_version="0.1.0",
    core_version="0.1.0",
    payload_version=1,
    network="",
    fingerprint="cd" * 32,
    inputs=(),
    outputs=(),
    config={},
)


def make_plain() -> bytes:
    """Returns a container with sections of several sizes, and with every type that a header may hold."""
    return _write(PLAIN_HEADER, Payload(PLAIN_SECTIONS, version=3))


def make_nested() -> bytes:
    """Returns a container that holds the plain one, as HETERO's do."""
    return _write(NESTED_HEADER, Payload({"index": b"{}", "stage/0": make_plain()}))


def _write(header: BlobHeader, payload: Payload) -> bytes:
    stream = io.BytesIO()
    write_blob(header, payload, stream)
    return stream.getvalue()


GOLDEN = {"plain-3.blob": make_plain, "nested-3.blob": make_nested}

if __name__ == "__main__":
    for name, make in GOLDEN.items():
        Path(__file__).with_name(name).write_bytes(make())
