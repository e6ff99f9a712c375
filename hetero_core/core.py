"""Core, the class with which every program starts: it reads networks, queries and loads devices, holds configuration, imports blobs.

Of a device, `device` is the text that a caller gives, `parsed` that text as a DeviceName, and `entry` the Device that calls its plugin.
A CallTarget has everything that a query, a load or an import needs to know about the device.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from hetero_core.contract import BlobCheck, ConfigKey, DeviceName, Extension, QueryResult
from hetero_core.devices.config import resolve_key
from hetero_core.devices.device import Device
from hetero_core.devices.extensions import OperatorTypes
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.devices.registry import CallTarget, DeviceStatus, Registry, describe_device
from hetero_core.devices.switches import read_switches
from hetero_core.devices.threads import read_value
from hetero_core.errors import (
    BlobDamagedError,
    BlobMismatchError,
    ClosedError,
    ConfigValueError,
    DeviceUnavailableError,
    ExtensionError,
    HeteroError,
    NotImplementedByDeviceError,
    PluginError,
    own_errors,
    refuse_pickling,
)
from hetero_core.limits import ReadLimits
from hetero_core.network.graph import Network
from hetero_core.network.hints import without_hints
from hetero_core.runtime import executors
from hetero_core.runtime.executable import ExecutableNetwork, Surroundings
from hetero_core.runtime.executors import FORK_ADVICE, Executor, ExecutorManager, retain
from hetero_core.runtime.loading import Loader, call_in_time, check_sections, describe_model

if TYPE_CHECKING:
    import onnx

    from hetero_core.blobs.container import BlobHeader
    from hetero_core.contract import Payload
    from hetero_core.transforms.editing import EditableNetwork

    ModelFile: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto
    Model: TypeAlias = Network | ModelFile

logger = logging.getLogger(__name__)


class Core:
    """The entry point of hetero: gives a program the installed devices. A context manager; safe for threads.

    Two Cores share no devices, configuration or networks.
    """

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a Core", "open one in each process, and pass paths of models or of blobs")

    def __init__(
        self,
        *,
        device_timeout: float | None = 60.0,
        read_limits: ReadLimits | None = None,
        after_fork: Literal["raise", "reopen"] = "raise",
    ) -> None:
        """`device_timeout`: the seconds in which a plugin must create its device and answer its first questions (configuration keys,
        a metric); None waits for ever. Queries, loads and runs are limited by DEADLINE instead.
        `read_limits`: how much time and memory reading a model may take; by default `ReadLimits()`.
        `after_fork`: with "reopen", the first call in a forked child creates the devices anew with the settings of the parent, and the
        first call on a network loads it anew from its model or blob, which stays referenced for this. With "raise" both are errors.

        `switches` are HETERO_DEVICE, HETERO_PLUGINS and HETERO_CACHE_DIR of the environment, read now.

        Raises: ConfigValueError for a timeout that is no positive number or an unknown `after_fork`; PluginError for a broken wrapper;
        for a wrong switch ConfigValueError or DeviceNameError.
        """
        if device_timeout is not None and not device_timeout > 0:
            raise ConfigValueError(f"device_timeout: expected seconds above 0, or None for no limit, got {device_timeout!r}")
        if after_fork not in ("raise", "reopen"):
            raise ConfigValueError(f"after_fork: expected 'raise' or 'reopen', got {after_fork!r}")
        self.switches = read_switches()
        self._device_timeout = device_timeout
        self._read_limits = read_limits
        self._after_fork = after_fork
        # The calls that changed settings, which a forked child repeats.
        self._changes: list[Callable[[], object]] = []
        self._is_closed = False
        self._open()

    def _open(self) -> None:
        self._registry = Registry(self, self._device_timeout, self.switches)
        self._executors = ExecutorManager()
        self._extensions: dict[tuple[str, str], Extension] = {}
        self._operator_types = OperatorTypes(self._extensions, self._registry.operator_types)
        self._loader = Loader(self._registry, self._executors, self._extensions)
        self._process = os.getpid()

    # Networks

    @own_errors("reading a network")
    def read_network(self, model: ModelFile, *, base: str | os.PathLike[str] | None = None) -> EditableNetwork:
        """Returns the network of an ONNX file, of its bytes, or of a ModelProto; `base` is the folder of external weights.

        Raises: NetworkNotFoundError, NetworkReadError, ReadLimitError, InvalidNetworkError.
        """
        from hetero_core.transforms.editing import edit  # all passes of a caller; unused by a load from a file

        return edit(self._read(model, base, holds_weights=True))

    def _read(self, model: Any, base: Any = None, *, holds_weights: bool) -> Network:
        from hetero_core.network.reader import read_network  # imports onnx

        return read_network(
            model, base=base, infer_custom_types=self._operator_types.infer, holds_weights=holds_weights, limits=self._read_limits
        )

    def _as_network(self, model: Model) -> Network:
        if not isinstance(model, Network):
            return self._read(model, holds_weights=False)  # the network has no second owner
        if (self._extensions or self._registry.operator_types) and any(
            value not in model.types for node in model.nodes if node.since_version == 0 or node.bodies for value in node.writes
        ):
            from hetero_core.network.inference import infer_types  # imports onnx

            return infer_types(model, infer_custom_types=self._operator_types.infer)
        return model

    # Devices

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of all installed devices, sorted; no plugin is imported."""
        return self._registry.names()

    @property
    def available_devices(self) -> tuple[str, ...]:
        """The devices that work, each with its id if its plugin has several; creates every device.

        Plugins that cannot load are left out here; `list_devices` has their reasons.
        """
        return tuple(
            str(DeviceName(status.name, number)) if len(status.ids) > 1 else status.name
            for status in self.list_devices()
            if not status.reason
            for number in status.ids
        )

    def list_devices(self) -> tuple[DeviceStatus, ...]:
        """Returns every installed device, sorted by name, with the reason if it cannot be used; creates every device."""
        self._require_open()
        return tuple(describe_device(self._registry, name) for name in self.device_names)

    def get_versions(self, device: str) -> dict[str, str]:
        """Returns distribution and version by device name: of the device, and of every device in its arguments."""
        return self._registry.find_versions(device)

    def find_kind(self, device: str) -> str:
        """Returns the `kind` that a device's package declares, else ""; creates no device. Raises: DeviceNotFoundError."""
        return str(getattr(self._registry.announcement(parse_device_name(device).name).load_plugin(), "kind", ""))

    def find_quick_weights(self, device: str) -> float | None:
        """Returns the `quick_weights` that a device's package declares, else None; creates no device. Raises: DeviceNotFoundError."""
        package = self._registry.announcement(parse_device_name(device).name).load_plugin()
        weights: float | None = getattr(package, "quick_weights", None)
        return weights

    def register_plugin(self, name: str, plugin: object) -> None:
        """Registers a module or an object as a device, under one or more names. Raises: DeviceNameError; PluginError for a used name."""
        self._require_open()
        self._registry.register(name, plugin)
        self._note(lambda: self.register_plugin(name, plugin))

    def unregister_plugin(self, name: str) -> None:
        """Removes a device name; networks that are loaded on it work on. Raises: DeviceNotFoundError; errors of closing the device."""
        self._require_open()
        self._registry.unregister(name)
        self._note(lambda: self.unregister_plugin(name))

    def add_extension(self, extension: Extension, device: str | None = None) -> tuple[str, ...]:
        """Adds a custom operator to a device, or to all that take extensions; networks that are read from now on get its types.

        Returns the devices. Raises: NotImplementedByDeviceError if the device takes no extensions; ExtensionError if it is
        incomplete.
        """
        if not isinstance(extension, Extension) or not callable(extension.function) or not callable(extension.infer_types):
            raise ExtensionError(f"expected an Extension with a function and infer_types, got {extension!r}")
        takers = self._list_takers() if device is None else (device,)
        for parsed, entry in [self._find(name) for name in takers]:
            entry.call("add_extension", parsed, extension=extension)
        self._extensions[extension.domain, extension.op_type] = extension
        self._note(lambda: self.add_extension(extension, device))
        return takers

    def takes_extensions(self, device: str) -> bool:
        """Says whether `add_extension` works for this device; for a list, whether it does for each of its devices."""
        parsed, entry = self._find(device)
        parts = split_device_list(parsed.arguments) if parsed.arguments else ()
        return entry.implements("add_extension") and all(map(self.takes_extensions, parts))

    def _list_takers(self) -> tuple[str, ...]:
        """Returns the devices that take custom operators and run networks themselves. Raises: NotImplementedByDeviceError if none does."""
        takers = []
        for name in self.device_names:
            with suppress(DeviceUnavailableError, PluginError):  # `list_devices` has the reasons
                parsed, entry = self._find(name)
                if entry.implements("add_extension") and not any(key.is_arguments for key in entry.keys(parsed).values()):
                    takers.append(name)
        if not takers:
            raise NotImplementedByDeviceError("no device that is installed takes custom operators; pip install hetero-cpu")
        return tuple(takers)

    def _find(self, device: str | DeviceName) -> tuple[DeviceName, Device]:
        self._require_open()
        return self._registry.find(device)

    def _find_target(self, device: str | None, config: Mapping[str, Any] | None) -> CallTarget:
        self._require_open()
        if device is not None:
            return self._registry.find_target(device, config)
        with self.switches.name_device() as default:
            return self._registry.find_target(default, config)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this Core is closed; make a new one")
        if self._process != os.getpid():
            if self._after_fork == "raise":
                raise ClosedError(f"this Core cannot be used here: {FORK_ADVICE}")
            self._reopen()

    def _reopen(self) -> None:
        """Opens the Core in a forked child, with the settings of the parent; nothing of the parent is freed here."""
        with executors.reopening:
            if self._process != os.getpid():
                retain((self._registry, self._executors, self._loader))
                self._open()
                changes, self._changes = self._changes, []
                for change in changes:
                    change()

    def _note(self, change: Callable[[], object]) -> None:
        if self._after_fork == "reopen":
            self._changes.append(change)

    def _load_again_after_fork(self, loaded: ExecutableNetwork, load: Callable[[], ExecutableNetwork]) -> ExecutableNetwork:
        if self._after_fork == "reopen":
            loaded.reload = load
        return loaded

    # Metrics and configuration

    def get_metric(self, device: str, name: str) -> Any:
        """Returns a metric of a device. Raises: DeviceNotFoundError, DeviceUnavailableError, MetricNotFoundError."""
        parsed, entry = self._find(device)
        return entry.metric(entry.place(parsed), name)

    def config_keys(self, device: str) -> Mapping[str, ConfigKey]:
        """Returns the declarations of all configuration keys of a device."""
        parsed, entry = self._find(device)
        return entry.keys(parsed)

    def get_config(self, device: str, name: str) -> Any:
        """Returns the value of a key for calls that do not give it themselves. Raises: ConfigKeyError."""
        parsed, entry = self._find(device)
        known = resolve_key(name, entry.keys(parsed), device=str(parsed))
        return read_value(name, known, entry.resolve(parsed, None)[1])

    def resolve_config(self, device: str, config: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Returns the complete configuration of a call with these values. Raises: DeviceNotFoundError, ConfigKeyError, ConfigValueError."""
        return self._find_target(device, config).config

    def set_config(self, config: Mapping[str, Any], device: str | None = None) -> None:
        """Sets values for later calls on a device or on a single id of it; without a device, standard keys for all devices. None
        removes a value. All values are checked before the first is set. Raises: ConfigKeyError, ConfigValueError.
        """
        self._require_open()
        if device is None:
            self._registry.set_common(config)
        else:
            parsed, entry = self._find(device)
            entry.set_config(parsed, config)
        values = dict(config)
        self._note(lambda: self.set_config(values, device))

    # Query, load, import

    @own_errors("a query")
    def query_network(self, network: Model, device: str | None = None, config: Mapping[str, Any] | None = None) -> QueryResult:
        """Returns which nodes of the network a device takes, and why it refuses the rest. Without `device` HETERO_DEVICE of the
        environment is asked, by default AUTO.

        A node that the device does not know is refused, not an error. Raises: errors of reading, device names and configuration;
        DeadlineExceededError.
        """
        target = self._find_target(device, config)
        return call_in_time(
            lambda: target.entry.query_network(target.device, without_hints(self._as_network(network)), target.config),
            target,
            what=f"a query about {describe_model(network)}",
        )

    @own_errors("loading a network")
    def load_network(
        self,
        network: Model,
        device: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        query: QueryResult | None = None,
    ) -> ExecutableNetwork:
        """Returns the network compiled for a device; without `device` for HETERO_DEVICE of the environment, by default AUTO.

        `query` is the answer of `query_network` about the same arguments, if it was asked before: the device then need not examine
        the network again.

        Raises: errors of reading, device names and configuration; UnsupportedNodesError with every refused node and its reason;
        DeadlineExceededError, MemoryLimitError.
        """
        target = self._find_target(device, config)

        def load() -> ExecutableNetwork:
            return self._loader.load(self._as_network(network), target, query)

        loaded = call_in_time(load, target, what=f"loading {describe_model(network)}", discard=ExecutableNetwork.close)
        values = None if config is None else dict(config)
        return self._load_again_after_fork(loaded, lambda: self.load_network(network, device, values))

    @own_errors("importing a network")
    def import_network(
        self,
        source: str | os.PathLike[str] | IO[bytes] | bytes,
        device: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        network: Model | None = None,
        trust: bool = False,
    ) -> ExecutableNetwork:
        """Loads a network from a blob that the same device and plugin version exported; without `device`, on the device that the blob
        names. A stream is read to the end of the blob.

        `config` may change keys that affect only runs; all remaining keys must agree with the blob. If `network` is given, the blob
        must have been exported from it. Code in the blob is used only with `trust`.

        Raises: BlobDamagedError, BlobMismatchError with the difference, UntrustedBlobError, errors of device names and configuration.
        """
        from hetero_core.blobs import container  # only an import needs it

        if device is not None:
            self._require_open()
            self._registry.find_for_call(device, config)  # a wrong name is reported before a fault of the blob
        header, payload = container.read_blob(source)
        values = None if config is None else dict(config)

        def load() -> ExecutableNetwork:
            target = self._find_import_target(header, payload, device, values, network)
            with container.require_trust(header, payload, trust=trust) as trusted:
                omission = container.describe_omission(payload, trusted)
                if omission:
                    logger.warning("network '%s' is compiled again on %s: %s", header.network, header.device, omission)
                return call_in_time(
                    lambda: self._loader.import_blob(header, trusted, target),
                    target,
                    what=f"importing network '{header.network}'",
                    discard=ExecutableNetwork.close,
                )

        return self._load_again_after_fork(load(), load)

    @own_errors("checking a blob")
    def check_blob(
        self, source: str | os.PathLike[str] | IO[bytes] | bytes, device: str | None = None, *, trust: bool = False
    ) -> BlobCheck:
        """Returns whether `import_network` with these arguments works here, and why not. It makes the checks of an import, loads nothing,
        and asks no device about nodes.

        Raises: BlobDamagedError; PluginError.
        """
        from hetero_core.blobs import container  # only a check needs it

        self._require_open()
        try:
            header, payload = container.read_blob(source)
        except BlobMismatchError as error:  # of another format
            return BlobCheck(device or "", "does not fit", str(error))
        try:
            target = self._find_import_target(header, payload, device, None, None)
            with container.require_trust(header, payload, trust=trust) as trusted:
                check = target.entry.check_payload(target.device, Surroundings.take(trusted)[0], target.config)
            omission = container.describe_omission(payload, trusted)
            return replace(check, answer="works after recompiling", reason=omission) if omission and not check.reason else check
        except (BlobDamagedError, PluginError):
            raise
        except HeteroError as error:  # an import raises the same
            parts: tuple[BlobCheck, ...] = ()
            if not header.architecture:  # of devices, one of which may be missing
                with suppress(HeteroError), container.trust_imports(trust or container.are_imports_trusted()):
                    parsed, entry = self._find(header.device)
                    parts = entry.check_payload(parsed, payload, entry.resolve(parsed, None)[1]).parts
            return BlobCheck(device or header.device, "does not fit", str(error), parts)

    def _find_import_target(
        self, header: BlobHeader, payload: Payload, device: str | None, config: Mapping[str, Any] | None, network: Model | None
    ) -> CallTarget:
        """Returns the target of an import after the core's own checks. Raises: as `import_network`."""
        from hetero_core.blobs import identity  # only an import needs it

        self._require_open()
        parsed, entry, steering = self._registry.find_for_call(device or header.device, config)
        expected = None if network is None else self._as_network(network)
        target = identity.find_import_target(header, parsed, entry, steering, expected)
        check_sections(payload, header.network, target.device, target.config)
        return target

    def create_executor(self, name: str, *, workers: int) -> Executor:
        """Returns a pool of threads for a plugin, apart from those of requests; it ends with its last reference. Raises: ClosedError."""
        self._require_open()
        return self._executors.create_executor(name, workers=workers)

    # Lifetime

    def close(self) -> None:
        """Ends the threads, then closes the loaded networks and the devices; a second call does nothing.

        It waits for the runs under way on the Core's threads and cancels the queued runs. In a forked child it closes nothing,
        since networks and devices belong to the parent.
        """
        if not self._is_closed:
            if self._process == os.getpid():
                self._loader.finish()
            self._is_closed = True
            if self._process != os.getpid():
                return
            self._executors.close()
            self._loader.close()
            self._registry.close()

    def __enter__(self) -> Core:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
