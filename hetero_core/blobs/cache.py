"""The cache of compiled networks: a folder of blobs, each named by the digest of everything that affects its compilation.

Rules: an entry appears complete or not at all; it is used only if its identity equals that of the load, byte for byte; a
fault of the entry or the folder is a warning and a miss, and never fails a load; code is neither stored nor loaded, except optional
code in a folder of the user's own. Warnings go to the log and not through `warnings`, which a program may have turned into errors.

The folder belongs to the user, to root, or to another user if only this user and root could have put it there. Only its owner and
root may write to it. A file in it belongs to the user, to root or to the owner of the folder, and is never opened through a link.

Concurrent loads of a network wait for the first. The lock is a file lock of the operating system, so it is released when its holder
dies. On Windows there is no lock: a network may be compiled twice.

The identity of a load is a text that names everything that shapes a compiled network. In doubt a fact belongs in the text: an
unnecessary fact costs a compilation, a missing fact leads to a network that was compiled for another load.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar

from hetero_core.blobs.container import FORMAT_VERSION, BlobHeader, check_container, find_code, map_file, trust_imports, write_blob
from hetero_core.contract import DeviceName, Extension, Payload
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.device import Device
from hetero_core.devices.names import split_device_list
from hetero_core.devices.provenance import describe_object, find_core_version
from hetero_core.devices.registry import CallTarget, Registry
from hetero_core.errors import BlobError, BlobMismatchError, ClosedError, ConfigValueError, HeteroError, UntrustedBlobError
from hetero_core.files import HAS_OWNERS, find_writers, open_owned, open_unlinked, remove_oldest, write_whole
from hetero_core.network.graph import Network

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

LOCK_SECONDS = 300.0
"""Seconds for which a load waits for another load of the same network, before it compiles for itself and leaves the cache alone."""

_IDENTITY = "hetero/cache"
"""The section of an entry that holds the identity of its load; the plugin that imports the entry does not see it."""
_ENTRY_NAME = re.compile(r"[0-9a-f]{64}\.blob")
_ROOT = 0
_LEFTOVER_NAME = re.compile(r"[0-9a-f]{64}\.(lock|[^.]+\.partial)")

_tidied: set[Path] = set()
"""The folders in which this process has looked for files of killed processes."""

# The parts of a split network are in the entry of the whole network.
_is_inside: ContextVar[bool] = ContextVar("hetero_cache_is_inside", default=False)


def load_cached(
    path: str,
    size_limit: int,
    identify: Callable[[], bytes],
    *,
    take: Callable[[Payload], Loaded],
    make: Callable[[], Loaded],
    pack: Callable[[Loaded], tuple[BlobHeader, Payload]],
    find_postponer: Callable[[Loaded], Callable[[Callable[[Loaded], None]], None] | None],
) -> Loaded:
    """Returns the network that the folder of this path has, imported by `take`. On a miss, makes it, stores its `pack` and returns it.

    A network that cannot be packed yet has a postponer: it gets the function that stores the network later. If several processes and
    threads load the same network, the first compiles it, and the rest wait for its entry. Within a load that is cached as a whole,
    nothing is cached.

    Raises: ConfigValueError for an invalid path; errors of `make`.
    """
    if "\0" in path:
        raise ConfigValueError(f"configuration key CACHE_DIR: expected the path of a folder, got {path!r}")
    if _is_inside.get():
        return make()
    # Not Path.expanduser: it raises for an unknown user.
    requested = Path(os.path.expanduser(path))
    with ExitStack() as stack:
        stack.callback(_is_inside.reset, _is_inside.set(True))
        try:
            folder = open_cache_folder(requested)
        except OSError as error:
            _warn_of_folder(requested, error)
            return make()
        if requested not in _tidied:
            _tidied.add(requested)
            stack.callback(_remove_leftovers, folder)
        entry = _Entry(folder, identify(), size_limit)
        with suppress(_UnusableEntryError):
            loaded = entry.load(take)
            if loaded is not None:
                return loaded
        with entry.hold_lock() as is_held:
            if is_held:
                try:
                    loaded = entry.load(take)
                except _UnusableEntryError as error:
                    logger.warning("the cache entry '%s' cannot be used and is made anew: %s", entry.path, error)
                else:
                    if loaded is not None:
                        return loaded
            compiled = make()
            postpone = find_postponer(compiled)
            if is_held and postpone is None:
                entry.store(lambda: pack(compiled))

        def store(network: Loaded) -> None:
            with entry.hold_lock() as may_write:
                if may_write:
                    entry.store(lambda: pack(network))

        if is_held and postpone is not None:
            postpone(store)
        return compiled


def _warn_of_folder(path: Path, error: OSError) -> None:
    logger.warning("the cache folder '%s' cannot be used: %s; nothing is kept in it", path, error.strerror or error)


class _Entry:
    """The entry of a load in a folder."""

    def __init__(self, folder: CacheFolder, identity: bytes, size_limit: int) -> None:
        self._folder = folder
        self._identity = identity
        self._size_limit = size_limit
        self._key = hashlib.sha256(identity).hexdigest()
        self.path = folder.path / f"{self._key}.blob"

    @contextmanager
    def hold_lock(self) -> Iterator[bool]:
        """Gives True if this load alone may write the entry, False if the cache cannot be used for it."""
        path = self.path.with_suffix(".lock")
        lock, is_held = FileLock(path), False
        try:
            is_held = lock.acquire(LOCK_SECONDS, on_wait=lambda: logger.info("waiting for another load of the same network"))
            if not is_held:
                logger.warning("another process has held '%s' for %g s; loading without the cache", path, LOCK_SECONDS)
        except OSError as error:
            _warn_of_folder(self._folder.path, error)
        try:
            yield is_held
        finally:
            if is_held:
                lock.release()

    def load(self, take: Callable[[Payload], Loaded]) -> Loaded | None:
        """Returns the loaded network of the entry; None if there is no entry. Raises: _UnusableEntryError."""
        folder, path = self._folder, self.path
        try:
            descriptor = open_owned(str(path), folder.owners)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _UnusableEntryError(error.strerror or f"{error}") from error
        try:
            header, payload = check_container(f"'{path}'", map_file(descriptor))
            sections = dict(payload.sections)
            if bytes(sections.pop(_IDENTITY, b"")) != self._identity:
                raise BlobMismatchError(f"'{path}' was made from something else than its name says")
            code = find_code(payload)
            if code:
                raise UntrustedBlobError(f"'{path}' holds code, in the sections {list(code)}; no cache entry may")
            payload = replace(payload, sections=sections)
            with suppress(OSError):  # the folder may be read-only for this user
                os.utime(path)
        except (OSError, BlobError) as error:
            raise _UnusableEntryError(str(error)) from error
        finally:
            os.close(descriptor)
        try:
            with trust_imports(folder.is_own):
                loaded = take(payload if folder.is_own else payload.without_spare_code())
        except Exception as error:  # a plugin may raise anything if it cannot import a blob; the caller logs it and loads the model
            raise _UnusableEntryError(f"{type(error).__name__}: {error}") from error
        logger.info("network '%s' was loaded from the cache entry '%s'", header.network, path)
        return loaded

    def store(self, pack: Callable[[], tuple[BlobHeader, Payload]]) -> None:
        """Writes the entry; a failure leaves the folder unchanged and is a warning only, since the network is loaded anyway."""
        folder, path, limit = self._folder, self.path, self._size_limit
        try:
            header, payload = pack()
            _remove_leftovers(folder, held=self._key)
            code = find_code(payload)
            if code:
                logger.info("network '%s' is not kept in the cache: it holds code, in the sections %s", header.network, code)
                return
            payload = payload if folder.is_own else payload.without_spare_code()
            content = replace(payload, sections={**payload.sections, _IDENTITY: self._identity})
            size = write_whole(str(path), lambda stream: self._write(stream, header, content))
            logger.info("network '%s' was stored as the cache entry '%s', %d bytes", header.network, path, size)
            if limit:
                for name in remove_oldest(str(folder.path), limit=limit, latest=path.name, is_entry=_ENTRY_NAME.fullmatch):
                    logger.info("the cache entry '%s' was removed, CACHE_SIZE_LIMIT is %d", folder.path / name, limit)
        except ClosedError:
            return
        except Exception as error:  # noqa: BLE001  # a full disk, or a limit; a plugin that cannot export may raise anything
            logger.warning("nothing was kept in the cache folder '%s': %s: %s", folder.path, type(error).__name__, error)

    def _write(self, stream: IO[bytes], header: BlobHeader, content: Payload) -> int:
        """Returns the size of the entry, which is on the disk before it gets its name."""
        write_blob(header, content, stream)
        stream.flush()
        os.fsync(stream.fileno())
        size = stream.tell()
        if 0 < self._size_limit < size:
            raise BlobError(f"the entry has {size} bytes, CACHE_SIZE_LIMIT is {self._size_limit}")
        return size


def _remove_leftovers(folder: CacheFolder, held: str = "") -> None:
    """Removes the partial files and locks of killed processes: the files of each key with a free lock.

    `held` is the key that this load has locked.
    """
    try:
        names = [name for name in os.listdir(folder.path) if _LEFTOVER_NAME.fullmatch(name)]
    except OSError:
        return  # the folder is gone or unreadable; the load reports that
    for key in sorted({name.partition(".")[0] for name in names}):
        # A file that cannot be removed says nothing about the next.
        with suppress(OSError), ExitStack() as stack:
            if key != held:
                lock = FileLock(folder.path / f"{key}.lock")
                if not lock.acquire(0, on_wait=lambda: None):
                    continue
                stack.callback(lock.release)
            for name in names:
                if name.startswith(key) and name.endswith(".partial"):
                    (folder.path / name).unlink(missing_ok=True)


class _UnusableEntryError(Exception):
    """An entry is there and cannot be used."""


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """A folder without links in its path. `owners` may have written its files beside the user.

    `is_own`: only this user and root can change it or put another folder in its place, so that it may hold code.
    """

    path: Path
    owners: tuple[int, ...] = ()
    is_own: bool = False


def open_cache_folder(path: Path) -> CacheFolder:
    """Returns the folder of a path. If its parent exists, it is created, for the user alone. Links in the path are followed.

    Raises: OSError with the reason: the system's reason, or the list of users that may change the folder.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    path = path.resolve(strict=True)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not HAS_OWNERS:
        return CacheFolder(path)
    owner, trusted = path.stat().st_uid, {os.geteuid(), _ROOT}
    writers = find_writers(str(path), may_be_sticky=False)
    strangers = sorted(writers - {owner, *trusted})
    if strangers:
        raise PermissionError(
            errno.EPERM, f"it stands below a folder of user {strangers[0]}, who could put another one in its place"
        )
    return CacheFolder(path, (_ROOT, owner), is_own=writers <= trusted)


_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2
"""Seconds between two tries; there is no way to wait for such a lock with a time limit."""


class FileLock:
    """A lock on a path; a second lock on the same path waits for it, in any process. The file is removed when the lock is released."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self, timeout: float, *, on_wait: Callable[[], None]) -> bool:
        """Says whether the lock is held now; False after `timeout` seconds. `on_wait` is called once, before waiting.

        Raises: OSError if the file cannot be created or locked.
        """
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        if self._try_once():
            return True
        on_wait()
        while time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            if self._try_once():
                return True
        return False

    def _try_once(self) -> bool:
        while True:
            descriptor = open_unlinked(str(self._path), os.O_RDWR | os.O_CREAT)
            is_locked = _lock(descriptor)
            with suppress(FileNotFoundError):
                if is_locked and os.path.samestat(os.fstat(descriptor), os.lstat(self._path)):
                    self._descriptor = descriptor
                    return True
            os.close(descriptor)
            if not is_locked:
                return False
            # The holder before removed the file while we opened it; a new file may exist.

    def release(self) -> None:
        """Releases the lock, so that the next load can take it."""
        descriptor, self._descriptor = self._descriptor, -1
        # Removed while it is held: a process that opens it from now on creates a new file; an earlier process finds it gone.
        with suppress(OSError):
            os.unlink(self._path)
        # By name, since a forked child may hold the same descriptor open.
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def describe_load(network: Network, target: CallTarget, registry: Registry, extensions: Iterable[Extension]) -> bytes:
    """Returns the text, JSON in UTF-8 with sorted keys; the same in every process.

    Cost: the fingerprint of the network, which reads every constant once.
    """
    fields = {
        "format": FORMAT_VERSION,
        "core": find_core_version(),
        "network": network.name,
        "fingerprint": network.fingerprint,
        "pins": dict(network.affinity),
        "device": _describe_device(target.device, target.entry, target.config, registry, is_part=bool(target.device.arguments)),
        "extensions": sorted(f"{extension.domain}:{extension.op_type}-{extension.since_version}" for extension in extensions),
        "wrappers": [str(describe_object("", wrapper)) for wrapper in registry.wrappers],
    }
    return json.dumps(
        fields, sort_keys=True, default=lambda value: dict(value) if isinstance(value, Mapping) else str(value)
    ).encode()


def _describe_device(
    device: DeviceName, entry: Device, config: Mapping[str, Any], registry: Registry, *, is_part: bool
) -> dict[str, Any]:
    """Returns the device, its plugin, machine and configuration; for a list, the same of all its devices in order.

    An import of a composed network cannot change run-time keys of its parts, so these keys count for parts.
    """
    keys = entry.keys(device)
    return {
        "device": str(device),
        "plugin": str(entry.provenance),
        # The full name contains the version of a plugin's engine.
        "machine": [entry.metric(device, "DEVICE_ARCHITECTURE"), entry.metric(device, "FULL_DEVICE_NAME")],
        "config": {
            name: value for name, value in config.items() if name not in STANDARD_KEYS and (is_part or not keys[name].runtime)
        },
        "parts": [_describe_part(part, registry) for part in split_device_list(device.arguments)] if device.arguments else [],
    }


def _describe_part(name: str, registry: Registry) -> Any:
    try:
        device, entry = registry.find(name)
        device, config = entry.resolve(device, None)
        return _describe_device(device, entry, config, registry, is_part=True)
    except HeteroError as error:
        # The load decides whether a device of a list may be missing.
        return f"{type(error).__name__}: {error}"
