"""The hooks of a device elsewhere, each an operation of its host; a subclass defines the host and the way to it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from hetero_core.blobs.container import are_imports_trusted
from hetero_core.contract import BlobCheck, ConfigKey, DeviceName, Executable, Payload, QueryResult
from hetero_core.devices.config import MEMORY_LIMIT_KEY, STANDARD_KEYS
from hetero_core.devices.processors import count_processors
from hetero_core.devices.threads import unshare_threads
from hetero_core.errors import DeviceNameError, HeteroError
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.network.writer import pack_network
from hetero_core.remote.mirror import BLOB, RemoteExecutable
from hetero_core.remote.succession import Succession, call_again

_FORWARDED_METRICS = frozenset(
    (
        "OPTIMIZATION_CAPABILITIES",
        "DEVICE_ARCHITECTURE",
        "RANGE_FOR_STREAMS",
        "RANGE_FOR_ASYNC_INFER_REQUESTS",
        "DEVICE_TYPE",
        "DEVICE_UUID",
        "DEVICE_TOTAL_MEM_SIZE",
        "DEVICE_FREE_MEM_SIZE",
        "MAX_BATCH_SIZE",
        "VALUE_DEVIATIONS",
    )
)
AnyCarrier = TypeVar("AnyCarrier", bound=Succession[Any])


class RemoteDevice(Generic[AnyCarrier]):
    """Devices elsewhere: a carrier for each place of `locate`."""

    own_keys: Mapping[str, ConfigKey]
    title: str
    """The full name of the plugin's own: "PROCESS: a device in a process of its own"."""
    where: str
    """The words after the full name of the device behind the colon: "in a process of its own"."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._carriers: dict[Hashable, AnyCarrier] = {}
        # By the device's name: the carrier of the last call with a configuration.
        self._carrier_in_use: dict[str, AnyCarrier] = {}

    @abstractmethod
    def locate(self, device: DeviceName, config: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """Returns the arguments of `connect`; devices with equal places share a host. `config` is None outside of queries and loads."""

    @abstractmethod
    def connect(self, *place: Any) -> AnyCarrier:
        """Returns a carrier, which starts no host yet."""

    @hookimpl
    def config_keys(self, device: DeviceName) -> Mapping[str, ConfigKey]:
        """The plugin's own keys, and the keys of the device behind the colon."""
        if not device.arguments:
            return self.own_keys
        try:
            keys = self._find_carrier(device).describe().keys
        except HeteroError:
            # Said when a network is queried or loaded, with the reason.
            return self.own_keys
        return {**{name: replace(key, is_arguments=False) for name, key in keys.items()}, **self.own_keys}

    @hookimpl
    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """The metrics of the device behind the colon; it holds no lock of this interpreter."""
        own = {"FULL_DEVICE_NAME": self.title, "HOLDS_INTERPRETER_LOCK": False, **self.own_metrics(device)}
        if not device.arguments:
            return own
        carrier = self._carrier_in_use.get(str(device)) or self._find_carrier(device)
        try:
            description = carrier.describe()
        except HeteroError:
            # As above: it may be a device of another environment, which the configuration of a call will name.
            return own
        forwarded = {name: self._ask(carrier, name) for name in description.metrics if name in _FORWARDED_METRICS}
        return {**own, **forwarded, "FULL_DEVICE_NAME": f"{description.full_name}, {self.where}"}

    def own_metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """The metrics of the plugin itself; it has no ids of its own unless it says so."""
        return {"AVAILABLE_DEVICES": ()}

    def _ask(self, carrier: AnyCarrier, name: str) -> Callable[[], Any]:
        return lambda: call_again(lambda: carrier.call("metric", name))[0]

    @hookimpl
    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """Returns the nodes that the device behind the colon takes, under the name of the device here."""
        carrier, settings = self._reach(device, config)
        bulk = carrier.ship(_pack(network))
        (supported, refused), _ = call_again(lambda: carrier.call("query", settings, bulk=bulk))
        return QueryResult(dict.fromkeys(supported, str(device)), refused)

    @hookimpl
    def load_network(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None
    ) -> Executable:
        """The network, loaded at the host from its packed form; with the device's answer to a query, if it was asked before."""
        carrier, settings = self._reach(device, config)
        bulk = carrier.ship(_pack(network))
        answer = None if query is None else (tuple(query.supported), dict(query.refused))
        return RemoteExecutable(carrier, lambda token: carrier.call("load", settings, answer, bulk=bulk, token=token)[0])

    @hookimpl
    def export_network(self, executable: RemoteExecutable) -> Payload:
        """The blob of the device behind the colon."""
        return executable.export()

    @hookimpl
    def check_payload(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> BlobCheck:
        """The answer of the host's device."""
        payload.require_version(1)
        carrier, _ = self._reach(device, config)
        bulk, trust = carrier.ship((payload.sections[BLOB],)), are_imports_trusted()
        (answer, reason), _ = call_again(lambda: carrier.call("check", trust, bulk=bulk))
        return BlobCheck(str(device), answer, reason)

    @hookimpl
    def import_network(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Executable:
        """The network of a blob of the host's device, imported there with the trust of the import here."""
        payload.require_version(1)
        carrier, settings = self._reach(device, config)
        bulk, trust = carrier.ship((payload.sections[BLOB],)), are_imports_trusted()
        return RemoteExecutable(carrier, lambda token: carrier.call("import", settings, trust, bulk=bulk, token=token)[0])

    @hookimpl
    def close_device(self) -> bool:
        """Ends all hosts."""
        with self._lock:
            carriers = list(self._carriers.values())
            self._carriers.clear()
            self._carrier_in_use.clear()
        for carrier in carriers:
            carrier.close()
        return True

    def _reach(self, device: DeviceName, config: Mapping[str, Any]) -> tuple[AnyCarrier, dict[str, Any]]:
        """Returns the carrier, and the configuration for the host's Core: keys of the device that are set, and the
        budget of threads and memory. The core's other keys, as CACHE_DIR and DEADLINE, are answered for here.
        """
        carrier = self._find_carrier(device, config)
        keys = carrier.describe().keys
        own = {name: value for name, value in config.items() if name in keys and name not in STANDARD_KEYS and value is not None}
        limit = config[MEMORY_LIMIT_KEY]
        settings = own | unshare_threads(config, count_processors()) | ({} if limit is None else {MEMORY_LIMIT_KEY: limit})
        return carrier, settings

    def _find_carrier(self, device: DeviceName, config: Mapping[str, Any] | None = None) -> AnyCarrier:
        """Returns the carrier to the host of a device. Raises: DeviceNameError if no device is named."""
        if not device.arguments:
            raise DeviceNameError(f"device {device} has no device to run; name it behind the colon, as in '{device}:CPU'")
        place = self.locate(device, config)
        with self._lock:
            carrier = self._carriers.get(place)
            if carrier is None:
                carrier = self._carriers[place] = self.connect(*place)
            if config is not None:
                self._carrier_in_use[str(device)] = carrier
            return carrier


def _pack(network: Network) -> tuple[Any, Any]:
    packed = pack_network(network)
    return packed["model"], packed["weights"]
