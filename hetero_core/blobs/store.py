"""The private store: kernels, plans and measured placements for later processes, each a file of the same folder.

Rules: an entry is named by a digest of everything that affects its content, so it is never out of date and may be deleted at any
time. It appears complete or not at all, begins with the digest of its content, and a damaged entry is a miss. Only the user can
write to the folder: it is below XDG_CACHE_HOME, or ~/.cache if that is not set, and never below CACHE_DIR, which may be shared.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from hetero_core.errors import PrivateFolderError
from hetero_core.files import HAS_OWNERS, describe_kind, find_writers, open_owned, open_plain, remove_oldest, write_whole

logger = logging.getLogger(__name__)

FOLDER = "store"
MOST_BYTES = 1 << 29
"""The limit of all entries together; beyond it the least recently used are removed."""
_SWEEP_BYTES = 1 << 24
"""Bytes of entries that are written, on average, between two checks of the folder's size. A check reads the status of all files, which
beside a loop of short runs takes seconds, so a program that writes little mostly makes none.
"""
_DIGEST_BYTES = 32
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.-")
_LONGEST_NAME = 100
_ADVICE = "set XDG_CACHE_HOME to a folder of your own"


def name_entry(kind: str, *parts: str | bytes) -> str:
    """Returns the name of an entry, from its kind, such as "plan", and the parts that determine its content."""
    digest = sha256()
    for part in parts:
        digest.update(sha256(part.encode() if isinstance(part, str) else part).digest())
    return f"{kind}-{digest.hexdigest()[:40]}"


class Store:
    """The entries of the user's private folder. Safe for threads and processes; every failure is a warning and a miss."""

    def read(self, name: str) -> bytes | None:
        """Returns the content of an entry; None for an entry that is missing, damaged, or writable by other users."""
        folder = _open_folder_or_warn()
        if folder is None:
            return None
        path = f"{folder}/{name}"
        content = _read(path, open_owned)
        if content is not None:
            with suppress(OSError):  # the disk may be read-only
                os.utime(path)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Stores an entry with mode 0600; replaces an entry of the same name."""
        folder = _open_folder_or_warn()
        if folder is None:
            return
        try:
            write_entry(f"{folder}/{name}", content)
            if int.from_bytes(os.urandom(4), "big") % _SWEEP_BYTES < len(content):
                remove_oldest(folder, limit=MOST_BYTES, latest=name)
        except OSError as error:
            logger.warning("cannot keep '%s' in the private store: %s", name, error)


def read_brought(path: str) -> bytes | None:
    """Returns the content of an entry that an installed package ships, trusted like the package's code; None as `Store.read`."""
    return _read(path, open_plain)


def write_entry(path: str, content: bytes) -> None:
    """Writes a file as `read_brought` reads it. Raises: OSError."""
    write_whole(path, lambda stream: stream.write(sha256(content).digest() + content))


def _read(path: str, open_file: Callable[[str], int]) -> bytes | None:
    try:
        with os.fdopen(open_file(path), "rb") as file:
            digest, content = file.read(_DIGEST_BYTES), file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("'%s' is not used: %s", path, error.strerror or error)
        return None
    if sha256(content).digest() == digest:
        return content
    logger.warning("'%s' is damaged; it is made anew", path)
    return None


def _open_folder_or_warn() -> str | None:
    # Both determine the folder; a test or a program may change them.
    return _open_folder_of(os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", ""))


@lru_cache(maxsize=4)
def _open_folder_of(*_: str) -> str | None:
    try:
        return str(open_private_folder(FOLDER))
    except PrivateFolderError as error:
        logger.warning("nothing is kept for later processes: %s", error)
        return None


STORE = Store()
"""The store of this user."""


def open_private_folder(name: str) -> Path:
    """Returns the user's folder of this name, mode 0700, below folders that no other user can change; creates it if it is missing.

    `name`: small letters, digits, "_", "." and "-", as "cupy-kernels". Safe for threads and processes.

    Raises: PrivateFolderError for a folder that is a link, belongs to another user, is writable for other users, or cannot be
    created.
    """
    if not _NAME_CHARACTERS.issuperset(name) or name[:1] in "_.-" or len(name) > _LONGEST_NAME:
        raise PrivateFolderError(
            f"cannot open a private folder named {name!r}; expected small letters, digits, '_', '.' and '-', at most 100"
        )
    # The XDG specification says that relative paths are ignored.
    folder = os.environ.get("XDG_CACHE_HOME", "")
    base = folder if os.path.isabs(folder) else os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        raise PrivateFolderError(f"cannot find a private folder: the user has no home; {_ADVICE}")
    try:
        os.makedirs(base, 0o700, exist_ok=True)
        resolved = os.path.realpath(base, strict=True)
    except OSError as error:
        raise PrivateFolderError(f"cannot make the folder '{base}': {error.strerror or error}; {_ADVICE}") from error
    if not HAS_OWNERS:  # a folder below a user's own is private by its access list
        folder = os.path.join(resolved, "hetero", name)
        os.makedirs(folder, exist_ok=True)
        return Path(folder)
    try:
        strangers = find_writers(resolved, may_be_sticky=True) - {0, os.geteuid()}
    except PermissionError as error:
        raise PrivateFolderError(f"cannot keep code: {error.strerror}, or {_ADVICE}") from error
    if strangers:
        raise PrivateFolderError(
            f"cannot keep code below '{resolved}': it, or a folder above it, belongs to user {min(strangers)}, expected {os.geteuid()} or "
            f"root; {_ADVICE}"
        )
    path = resolved
    for piece in ("hetero", name):
        path = os.path.join(path, piece)
        _make_private(path)
    return Path(path)


def _make_private(path: str) -> None:
    """Creates a folder in a parent that only this user and root can change, or checks that the folder is the user's own."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
    except OSError as error:
        raise PrivateFolderError(f"cannot make the folder '{path}': {error.strerror or error}; {_ADVICE}") from error
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        fault = f"it is {describe_kind(status.st_mode)}; expected a folder of your own. Remove it"
    elif status.st_uid != os.geteuid():
        fault = f"the folder belongs to user {status.st_uid}, expected {os.geteuid()}; remove it, or {_ADVICE}"
    elif mode & (stat.S_IWGRP | stat.S_IWOTH):
        # Made with mode 0700, so that group write permission, even for the user's own group, shows a later change.
        fault = f"others may write to it (mode {mode:04o}, expected 0700), and may have; remove it"
    else:
        if mode != 0o700:
            os.chmod(path, 0o700)
        return
    raise PrivateFolderError(f"cannot keep code in '{path}': {fault}")
