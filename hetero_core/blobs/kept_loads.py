"""Loads that are kept: what a device exports of a model file, in the user's private folder, for the next load of the same file.

```text
path, device, configuration ──> name of an entry ── there, of the same code and the same bytes of the file? ── yes ──> import
                                                                  │ no                                  (no model is read)
                                                                  └──> load ── `Executable.keeps_loads`? ── export ──> entry
```

Rules: a load never fails because of an entry, and where there is none it costs a look for a file. An entry holds all that shaped it, the
digest of the model's bytes among it, and is compared with that before it is used. Whoever may read it may read the model: it is the
user's own, of mode 0600.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import blake2b, sha256
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hetero_core.blobs.private_cache import find_private_folder, write_private_file
from hetero_core.contract import Payload
from hetero_core.devices.registry import CallTarget
from hetero_core.devices.threads import THREAD_KEYS
from hetero_core.errors import PrivateFolderError
from hetero_core.network.border import EMPTY_BORDER
from hetero_core.network.graph import Network, iterate_nodes
from hetero_core.plain_files import open_plain, open_unlinked, require_owner

if TYPE_CHECKING:
    from hetero_core.blobs.header import BlobHeader

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

FOLDER = "loads"
MOST_BYTES = 1 << 25
"""Of a model file: of larger ones the load takes longer than what an import spares."""
MOST_BYTES_IN_ALL = 1 << 28
"""Of all entries: those that were not used for the longest time go first."""
_DIGEST_BYTES = 64
_LITTLE_BYTES = 1 << 18
"""Of a model that is digested in less time than a thread takes to be started."""
_SHARE = 4
"""Entries of the largest size for which there is room."""
_SOURCE = "hetero/source"
"""The section of an entry that says what it was made from; the plugin that imports the entry does not see it."""
_IDLE_FOLDERS = frozenset({"__pycache__", "cli", "conformance", "debugging", "diagnosis", "reports", "testing"})
"""Folders of packages that no load uses."""
_SETTLED = 500_000_000
"""Nanoseconds since the last change of a file after which another one would change its times, too."""


def find_kept_load(model: str, target: CallTarget) -> KeptLoad | None:
    """Returns the entry of a load, which need not be there; None for what is no plain file of up to `MOST_BYTES`."""
    try:
        path = os.path.realpath(model)
        status = os.stat(path)
        if not S_ISREG(status.st_mode) or not 0 < status.st_size <= MOST_BYTES:
            return None
        return KeptLoad(path, status, target, find_private_folder(FOLDER))
    except PrivateFolderError as error:
        logger.info("the load of '%s' is not kept: %s", model, error)
        return None
    except (OSError, ValueError):
        return None  # the load says what is wrong with the file


class KeptLoad:
    """The entry of one load of a file."""

    def __init__(self, model: str, status: os.stat_result, target: CallTarget, folder: str) -> None:
        self._model, self._status, self._target = model, status, target
        keys = target.entry.keys(target.device)
        # What only steers running has the value of the call, whatever it had when the entry was made.
        config = {
            name: str(value)
            for name, value in target.config.items()
            if name in THREAD_KEYS or name not in keys or not keys[name].runtime
        }
        self._name = repr((model, str(target.device), sorted(config.items())))
        self._path = f"{folder}/{sha256(self._name.encode()).hexdigest()[:40]}.blob"

    def take(self, load: Callable[[BlobHeader, Payload], Loaded], *, discard: Callable[[Loaded], None]) -> Loaded | None:
        """Returns what `load` makes of the entry; None where there is none for this model as it is now.

        The model's bytes are digested beside the load. Where they are others than those of the entry, `discard` gets what was loaded.
        """
        try:
            descriptor = open_unlinked(self._path, os.O_RDONLY, folder=None, title=self._path)
        except OSError:
            return None
        from hetero_core.blobs.container import map_file, read_container  # most loads have no entry

        try:
            require_owner(os.fstat(descriptor), self._path, ())
            digest = _LaterDigest(self._model, self._status.st_size)
            header, payload = read_container(f"'{self._path}'", map_file(descriptor))
            sections = dict(payload.sections)
            source = bytes(sections.pop(_SOURCE, b""))
            is_other_model = digest.is_there and source[:_DIGEST_BYTES] != digest.get()
            if is_other_model or source[_DIGEST_BYTES:] != self._describe(sections):
                return None
            loaded = load(header, replace(payload, sections=sections))
            if source[:_DIGEST_BYTES] != digest.get():
                discard(loaded)
                return None
            with suppress(OSError):  # of a disk that is only read; the entry is right all the same
                os.utime(descriptor)
        except Exception as error:  # noqa: BLE001  # a plugin may raise anything for what it cannot import; the model is there
            logger.warning("the kept load '%s' is not used: %s: %s", self._path, type(error).__name__, error)
            return None
        finally:
            os.close(descriptor)
        logger.info("network '%s' was loaded as it is kept in '%s'", header.network, self._path)
        return loaded

    def keep(self, network: Network, pack: Callable[[], tuple[BlobHeader, Payload]]) -> None:
        """Keeps what `pack` gives of a network that was read from the file; nothing where the file does not say all of it."""
        try:
            content = self._read_content() if self._is_told_by_the_file(network) else b""
            # Not before: to pack weights that lie in other files may take several times their memory.
            if content:
                self._write(content, *pack())
        except Exception as error:  # noqa: BLE001  # a full disk, or a plugin that cannot export: the network is loaded all the same
            logger.warning("a load of '%s' is not kept: %s: %s", self._model, type(error).__name__, error)

    def _is_told_by_the_file(self, network: Network) -> bool:
        """Says whether the network has no border, pins or wrong declarations, and the file is as it was when it was read.

        Declared shapes that nobody has proved are in the entry, as far as a run may contradict them.
        """
        last = max(self._status.st_mtime_ns, self._status.st_ctime_ns)
        is_plain = network.border == EMPTY_BORDER and not (network.declarations.contradictions or network.affinity)
        # The types of operators that onnx does not know are told by packages, which are not in the name of an entry.
        is_known = all(node.since_version for node in iterate_nodes(network))
        return is_plain and is_known and 0 <= last < time.time_ns() - _SETTLED

    def _read_content(self) -> bytes:
        """Returns the bytes of the model; none where it has changed, or has weights in other files."""
        with open(self._model, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        is_same = _describe_status(os.stat(self._model)) == _describe_status(self._status)
        # The key that says in which file external weights are.
        return b"" if not is_same or b"location" in content else content

    def _write(self, content: bytes, header: BlobHeader, payload: Payload) -> None:
        from io import BytesIO  # as above

        from hetero_core.blobs.container import find_code, write_blob

        if find_code(payload) or payload.spare:
            return
        source = blake2b(content).digest() + self._describe(payload.sections)
        stream = BytesIO()
        write_blob(header, replace(payload, sections={**payload.sections, _SOURCE: source}), stream)
        if len(stream.getbuffer()) > MOST_BYTES_IN_ALL // _SHARE:
            return
        write_private_file(self._path, stream.getvalue())
        _evict(self._path)
        logger.info("network '%s' is kept in '%s'", header.network, self._path)

    def _describe(self, sections: Mapping[str, Any]) -> bytes:
        """Returns everything that an entry depends on beside the model's bytes, and sums of its sections."""
        provenance = self._target.entry.provenance
        versions = (str(provenance), provenance.module, sys.version, np.__version__)
        stamps = [_stamp_package(name) for name in ("hetero_core", provenance.module.partition(".")[0])]
        return repr((self._name, versions, stamps, [(name, *_sum_words(section)) for name, section in sections.items()])).encode()


def _sum_words(section: Any) -> tuple[int, int, bytes]:
    """Returns the length of a section, the sum of its words of 64 bits, and the bytes behind the last one.

    It tells a file that was damaged by accident; nobody else can write there. 8 GB/s, where SHA-256 has 1.5.
    """
    content = np.frombuffer(section, np.uint8)
    whole = content.size // 8 * 8
    return content.size, int(content[:whole].view(np.uint64).sum()), content[whole:].tobytes()


class _LaterDigest:
    """The digest of a file, computed by a thread of its own where that takes a while."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._digest = b""
        self._error: Exception | None = None
        self.is_there = size <= _LITTLE_BYTES
        self._thread = threading.Thread(target=self._work, name="hetero-digest", daemon=True)
        if self.is_there:
            self._work()
        else:
            self._thread.start()

    def _work(self) -> None:
        try:
            self._digest = _digest_file(self._path)
        except (OSError, ValueError) as error:
            self._error = error

    def get(self) -> bytes:
        """Returns the digest. Raises: OSError, ValueError of reading the file."""
        if not self.is_there:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._digest


def _digest_file(path: str) -> bytes:
    from hetero_core.blobs.container import map_file  # as above

    descriptor = open_plain(path)
    try:
        return blake2b(map_file(descriptor)).digest()
    finally:
        os.close(descriptor)


def _describe_status(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@cache
def _stamp_package(name: str) -> str:
    """Returns sizes and times of the files of a package, since who works on it does not count up its version; a millisecond for 300."""
    folders: Iterator[str] = iter(getattr(sys.modules.get(name), "__path__", ()))
    stamps = [stamp for folder in folders for stamp in _stamp_folder(folder)]
    return sha256(repr(stamps).encode()).hexdigest()


def _stamp_folder(folder: str) -> list[tuple[str, int, int]]:
    stamps: list[tuple[str, int, int]] = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(".py"):
                status = entry.stat()
                stamps.append((entry.path, status.st_size, status.st_mtime_ns))
            elif "." not in entry.name and entry.name not in _IDLE_FOLDERS and entry.is_dir():
                stamps += _stamp_folder(entry.path)
    return stamps


def _evict(latest: str) -> None:
    """Removes the entries that were not used for the longest time, until the rest is within the limit; never the latest one."""
    files: list[tuple[float, int, str]] = []
    with os.scandir(os.path.dirname(latest)) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process may have removed it meanwhile
                if entry.name.endswith(".blob"):
                    files.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= MOST_BYTES_IN_ALL:
            return
        if path != latest:
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
