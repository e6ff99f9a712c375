"""Permission to use code from a blob: only within an import that the user called with `trust=True`, nested containers included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hetero_core.blobs.container import BlobHeader, find_code
from hetero_core.contract import Payload
from hetero_core.errors import UntrustedBlobError

# The parts of a split network are imported within the import of the whole network, by a plugin that does not know if the user
# trusts the blob.
_is_trusted: ContextVar[bool] = ContextVar("hetero_blob_is_trusted", default=False)


@contextmanager
def require_trust(header: BlobHeader, payload: Payload, *, trust: bool) -> Iterator[Payload]:
    """Gives the payload to import. Inside the context, nested imports are trusted as the whole blob is.

    Without trust the payload omits code that its plugin does not require.

    Raises: UntrustedBlobError if there is code in the blob, or in a container within it, and no trust.
    """
    if not trust and not _is_trusted.get():
        code = find_code(payload)
        if code:
            raise UntrustedBlobError(
                f"cannot import network '{header.network}' on {header.device}: the blob holds code, in the sections {', '.join(code)}, "
                "which would run with all your rights. Import it with trust=True (on the command line: --trust) if you trust whoever "
                "made it and every place where it was kept; else load the model"
            )
        payload = payload.without_spare_code()
    with trust_imports(trust or _is_trusted.get()):
        yield payload


def describe_omission(payload: Payload, trusted: Payload) -> str:
    """Returns why an import compiles the network again though the blob has its compiled form; "" if that form is used."""
    if len(trusted.code) == len(payload.code):
        return ""
    return (
        "the blob holds what compiling made, which is code and not trusted; import it with trust=True (on the command line: --trust) to "
        "use that"
    )


def are_imports_trusted() -> bool:
    """Says whether the current import of this thread may use code; for a plugin that hands a blob to another process."""
    return _is_trusted.get()


@contextmanager
def trust_imports(is_trusted: bool) -> Iterator[None]:
    """Sets whether imports within the block may use code."""
    token = _is_trusted.set(is_trusted)
    try:
        yield
    finally:
        _is_trusted.reset(token)
