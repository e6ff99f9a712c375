"""The digest of the code that plans and emits: a part of the name of everything that is kept of machine code.

To read a hundred files takes 3 ms of each start. So the digest is kept in the user's private folder, with the sizes and times of the files
that it is of.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cache
from hashlib import sha256

from hetero_core.blobs.private_cache import find_private_folder
from hetero_core.errors import HeteroError
from hetero_cpu.machine.digested_files import read_digested_file, write_digested_file

FOLDER = "cpu-sources"
_EMITTERS, _OTHERS = ("machine", "operators"), ("open", "planning", "stored")
"""The folders of what decides which instructions a kernel of a name has, and of what else machine code depends on."""
_NUMPY_STEPS = "numpy_steps.py"
_SETTLED = 2_000_000_000
"""Nanoseconds since the last change of a file after which another one would change its times, too."""


def digest_sources() -> str:
    """Returns a digest of what the source files hold, whatever their times are."""
    return " ".join(_digest_here())


def digest_emitters() -> str:
    """Returns a digest of the source files that decide which instructions a kernel of a name has."""
    return _digest_here()[0]


@cache
def _digest_here() -> tuple[str, ...]:
    return digest_package(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), (_EMITTERS, _OTHERS))


def digest_package(package: str, parts: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Returns a digest of what the source files in some folders of a package hold, for each part, which is several folders."""
    files_of_part = [[entry for folder in part for entry in list_sources(os.path.join(package, folder))] for part in parts]
    # Steps of NumPy emit nothing: they count as the last part.
    numpy_files = [entry for files in files_of_part[:-1] for entry in files if entry.name == _NUMPY_STEPS]
    files_of_part = [[entry for entry in files if entry not in numpy_files] for files in files_of_part]
    files_of_part[-1] += numpy_files
    stamps = [(entry.path, entry.stat().st_size, entry.stat().st_mtime_ns) for files in files_of_part for entry in files]
    stamp = sha256(repr(stamps).encode()).hexdigest()
    path = _find_path(package)
    content = None if path is None else read_digested_file(path, "the code is read again")
    known, *digests = (content or b"").decode("ascii", "replace").split(" ")
    if known == stamp:
        return tuple(digests)
    digests = [_digest_files(entry.path for entry in files) for files in files_of_part]
    if path is not None and max((time_of for *_, time_of in stamps), default=0) < time.time_ns() - _SETTLED:
        try:
            write_digested_file(path, " ".join((stamp, *digests)).encode())
        except OSError:
            # The next process reads the code, too.
            return tuple(digests)
    return tuple(digests)


def _find_path(package: str) -> str | None:
    try:
        return os.path.join(find_private_folder(FOLDER), sha256(package.encode("utf-8", "surrogateescape")).hexdigest()[:40])
    except (OSError, HeteroError):
        return None


def list_sources(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yields the source files in a folder and in those below it, always in the same order."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(".py"):
                yield entry
            elif "." not in entry.name and not entry.name.startswith("__") and entry.is_dir():
                yield from list_sources(entry.path)


def _digest_files(paths: Iterator[str]) -> str:
    from hashlib import sha256  # OpenSSL, which is five times as fast

    digest = sha256()
    for path in paths:
        with open(path, "rb", buffering=0) as source:
            digest.update(source.readall())
    return digest.hexdigest()
