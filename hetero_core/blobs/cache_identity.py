"""The identity of a load: a text that names everything that shapes a compiled network. Its digest names the cache entry.

Rule: what is in doubt is in the text. Too much in it costs a compilation, too little gives a network that was made for another load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hetero_core.blobs.container import FORMAT_VERSION
from hetero_core.contract import DeviceName, Extension
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.device import Device
from hetero_core.devices.names import split_device_list
from hetero_core.devices.provenance import describe_object
from hetero_core.errors import HeteroError
from hetero_core.network.graph import Network

Find = Callable[[str], tuple[DeviceName, Device]]
"""Returns a device by its device string."""


def describe_load(
    network: Network,
    device: DeviceName,
    entry: Device,
    config: Mapping[str, Any],
    *,
    find: Find,
    extensions: Iterable[Extension],
    wrappers: Iterable[object],
    core_version: str,
) -> bytes:
    """Returns the text, JSON in UTF-8 with sorted keys; the same in every process.

    Cost: the fingerprint of the network, which reads every constant once.
    """
    fields = {
        "format": FORMAT_VERSION,
        "core": core_version,
        "network": network.name,
        "fingerprint": network.fingerprint,
        "pins": dict(network.affinity),
        "device": _describe_device(device, entry, config, find, is_part=bool(device.arguments)),
        "extensions": sorted(f"{extension.domain}:{extension.op_type}-{extension.since_version}" for extension in extensions),
        "wrappers": [str(describe_object("", wrapper)) for wrapper in wrappers],
    }
    return json.dumps(fields, sort_keys=True, default=_to_json).encode()


def _describe_device(device: DeviceName, entry: Device, config: Mapping[str, Any], find: Find, *, is_part: bool) -> dict[str, Any]:
    """Returns who compiles, for what machine, and how; of a list, all of its devices in their order.

    An import of a whole cannot give its parts new values even of keys that only steer running, so that these count there.
    """
    keys = entry.keys(device)
    return {
        "device": str(device),
        "plugin": str(entry.provenance),
        # The full name is where plugins say the version of what they stand on.
        "machine": [entry.metric(device, "DEVICE_ARCHITECTURE"), entry.metric(device, "FULL_DEVICE_NAME")],
        "config": {
            name: value for name, value in config.items() if name not in STANDARD_KEYS and (is_part or not keys[name].runtime)
        },
        "parts": [_describe_part(part, find) for part in split_device_list(device.arguments)] if device.arguments else [],
    }


def _describe_part(name: str, find: Find) -> Any:
    try:
        device, entry = find(name)
        device, config = entry.resolve(device, None)
        return _describe_device(device, entry, config, find, is_part=True)
    except HeteroError as error:
        # Whether a device of a list may be missing is for the load to say.
        return f"{type(error).__name__}: {error}"


def _to_json(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
