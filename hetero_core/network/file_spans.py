"""Parts of a file that are read when they are needed, each time anew, and never after the file was changed.

Rule: a change is told by the time of it, so a file that was written a moment ago is not held; neither is what is no regular file, nor
any where the system has no positional reads (Windows). Whoever asked then reads at once.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from weakref import finalize

from hetero_core.errors import NetworkReadError

_MOST_AT_ONCE = 1 << 30
"""Bytes; Linux reads a little less than 2 GiB in one call."""
_SETTLED = 2 * 10**9
"""Nanoseconds after which another write surely has another time: FAT counts in steps of two seconds, others in some milliseconds."""


class HeldFile:
    """A file that stays open while anybody holds this object, also when its name is gone. Safe for threads."""

    def __init__(self, descriptor: int, path: str) -> None:
        """`descriptor` is duplicated, so that the caller's is closed by the caller."""
        self._descriptor = os.dup(descriptor)
        finalize(self, os.close, self._descriptor)
        self._path = path
        self._state = _read_state(self._descriptor)

    def read(self, begin: int, end: int) -> bytes:
        """Returns the bytes from `begin` to `end`.

        Raises: NetworkReadError when the file was changed since this object was made.
        """
        pieces = self._read_pieces(begin, end)
        # Asked afterwards: what was written while we read is seen, too.
        if sum(map(len, pieces)) < end - begin or _read_state(self._descriptor) != self._state:
            raise NetworkReadError(
                f"cannot read weights from '{self._path}': the file was changed after the network was loaded from it. Load it again; a "
                "network that is to outlive changes of its file is read first: core.load_network(core.read_network(path), ...)."
            )
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_pieces(self, begin: int, end: int) -> list[bytes]:
        pieces: list[bytes] = []
        try:
            while begin < end and (piece := os.pread(self._descriptor, min(end - begin, _MOST_AT_ONCE), begin)):
                pieces.append(piece)
                begin += len(piece)
        except OSError as error:
            raise NetworkReadError(
                f"cannot read weights from '{self._path}': {error.strerror}. Check the file, then load the network again."
            ) from error
        return pieces


def _read_state(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
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
        """Returns the bytes. Raises: NetworkReadError when the file was changed."""
        return self.file.read(self.begin, self.end)


def hold_file(descriptor: int, path: str) -> HeldFile | None:
    """Returns the open file to be read later, None where that cannot be."""
    status = os.fstat(descriptor)
    is_settled = time.time_ns() - status.st_mtime_ns > _SETTLED
    return HeldFile(descriptor, path) if stat.S_ISREG(status.st_mode) and is_settled and hasattr(os, "pread") else None
