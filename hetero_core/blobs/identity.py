"""Is this blob for this device? Each field of its header against what is here; the first difference is the error's subject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.blobs.header import BlobHeader
from hetero_core.contract import DeviceName
from hetero_core.devices.config import LIMIT_KEYS, convert_config, merge_config
from hetero_core.devices.device import Device
from hetero_core.devices.target import CallTarget
from hetero_core.devices.threads import THREAD_KEYS
from hetero_core.errors import BlobMismatchError
from hetero_core.network.graph import Network


def check_header(header: BlobHeader, entry: Device, network: Network | None) -> None:
    """Raises BlobMismatchError that names what differs: device, distribution, version, or the network where one is given."""
    here = entry.provenance
    compared = [
        ("device", header.device, here.device),
        ("plugin", header.distribution, here.distribution),
        ("plugin version", header.plugin_version, here.version),
    ]
    if network is not None:
        compared.append(("model fingerprint", header.fingerprint, network.fingerprint))
    for subject, stored, expected in compared:
        if stored != expected:
            raise BlobMismatchError(
                f"cannot import network '{header.network}' on {here.device}: the blob's {subject} is {stored}, here it is {expected}; "
                "load the model again and export it"
            )


def find_import_target(header: BlobHeader, device: DeviceName, entry: Device, requested: Mapping[str, Any] | None) -> CallTarget:
    """Returns the target of an import. Its configuration is the blob's, with the call's changes to keys that only steer running.

    The arguments behind the colon of the device string come from the blob where the call leaves them out.

    Raises: BlobMismatchError where the call contradicts the blob; ConfigKeyError, ConfigValueError.
    """
    arguments = _arguments_of(header.config, entry, device)
    device = DeviceName(device.name, device.id, device.arguments or arguments)
    keys = entry.keys(device)
    stored = {name: value for name, value in convert_stored(header.config, keys, device=str(device)).items() if name != "DEVICE_ID"}
    stored = {name: key.default for name, key in keys.items() if key.added_later} | stored
    missing = sorted(name for name, key in keys.items() if not key.runtime and name not in stored)
    if missing:
        raise BlobMismatchError(
            f"cannot import network '{header.network}' on {device}: the blob does not say {', '.join(missing)}, which shape what is "
            "compiled; load the model again and export it"
        )
    call = convert_config(requested or {}, keys, device=str(device))
    overrides = {name: call[name] for name in call if name != "DEVICE_ID"}
    if device.arguments:
        overrides |= {name: device.arguments for name, key in keys.items() if key.is_arguments}
    for name, value in overrides.items():
        if not keys[name].runtime and stored.get(name) != value:
            raise BlobMismatchError(
                f"cannot import network '{header.network}' on {device}: {name} is {_show(value)} in the call and "
                f"{_show(stored.get(name))} in the blob, and it shaped what was compiled; leave it out, or load the model again"
            )
    resolved, here = entry.resolve(device, {name: call[name] for name in ("DEVICE_ID", *THREAD_KEYS, *LIMIT_KEYS) if name in call})
    # A blob of an older core lacks the keys that came later; what only steers running may have any value.
    added = {name: key for name, key in keys.items() if key.runtime}
    # How a machine is used, and how much of it, is said here, whatever the blob says of the one that it comes from.
    local = {name: here[name] for name in (*THREAD_KEYS, *LIMIT_KEYS)}
    config = merge_config(added, stored, overrides, local, {"DEVICE_ID": resolved.id})
    return CallTarget(DeviceName(device.name, resolved.id, device.arguments), entry, config)


def convert_stored(config: Mapping[str, Any], keys: Mapping[str, Any], *, device: str) -> dict[str, Any]:
    """Returns the configuration of a header in the types of its keys; JSON knows no tuples, and None stands for "not set"."""
    unset = {name: None for name, value in config.items() if value is None and name in keys}
    return {**unset, **convert_config({name: value for name, value in config.items() if value is not None}, keys, device=device)}


def _arguments_of(config: Mapping[str, Any], entry: Device, device: DeviceName) -> str:
    for name, key in entry.keys(DeviceName(device.name)).items():
        if key.is_arguments and config.get(name):
            return str(config[name])
    return ""


def _show(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else repr(value)
