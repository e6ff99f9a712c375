"""Writing a loaded network as a blob, to a path or a stream."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

from hetero_core.blobs.container import BlobHeader, write_blob
from hetero_core.contract import Payload, freeze_mapping
from hetero_core.devices.provenance import Provenance, find_core_version
from hetero_core.devices.threads import THREAD_KEYS
from hetero_core.errors import BlobError
from hetero_core.files import replace_file

if TYPE_CHECKING:
    from hetero_core.runtime.executable import ExecutableNetwork


def make_header(network: ExecutableNetwork, provenance: Provenance, payload_version: int, architecture: str) -> BlobHeader:
    """Returns the header of the blob of a loaded network, whose payload is of this version, compiled for this architecture."""
    return BlobHeader(
        device=network.device.name,
        distribution=provenance.distribution,
        plugin_version=provenance.version,
        core_version=find_core_version(),
        payload_version=payload_version,
        network=network.name,
        fingerprint=network.fingerprint,
        inputs=tuple(spec.name for spec in network.all_inputs),
        outputs=tuple(spec.name for spec in network.all_outputs),
        config=freeze_mapping((name, value) for name, value in network.config.items() if name not in THREAD_KEYS),
        device_id=network.device.id,
        architecture=architecture,
    )


def write_exported(name: str, header: BlobHeader, payload: Payload, target: str | os.PathLike[str] | IO[bytes]) -> None:
    """Writes a blob; a file appears complete or not at all. Raises: BlobError when it cannot be written."""
    if hasattr(target, "write"):
        try:
            write_blob(header, payload, target)  # type: ignore[arg-type]  # hasattr does not narrow the union
        except OSError as error:
            raise BlobError(f"cannot write the exported network '{name}' to the stream: {error}") from error
        return
    try:
        with replace_file(target) as stream:
            write_blob(header, payload, stream)
    except OSError as error:
        raise BlobError(
            f"cannot write the exported network '{name}' to '{os.fspath(target)}': {error.strerror or error}"
        ) from error
