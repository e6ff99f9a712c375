"""The cache of compiled networks: a folder of blobs, each named by the digest of all that shaped it.

Rules: an entry appears complete or not at all; it is used only where what it says of itself is, byte for byte, what the load would
say; whatever is wrong with entry or folder is a warning and a miss, and never fails a load; code is neither kept nor taken, but what a
plugin can do without, in a folder of the user's own. Warnings go to the log and not through `warnings`, which a program may have turned
into errors.

The folder is judged once it is open, and every file in it is opened by its name within it, never through a link. It belongs to the user
or to root; the folder of another user is taken if nobody but this user and root could have put it there. Nobody but its owner and root
may write to it. A file in it belongs to the user, to root or to the owner of the folder.

Of several loads of a network the others wait for the first. A lock is a file that the operating system holds, so that a holder that dies
lets go; nothing that stands in it is ever lost. On Windows everybody holds it at once: work may be done twice, and nothing else.

The identity of a load is a text that names everything that shapes a compiled network. What is in doubt is in the text: too much in it
costs a compilation, too little gives a network that was made for another load.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hetero_core.blobs.container import FORMAT_VERSION, BlobHeader, check_container, find_code, map_file, write_blob
from hetero_core.blobs.trust import trust_imports
from hetero_core.contract import DeviceName, Extension, Payload
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.device import Device
from hetero_core.devices.names import split_device_list
from hetero_core.devices.provenance import describe_object
from hetero_core.errors import BlobError, BlobMismatchError, ConfigValueError, HeteroError, UntrustedBlobError
from hetero_core.network.graph import Network
from hetero_core.plain_files import HAS_OWNERS, may_others_write, open_unlinked, require_owner

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

LOCK_SECONDS = 300.0
"""Seconds for which a load waits for another load of the same network, before it compiles for itself and leaves the cache alone."""

_IDENTITY = "hetero/cache"
"""The section of an entry that says what it was made from; the plugin that imports the entry does not see it."""
_ENTRY_NAME = re.compile(r"[0-9a-f]{64}\.blob")
_LEFTOVER_NAME = re.compile(r"[0-9a-f]{64}\.(lock|[^.]+\.partial)")

_tidied: set[Path] = set()
"""The folders in which this process has looked for files of killed processes."""

# The parts of a split network are loaded within the load of the whole, and are in its entry.
_is_inside: ContextVar[bool] = ContextVar("hetero_cache_is_inside", default=False)


def make_cache(folder: str, limit: int) -> NetworkCache | None:
    """Returns the cache in a folder; None within a load that is cached as a whole. Raises: ConfigValueError for what no path can be."""
    if "\0" in folder:
        raise ConfigValueError(f"configuration key CACHE_DIR: expected the path of a folder, got {folder!r}")
    # Not Path.expanduser: it raises for a user who is not there.
    return NetworkCache(Path(os.path.expanduser(folder)), limit) if not _is_inside.get() else None


class NetworkCache:
    """A folder of entries. Safe for threads and processes; keeps no state but the folder."""

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
        """Returns the network that `take` makes of the entry. On a miss calls `make`, stores the result as `pack` gives it, and returns it.

        Of several processes and threads that load a network the first makes it, and the others wait for its entry.

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
        """Gives True if this load alone may write the entry, False if the cache cannot be used for it."""
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
        """Removes the entries that were not used for the longest time, until the rest is within the limit; never the one just stored."""
        if self._size_limit == 0:
            return
        entries = []
        for name in _list(folder, _ENTRY_NAME):
            with suppress(OSError):
                status = folder.stat(name)
                entries.append((status.st_mtime_ns, name, status.st_size))
        total = sum(size for *_, size in entries)
        for _, name, size in sorted(entries):
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
    """Returns the loaded network of an entry; None if there is no entry. Raises: _UnusableEntryError."""
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
    """Removes the partial files and locks of killed processes: of each key whose lock is free.

    `held` is the key whose lock this load holds.
    """
    try:
        names = _list(folder, _LEFTOVER_NAME)
    except OSError:
        return  # the folder is gone or unreadable; the load reports that
    for key in sorted({name.partition(".")[0] for name in names}):
        partials = [name for name in names if name.startswith(key) and name.endswith(".partial")]
        # A file that cannot be removed says nothing about the next.
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


def _remove_all(folder: CacheFolder, names: list[str]) -> None:
    for name in names:
        folder.remove(name)


def _list(folder: CacheFolder, pattern: re.Pattern[str]) -> list[str]:
    """Returns those names of the folder that are ours; what else is in it is left alone."""
    return [name for name in folder.list_names() if pattern.fullmatch(name)]


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
        """Removes a file, if it is there. Raises: OSError."""
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

        Raises: OSError if the file cannot be made or locked.
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
    """Writes this process's id into a lock, in the place of an older id.

    A file with any other content belongs to somebody and is left as it is.
    """
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


Find = Callable[[str], tuple[DeviceName, Device]]
"""Returns a device by its device string."""


def describe_load(
    network: Network,
    device: DeviceName,
    entry: Device,
    config: Mapping[str, Any],
    *,
    find: Find,
    extensions: Iterable[Extension],
    wrappers: Iterable[object],
    core_version: str,
) -> bytes:
    """Returns the text, JSON in UTF-8 with sorted keys; the same in every process.

    Cost: the fingerprint of the network, which reads every constant once.
    """
    fields = {
        "format": FORMAT_VERSION,
        "core": core_version,
        "network": network.name,
        "fingerprint": network.fingerprint,
        "pins": dict(network.affinity),
        "device": _describe_device(device, entry, config, find, is_part=bool(device.arguments)),
        "extensions": sorted(f"{extension.domain}:{extension.op_type}-{extension.since_version}" for extension in extensions),
        "wrappers": [str(describe_object("", wrapper)) for wrapper in wrappers],
    }
    return json.dumps(fields, sort_keys=True, default=_to_json).encode()


def _describe_device(device: DeviceName, entry: Device, config: Mapping[str, Any], find: Find, *, is_part: bool) -> dict[str, Any]:
    """Returns who compiles, for what machine, and how; of a list, all of its devices in their order.

    An import of a whole cannot give its parts new values even of keys that only steer running, so that these count there.
    """
    keys = entry.keys(device)
    return {
        "device": str(device),
        "plugin": str(entry.provenance),
        # The full name is where plugins say the version of what they stand on.
        "machine": [entry.metric(device, "DEVICE_ARCHITECTURE"), entry.metric(device, "FULL_DEVICE_NAME")],
        "config": {
            name: value for name, value in config.items() if name not in STANDARD_KEYS and (is_part or not keys[name].runtime)
        },
        "parts": [_describe_part(part, find) for part in split_device_list(device.arguments)] if device.arguments else [],
    }


def _describe_part(name: str, find: Find) -> Any:
    try:
        device, entry = find(name)
        device, config = entry.resolve(device, None)
        return _describe_device(device, entry, config, find, is_part=True)
    except HeteroError as error:
        # Whether a device of a list may be missing is for the load to say.
        return f"{type(error).__name__}: {error}"


def _to_json(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
