"""Lock files between processes and threads: held by the operating system, so that a holder that dies, however it dies, lets go.

A lock is a plain file of the user's: it is opened without following links, and nothing that stands in it is ever lost. Where there is no
such lock (Windows), everybody holds it at once: work may be done twice, and nothing else.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from hetero_core.plain_files import open_unlinked, require_owner

if sys.platform != "win32":
    import fcntl

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2
"""Seconds between two tries; there is no way to wait for such a lock with a time limit."""


_NOTE = re.compile(rb"process [0-9]+ *")
"""The name of a holder: what a lock file may hold, besides nothing."""


class FileLock:
    """A lock on a path; a second one on the same path waits for it, in this process or in another one.

    The file holds the process id of its holder, for whoever wonders, and is removed when the lock is released.
    """

    def __init__(self, path: Path, *, folder: int | None = None, owners: Iterable[int] = ()) -> None:
        """`folder` is the descriptor of the path's folder where that is open; `owners` may have left the file, beside the user."""
        self._path = path
        self._name = str(path) if folder is None else path.name
        self._folder = folder
        self._owners = tuple(owners)
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
            descriptor = open_unlinked(self._name, os.O_RDWR | os.O_CREAT, folder=self._folder, title=str(self._path))
            try:
                self._require_lock_file(os.fstat(descriptor))
                is_locked = _lock(descriptor)
                if is_locked and self._is_at(descriptor):
                    _note_holder(descriptor)
                    self._descriptor, descriptor = descriptor, -1
                    return None
                if not is_locked:
                    return os.read(descriptor, 100).decode("utf-8", "replace").strip() or "another process"
                # The holder before removed the file while we opened it; there may be a new one.
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def _require_lock_file(self, status: os.stat_result) -> None:
        """Raises OSError for a file of another user, and for one that has a second name, which may be precious."""
        require_owner(status, str(self._path), self._owners)
        if status.st_nlink > 1:
            raise OSError(errno.EINVAL, f"'{self._path}' is a second name of another file, expected a lock; remove it")

    def _is_at(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._name, dir_fd=self._folder, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Lets the next one in."""
        descriptor, self._descriptor = self._descriptor, None
        assert descriptor is not None
        # Removed while it is held: who opens it from here on makes a new file, who has opened it before finds that it is gone.
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)
        # By name, since a forked child may hold the same descriptor open.
        _unlock(descriptor)
        os.close(descriptor)


def _note_holder(descriptor: int) -> None:
    """Writes this process's id into a lock, over an older one at most: what holds anything else is somebody's file."""
    # A disk may be too full for the name of the holder, and is not for the lock.
    with suppress(OSError):
        before = os.read(descriptor, 100)
        if not before or _NOTE.fullmatch(before):
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, f"process {os.getpid()}".encode().ljust(len(before)))


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
