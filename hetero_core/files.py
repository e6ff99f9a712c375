"""Files that appear complete or not at all: new content stands beside its name until all of it is on the disk.

Rules: the earlier file of that name stays unchanged until then; a failure leaves nothing behind; a link leads to the same file as
before. A target that is not a regular file (a pipe, a terminal, /dev/null) is written to and never replaced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

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
    try:
        with _name_in_errors(requested, partial):
            with open(partial, "xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if mode is not None:
                with suppress(OSError):
                    os.chmod(partial, stat.S_IMODE(mode))
            os.replace(partial, target)
    except BaseException:  # after an interrupt, too, no partial file stays behind
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
