"""CallTarget: a device that a call of the Core is for, with everything that the call needs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_core.contract import DeviceName
from hetero_core.devices.device import Device
from hetero_core.devices.isolation import isolate_device
from hetero_core.devices.names import parse_device_name
from hetero_core.devices.registry import Registry

Find = Callable[[DeviceName], tuple[DeviceName, Device]]


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The device of a query, a load or an import; `config` is the complete configuration of that call."""

    device: DeviceName
    entry: Device
    config: Mapping[str, Any]


def find_target(device: str | DeviceName, config: Mapping[str, Any] | None, registry: Registry, find: Find) -> CallTarget:
    """Returns the target of a call with this configuration.

    Raises: what `find` raises; errors of device names and configuration.
    """
    parsed, entry, values = find_for_call(device, config, registry, find)
    resolved, complete = entry.resolve(parsed, values)
    return CallTarget(resolved, entry, complete)


def find_for_call(
    device: str | DeviceName, config: Mapping[str, Any] | None, registry: Registry, find: Find
) -> tuple[DeviceName, Device, Mapping[str, Any] | None]:
    """Returns the device that a call is for, and the values of the call for it. Raises: as `find_target` does."""
    parsed, values = isolate_device(parse_device_name(device), config, registry)
    return *find(parsed), values
