"""Lock files between processes and threads: held by the operating system, so that a holder that dies, however it dies, lets go.

Where there is no such lock (Windows), everybody holds it at once: work may be done twice, and nothing else.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2
"""Seconds between two tries; there is no way to wait for such a lock with a time limit."""


class FileLock:
    """A lock on a path; a second one on the same path waits for it, in this process or in another one.

    The file holds the process id of its holder, for whoever wonders, and is removed when the lock is released.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, timeout: float, *, on_wait: Callable[[str], None]) -> bool:
        """Says whether the lock is held now; False after `timeout` seconds. `on_wait` is told the holder, once, before waiting.

        Raises: OSError where the file cannot be made or locked.
        """
        deadline, pause, has_waited = time.monotonic() + timeout, _FIRST_PAUSE, False
        while True:
            holder = self._try_once()
            if holder is None:
                return True
            if not has_waited:
                on_wait(holder)
                has_waited = True
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _try_once(self) -> str | None:
        """Returns None when the lock is held now, else what its holder wrote into it."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                is_locked = _lock(descriptor)
                if is_locked and _is_at(descriptor, self._path):
                    # A disk may be too full for the name of the holder, and is not for the lock.
                    with suppress(OSError):
                        os.ftruncate(descriptor, 0)
                        os.write(descriptor, f"process {os.getpid()}".encode())
                    self._descriptor, descriptor = descriptor, -1
                    return None
                if not is_locked:
                    return os.read(descriptor, 100).decode("utf-8", "replace") or "another process"
                # The holder before removed the file while we opened it; there may be a new one.
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def release(self) -> None:
        """Lets the next one in."""
        descriptor, self._descriptor = self._descriptor, None
        assert descriptor is not None
        # Removed while it is held: who opens it from here on makes a new file, who has opened it before finds that it is gone.
        with suppress(OSError):
            self._path.unlink()
        # By name, since a forked child may hold the same descriptor open.
        _unlock(descriptor)
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
