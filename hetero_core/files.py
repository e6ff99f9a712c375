"""Files that appear complete or not at all; and files opened by name, checked to be plain files: no pipes or devices that hang, no links.

New content stands beside its name until all of it is on the disk: the earlier file of that name stays unchanged until then; a failure
leaves nothing behind; a link leads to the same file as before. A target that is not a regular file (a pipe, a terminal, /dev/null) is
written to and never replaced. A file is checked after it was opened, so that a change of the name in between has no effect. On systems
without owners and modes (Windows) the only check is that it is a plain file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, TypeVar

_LONGEST_PREFIX = 200
"""Bytes of a name that its partial file repeats; file systems take 255 in all."""


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Gives a stream for the new content of a file, which gets its name when the block ends without an error.

    The permissions of the file before are kept; a new file has the process's usual permissions.

    Raises: OSError that names `path`, at the beginning or at the end of the block.
    """
    requested = os.fspath(path)
    mode = os.stat(requested).st_mode if os.path.exists(requested) else None
    if mode is not None and not stat.S_ISREG(mode):
        with _name_in_errors(requested), open(requested, "wb") as stream:
            yield stream
        return
    if mode is not None:
        # In a writable folder, even a write-protected file could be replaced.
        os.close(os.open(requested, os.O_WRONLY))
    target = os.path.realpath(requested)
    folder, name = os.path.split(target)
    prefix = os.fsdecode(os.fsencode(name)[:_LONGEST_PREFIX])
    partial = os.path.join(folder, f"{prefix}.{os.urandom(8).hex()}.partial")
    with _name_in_errors(requested, partial), _rename_whole(partial, target):
        with open(partial, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            with suppress(OSError):
                os.chmod(partial, stat.S_IMODE(mode))


@contextmanager
def _rename_whole(partial: str, target: str) -> Iterator[None]:
    """Renames a file at the end of the block; after an error, also an interrupt, no partial file stays behind."""
    try:
        yield
        os.replace(partial, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


@contextmanager
def _name_in_errors(path: str, partial: str = "") -> Iterator[None]:
    """Puts the caller's path into errors that name no file, or only the partial file, which the caller does not know."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, partial):
            raise
        raise OSError(error.errno, error.strerror, path) from error


Result = TypeVar("Result")

HAS_OWNERS = hasattr(os, "geteuid")
"""Says whether files have owners and modes here."""

# A pipe without a writer, or a terminal, is opened at once and does not wait.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISLNK, "a link"),
)


def open_plain(path: str | os.PathLike[str]) -> int:
    """Returns a descriptor of a plain file, links followed. Never waits, and never changes the content of the file.

    Raises: OSError with the kind of the file if it is not plain; the system's own errors.
    """
    return _require_plain(os.open(path, os.O_RDONLY | _AT_ONCE), os.fspath(path))


def open_unlinked(path: str, flags: int) -> int:
    """Returns a descriptor of a plain file, and never of the target of a link. A new file is for the user alone, mode 0600.

    Raises: OSError, as `open_plain` does, and for a link.
    """
    try:
        descriptor = os.open(path, flags | _AT_ONCE | _NO_LINKS, 0o600)
    except OSError as error:
        # Linux and macOS say ELOOP for a link, FreeBSD EMLINK.
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise _refuse(path, "a link") from error
        if error.errno == errno.ENXIO:
            raise _refuse(path, "a socket, or a pipe that nobody reads") from error
        raise
    return _require_plain(descriptor, path)


def _require_plain(descriptor: int, title: str) -> int:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise _refuse(title, describe_kind(mode))


def describe_kind(mode: int) -> str:
    """Returns the kind of a file with this mode, in words."""
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "a plain file")


def _refuse(title: str, kind: str) -> OSError:
    return OSError(errno.EINVAL, f"'{title}' is {kind}, expected a plain file")


def open_owned(path: str, owners: Iterable[int] = ()) -> int:
    """Returns a descriptor, as `open_unlinked` does, for reading a file of the user or of one of these users.

    Raises: OSError; PermissionError for a file of another user, and for one that users besides its owner may write to.
    """
    descriptor = open_unlinked(path, os.O_RDONLY)
    if not HAS_OWNERS:
        return descriptor
    try:
        status, allowed = os.fstat(descriptor), sorted({os.geteuid(), *owners})
        if status.st_uid not in allowed:
            users = " or ".join(map(str, allowed))
            raise PermissionError(errno.EPERM, f"'{path}' belongs to user {status.st_uid}, expected {users}")
        _refuse_others(status, path)
    except BaseException:  # after an interrupt, too, the descriptor is closed
        os.close(descriptor)
        raise
    return descriptor


def _refuse_others(status: os.stat_result, title: str) -> None:
    if may_others_write(status):
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(errno.EPERM, f"others may write to '{title}' (mode {mode:04o}); run chmod go-w on it")


def find_writers(folder: str, *, may_be_sticky: bool) -> set[int]:
    """Returns the users that can change or replace a folder: the owners of it and of the folders above it.

    `folder` is a path without links. In a sticky folder no further user can replace an entry of this user or root; `may_be_sticky`
    says that such an entry is in `folder`.

    Raises: PermissionError for a folder that users besides its owner may write to.
    """
    writers: set[int] = set()
    above, is_fixed = folder, may_be_sticky
    while not writers or above != folder:
        folder = above
        status = os.stat(folder)
        if not (is_fixed and status.st_mode & stat.S_ISVTX):
            _refuse_others(status, folder)
        writers.add(status.st_uid)
        is_fixed = status.st_uid in (os.geteuid(), 0)
        above = os.path.dirname(folder)
    return writers


def may_others_write(status: os.stat_result) -> bool:
    """Says whether users besides the owner and root may write to a file or folder; the owner's private group counts as the owner."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid, status.st_uid)


@cache
def _is_private_group(group: int, user: int) -> bool:
    """Says whether a group is the user's private group: many distributions create a group for each user, with a umask of 002."""
    try:
        import grp
        import pwd

        entry, owner = grp.getgrgid(group), pwd.getpwuid(user)
    except (ImportError, KeyError):
        return False
    return owner.pw_gid == group and entry.gr_name == owner.pw_name and set(entry.gr_mem) <= {owner.pw_name}


def write_whole(path: str, write: Callable[[IO[bytes]], Result]) -> Result:
    """Writes a file of the user alone, mode 0600, that appears complete or not at all; returns what `write` returns of its stream.

    Raises: OSError, and errors of `write`.
    """
    partial = f"{os.path.splitext(path)[0]}.{os.urandom(8).hex()}.partial"
    with _rename_whole(partial, path), os.fdopen(open_unlinked(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as stream:
        return write(stream)


def remove_oldest(folder: str, *, limit: int, latest: str, is_entry: Callable[[str], object] = bool) -> list[str]:
    """Removes the least recently used files of a folder until the rest has at most `limit` bytes; returns their names.

    `is_entry` says which names count. The `latest` file stays. Raises: OSError if the folder cannot be read.
    """
    entries: list[tuple[int, str, int]] = []
    with os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):  # another process may have removed it meanwhile
                status = file.stat(follow_symlinks=False)
                entries += [(status.st_mtime_ns, file.name, status.st_size)] if is_entry(file.name) else []
    total, removed = sum(size for *_, size in entries), []
    for _, name, size in sorted(entries):
        if total <= limit:
            break
        if name != latest:
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))
            total -= size
            removed.append(name)
    return removed
