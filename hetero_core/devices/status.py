"""The state of installed devices: one row for each that a package announces, and whether it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero_core.contract import DeviceName
from hetero_core.devices.provenance import Provenance
from hetero_core.devices.registry import Registry


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """The state of one installed device: its ids where it works, the reason where it does not; `reason_of_id` is of ids that do not."""

    name: str
    distribution: str
    version: str
    ids: tuple[str, ...]
    full_name: str
    reason: str
    reason_of_id: Mapping[str, str]


def describe_device(registry: Registry, name: str) -> DeviceStatus:
    """Returns the row of an announced device; creates it."""
    provenance = Provenance(name, "", "", "")
    try:
        provenance = registry.announcement(name).provenance
        device = registry.device(name)
        plain = DeviceName(name)
        ids, full_name = device.metric(plain, "AVAILABLE_DEVICES"), device.metric(plain, "FULL_DEVICE_NAME")
        reasons = device.metric(plain, "UNAVAILABLE_DEVICES")
    except Exception as error:  # noqa: BLE001  # a plugin's failure is shown in its row and hides no other
        return DeviceStatus(name, provenance.distribution, provenance.version, (), "", f"{error}" or type(error).__name__, {})
    return DeviceStatus(name, provenance.distribution, provenance.version, ids, full_name, "", reasons)
