"""Writing a loaded network as a blob, to a path or a stream."""

from __future__ import annotations

import os
from typing import IO

from hetero_core.blobs.container import BlobHeader, write_blob
from hetero_core.contract import Payload
from hetero_core.errors import BlobError
from hetero_core.files import replace_file


def write_exported(name: str, header: BlobHeader, payload: Payload, target: str | os.PathLike[str] | IO[bytes]) -> None:
    """Writes a blob; a file appears complete or not at all. Raises: BlobError when the file cannot be written."""
    if hasattr(target, "write"):
        write_blob(header, payload, target)  # type: ignore[arg-type]  # hasattr does not narrow the union
        return
    try:
        with replace_file(target) as stream:
            write_blob(header, payload, stream)
    except OSError as error:
        raise BlobError(
            f"cannot write the exported network '{name}' to '{os.fspath(target)}': {error.strerror or error}"
        ) from error
