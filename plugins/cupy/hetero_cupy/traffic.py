"""The count of what crosses between host and card. Safe for threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


def count_bytes(value: Any) -> int:
    """Returns the bytes of a tensor, or of all tensors of a sequence."""
    return sum(count_bytes(element) for element in value) if isinstance(value, list) else int(getattr(value, "nbytes", 0))


@dataclass
class CopyCounts:
    """Numbers and bytes of the copies that runs made inside a network; those at its border are the core's to count."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count_read(self, nbytes: int) -> None:
        """Counts one copy from the card to the host."""
        with self._lock:
            self.reads += 1
            self.read_bytes += nbytes

    def count_write(self, nbytes: int) -> None:
        """Counts one copy from the host to the card."""
        with self._lock:
            self.writes += 1
            self.written_bytes += nbytes

    def snapshot(self) -> tuple[int, int, int, int]:
        """Returns reads, their bytes, writes, their bytes."""
        with self._lock:
            return self.reads, self.read_bytes, self.writes, self.written_bytes
