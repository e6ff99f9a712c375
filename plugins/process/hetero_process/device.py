"""The PROCESS device: chooses the process of the device behind the colon."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, freeze_mapping
from hetero_core.errors import DeviceUnavailableError
from hetero_core.remote.device import RemoteDevice
from hetero_process.carrier import ProcessCarrier

DEVICE_KEY = "PROCESS_DEVICE"
PYTHON_KEY = "PROCESS_PYTHON"
MEMORY_KEY = "PROCESS_MEMORY_LIMIT"


class ProcessDevice(RemoteDevice[ProcessCarrier]):
    """Devices in processes of their own: a process for each combination of text behind the colon, Python and memory limit."""

    title = "PROCESS: a device in a process of its own"
    where = "in a process of its own"
    own_keys: Mapping[str, ConfigKey] = freeze_mapping(
        {
            DEVICE_KEY: ConfigKey(
                str, None, "The device that runs in the process, as behind the colon of PROCESS:ORT.", is_arguments=True
            ),
            PYTHON_KEY: ConfigKey(str, "", "The Python of another environment, whose devices are used; empty: this one."),
            MEMORY_KEY: ConfigKey(int, 0, "The bytes of private memory that the process may hold; 0: no limit.", least=0),
        }
    )

    def __init__(self, name: str) -> None:
        if not hasattr(os, "memfd_create"):
            raise DeviceUnavailableError(
                f"device {name} shares memory by memfd_create, which Linux alone has; use the device itself here"
            )
        super().__init__(name)

    def locate(self, device: DeviceName, config: Mapping[str, Any] | None) -> tuple[str, str, int]:
        """The device behind the colon, the Python and the limit of memory."""
        return (device.arguments, "", 0) if config is None else (device.arguments, config[PYTHON_KEY], config[MEMORY_KEY])

    def connect(self, *place: Any) -> ProcessCarrier:
        """A carrier to a process."""
        return ProcessCarrier(*place)
