"""ISOLATE: a configuration key of every device that has the same meaning as PROCESS: in front of its name.

    "ORT", {"ISOLATE": "YES", "PERF_COUNT": "YES"}  ──>  "PROCESS:ORT", {"PERF_COUNT": "YES"}

The core rewrites device and configuration before it looks for the plugin, so that nothing behind this step knows the key, and a device
that is isolated by a call is not created in the caller's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.contract import DeviceName
from hetero_core.devices.config import ISOLATE_KEY, STANDARD_KEYS, convert_value, require_mapping
from hetero_core.devices.registry import Registry
from hetero_core.errors import DeviceNotFoundError

_ISOLATOR = "PROCESS"


def isolate_device(
    device: DeviceName, config: Mapping[str, Any] | None, registry: Registry
) -> tuple[DeviceName, Mapping[str, Any] | None]:
    """Returns the device and the configuration of a call, rewritten where the call, or what is set for the device, has ISOLATE.

    Values that are set for the device go with the call, since PROCESS does not know them.

    Raises: ConfigValueError; DeviceNotFoundError where the plugin PROCESS is not installed.
    """
    require_mapping({} if config is None else config, f"device {device}")
    call = {_fold(name): value for name, value in (config or {}).items()}
    values = registry.device(device.name).read_set(device) if registry.created(device.name) else {}
    value = {**registry.common.read(), **values, **call}.get(ISOLATE_KEY)
    is_isolated = value is not None and convert_value(ISOLATE_KEY, STANDARD_KEYS[ISOLATE_KEY], value, device=str(device))
    if not is_isolated or device.name == _ISOLATOR:
        return device, config
    if _ISOLATOR not in registry.names():
        raise DeviceNotFoundError(
            f"device {device} cannot have {ISOLATE_KEY}=YES: the plugin of device {_ISOLATOR}, which runs a device in a process of its "
            "own, is not installed. Install it with 'pip install hetero-process', or leave the key out"
        )
    merged = {**values, **call, ISOLATE_KEY: False}
    device_id = device.id or str(merged.pop("DEVICE_ID", None) or "")
    return DeviceName(_ISOLATOR, "", str(DeviceName(device.name, device_id, device.arguments))), merged


def _fold(name: str) -> str:
    return name.strip().upper() if isinstance(name, str) and name.strip().upper() in (ISOLATE_KEY, "DEVICE_ID") else name
