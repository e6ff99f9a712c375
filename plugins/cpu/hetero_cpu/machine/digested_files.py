"""Files of a private folder behind the digest of what is in them: one that is damaged is not used."""

from __future__ import annotations

import logging
import os
from hashlib import sha256

from hetero_core.blobs.private_cache import read_private_file, write_private_file

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 32


def write_digested_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file. Raises: OSError."""
    write_private_file(path, sha256(content).digest() + content)


def read_digested_file(path: str | os.PathLike[str], consequence: str) -> bytes | None:
    """Returns what is in a file; None where there is none. A warning says that another one is not used, and the consequence."""
    try:
        stored = read_private_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("a stored plan is not used: %s; %s", error.strerror or error, consequence)
        return None
    digest, content = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    if sha256(content).digest() != digest:
        logger.warning("'%s' is damaged; %s", path, consequence)
        return None
    return content
