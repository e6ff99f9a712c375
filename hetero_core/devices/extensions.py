"""Custom operators for one device, for all devices of a list, or for every device that takes some: all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hetero_core.contract import DeviceName, Extension
from hetero_core.devices.device import Device
from hetero_core.devices.names import split_device_list
from hetero_core.errors import DeviceUnavailableError, ExtensionError, NotImplementedByDeviceError, PluginError

Find = Callable[[str], tuple[DeviceName, Device]]


def check_extension(extension: object) -> None:
    """Raises ExtensionError for what is no complete extension."""
    if not isinstance(extension, Extension) or not callable(extension.function) or not callable(extension.infer_types):
        raise ExtensionError(f"expected an Extension with a function and infer_types, got {extension!r}")


def takes_extensions(device: str, find: Find) -> bool:
    """Says whether a device takes custom operators; of a list, whether each of its devices does. Raises: errors of devices."""
    parsed, entry = find(device)
    parts = split_device_list(parsed.arguments) if parsed.arguments else ()
    return entry.implements("add_extension") and all(takes_extensions(part, find) for part in parts)


def list_takers(names: Iterable[str], find: Find) -> tuple[str, ...]:
    """Returns the devices that take custom operators and run networks themselves; those that cannot be used are passed over.

    Raises: NotImplementedByDeviceError where there is none.
    """
    takers = []
    for name in names:
        try:
            parsed, entry = find(name)
        except (DeviceUnavailableError, PluginError):  # `list_devices` has the reasons
            continue
        if entry.implements("add_extension") and not any(key.is_arguments for key in entry.keys(parsed).values()):
            takers.append(name)
    if not takers:
        raise NotImplementedByDeviceError("no device that is installed takes custom operators; pip install hetero-cpu")
    return tuple(takers)
