"""The cache of compiled networks: a folder of blobs, each named by the digest of all that shaped it.

Rules: an entry appears complete or not at all; it is used only where what it says of itself is, byte for byte, what the load would
say; whatever is wrong with entry or folder is a warning and a miss, and never fails a load; code is neither kept nor taken. Warnings
go to the log and not through `warnings`, which a program may have turned into errors.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hetero_core.blobs.container import BlobHeader, find_code, read_blob, write_blob
from hetero_core.blobs.locks import FileLock
from hetero_core.contract import Payload
from hetero_core.errors import BlobError, BlobMismatchError, ConfigValueError, UntrustedBlobError

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

LOCK_SECONDS = 300.0
"""How long a load waits for another one of the same network, before it compiles for itself and leaves the cache alone."""

_IDENTITY = "hetero/cache"
"""The section of an entry that says what it was made from; the plugin that imports the entry does not see it."""
_ENTRY_NAME = re.compile(r"[0-9a-f]{64}\.blob")
_LEFTOVER_NAME = re.compile(r"[0-9a-f]{64}\.(lock|[^.]+\.partial)")
_CLOCK_SKEW = 2_000_000_000
"""Nanoseconds by which the clocks of two machines may differ that share a folder."""

_tidied: set[Path] = set()
"""The folders that this process has looked through for what killed processes left."""

# The parts of a split network are loaded within the load of the whole, and are in its entry.
_is_inside: ContextVar[bool] = ContextVar("hetero_cache_is_inside", default=False)


def open_cache(config: Mapping[str, Any]) -> NetworkCache | None:
    """Returns the cache that a configuration names; None where it names none, and within a load that is cached as a whole.

    Raises: ConfigValueError for a folder that no path can name.
    """
    limit = config.get("CACHE_SIZE_LIMIT", 0)
    folder = config.get("CACHE_DIR", "")
    if "\0" in folder:
        raise ConfigValueError(f"configuration key CACHE_DIR: expected the path of a folder, got {folder!r}")
    # Not Path.expanduser: it raises for a user who is not there.
    return NetworkCache(Path(os.path.expanduser(folder)), limit) if folder and not _is_inside.get() else None


class NetworkCache:
    """A folder of entries. Safe for threads and processes; keeps no state but the folder, which a process tidies up on its first use."""

    def __init__(self, folder: Path, size_limit: int = 0) -> None:
        self._folder = folder
        self._size_limit = size_limit

    def load(
        self,
        identity: bytes,
        *,
        take: Callable[[BlobHeader, Payload], Loaded],
        make: Callable[[], Loaded],
        pack: Callable[[Loaded], tuple[BlobHeader, Payload]],
    ) -> Loaded:
        """Returns what `take` makes of the entry, or where there is none what `make` returns, having stored what `pack` gives of it.

        Of several processes and threads that load one network one makes it, and the others wait for its entry.

        Raises: what `make` raises.
        """
        path = self._folder / f"{hashlib.sha256(identity).hexdigest()}.blob"
        token = _is_inside.set(True)
        try:
            with suppress(_UnusableEntryError):
                found = self._take_entry(path, identity, take)
                if found is not None:
                    return found
            with self._hold_lock(path) as is_held:
                found = self._take_entry_or_warn(path, identity, take) if is_held else None
                if found is not None:
                    return found
                made = make()
                if is_held:
                    self._store(path, identity, lambda: pack(made))
                return made
        finally:
            _is_inside.reset(token)
            if self._folder not in _tidied:
                _tidied.add(self._folder)
                self._remove_leftovers()

    def _take_entry(self, path: Path, identity: bytes, take: Callable[[BlobHeader, Payload], Loaded]) -> Loaded | None:
        """Returns what is made of an entry, None where there is none."""
        try:
            header, payload = _read_entry(path, identity)
        except BlobError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise _UnusableEntryError(str(error)) from error
        try:
            taken = take(header, payload)
        except Exception as error:
            # A plugin may raise anything for what it cannot import.
            raise _UnusableEntryError(f"{type(error).__name__}: {error}") from error
        _note_use(path)
        logger.info("network '%s' was loaded from the cache entry '%s'", header.network, path)
        return taken

    def _take_entry_or_warn(self, path: Path, identity: bytes, take: Callable[[BlobHeader, Payload], Loaded]) -> Loaded | None:
        try:
            return self._take_entry(path, identity, take)
        except _UnusableEntryError as error:
            logger.warning("the cache entry '%s' cannot be used and is made anew: %s", path, error)
            return None

    @contextmanager
    def _hold_lock(self, path: Path) -> Iterator[bool]:
        """Gives True where this load alone may write the entry, False where the cache cannot be used for it."""
        lock = FileLock(path.with_suffix(".lock"))
        try:
            with suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            is_held = lock.acquire(
                LOCK_SECONDS, on_wait=lambda holder: logger.info("waiting for %s, which loads the same network", holder)
            )
        except OSError as error:
            logger.warning("the cache folder '%s' cannot be used: %s; nothing is kept in it", self._folder, error.strerror or error)
            yield False
            return
        if not is_held:
            logger.warning(
                "another process has held '%s' for %g s; loading without the cache", path.with_suffix(".lock"), LOCK_SECONDS
            )
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _store(self, path: Path, identity: bytes, pack: Callable[[], tuple[BlobHeader, Payload]]) -> None:
        """Writes an entry; a failure leaves the folder as it was."""
        try:
            self._remove_leftovers(held=path.stem)
            header, payload = pack()
            code = find_code(payload)
            if code:
                logger.info("network '%s' is not kept in the cache: it holds code, in the sections %s", header.network, code)
                return
            entry = Payload({**payload.sections, _IDENTITY: identity}, payload.version, payload.code)
            size = self._write(path, header, entry)
            logger.info("network '%s' was stored as the cache entry '%s', %d bytes", header.network, path, size)
            self._evict(path.name)
        except Exception as error:  # noqa: BLE001  # a full disk, or a plugin that cannot export: the network is loaded all the same
            logger.warning("nothing was kept in the cache folder '%s': %s: %s", self._folder, type(error).__name__, error)

    def _write(self, path: Path, header: BlobHeader, entry: Payload) -> int:
        """Returns the size of the entry, which is on the disk when it gets its name."""
        descriptor, partial = tempfile.mkstemp(dir=self._folder, prefix=f"{path.stem}.", suffix=".partial")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                write_blob(header, entry, stream)
                stream.flush()
                os.fsync(stream.fileno())
                size = stream.tell()
            if 0 < self._size_limit < size:
                raise BlobError(f"the entry has {size} bytes, CACHE_SIZE_LIMIT is {self._size_limit}")
            _note_use(partial)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise
        _sync_folder(self._folder)
        return size

    def _remove_leftovers(self, held: str = "") -> None:
        """Removes the partial files and locks of killed processes: those whose lock nobody holds, however old they look.

        `held` is the key whose lock is held by this load.
        """
        try:
            left = self._list(_LEFTOVER_NAME)
        except OSError:
            return  # the folder is gone, or not to be read; who needs it says so
        for key in sorted({path.name.partition(".")[0] for path in left}):
            partials = [path for path in left if path.name.startswith(key) and path.suffix == ".partial"]
            # One that cannot be removed says nothing about the next.
            with suppress(OSError):
                if key == held:
                    _unlink_all(partials)
                    continue
                lock = FileLock(self._folder / f"{key}.lock")
                if lock.acquire(0, on_wait=lambda _: None):
                    try:
                        _unlink_all(partials)
                    finally:
                        lock.release()

    def _evict(self, kept: str) -> None:
        """Removes the entries that were not used for the longest time, until the rest is within the limit; never the one named `kept`.

        A time ahead of the clock is from before the clock was put back: such entries go first.
        """
        if self._size_limit == 0:
            return
        found, latest = [], time.time_ns() + _CLOCK_SKEW
        for path in self._list(_ENTRY_NAME):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns <= latest, status.st_mtime_ns, path.name, status.st_size, path))
        total = sum(size for *_, size, _ in found)
        for *_, name, size, path in sorted(found):
            if total <= self._size_limit:
                return
            if name == kept:
                continue
            with suppress(OSError):
                path.unlink()
            total -= size
            logger.info("the cache entry '%s' of %d bytes was removed, CACHE_SIZE_LIMIT is %d", path, size, self._size_limit)

    def _list(self, name: re.Pattern[str]) -> list[Path]:
        """Returns those files of the folder that are ours by their names; what else is in it is left alone."""
        return [path for path in self._folder.iterdir() if name.fullmatch(path.name)]


def _read_entry(path: Path, identity: bytes) -> tuple[BlobHeader, Payload]:
    header, payload = read_blob(path)
    sections = dict(payload.sections)
    if bytes(sections.pop(_IDENTITY, b"")) != identity:
        raise BlobMismatchError(f"'{path}' was made from something else than its name says")
    code = find_code(payload)
    if code:
        raise UntrustedBlobError(f"'{path}' holds code, in the sections {list(code)}; no cache entry may")
    return header, replace(payload, sections=sections)


def _unlink_all(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _note_use(path: str | os.PathLike[str]) -> None:
    """Writes the time of the last use, for the eviction; of the clock that is asked there, which a file server's is not."""
    now = time.time_ns()
    with suppress(OSError):
        os.utime(path, ns=(now, now))


class _UnusableEntryError(Exception):
    """An entry is there and cannot be used."""


def _sync_folder(folder: Path) -> None:
    """Makes a new name in a folder last through a power cut, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
