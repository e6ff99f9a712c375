"""Compares the header of a blob with the device that imports it; the first difference is the error's subject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.blobs.container import BlobHeader
from hetero_core.contract import DeviceName
from hetero_core.devices.config import LIMIT_KEYS, LOG_KEY, convert_config, merge_config
from hetero_core.devices.device import Device
from hetero_core.devices.registry import CallTarget
from hetero_core.devices.threads import THREAD_KEYS
from hetero_core.errors import BlobMismatchError
from hetero_core.network.graph import Network


def find_import_target(
    header: BlobHeader, device: DeviceName, entry: Device, requested: Mapping[str, Any] | None, network: Network | None
) -> CallTarget:
    """Returns the target of an import. Run-time keys have the value of the call, else of `set_config`, else of the blob; keys that
    shape the compilation have the value of the blob.

    The arguments behind the colon of the device string come from the blob if the call leaves them out. The plugin itself compares the
    version of its payload, so that blobs of its older versions are read.

    Raises: BlobMismatchError if the device, its distribution or architecture, the given network or the call contradicts the blob;
    NotImplementedByDeviceError; ConfigKeyError, ConfigValueError.
    """

    def refuse(fault: str, target: object, cure: str = "load the model again and export it") -> BlobMismatchError:
        return BlobMismatchError(f"cannot import network '{header.network}' on {target}: {fault}; {cure}")

    plugin = entry.provenance
    compared = [("device", header.device, plugin.device), ("plugin", header.distribution, plugin.distribution)]
    if network is not None:
        compared.append(("model fingerprint", header.fingerprint, network.fingerprint))
    for subject, found, expected in compared:
        if found != expected:
            raise refuse(f"the blob's {subject} is {found}, here it is {expected}", plugin.device)
    entry.require_hook("import_network", device)
    lists = (name for name, key in entry.keys(DeviceName(device.name)).items() if key.is_arguments)
    arguments = next((str(header.config[name]) for name in lists if header.config.get(name)), "")
    device = DeviceName(device.name, device.id, device.arguments or arguments)
    keys = entry.keys(device)
    # A key that was not set is ignored: a composing device has it only while the child it belongs to is available.
    unknown = sorted(name for name, value in header.config.items() if value is not None and name not in keys)
    if unknown:
        origin = f"the blob, of {header.distribution} {header.plugin_version}"
        raise refuse(f"{origin}, has the configuration keys {', '.join(unknown)}, which {plugin} does not have", device)
    # JSON knows no tuples, and None stands for "not set".
    stored: dict[str, Any] = {name: key.default for name, key in keys.items() if key.added_later}
    stored |= {name: None for name, value in header.config.items() if value is None and name in keys}
    given = {name: value for name, value in header.config.items() if value is not None}
    stored |= convert_config(given, keys, device=str(device))
    stored.pop("DEVICE_ID", None)
    missing = sorted(name for name, key in keys.items() if not key.runtime and name not in stored)
    if missing:
        raise refuse(f"the blob does not say {', '.join(missing)}, which shape what is compiled", device)
    call = convert_config(requested or {}, keys, device=str(device))
    overrides = {name: call[name] for name in call if name != "DEVICE_ID"}
    if device.arguments:
        overrides |= {name: device.arguments for name, key in keys.items() if key.is_arguments}
    for name, value in overrides.items():
        if not keys[name].runtime and stored.get(name) != value:
            fault = (
                f"{name} is {_show(value)} in the call and {_show(stored.get(name))} in the blob, and it shaped what was compiled"
            )
            raise refuse(fault, device, "leave it out, or load the model again")
    # A blob of an older core may lack these.
    runtime = {name: key for name, key in keys.items() if key.runtime}
    resolved, here = entry.resolve(device, {name: value for name, value in call.items() if name in runtime})
    architecture = entry.find_architecture(resolved) if header.architecture else ""
    if header.architecture != architecture:
        raise refuse(
            f"the blob was compiled on {DeviceName(header.device, header.device_id)} for the architecture '{header.architecture}', and "
            f"{resolved} has '{architecture}'",
            resolved,
            f"name a device with the architecture of the blob, or load the model on {resolved} and export it again",
        )
    # These describe the importing machine.
    local = {name: here[name] for name in ("DEVICE_ID", LOG_KEY, *THREAD_KEYS, *LIMIT_KEYS)}
    config = merge_config(runtime, stored, entry.read_settings(resolved, runtime), overrides, local)
    return CallTarget(DeviceName(device.name, resolved.id, device.arguments), entry, config)


def _show(value: Any) -> str:
    return (",".join(value) or "empty") if isinstance(value, tuple) else repr(value)
