"""A device here that mirrors a device elsewhere: each hook is an operation of its host; a subclass defines the host and the way to it.

    caller ──> RemoteExecutable.run ──> Session (of the carrier) ──> HostSession.run ──> the device's executable
                                                              <── outputs, times, or the error with its type

A carrier that has lost its host raises DeviceCrashedError, and starts another host for the next call: a network that was loaded on an
earlier host is loaded again, from its packed form or its blob, before its next run.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from hetero_core.blobs.container import are_imports_trusted
from hetero_core.contract import BlobCheck, CancelToken, ConfigKey, DeviceName, Executable, Payload, QueryResult, RunContext
from hetero_core.devices.config import MEMORY_LIMIT_KEY, STANDARD_KEYS
from hetero_core.devices.processors import count_processors
from hetero_core.devices.threads import unshare_threads
from hetero_core.errors import DeviceCrashedError, DeviceNameError, HeteroError
from hetero_core.executed import ExecutedNode
from hetero_core.hookspecs import hookimpl
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST, ValueSpec
from hetero_core.network.writer import pack_network
from hetero_core.remote.host import restore_steps
from hetero_core.remote.succession import HostReplacedError, Session, Succession, call_again

BLOB = "blob"
"""The section of a payload that holds the blob of the remote device."""


class RemoteExecutable(Executable):
    """A network on a host. Reloads the network if the host was replaced."""

    def __init__(self, carrier: Succession[Any], load: Callable[[CancelToken | None], dict[str, Any]]) -> None:
        self._carrier = carrier
        self._load = load
        self._lock = threading.Lock()
        self._copied_bytes, self._count_lock = 0, threading.Lock()
        fields = call_again(lambda: self._load_now(None))
        self.inputs = tuple(_place(spec, carrier.memory) for spec in fields["inputs"])
        self.outputs = tuple(_place(spec, carrier.memory) for spec in fields["outputs"])
        self.pipeline_depth = fields["depth"]
        self._metrics = fields["metrics"]

    def _load_now(self, token: CancelToken | None) -> dict[str, Any]:
        link = self._carrier.find_link()
        fields = self._load(token)
        self._loaded = link, fields["number"]
        return fields

    def _find_loaded(self, token: CancelToken | None = None) -> tuple[Any, int]:
        """Returns the host, and the number of the network there; loads it if it is not there, for the run of `token`."""
        if self._loaded[0].is_dead:
            with self._lock:
                if self._loaded[0].is_dead:
                    self._load_now(token)
        return self._loaded

    def create_state(self) -> SimpleNamespace:
        """Returns the place for the session of a request, which is opened with its first run."""
        return SimpleNamespace(session=None)

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs by position, in memory that the next run of the context writes again.

        Raises: the error of the device; DeviceCrashedError if its host ended in this run.
        """
        # Same as `call_again`, inlined because that takes a microsecond.
        while True:
            try:
                return self._run_once(inputs, context)
            except HostReplacedError:
                continue

    def _run_once(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        state: Any = context.state
        loaded = self._loaded
        if loaded[0].is_dead:
            loaded = self._find_loaded(context.token)
        session: Session[Any] | None = state.session
        if session is None or session.loaded is not loaded:
            session = state.session = self._carrier.open_session(loaded, context.token)
        try:
            outputs = session.run(inputs, context)
        except BaseException:
            # An interrupt, or a lost answer: the run may still be under way at the far end.
            state.session = None
            raise
        if session.copied_bytes:
            with self._count_lock:
                self._copied_bytes += session.copied_bytes
        return outputs

    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the network at its host, asked for when they are read, and the count of copied bytes."""
        own = {self._carrier.copies_metric: self._copied_bytes} if self._carrier.copies_metric else {}
        return {**{name: self._ask_metric(name) for name in self._metrics}, **own}

    def _ask_metric(self, name: str) -> Callable[[], Any]:
        return lambda: self._call("network_metric", name)[0]

    def _call(self, operation: str, *arguments: Any) -> tuple[Any, Sequence[Any]]:
        """Returns the host's answer about this network."""
        return call_again(lambda: self._carrier.call(operation, self._find_loaded()[1], *arguments))

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of the device at the host."""
        return restore_steps(self._call("executed")[0])

    def export(self) -> Payload:
        """Returns the blob that the host's device exports, its sections of code marked, so that an import without trust refuses them."""
        _, (blob,) = self._call("export")
        return Payload({BLOB: bytes(blob)})

    def close(self) -> None:
        """Lets the host free the network, if it still has it."""
        link, number = self._loaded
        if not link.is_dead:
            with suppress(DeviceCrashedError):  # a host that is gone has freed it
                self._carrier.call("close", number)


def _place(spec: ValueSpec, memory: str) -> ValueSpec:
    """Names the memory of an input or output; texts and sequences travel with the messages."""
    return ValueSpec(spec.name, spec.type, HOST if spec.dtype in (None, "string") else memory)


_FORWARDED_METRICS = (
    *("OPTIMIZATION_CAPABILITIES", "DEVICE_ARCHITECTURE", "RANGE_FOR_STREAMS", "RANGE_FOR_ASYNC_INFER_REQUESTS", "DEVICE_TYPE"),
    *("DEVICE_UUID", "DEVICE_TOTAL_MEM_SIZE", "DEVICE_FREE_MEM_SIZE", "MAX_BATCH_SIZE", "VALUE_DEVIATIONS"),
)
AnyCarrier = TypeVar("AnyCarrier", bound=Succession[Any])


class RemoteDevice(Generic[AnyCarrier]):
    """Devices elsewhere: a carrier for each place of `locate`."""

    own_keys: Mapping[str, ConfigKey]
    title: str
    """The full name of the plugin's own: "PROCESS: a device in a process of its own"."""
    where: str
    """The words after the full name of the device behind the colon: "in a process of its own"."""

    def __init__(self) -> None:
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
