"""The PROCESS device: its hooks, each an operation of the child that has the device behind the colon."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, Executable, Payload, QueryResult, freeze_mapping
from hetero_core.errors import DeviceNameError, DeviceUnavailableError, HeteroError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.remote.mirror import RemoteExecutable, call_again, import_remote, load_remote, query_remote, select_config
from hetero_process.carrier import ProcessCarrier

DEVICE_KEY = "PROCESS_DEVICE"
PYTHON_KEY = "PROCESS_PYTHON"
MEMORY_KEY = "PROCESS_MEMORY_LIMIT"

OWN_KEYS: Mapping[str, ConfigKey] = freeze_mapping(
    {
        DEVICE_KEY: ConfigKey(
            str, None, "The device that runs in the process, as behind the colon of PROCESS:ORT.", is_arguments=True
        ),
        PYTHON_KEY: ConfigKey(str, "", "The Python of another environment, whose devices are used; empty: this one."),
        MEMORY_KEY: ConfigKey(int, 0, "The bytes of private memory that the process may hold; 0: no limit.", least=0),
    }
)
_FORWARDED_METRICS = frozenset(
    (
        "OPTIMIZATION_CAPABILITIES",
        "DEVICE_ARCHITECTURE",
        "RANGE_FOR_STREAMS",
        "RANGE_FOR_ASYNC_INFER_REQUESTS",
        "MAX_BATCH_SIZE",
        "VALUE_DEVIATIONS",
    )
)


class ProcessDevice:
    """Devices in processes of their own: one process for each text behind the colon, Python and limit."""

    def __init__(self, name: str) -> None:
        if not hasattr(os, "memfd_create"):
            raise DeviceUnavailableError(
                f"device {name} shares memory by memfd_create, which Linux alone has; use the device itself here"
            )
        self._name = name
        self._lock = threading.Lock()
        self._carriers: dict[tuple[str, str, int], ProcessCarrier] = {}
        # By what stands behind the colon: where a call with a configuration has used it last.
        self._carrier_in_use: dict[str, ProcessCarrier] = {}

    @hookimpl
    def config_keys(self, device: DeviceName) -> Mapping[str, ConfigKey]:
        """The device's own keys, and those of the device in the process."""
        if not device.arguments:
            return OWN_KEYS
        try:
            keys = self._find_carrier(device).describe().keys
        except HeteroError:
            # Said when a network is queried or loaded, with the reason.
            return OWN_KEYS
        return {**{name: replace(key, is_arguments=False) for name, key in keys.items()}, **OWN_KEYS}

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """The metrics of the device in the process; it has no ids of its own, and holds no lock of this interpreter."""
        own = {
            "AVAILABLE_DEVICES": (),
            "FULL_DEVICE_NAME": "PROCESS: a device in a process of its own",
            "HOLDS_INTERPRETER_LOCK": False,
        }
        if not device.arguments:
            return own
        carrier = self._carrier_in_use.get(device.arguments) or self._find_carrier(device)
        try:
            description = carrier.describe()
        except HeteroError:
            # As above: it may be a device of another environment, which the configuration of a call will name.
            return own
        forwarded = {name: self._ask(carrier, name) for name in description.metrics if name in _FORWARDED_METRICS}
        return {**own, **forwarded, "FULL_DEVICE_NAME": f"{description.full_name}, in a process of its own"}

    def _ask(self, carrier: ProcessCarrier, name: str) -> Callable[[], Any]:
        return lambda: call_again(lambda: carrier.call("metric", name))[0]

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """What the device in the process takes."""
        carrier = self._find_carrier(device, config)
        return query_remote(carrier, network, self._select(carrier, config), str(device))

    @hookimpl
    def load_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> Executable:
        """The network, loaded in the process."""
        carrier = self._find_carrier(device, config)
        return load_remote(carrier, network, self._select(carrier, config))

    @hookimpl
    def export_network(self, executable: RemoteExecutable) -> Payload:
        """The blob of the device in the process."""
        return executable.export()

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """The network of a blob, imported in the process."""
        carrier = self._find_carrier(device, config)
        return import_remote(carrier, payload, self._select(carrier, config))

    @hookimpl
    def close_device(self) -> bool:
        """Ends all processes."""
        with self._lock:
            carriers = list(self._carriers.values())
            self._carriers.clear()
            self._carrier_in_use.clear()
        for carrier in carriers:
            carrier.close()
        return True

    def _select(self, carrier: ProcessCarrier, config: Mapping[str, Any]) -> dict[str, Any]:
        return select_config(config, carrier.describe().keys)

    def _find_carrier(self, device: DeviceName, config: Mapping[str, Any] | None = None) -> ProcessCarrier:
        """Returns the carrier to the process of a device. Raises: DeviceNameError where no device is named."""
        if not device.arguments:
            raise DeviceNameError(f"device {device} has no device to run; name it behind the colon, as in '{self._name}:CPU'")
        place = (device.arguments, "", 0) if config is None else (device.arguments, config[PYTHON_KEY], config[MEMORY_KEY])
        with self._lock:
            carrier = self._carriers.get(place)
            if carrier is None:
                carrier = self._carriers[place] = ProcessCarrier(*place)
            if config is not None:
                self._carrier_in_use[device.arguments] = carrier
            return carrier
