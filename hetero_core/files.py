"""Files that appear complete or not at all: new content stands beside its name until all of it is on the disk.

Rules: the earlier file of that name stays unchanged until then; a failure leaves nothing behind; a link leads to the same file as
before. A target that is not a regular file (a pipe, a terminal, /dev/null) is written to and never replaced.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO

_LONGEST_PREFIX = 200
"""Bytes of a name that its partial file repeats; file systems take 255 in all."""


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Gives a stream for the new content of a file, which gets its name when the block ends without an error.

    The permissions of the file before are kept; a new file has the process's usual permissions.

    Raises: OSError that names `path`, at the beginning or at the end of the block.
    """
    with replace_files(path) as (stream,):
        yield stream


@contextmanager
def replace_files(*paths: str | os.PathLike[str]) -> Iterator[tuple[IO[bytes], ...]]:
    """Gives a stream for each path, as `replace_file` does; no file gets its name before all of them are on the disk.

    They are named in the order of the arguments. Raises: OSError that names the path of the first failed write.
    """
    with ExitStack() as stack, _name_in_errors(os.fspath(paths[0])):
        writings = []
        for path in paths:
            writings.append(_begin(path))
            stack.callback(_discard, writings[-1])
        yield tuple(writing.stream for writing in writings)
        for writing in writings:
            _complete(writing)
        for writing in writings:
            if writing.partial:
                with _name_in_errors(writing.path, writing.partial):
                    os.replace(writing.partial, writing.target)


@dataclass(frozen=True, slots=True)
class _Writing:
    """A file that is being written: `path` as passed, `target` behind its links; `partial` is "" if it is not a regular file."""

    path: str
    target: str
    partial: str
    stream: IO[bytes]


def _begin(path: str | os.PathLike[str]) -> _Writing:
    requested = os.fspath(path)
    try:
        status = os.stat(requested)
    except FileNotFoundError:
        status = None
    if status is not None:
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), requested)
        if not stat.S_ISREG(status.st_mode):
            return _Writing(requested, requested, "", open(requested, "wb"))  # closed by the caller
        # In a writable folder, even a write-protected file could be replaced.
        os.close(os.open(requested, os.O_WRONLY))
    target = os.path.realpath(requested)
    folder, name = os.path.split(target)
    prefix = os.fsdecode(os.fsencode(name)[:_LONGEST_PREFIX])
    partial = os.path.join(folder, f"{prefix}.{os.urandom(8).hex()}.partial")
    with _name_in_errors(requested, partial):
        stream = open(partial, "xb")  # noqa: SIM115  # as above
    if status is not None:
        with suppress(OSError):
            os.chmod(partial, stat.S_IMODE(status.st_mode))
    return _Writing(requested, target, partial, stream)


def _complete(writing: _Writing) -> None:
    with _name_in_errors(writing.path):
        writing.stream.flush()
        if writing.partial:
            os.fsync(writing.stream.fileno())
        writing.stream.close()


def _discard(writing: _Writing) -> None:
    """Closes the stream and removes the partial file, if it was not renamed."""
    with suppress(OSError):
        writing.stream.close()
    if writing.partial:
        with suppress(OSError):
            os.unlink(writing.partial)


@contextmanager
def _name_in_errors(path: str, partial: str = "") -> Iterator[None]:
    """Puts the caller's path into errors that name no file, or only the partial file, which the caller does not know."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, partial):
            raise
        raise OSError(error.errno, error.strerror, path) from error
