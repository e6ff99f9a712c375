"""Folders for compiled kernels: code that is loaded again later, kept where nobody but the user can write.

The folders are below XDG_CACHE_HOME, or ~/.cache where it is not set, and never below CACHE_DIR, which may be shared. Each is opened
without following links and judged by what was opened, so that there is nothing to win by changing it in between. So is each file in them:
a digest says that a file is whole, its owner and mode say whose code it is.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from hetero_core.errors import PrivateFolderError
from hetero_core.plain_files import may_others_write, open_unlinked, require_owner

if TYPE_CHECKING:
    from pathlib import Path

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.-")
_LONGEST_NAME = 100
_ADVICE = "set XDG_CACHE_HOME to a folder of your own"


def open_private_folder(name: str) -> Path:
    """Returns the folder of `find_private_folder` as a Path."""
    from pathlib import Path  # and what it imports: 3 ms, which the load of a kept file does without

    return Path(find_private_folder(name))


def find_private_folder(name: str) -> str:
    """Returns the user's folder of this name, made where there is none: his own, of mode 0700, below folders nobody else can change.

    `name`: small letters, digits, "_", "." and "-", as "cupy-kernels". Safe for threads and processes.

    Raises: PrivateFolderError for a folder that is a link, belongs to somebody else, or can be written by others, and where it cannot
    be made.
    """
    if not _NAME_CHARACTERS.issuperset(name) or name[:1] in "_.-" or len(name) > _LONGEST_NAME:
        raise PrivateFolderError(
            f"cannot open a private folder named {name!r}; expected small letters, digits, '_', '.' and '-', at most 100"
        )
    base = _find_base()
    try:
        os.makedirs(base, 0o700, exist_ok=True)
        resolved = os.path.realpath(base, strict=True)
    except OSError as error:
        raise PrivateFolderError(f"cannot make the folder '{base}': {error.strerror or error}; {_ADVICE}") from error
    if sys.platform == "win32":  # what is below a user's own folder is private by its access list
        folder = os.path.join(resolved, "hetero", name)
        os.makedirs(folder, exist_ok=True)
        return folder
    above, parent = "", resolved
    while parent != above:
        _check_parent(parent, os.stat(parent))
        above, parent = parent, os.path.dirname(parent)
    descriptor = os.open(resolved, os.O_RDONLY | os.O_DIRECTORY)
    path = resolved
    for piece in ("hetero", name):
        path = os.path.join(path, piece)
        try:
            inner = _open_own(descriptor, piece, path)
        finally:
            os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    return path


def read_private_file(path: str | os.PathLike[str]) -> bytes:
    """Returns what a file of a private folder holds: a plain file of the user's own, which nobody else can write.

    Raises: OSError with the reason; FileNotFoundError where there is none.
    """
    title = os.fspath(path)
    descriptor = open_unlinked(title, os.O_RDONLY, folder=None, title=title)
    with os.fdopen(descriptor, "rb") as file:
        require_owner(os.fstat(descriptor), title, ())
        return file.read()


def write_private_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file of a private folder, mode 0600, in the place of what has the name; it appears complete or not at all.

    Raises: OSError.
    """
    partial = f"{os.fspath(path)}.{os.urandom(8).hex()}.partial"
    descriptor = open_unlinked(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=None, title=partial)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(partial, path)
    except BaseException:  # after an interrupt, too, no partial file stays behind
        with suppress(OSError):
            os.unlink(partial)
        raise


def _find_base() -> str:
    folder = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of these folders has relative ones ignored.
    if os.path.isabs(folder):
        return folder
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise PrivateFolderError(f"cannot find a private folder: the user has no home; {_ADVICE}")
    return os.path.join(home, ".cache")


def _check_parent(path: str, status: os.stat_result) -> None:
    """Raises PrivateFolderError for a folder above ours in which somebody else could put another one in its place."""
    if status.st_uid not in (0, os.geteuid()):
        raise PrivateFolderError(
            f"cannot keep code below '{path}': the folder belongs to user {status.st_uid}, expected {os.geteuid()} or root; {_ADVICE}"
        )
    if may_others_write(status) and not status.st_mode & stat.S_ISVTX:
        raise PrivateFolderError(
            f"cannot keep code below '{path}': others may write to it (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"run chmod go-w on it, or {_ADVICE}"
        )


def _open_own(parent: int, name: str, path: str) -> int:
    """Returns a descriptor of a folder in an open one, made where there is none, and checked after it was opened."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        pass  # whose it is, and what, is looked at below
    except OSError as error:
        raise PrivateFolderError(f"cannot make the folder '{path}': {error.strerror or error}; {_ADVICE}") from error
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        fault = "a link" if _is_link(parent, name) else f"no folder that can be opened ({error.strerror or error})"
        raise PrivateFolderError(
            f"cannot keep code in '{path}': it is {fault}; expected a folder of your own. Remove it"
        ) from error
    try:
        _make_private(descriptor, path)
    except BaseException:  # after an interrupt, too, the descriptor is closed
        os.close(descriptor)
        raise
    return descriptor


def _make_private(descriptor: int, path: str) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise PrivateFolderError(
            f"cannot keep code in '{path}': the folder belongs to user {status.st_uid}, expected {os.geteuid()}; remove it, or {_ADVICE}"
        )
    mode = stat.S_IMODE(status.st_mode)
    # Made with mode 0700, so that even a group of the user's own says that somebody has changed it.
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PrivateFolderError(
            f"cannot keep code in '{path}': others may write to it (mode {mode:04o}, expected 0700), and may have; remove it"
        )
    if mode != 0o700:
        os.fchmod(descriptor, 0o700)


def _is_link(parent: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False
