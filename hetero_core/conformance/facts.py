"""Facts about a device: its names, and the capabilities that checks may rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero_core.conformance.check import DeviceFacts
from hetero_core.contract import DeviceName, Extension
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.devices.registry import DEVICES_GROUP
from hetero_core.errors import HeteroError, NotImplementedByDeviceError

if TYPE_CHECKING:
    from hetero_core.core import Core

REFERENCES = ("TEMPLATE", "CPU")
"""Devices that serve as the reference, the first one that is installed and not under test itself."""


def find_facts(make_core: Callable[[], Core], device: str, *, reference: str, plugin: Any = None) -> DeviceFacts:
    """Returns the facts about a device that are known before any check; `plugin` is its plugin if it was registered at run time.

    Raises: DeviceNotFoundError, DeviceUnavailableError, and other errors of a device that cannot be used at all.
    """
    parsed = parse_device_name(device)
    with make_core() as core:
        keys = core.config_keys(device)
        ids = core.get_metric(parsed.name, "AVAILABLE_DEVICES")
        has_list = any(key.is_arguments for key in keys.values())
        capabilities = {
            "export": bool(core.get_metric(device, "IMPORT_EXPORT_SUPPORT")),
            "extensions": _takes_extensions(core, device),
            "ids": len(ids) > 1 and not has_list,
            "plugin": not has_list,
            "single": not has_list,
            "hetero": "HETERO" in core.device_names and reference != "",
        }
    loaded = plugin if plugin is not None else _load_plugin(parsed)
    own = {name: key for name, key in keys.items() if name not in STANDARD_KEYS}
    return DeviceFacts(parsed.name, ids, own, tuple(name for name, has in capabilities.items() if has), loaded)


def choose_reference(make_core: Callable[[], Core], device: str) -> str:
    """Returns the reference device of the level "hetero"; empty if no device beside the one under test is available."""
    parsed = parse_device_name(device)
    listed = {parse_device_name(entry).name for entry in split_device_list(parsed.arguments)} if parsed.arguments else set()
    with make_core() as core:
        known = [name for name in REFERENCES if name in core.device_names and name != parsed.name]
    # A device from the list of the device under test would do, but a device outside of it tests more.
    return next((name for name in known if name not in listed), known[0] if known else "")


def _takes_extensions(core: Core, device: str) -> bool:
    probe = Extension("com.acme", "Probe", 1, lambda x: x, lambda types, attributes: tuple(types))  # type: ignore[arg-type]  # never asked
    try:
        core.add_extension(probe, device)
    except NotImplementedByDeviceError:
        return False
    except HeteroError:
        pass  # the device has the hook; the checks test its behaviour
    return True


def _load_plugin(device: DeviceName) -> Any:
    """Returns the plugin object that the device's entry point refers to."""
    import importlib_metadata  # reads the installed distributions

    entry_points = [
        point for point in importlib_metadata.entry_points(group=DEVICES_GROUP) if point.name.strip().upper() == device.name
    ]
    return entry_points[0].load() if entry_points else None
