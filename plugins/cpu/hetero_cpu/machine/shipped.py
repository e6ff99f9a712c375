"""Kernels that come with the package compiled: object files for a level of x86-64 that many processors have.

They are those of common networks of open sizes, so that the first run of a new network waits for LLVM as little as a later one. Which
they are, and how they are made: plugins/cpu/shipping. They are used as long as the code that emits kernels is the one that they were made
by. A file has a line with its format, the bytes of its index as eight bytes, the index as JSON, and the object files; the index has
the offset, the bytes and the CRC-32 of each by the kernel's name. Source of the levels: System V ABI, AMD64 supplement, 3.1.1.
"""

from __future__ import annotations

import json
import logging
import os
import zlib

from hetero_cpu.machine.sources import digest_emitters

logger = logging.getLogger(__name__)

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shipped")
DIGEST_FILE = "emitters.txt"
"""The digest of the code that the kernels were made by."""
_FORMAT = b"hetero_cpu kernels 1\n"
_COUNT_BYTES = 8

LEVELS = {16: "x86-64-v4", 8: "x86-64-v3"}
"""The level of the processors for which kernels are shipped, by the elements of a vector."""
_FLAGS_V3 = frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"})
FLAGS = {
    "x86-64-v3": _FLAGS_V3,
    "x86-64-v4": _FLAGS_V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}
"""What a processor of a level has, as Linux names it."""

Index = dict[str, tuple[int, int, int]]


def open_shipped(width: int, flags: frozenset[str]) -> ShippedKernels | None:
    """Returns the kernels for vectors of `width` elements.

    None where there are none for a processor of these flags, or other code made them.
    """
    level = LEVELS.get(width)
    if level is None or not flags >= FLAGS[level]:
        return None
    try:
        with open(os.path.join(FOLDER, DIGEST_FILE), encoding="ascii") as file:
            if file.read().strip() != digest_emitters():
                logger.info("shipped kernels are not used: other code made them than what is here")
                return None
        return ShippedKernels(os.path.join(FOLDER, f"{level}.kernels"))
    except (OSError, ValueError) as error:
        logger.warning("shipped kernels are not used, and kernels are compiled: %s", error)
        return None


class ShippedKernels:
    """The kernels of one file. Safe for threads."""

    def __init__(self, path: str) -> None:
        """Reads the index. Raises: OSError; ValueError where the file is none of kernels."""
        self._path = path
        with open(path, "rb") as file:
            begin = file.read(len(_FORMAT) + _COUNT_BYTES)
            if not begin.startswith(_FORMAT) or len(begin) < len(_FORMAT) + _COUNT_BYTES:
                raise ValueError(f"'{path}' does not begin with '{_FORMAT.decode().strip()}'")
            count = int.from_bytes(begin[len(_FORMAT) :], "little")
            self._index: Index = json.loads(file.read(count))
        self._first = len(begin) + count

    def __len__(self) -> int:
        return len(self._index)

    def list_names(self) -> list[str]:
        """Returns the names of all kernels."""
        return list(self._index)

    def read(self, name: str) -> bytes | None:
        """Returns the object file of a kernel; None where there is none, or it is damaged."""
        entry = self._index.get(name)
        if entry is None:
            return None
        offset, count, checksum = entry
        try:
            with open(self._path, "rb", buffering=0) as file:
                file.seek(self._first + offset)
                image = file.read(count)
        except OSError as error:
            logger.warning("a shipped kernel is not used and is compiled: %s", error)
            return None
        if zlib.crc32(image) != checksum:
            logger.warning("'%s' is damaged; kernel %s is compiled", self._path, name)
            return None
        return image


def write_shipped(path: str, images: dict[str, bytes]) -> None:
    """Writes a file of kernels: name -> object file. The same kernels make the same file."""
    index: Index = {}
    offset = 0
    for name in sorted(images):
        image = images[name]
        index[name] = offset, len(image), zlib.crc32(image)
        offset += len(image)
    listed = json.dumps(index, separators=(",", ":")).encode()
    with open(path, "wb") as file:
        file.write(_FORMAT + len(listed).to_bytes(_COUNT_BYTES, "little") + listed)
        for name in index:
            file.write(images[name])
