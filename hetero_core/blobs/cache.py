"""The cache of compiled networks: a folder of blobs, each named by the digest of all that shaped it.

Rules: an entry appears complete or not at all; it is used only where what it says of itself is, byte for byte, what the load would
say; whatever is wrong with entry or folder is a warning and a miss, and never fails a load; code is neither kept nor taken, but what a
plugin can do without, in a folder of the user's own. Which folders and files are trusted is decided in `cache_folder`. Warnings go to the
log and not through `warnings`, which a program may have turned into errors.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hetero_core.blobs.cache_folder import CacheFolder, open_cache_folder
from hetero_core.blobs.container import check_container, find_code, map_file, write_blob
from hetero_core.blobs.header import BlobHeader
from hetero_core.blobs.locks import FileLock
from hetero_core.blobs.trust import trust_imports
from hetero_core.contract import Payload
from hetero_core.errors import BlobError, BlobMismatchError, ConfigValueError, UntrustedBlobError

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

LOCK_SECONDS = 300.0
"""Seconds for which a load waits for another load of the same network, before it compiles for itself and leaves the cache alone."""

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


def make_cache(folder: str, limit: int) -> NetworkCache | None:
    """Returns the cache in a folder; None within a load that is cached as a whole. Raises: ConfigValueError for what no path can be."""
    if "\0" in folder:
        raise ConfigValueError(f"configuration key CACHE_DIR: expected the path of a folder, got {folder!r}")
    # Not Path.expanduser: it raises for a user who is not there.
    return NetworkCache(Path(os.path.expanduser(folder)), limit) if not _is_inside.get() else None


class NetworkCache:
    """A folder of entries. Safe for threads and processes; keeps no state but the folder, which a process tidies up on its first use."""

    def __init__(self, folder: Path, size_limit: int = 0) -> None:
        self._path = folder
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
        token = _is_inside.set(True)
        try:
            with ExitStack() as stack:
                try:
                    folder = stack.enter_context(open_cache_folder(self._path))
                except OSError as error:
                    self._warn_of_folder(error)
                    return make()
                try:
                    return self._load_from(folder, identity, take, make, pack)
                finally:
                    if self._path not in _tidied:
                        _tidied.add(self._path)
                        _remove_leftovers(folder)
        finally:
            _is_inside.reset(token)

    def _load_from(
        self,
        folder: CacheFolder,
        identity: bytes,
        take: Callable[[BlobHeader, Payload], Loaded],
        make: Callable[[], Loaded],
        pack: Callable[[Loaded], tuple[BlobHeader, Payload]],
    ) -> Loaded:
        key = hashlib.sha256(identity).hexdigest()
        with suppress(_UnusableEntryError):
            loaded = _take_entry(folder, key, identity, take)
            if loaded is not None:
                return loaded
        with self._hold_lock(folder, key) as is_held:
            loaded = _take_entry_or_warn(folder, key, identity, take) if is_held else None
            if loaded is not None:
                return loaded
            compiled = make()
            if is_held:
                self._store(folder, key, identity, lambda: pack(compiled))
            return compiled

    def _warn_of_folder(self, error: OSError) -> None:
        logger.warning("the cache folder '%s' cannot be used: %s; nothing is kept in it", self._path, error.strerror or error)

    @contextmanager
    def _hold_lock(self, folder: CacheFolder, key: str) -> Iterator[bool]:
        """Gives True where this load alone may write the entry, False where the cache cannot be used for it."""
        lock = _lock_of(folder, key)
        try:
            is_held = lock.acquire(
                LOCK_SECONDS, on_wait=lambda holder: logger.info("waiting for %s, which loads the same network", holder)
            )
        except OSError as error:
            self._warn_of_folder(error)
            yield False
            return
        if not is_held:
            path = folder.path / f"{key}.lock"
            logger.warning("another process has held '%s' for %g s; loading without the cache", path, LOCK_SECONDS)
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _store(self, folder: CacheFolder, key: str, identity: bytes, pack: Callable[[], tuple[BlobHeader, Payload]]) -> None:
        """Writes an entry; a failure leaves the folder as it was, and is told, since the network is loaded all the same."""
        try:
            header, payload = pack()
        except Exception as error:  # noqa: BLE001  # a plugin that cannot export may raise anything
            self._warn(error)
            return
        try:
            _remove_leftovers(folder, held=key)
            code = find_code(payload)
            if code:
                logger.info("network '%s' is not kept in the cache: it holds code, in the sections %s", header.network, code)
                return
            payload = payload if folder.is_own else payload.without_spare_code()
            entry = replace(payload, sections={**payload.sections, _IDENTITY: identity})
            size = self._write(folder, key, header, entry)
            path = folder.path / f"{key}.blob"
            logger.info("network '%s' was stored as the cache entry '%s', %d bytes", header.network, path, size)
            self._evict(folder, path.name)
        except (OSError, BlobError) as error:  # a full disk, or a limit
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        logger.warning("nothing was kept in the cache folder '%s': %s: %s", self._path, type(error).__name__, error)

    def _write(self, folder: CacheFolder, key: str, header: BlobHeader, entry: Payload) -> int:
        """Returns the size of the entry, which is on the disk when it gets its name."""
        partial, descriptor = folder.create_partial(key)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                write_blob(header, entry, stream)
                stream.flush()
                os.fsync(stream.fileno())
                size = stream.tell()
                folder.note_use(partial, stream.fileno())
            if 0 < self._size_limit < size:
                raise BlobError(f"the entry has {size} bytes, CACHE_SIZE_LIMIT is {self._size_limit}")
            folder.rename(partial, f"{key}.blob")
        except BaseException:  # after an interrupt, too, no partial file stays behind
            with suppress(OSError):
                folder.remove(partial)
            raise
        folder.sync()
        return size

    def _evict(self, folder: CacheFolder, stored: str) -> None:
        """Removes the entries that were not used for the longest time, until the rest is within the limit; never the one just stored.

        A time ahead of the clock is from before the clock was put back: such entries go first.
        """
        if self._size_limit == 0:
            return
        entries, latest = [], time.time_ns() + _CLOCK_SKEW
        for name in _list(folder, _ENTRY_NAME):
            with suppress(OSError):
                status = folder.stat(name)
                entries.append((status.st_mtime_ns <= latest, status.st_mtime_ns, name, status.st_size))
        total = sum(size for *_, size in entries)
        for *_, name, size in sorted(entries):
            if total <= self._size_limit:
                return
            if name == stored:
                continue
            with suppress(OSError):
                folder.remove(name)
            total -= size
            path = folder.path / name
            logger.info("the cache entry '%s' of %d bytes was removed, CACHE_SIZE_LIMIT is %d", path, size, self._size_limit)


def _take_entry(folder: CacheFolder, key: str, identity: bytes, take: Callable[[BlobHeader, Payload], Loaded]) -> Loaded | None:
    """Returns what is made of an entry, None where there is none. Raises: _UnusableEntryError."""
    path = folder.path / f"{key}.blob"
    try:
        descriptor = folder.open_entry(path.name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _UnusableEntryError(error.strerror or f"{error}") from error
    try:
        header, payload = _read_entry(f"'{path}'", map_file(descriptor), identity)
        folder.note_use(path.name, descriptor)
    except (OSError, BlobError) as error:
        raise _UnusableEntryError(str(error)) from error
    finally:
        os.close(descriptor)
    try:
        with trust_imports(folder.is_own):
            loaded = take(header, payload if folder.is_own else payload.without_spare_code())
    except Exception as error:  # a plugin may raise anything for what it cannot import; the caller tells it and loads the model
        raise _UnusableEntryError(f"{type(error).__name__}: {error}") from error
    logger.info("network '%s' was loaded from the cache entry '%s'", header.network, path)
    return loaded


def _take_entry_or_warn(
    folder: CacheFolder, key: str, identity: bytes, take: Callable[[BlobHeader, Payload], Loaded]
) -> Loaded | None:
    try:
        return _take_entry(folder, key, identity, take)
    except _UnusableEntryError as error:
        path = folder.path / f"{key}.blob"
        logger.warning("the cache entry '%s' cannot be used and is made anew: %s", path, error)
        return None


def _lock_of(folder: CacheFolder, key: str) -> FileLock:
    return FileLock(folder.path / f"{key}.lock", folder=folder.descriptor, owners=folder.owners)


def _remove_leftovers(folder: CacheFolder, held: str = "") -> None:
    """Removes the partial files and locks of killed processes: those whose lock nobody holds, however old they look.

    `held` is the key whose lock is held by this load.
    """
    try:
        names = _list(folder, _LEFTOVER_NAME)
    except OSError:
        return  # the folder is gone, or not to be read; who needs it says so
    for key in sorted({name.partition(".")[0] for name in names}):
        partials = [name for name in names if name.startswith(key) and name.endswith(".partial")]
        # One that cannot be removed says nothing about the next.
        with suppress(OSError):
            if key == held:
                _remove_all(folder, partials)
                continue
            lock = _lock_of(folder, key)
            if lock.acquire(0, on_wait=lambda _: None):
                try:
                    _remove_all(folder, partials)
                finally:
                    lock.release()


def _list(folder: CacheFolder, pattern: re.Pattern[str]) -> list[str]:
    """Returns those names of the folder that are ours; what else is in it is left alone."""
    return [name for name in folder.list_names() if pattern.fullmatch(name)]


def _remove_all(folder: CacheFolder, names: list[str]) -> None:
    for name in names:
        folder.remove(name)


def _read_entry(title: str, content: memoryview, identity: bytes) -> tuple[BlobHeader, Payload]:
    header, payload = check_container(title, content)
    sections = dict(payload.sections)
    if bytes(sections.pop(_IDENTITY, b"")) != identity:
        raise BlobMismatchError(f"{title} was made from something else than its name says")
    code = find_code(payload)
    if code:
        raise UntrustedBlobError(f"{title} holds code, in the sections {list(code)}; no cache entry may")
    return header, replace(payload, sections=sections)


class _UnusableEntryError(Exception):
    """An entry is there and cannot be used."""
