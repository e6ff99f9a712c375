"""Detects pickles, plain or compressed, in the sections of a blob: unpickling executes arbitrary functions."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import pickletools
import zipfile
import zlib
from collections.abc import Callable, Mapping


def describe_pickle(section: bytes) -> str:
    """Returns "a pickle", "gzip of a pickle" or the like for a section that contains a pickle, else "". Unpickles nothing."""
    if _is_pickle(section):
        return "a pickle"
    if section.startswith(b"\x93NUMPY") and b"'|O'" in section[:256]:
        return "an array of pickled objects"
    if section.startswith(b"PK"):
        return _describe_archive(section)
    for name, (magic, unpack) in _PACKERS.items():
        if not section.startswith(magic):
            continue
        try:
            described = describe_pickle(unpack(section))
        except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
            continue  # only the first bytes match
        if described:
            return f"{name} of {described}"
    return ""


_PACKERS: Mapping[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"\x1f\x8b", gzip.decompress),
    "bz2": (b"BZh", bz2.decompress),
    "lzma": (b"\xfd7zXZ", lzma.decompress),
    "zlib": (b"\x78", zlib.decompress),
}
"""Name of a compression format -> its magic bytes and the function that decompresses it."""


def _describe_archive(section: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(section)) as archive:
            for entry in archive.infolist():
                described = describe_pickle(archive.read(entry))
                if described:
                    return f"an archive with {described} as '{entry.filename}'"
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError):
        return ""
    return ""


def _is_pickle(section: bytes) -> bool:
    """Says whether bytes parse as a pickle up to its last operation; protocols 0 and 1 have no header and must fill all bytes."""
    has_head = section[:1] == pickle.PROTO and section[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    try:
        last = [(operation.name, position) for operation, _, position in pickletools.genops(section)][-1:]
    except (ValueError, UnicodeDecodeError, OverflowError):
        return False
    return bool(last) and (has_head or last[0][1] == len(section.rstrip(b"\0")) - 1 > 0)
