"""The switches outside the code: HETERO_DEVICE, HETERO_PLUGINS and HETERO_CACHE_DIR, read from the environment when a Core is made.

An empty value counts as not set. A wrong value is an error that names the variable.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hetero_core.errors import ConfigValueError, DeviceNameError, DeviceNotFoundError, enumerate_choices, suggest

DEVICE_VARIABLE, PLUGINS_VARIABLE, CACHE_VARIABLE = "HETERO_DEVICE", "HETERO_PLUGINS", "HETERO_CACHE_DIR"
DEFAULT_DEVICE = "AUTO"


@dataclass(frozen=True, slots=True)
class Switches:
    """The values of the variables; "" if a variable is not set."""

    device: str = ""
    plugins: str = ""
    cache_dir: str = ""

    def describe(self) -> dict[str, str]:
        """Returns variable -> its value and the value's origin."""
        names, values = (DEVICE_VARIABLE, PLUGINS_VARIABLE, CACHE_VARIABLE), (self.device, self.plugins, self.cache_dir)
        rows = zip(names, values, (DEFAULT_DEVICE, "all that are installed", "no cache"), strict=True)
        return {
            name: f"{value}, from the environment" if value else f"not set, default: {default}" for name, value, default in rows
        }

    def select(self, devices: Collection[str], wrappers: Collection[str]) -> frozenset[str]:
        """Returns the devices and wrappers to leave out. Wrappers guard devices, so only `-NAME` leaves one out.

        Raises: ConfigValueError for an empty entry, and for a name that is neither installed nor known.
        """
        if not self.plugins:
            return frozenset()
        from hetero_core.devices.known_devices import known_devices  # most processes leave no plugin out

        pieces = [piece.strip() for piece in self.plugins.upper().split(",")]
        excluded = {piece[1:].strip() for piece in pieces if piece.startswith("-")}
        chosen = {piece for piece in pieces if not piece.startswith("-")}
        known = {*devices, *(wrapper.upper() for wrapper in wrappers), *known_devices()}
        for name in sorted(excluded | chosen):
            if name not in known:
                raise ConfigValueError(
                    f"{PLUGINS_VARIABLE}={self.plugins}: no plugin is called '{name}'{suggest(name, known) or ';'} expected names of "
                    f"plugins separated by commas, '-NAME' to leave one out; installed are {enumerate_choices([*devices, *wrappers])}"
                )
        return frozenset(excluded | (set(devices) - chosen if chosen else set()))

    @contextmanager
    def name_device(self) -> Iterator[str]:
        """Gives the default device; errors of its name begin with the variable that it comes from."""
        try:
            yield self.device or DEFAULT_DEVICE
        except (DeviceNotFoundError, DeviceNameError) as error:
            if not self.device:
                raise
            raise type(error)(f"{DEVICE_VARIABLE}={self.device}: {error}") from error


def read_switches(environment: Mapping[str, str] = os.environ) -> Switches:
    """Returns the switches of an environment.

    Raises: DeviceNameError for an incomplete device; ConfigValueError for a cache that is a file.
    """
    device, plugins, cache_dir = (environment.get(name, "").strip() for name in (DEVICE_VARIABLE, PLUGINS_VARIABLE, CACHE_VARIABLE))
    switches = Switches(device, plugins, cache_dir)
    if device:
        from hetero_core.devices.names import parse_device_name  # with numpy

        with switches.name_device():
            parse_device_name(device)
    if cache_dir and os.path.exists(path := os.path.expanduser(cache_dir)) and not os.path.isdir(path):
        raise ConfigValueError(f"{CACHE_VARIABLE}={cache_dir}: expected the path of a folder, and this is a file")
    return switches
