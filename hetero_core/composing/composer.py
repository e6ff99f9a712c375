"""Composer: the base of a device that is made of other devices of its Core. It answers for its children: keys, metrics, extensions.

A subclass states its name, its own keys (the key of the list is marked `is_arguments`), and if its lists take counts and
exclusions; `query_network` and `load_network` are its own. It reaches its children through the Core alone, so that each is checked,
configured and wrapped as if the user had loaded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from hetero_core.composing.properties import find_unavailable
from hetero_core.contract import BlobCheck, ConfigKey, DeviceName, Extension, Payload
from hetero_core.core import Core
from hetero_core.devices.config import STANDARD_KEYS
from hetero_core.devices.names import ListedDevice, parse_device_list
from hetero_core.errors import DeviceNameError, DeviceUnavailableError, NotImplementedByDeviceError
from hetero_core.hookspecs import hookimpl


class Composer:
    """Composes other devices of its Core; has no memory and no kernels of its own."""

    title: str
    """The metric FULL_DEVICE_NAME: "HETERO: one network over several devices"."""
    own_keys: Mapping[str, ConfigKey]
    example: str
    """A device string with a list, for error messages."""
    purpose: str
    """The purpose of a list's devices, in the same messages: "split over"."""
    takes_counts = False
    takes_exclusions = False
    names_common_abilities = False
    """If True, the composer lists the abilities that all its devices have; otherwise the abilities of any device."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @hookimpl
    def config_keys(self, device: DeviceName) -> Mapping[str, ConfigKey]:
        """The device's own keys, and the keys of its children: a flat key goes to every child that knows it.

        A child's list is part of its name, so its list key is not a key of the whole.

        An unavailable child has no keys; a query or a load says if that is an error.
        """
        own = dict(self.own_keys)
        for child in self.list_children(device):
            # Asked once: with nested lists, two questions on each level would double the questions on all levels below.
            try:
                keys = self._core.config_keys(child)
            except DeviceUnavailableError:
                continue
            for name, key in keys.items():
                if name not in own and name not in STANDARD_KEYS and not key.is_arguments:
                    own[name] = replace(key, default=None, doc=f"{key.doc} (of {child})")
        return own

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """A composer is no physical device: it has no ids, and its architecture is that of its children."""
        # Asking which of them can be used creates them: only for a metric that is theirs.
        children = self.list_children(device)
        unavailable = cache(lambda: find_unavailable(self._core, children))

        def ask(metric: str) -> list[Any]:
            return [self._core.get_metric(child, metric) for child in children if child not in unavailable()]

        def join_capabilities() -> tuple[str, ...]:
            abilities = ask("OPTIMIZATION_CAPABILITIES")
            every = dict.fromkeys(word for words in abilities for word in words)
            return tuple(word for word in every if not self.names_common_abilities or all(word in words for words in abilities))

        return {
            "AVAILABLE_DEVICES": (),
            "FULL_DEVICE_NAME": self.title,
            "OPTIMIZATION_CAPABILITIES": join_capabilities,
            # As many requests keep all children busy: each works on its own request.
            "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda: (
                1,
                max(sum(int(limits[1]) for limits in ask("RANGE_FOR_ASYNC_INFER_REQUESTS")), 1),
                1,
            ),
            "RANGE_FOR_STREAMS": lambda: (1, max((limits[1] for limits in ask("RANGE_FOR_STREAMS")), default=1)),
            "HOLDS_INTERPRETER_LOCK": lambda: bool(locks := ask("HOLDS_INTERPRETER_LOCK")) and all(locks),
            "VALUE_DEVIATIONS": lambda: tuple(sorted({word for words in ask("VALUE_DEVIATIONS") for word in words})),
            "DEVICE_TYPE": lambda: (
                " ".join(sorted({word for words in ask("DEVICE_TYPE") for word in words.split(" ")})) or "integrated"
            ),
            "MAX_BATCH_SIZE": lambda: min(filter(None, ask("MAX_BATCH_SIZE")), default=0),
            "DEVICE_ARCHITECTURE": lambda: " ".join(ask("DEVICE_ARCHITECTURE")) or device.name,
        }

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> BlobCheck:
        """The answer of each part's device."""
        from hetero_core.composing.blobs import check_parts  # only a blob needs it, and a first answer no blob

        return check_parts(self._core, device, payload)

    @hookimpl
    def add_extension(self, device: DeviceName, extension: Extension) -> bool:
        """Gives the operator to every usable device of the list, or to no device if any of them takes no extensions.

        Unusable devices are left out; the load tells their reasons. Raises: DeviceUnavailableError if no device is usable.
        """
        listed = self.require_children(device)
        unavailable = find_unavailable(self._core, listed)
        children = [child for child in listed if child not in unavailable] or listed
        refusing = [child for child in children if not self._core.takes_extensions(child)]
        if refusing:
            raise NotImplementedByDeviceError(
                f"{device} does not take an extension: {', '.join(refusing)} of its devices takes none, and none was given it; give it to "
                "the others by name, or leave the device out for all that take extensions"
            )
        for child in children:
            self._core.add_extension(extension, child)
        return True

    def list_entries(self, device: DeviceName) -> tuple[ListedDevice, ...]:
        """Returns the entries of the list in order, each device once, and a second time if it is also excluded.

        Raises: DeviceNameError for a count or an exclusion that the device does not take.
        """
        entries: dict[tuple[DeviceName, bool], ListedDevice] = {}
        for entry in parse_device_list(device.arguments) if device.arguments else ():
            is_counted = entry.count is not None and not self.takes_counts
            if is_counted or (entry.is_excluded and not self.takes_exclusions):
                kind, rest = ("counts", f"({entry.count})") if is_counted else ("exclusions", "the entry")
                raise DeviceNameError(f"device {device} has {entry} in its list; {device.name} takes no {kind}: leave {rest} out")
            entries.setdefault((entry.device, entry.is_excluded), entry)
        return tuple(entries.values())

    def list_children(self, device: DeviceName) -> tuple[str, ...]:
        """Returns the canonical names of the devices in the arguments; each once, in order."""
        return tuple(str(entry.device) for entry in self.list_entries(device) if not entry.is_excluded)

    def require_children(self, device: DeviceName) -> tuple[str, ...]:
        """Returns the children. Raises: DeviceNameError for an empty list."""
        children = self.list_children(device)
        if not children:
            key = next(name for name, key in self.own_keys.items() if key.is_arguments)
            raise DeviceNameError(
                f"device {device} has no devices to {self.purpose}; give them in order of priority, as in '{self.example}', "
                f"or in the configuration key {key}"
            )
        return children
