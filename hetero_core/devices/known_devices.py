"""Known devices, hardware, and other projects' names of devices. Error messages, `hetero devices` and the directory of devices read it.

All of it is data in `known_devices.json`: nothing is imported, and a device that is not in the table works as well. The rows of this
repository's devices are made from the plugins' pyproject.toml files by `hetero_tests.devices_page`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hetero_core.errors import find_near
from hetero_core.network.types import read_record

HARDWARE_GROUP = "hetero_core.hardware"
"""Entry-point group in which a distribution announces hardware -> the device of its own that uses it, as `nvidia = "GPU"`."""
_ENDING = "EXECUTIONPROVIDER"


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A row of the directory: the device, its package, and the hardware by its names in the table `hardware`."""

    name: str
    package: str
    version: str
    core: str
    runs_on: str
    extras: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    badge: str = ""

    @property
    def requirement(self) -> str:
        """The requirement that installs the device with its engine."""
        return f"{self.package}[{','.join(self.extras)}]" if self.extras else self.package


@dataclass(frozen=True, slots=True)
class Hardware:
    """A kind of hardware: its name in a sentence, and the file that its driver makes."""

    text: str
    driver: str


@cache
def _read_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return table


@cache
def known_devices() -> Mapping[str, KnownDevice]:
    """Returns name -> the row of each known device, sorted by name."""
    return {row["name"]: read_record(KnownDevice, row) for row in _read_table()["devices"]}


@cache
def known_hardware() -> Mapping[str, Hardware]:
    """Returns the names of hardware that a device can announce."""
    return read_record(Mapping[str, Hardware], _read_table()["hardware"])  # type: ignore[no-any-return]  # by its annotation


def foreign_names() -> Mapping[str, tuple[str, ...]]:
    """Returns another project's name of a device -> the devices to use.

    Any other provider of ONNX Runtime is an id of the device `provider_device` of the table.
    """
    return read_record(Mapping[str, tuple[str, ...]], _read_table()["foreign_names"])  # type: ignore[no-any-return]  # as above


def advise_missing(device: str, installed: Collection[str]) -> str:
    """Returns what to use or to install for a device that no plugin announces; "" if its name is not known."""
    if device in known_devices():
        return f"install it with 'pip install {known_devices()[device].requirement}'"
    is_provider = device.endswith(_ENDING) and device != _ENDING
    provider = (f"{_read_table()['provider_device']}.{device.removesuffix(_ENDING)}",) if is_provider else ()
    devices = {name.upper(): devices for name, devices in foreign_names().items()}.get(device, provider)
    return f"it is another project's name: use {' or '.join(_word(name, installed) for name in devices)}" if devices else ""


def suggest_device(wrong: str, installed: Collection[str]) -> str:
    """Returns ", did you mean 'X'?" for the nearest of the installed and the known devices, or an empty text without a near one.

    It says how to install a device that is not installed.
    """
    near = [_word(name, installed) for name in find_near(wrong, {*installed, *known_devices()})]
    return f", did you mean {' or '.join(near)}?" if near else ""


def _word(device: str, installed: Collection[str]) -> str:
    name = device.partition(".")[0]
    return f"'{device}'" if name in installed else f"'{device}' ('pip install {known_devices()[name].requirement}')"


def find_hardware(root: str = "/") -> frozenset[str]:
    """Returns the names of known hardware that has a driver on this machine."""
    return frozenset(
        name for name, hardware in known_hardware().items() if os.path.exists(os.path.join(root, hardware.driver.lstrip("/")))
    )


def list_unused_hardware(installed: Collection[str], root: str = "/") -> dict[str, str]:
    """Returns hardware of this machine that no installed device announces -> the requirement of a device for it."""
    from importlib_metadata import entry_points  # reads the installed distributions

    unused = find_hardware(root) - {entry.name for entry in entry_points(group=HARDWARE_GROUP) if entry.value in installed}
    requirements: dict[str, str] = {}
    for row in known_devices().values():
        for name in row.hardware:
            if name in unused:
                requirements.setdefault(known_hardware()[name].text, row.requirement)
    return requirements
