"""The open folder of a cache: every file in it is opened by its name within this folder, never through a link.

Rules: the folder is judged once it is open. It belongs to the user or to root; the folder of another user is taken where nobody but
this user and root could have put it there. Nobody but its owner and root may write to it. A file in it belongs to the user, to root or to
the owner of the folder. Whether something can be written is for the system to say.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hetero_core.plain_files import HAS_OWNERS, may_others_write, open_unlinked, require_owner

_HAS_DESCRIPTORS = {os.open, os.rename, os.stat, os.unlink} <= os.supports_dir_fd and {os.listdir, os.utime} <= os.supports_fd
_ROOT = 0
# Enough to ask who owns a folder above, where it may not be listed.
_JUST_LOOK = getattr(os, "O_PATH", os.O_RDONLY)
_ADVICE = "take a folder of your own, of mode 0700"


class CacheFolder:
    """One folder, open from `open_cache_folder` to the end of its block. `descriptor` is None on systems without such descriptors."""

    def __init__(self, path: Path, descriptor: int | None, *, is_own: bool = False) -> None:
        """`is_own`: nobody but this user and root could have put the folder there or anything into it, so that it may hold code."""
        self.path = path
        self.is_own = is_own
        self.descriptor = descriptor
        self.owners = () if descriptor is None else (_ROOT, os.fstat(descriptor).st_uid)

    def open_entry(self, name: str) -> int:
        """Returns a descriptor for reading a file that belongs to a user of the folder. Raises: OSError that says what is wrong."""
        descriptor = open_unlinked(self._name(name), os.O_RDONLY, folder=self.descriptor, title=str(self.path / name))
        try:
            require_owner(os.fstat(descriptor), str(self.path / name), self.owners)
        except BaseException:  # after an interrupt, too, the descriptor is closed
            os.close(descriptor)
            raise
        return descriptor

    def create_partial(self, key: str) -> tuple[str, int]:
        """Returns name and descriptor of a new file for the content of an entry. Raises: OSError."""
        name = f"{key}.{secrets.token_hex(8)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        return name, open_unlinked(self._name(name), flags, folder=self.descriptor, title=str(self.path / name))

    def rename(self, name: str, new_name: str) -> None:
        """Gives a file another name, in the place of what has that name. Raises: OSError."""
        os.replace(self._name(name), self._name(new_name), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Removes a file where there is one. Raises: OSError."""
        with suppress(FileNotFoundError):
            os.unlink(self._name(name), dir_fd=self.descriptor)

    def note_use(self, name: str, descriptor: int) -> None:
        """Writes the time of the last use of an open file, where the user may; of this machine's clock, which a file server's is not."""
        now = time.time_ns()
        with suppress(OSError):
            os.utime(self._name(name) if self.descriptor is None else descriptor, ns=(now, now))

    def stat(self, name: str) -> os.stat_result:
        """Returns what the system says of a file, of a link itself. Raises: OSError."""
        return os.stat(self._name(name), dir_fd=self.descriptor, follow_symlinks=False)

    def list_names(self) -> list[str]:
        """Returns the names in the folder, sorted. Raises: OSError."""
        return sorted(os.listdir(self.path if self.descriptor is None else self.descriptor))

    def sync(self) -> None:
        """Makes new names last through a power cut, where the system can."""
        if self.descriptor is not None:
            with suppress(OSError):
                os.fsync(self.descriptor)

    def _name(self, name: str) -> str:
        return str(self.path / name) if self.descriptor is None else name


@contextmanager
def open_cache_folder(path: Path) -> Iterator[CacheFolder]:
    """Gives the folder of a path; it is made, for the user alone, where its parent is there. Links in the path are followed.

    Raises: OSError with the reason: the system's, or whoever else may write to the folder.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not (HAS_OWNERS and _HAS_DESCRIPTORS):
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        yield CacheFolder(path, None)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _require_trusted(descriptor, path)
        yield CacheFolder(path, descriptor, is_own=_is_own(descriptor))
    finally:
        os.close(descriptor)


def _require_trusted(descriptor: int, path: Path) -> None:
    """Raises PermissionError for a folder in which, or in the place of which, another user may have put something."""
    status = os.fstat(descriptor)
    if may_others_write(status):
        raise PermissionError(
            errno.EPERM,
            f"others than its owner may write to it (mode {stat.S_IMODE(status.st_mode):04o}, user {status.st_uid}, group "
            f"{status.st_gid}), and an entry could be anybody's; run chmod go-w on it, or {_ADVICE}",
        )
    below, trusted = status, (os.geteuid(), _ROOT)
    if below.st_uid in trusted:
        return
    for above in _walk_up(descriptor):
        # In a sticky folder nobody takes away what is ours.
        is_fixed = bool(above.st_mode & stat.S_ISVTX) and below.st_uid in trusted
        if above.st_uid not in (*trusted, status.st_uid) or (may_others_write(above) and not is_fixed):
            raise PermissionError(
                errno.EPERM,
                f"it belongs to user {status.st_uid}, expected {os.geteuid()}, and stands below a folder in which others may put "
                f"one (mode {stat.S_IMODE(above.st_mode):04o}, user {above.st_uid}); {_ADVICE}",
            )
        below = above


def _is_own(descriptor: int) -> bool:
    """Says whether a folder that nobody else may write to is the user's, and stands below none in which others may put another one."""
    below, trusted = os.fstat(descriptor), (os.geteuid(), _ROOT)
    if below.st_uid != os.geteuid():
        return False
    for above in _walk_up(descriptor):
        if above.st_uid not in trusted or (may_others_write(above) and not above.st_mode & stat.S_ISVTX):
            return False
    return True


def _walk_up(descriptor: int) -> Iterator[os.stat_result]:
    """Yields what the system says of each folder above an open one, up to the root."""
    below, current = os.fstat(descriptor), os.open("..", _JUST_LOOK | os.O_DIRECTORY, dir_fd=descriptor)
    try:
        while not os.path.samestat(below, status := os.fstat(current)):
            yield status
            below, above = status, os.open("..", _JUST_LOOK | os.O_DIRECTORY, dir_fd=current)
            os.close(current)
            current = above
    finally:
        os.close(current)
