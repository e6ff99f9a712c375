"""Blobs within a blob: a part that a child has loaded becomes sections of its composer's payload, and is loaded again from them.

Sections: `prefix` (a container that the child's device wrote), or, if that device cannot export, `prefix/model` and
`prefix/weights` (the part itself, loaded again at import). The row of the index names the form and the device.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from hetero_core.blobs.container import are_imports_trusted
from hetero_core.composing.properties import MEASURING_KEY
from hetero_core.contract import BlobCheck, DeviceName, Payload
from hetero_core.core import Core
from hetero_core.devices.config import LIMIT_KEYS
from hetero_core.devices.threads import THREAD_KEYS
from hetero_core.errors import BlobDamagedError, BlobMismatchError, HeteroError, NotImplementedByDeviceError
from hetero_core.network.graph import Network
from hetero_core.network.types import ValueSpec, read_record, write_record
from hetero_core.network.writer import pack_network, unpack_network
from hetero_core.runtime.executable import ExecutableNetwork

_OF_THE_PLACE = ("DEVICE_ID", *THREAD_KEYS)
"""Keys for the place and the resources of a part's runs, which are not stored in blobs."""

Loaded = tuple[ExecutableNetwork, Network | None]
"""A loaded part with the network that it runs; None if it came from its device's own blob."""


T = TypeVar("T")
Specs = tuple[ValueSpec, ...]


def pack_index(inputs: Specs, outputs: Specs, fields: Mapping[str, Any], sections: Mapping[str, Any]) -> Payload:
    """Returns the payload of a composer: its inputs, outputs and further fields as an index in JSON, and the sections of its parts."""
    borders = {"inputs": write_record(inputs), "outputs": write_record(outputs)}
    return Payload({"index": json.dumps({**borders, **fields}).encode(), **sections})


def read_index(payload: Payload, read: Callable[[Mapping[str, Any]], T], *, owner: str) -> tuple[Specs, Specs, T]:
    """Returns inputs, outputs, and the result of `read` on the fields; it may raise ValueError, KeyError, TypeError and
    AttributeError.

    Raises: BlobDamagedError; BlobMismatchError for a payload of another version.
    """
    payload.require_version(1)
    try:
        fields = json.loads(bytes(payload.sections["index"]))
        inputs, outputs = (read_record(Specs, fields[side], side) for side in ("inputs", "outputs"))
        return inputs, outputs, read(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BlobDamagedError(f"the blob of {owner} has an index that cannot be read: {type(error).__name__}: {error}") from error


def export_part(loaded: ExecutableNetwork, network: Network | None, prefix: str, sections: dict[str, Any]) -> dict[str, Any]:
    """Adds a part's sections; returns its row in the index."""
    row = {"device": str(loaded.device), "fingerprint": loaded.fingerprint}
    stream = io.BytesIO()
    try:
        loaded.export_network(stream)
    except NotImplementedByDeviceError:
        if network is None:
            raise
        sections |= add_prefix(prefix, pack_network(network))
        return {
            **row,
            "kind": "network",
            "config": {name: value for name, value in loaded.config.items() if name not in _OF_THE_PLACE},
        }
    sections[prefix] = stream.getbuffer()
    return {**row, "kind": "blob"}


def import_part(
    core: Core,
    row: Mapping[str, Any],
    prefix: str,
    sections: Mapping[str, Any],
    config: Mapping[str, Any],
    child_config: Mapping[str, Any],
    threads: Mapping[str, int],
    *,
    owner: str,
) -> Loaded:
    """Returns a part on its device, with these threads and those keys that steer running: PERF_COUNT of `config`, the configuration of the
    whole, and the run-time keys of `child_config`, the entry of the child from `configure_children`. `owner` is the composer, for messages.

    Raises: BlobMismatchError; errors of the device, with a note that names the part.
    """
    device, fingerprint = str(row["device"]), row["fingerprint"]
    try:
        keys = core.config_keys(device)
        steering = {name: value for name, value in child_config.items() if keys[name].runtime}
        steering |= {MEASURING_KEY: config[MEASURING_KEY], **threads}
        if row["kind"] == "blob":
            network, loaded = None, core.import_network(sections[prefix], device, steering)
        else:
            network = unpack_network(take_prefix(prefix, sections))
            stored = {name: value for name, value in row["config"].items() if value is not None and name not in LIMIT_KEYS}
            loaded = core.load_network(network, device, {**stored, **steering})
    except Exception as error:  # a plugin may raise anything; it goes on with a note that names the part
        error.add_note(f"while {prefix} of a blob of {owner} was imported on {device}")
        raise
    if loaded.fingerprint != fingerprint:
        loaded.close()
        raise BlobMismatchError(
            f"{prefix} of the blob holds network {loaded.fingerprint[:12]}; its index says {str(fingerprint)[:12]}"
        )
    return loaded, network


def check_parts(core: Core, device: DeviceName, payload: Payload) -> BlobCheck:
    """Returns the answers of the parts, each about its own container. A payload without an index is a network to be loaded.

    Raises: as `read_index`.
    """
    payload.require_version(1)
    if "index" not in payload.sections:
        return BlobCheck(str(device))

    def list_rows(fields: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        # The row of each part by the prefix of its sections, as HETERO, MULTI with AUTO, and BATCH write them.
        rows = {f"{kind}/{place}": row for kind in ("stage", "device") for place, row in enumerate(fields.get(f"{kind}s", ()))}
        return {prefix: dict(row) for prefix, row in (rows or {"device": fields["device"]}).items()}

    rows = read_index(payload, list_rows, owner=device.name)[2]
    return BlobCheck.of_parts(str(device), [_check_part(core, row, prefix, payload.sections) for prefix, row in rows.items()])


def _check_part(core: Core, row: Mapping[str, Any], prefix: str, sections: Mapping[str, Any]) -> BlobCheck:
    device = str(row["device"])
    if row["kind"] == "blob":
        return replace(core.check_blob(sections[prefix], device, trust=are_imports_trusted()), part=prefix)
    try:
        core.resolve_config(device)
    except HeteroError as error:  # the answer about the part
        return BlobCheck(device, "does not fit", str(error), part=prefix)
    return BlobCheck(device, part=prefix)


def add_prefix(prefix: str, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections under names that begin with the prefix."""
    return {f"{prefix}/{name}": section for name, section in sections.items()}


def take_prefix(prefix: str, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections with names that begin with the prefix, under the rest of their names."""
    return {name.removeprefix(f"{prefix}/"): section for name, section in sections.items() if name.startswith(f"{prefix}/")}
