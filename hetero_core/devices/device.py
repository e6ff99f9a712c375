"""Device: a plugin in use by a Core, behind its own pluggy manager; calls its hooks, checks their results, and adds the core's own metrics.

Only the core calls it. Every answer that breaks the contract is an error that names the plugin.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pluggy

from hetero_core.contract import BlobCheck, ConfigKey, DeviceName, Executable, Payload, QueryResult, freeze_mapping
from hetero_core.devices.config import (
    CACHE_KEYS,
    LOG_KEY,
    convert_changes,
    convert_config,
    convert_value,
    declare_keys,
    merge_config,
    set_log_level,
)
from hetero_core.devices.names import normalise_arguments
from hetero_core.devices.processors import count_processors
from hetero_core.devices.provenance import Provenance, call_named, read_mapping
from hetero_core.devices.query import check_query_result
from hetero_core.devices.threads import resolve_threads, share_threads
from hetero_core.devices.watch import Patience
from hetero_core.errors import (
    BlobError,
    ConfigValueError,
    DeviceNameError,
    DeviceNotFoundError,
    DeviceUnavailableError,
    HeteroError,
    MetricNotFoundError,
    NotImplementedByDeviceError,
    PluginError,
    enumerate_choices,
    word_missing,
)
from hetero_core.network.graph import Network
from hetero_core.network.types import HOST

logger = logging.getLogger(__name__)


class Device:
    """A created device with its configuration. Physical ids and arguments come with each call, as a DeviceName."""

    def __init__(
        self,
        provenance: Provenance,
        manager: pluggy.PluginManager,
        patience: Patience,
        find_common: Callable[[], Mapping[str, Any]],
    ) -> None:
        """`find_common` returns the values that are set for all devices at once."""
        self._find_common = find_common
        self.provenance = provenance
        self.manager = manager
        self.patience = patience
        # By id, arguments and key; an empty id or empty arguments stand for all.
        self._set: dict[tuple[str, str, str], Any] = {}
        # Packages with a logging level that `set_log_level` has set and `close` resets.
        self._log_packages: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def implements(self, hook: str) -> bool:
        """Says whether the device itself, wrappers aside, implements a hook."""
        implementations = getattr(self.manager.hook, hook).get_hookimpls()
        return any(not implementation.wrapper and not implementation.hookwrapper for implementation in implementations)

    def require_hook(self, hook: str, device: DeviceName) -> None:
        """Raises NotImplementedByDeviceError if the device itself does not implement a hook."""
        if not self.implements(hook):
            raise NotImplementedByDeviceError(f"device {device} does not implement {hook}; {self.provenance} has no such hook")

    @property
    def can_export(self) -> bool:
        """Says whether loaded networks can be exported and imported."""
        return self.implements("export_network") and self.implements("import_network")

    def call(self, hook: str, device: DeviceName, **arguments: Any) -> Any:
        """Returns the result of a hook.

        Raises: NotImplementedByDeviceError if no plugin implements the hook; DeviceTimeoutError if the plugin exceeds its time
        limit now or did so before; the plugin's own errors, with a note that names the plugin.
        """
        caller = getattr(self.manager.hook, hook)
        result = call_named(
            lambda: self.patience.call(hook, device, lambda: caller(device=device, **arguments)),
            blame=self.provenance,
            where=f"{hook} for device {device}",
        )
        if result is None:
            self.require_hook(hook, device)
            raise PluginError(f"{self.provenance} returned None from {hook}; expected a result, as the hook's specification says")
        return result

    def keys(self, device: DeviceName) -> Mapping[str, ConfigKey]:
        """Returns every configuration key that the device knows, including the core's standard keys."""
        blame = str(self.provenance)
        answer = self.call("config_keys", device) if self.implements("config_keys") else {}
        keys = declare_keys(read_mapping(answer, blame=blame, where="config_keys"), blame=blame)
        if self.can_export:
            return keys
        return freeze_mapping((name, key) for name, key in keys.items() if name not in CACHE_KEYS)

    def set_config(self, device: DeviceName, config: Mapping[str, Any]) -> None:
        """Keeps values for later calls; with an id they hold for that id alone. All values are checked before the first is kept.
        None removes a value that was set for the same device, id and arguments.

        A key that the device knows only with its arguments, as HETERO knows the keys of its children, holds for these arguments
        alone.
        """
        full = self._with_arguments(device, config)
        converted, dropped = convert_changes(config, self.keys(full), device=str(device))
        if "DEVICE_ID" in converted:
            self.check_name(DeviceName(device.name, converted["DEVICE_ID"]))
        plain = self.keys(DeviceName(device.name))
        with self._lock:
            # A new mapping, so that a load that reads meanwhile sees all of these values or the old values only.
            changed = dict(self._set)
            for name in (*dropped, *converted):
                place = device.id, device.arguments if name in plain else full.arguments, name
                changed.pop(place, None)
                if name in converted:
                    changed[place] = converted[name]
            self._set = changed
        if LOG_KEY in dropped:
            set_log_level(None, *self._log_packages)

    def set_log_level(self, level: str | None) -> None:
        """Sets the log level of the core and of the plugin until the device is closed; None restores the program's own level."""
        self._log_packages = "hetero_core", self.provenance.module.partition(".")[0]
        set_log_level(level, *self._log_packages)

    def read_settings(self, device: DeviceName, keys: Mapping[str, ConfigKey]) -> dict[str, Any]:
        """Returns the values of these keys that `set_config` has set for all devices, overridden by the device's own values."""
        return {name: value for name, value in (*self._find_common().items(), *self.read_set(device).items()) if name in keys}

    def read_set(self, device: DeviceName) -> dict[str, Any]:
        """Returns the values that `set_config` has set for the device with this id and these arguments."""
        settings = self._set.items()
        places = dict.fromkeys((("", ""), ("", device.arguments), (device.id, ""), (device.id, device.arguments)))
        return {name: value for place in places for (*at, name), value in settings if tuple(at) == place}

    def resolve(self, device: DeviceName, requested: Mapping[str, Any] | None) -> tuple[DeviceName, Mapping[str, Any]]:
        """Returns the device with its id and arguments in place, and its complete configuration for a call with these values.

        A key that is marked `is_arguments` and the text behind the colon mean the same, as do DEVICE_ID and the id.

        Raises: ConfigKeyError, ConfigValueError, DeviceNotFoundError.
        """
        device = self._with_arguments(device, requested or {})
        keys = self.keys(device)
        call = convert_config(requested or {}, keys, device=str(device))
        device = self._with_id(device, call)
        named = {name: device.arguments for name, key in keys.items() if key.is_arguments and device.arguments}
        config = merge_config(keys, self.read_settings(device, keys), call, named, {"DEVICE_ID": device.id})
        if config.get(LOG_KEY) is not None:
            self.set_log_level(config[LOG_KEY])
        resolved = resolve_threads(
            config, device=str(device), processors=count_processors(), find_range=lambda: self.metric(device, "RANGE_FOR_STREAMS")
        )
        return device, resolved

    def _with_arguments(self, device: DeviceName, config: Mapping[str, Any]) -> DeviceName:
        keys = self.keys(device)
        name = next((name for name, key in keys.items() if key.is_arguments), None)
        if name is None:
            return device
        spellings = name, *keys[name].aliases
        spelled = next((spelling for spelling in config if str(spelling).strip().upper() in spellings), None)
        setting = self._set.get(("", "", name))
        value = setting if spelled is None else config[spelled]
        if value is None:
            return device
        text = normalise_arguments(convert_value(name, keys[name], value, device=str(device)))
        if spelled is not None and device.arguments and text != device.arguments:
            raise ConfigValueError(f"device {device} and {name}={text} name two different lists; give one of them, or both alike")
        return device if device.arguments else DeviceName(device.name, device.id, text)

    def _with_id(self, device: DeviceName, call: Mapping[str, Any]) -> DeviceName:
        named_device = self.check_name(DeviceName(device.name, str(call.get("DEVICE_ID") or ""))).id
        if named_device and device.id and named_device != device.id:
            raise ConfigValueError(f"device {device} and DEVICE_ID={named_device} name two different devices; give one of them")
        set_id = self._set.get(("", "", "DEVICE_ID"), "")
        return self.check_name(DeviceName(device.name, device.id or named_device or set_id, device.arguments))

    def check_name(self, device: DeviceName) -> DeviceName:
        """Returns the device with its id as the plugin spells it: an id without quotes matches in any case.

        Raises: DeviceNotFoundError when the device has no such id, DeviceUnavailableError with the device's reason if the id cannot be
        used, DeviceNameError when it takes no arguments but has some.
        """
        if device.arguments and not any(key.is_arguments for key in self.keys(DeviceName(device.name)).values()):
            raise DeviceNameError(f"device {device.name} takes nothing behind a colon; got '{device.arguments}'")
        if not device.id:
            return device
        ids = self.metric(DeviceName(device.name), "AVAILABLE_DEVICES")
        alike = [each for each in ids if each.upper() == device.id.upper()]
        is_folded = device.id in (device.id.upper(), device.id.lower())
        device_id = device.id if device.id in ids else alike[0] if len(alike) == 1 and is_folded else None
        if device_id is None:
            for unusable, reason in self.metric(DeviceName(device.name), "UNAVAILABLE_DEVICES").items():
                if unusable.upper() == device.id.upper():
                    raise DeviceUnavailableError(f"device {device.name}.{unusable} cannot be used: {reason}")
            known = [each for each in ids if each]
            described = f"its ids are {enumerate_choices(known)}" if known else "it has no ids"
            raise DeviceNotFoundError(f"device {device.name} has no id '{device.id}'; {described}")
        return DeviceName(device.name, device_id, device.arguments)

    def place(self, device: DeviceName) -> DeviceName:
        """Returns the device with the id and the arguments that `set_config` has set for it. Raises: DeviceNotFoundError."""
        return self._with_id(self._with_arguments(device, {}), {})

    def metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """Returns all metrics of the device with this id, by name: the standard metrics, overridden by the plugin's, and the derived
        metrics; functions among them are not called yet. Raises: PluginError for a derived metric that the plugin gives itself.
        """
        blame = str(self.provenance)
        answer = self.call("metrics", device) if self.implements("metrics") else {}
        own = read_mapping(answer, blame=blame, where="metrics")
        lower = next((name for name in own if name != name.upper()), None)
        if lower is not None:
            raise PluginError(f"{blame} returns the metric '{lower}'; metrics are upper case, as '{lower.upper()}'")
        given_derived = [name for name in _DERIVED if name in own]
        if given_derived:
            raise PluginError(f"{blame} returns the metric {given_derived[0]}, which the core derives; leave it out")
        metrics: dict[str, Any] = {
            "AVAILABLE_DEVICES": ("",),
            "UNAVAILABLE_DEVICES": freeze_mapping(()),
            "FULL_DEVICE_NAME": device.name,
            "OPTIMIZATION_CAPABILITIES": ("FP32",),
            "DEVICE_ARCHITECTURE": device.name,
            "DEVICE_TYPE": "discrete" if self.implements("to_host") else "integrated",
            "DEVICE_UUID": lambda: _make_uuid(device, metrics),
            "MAX_BATCH_SIZE": 0,
            "CODE_FOLDER": "",
            "HOLDS_INTERPRETER_LOCK": False,
            "IS_LOCAL": True,
            "VALUE_DEVIATIONS": (),
            "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda: (1, count_processors(), 1),
            **own,
        }
        # The number of requests that a device works on is also its number of streams.
        metrics.setdefault("RANGE_FOR_STREAMS", lambda: (1, max(_read(metrics["RANGE_FOR_ASYNC_INFER_REQUESTS"])[1], 1)))
        stated = metrics["OPTIMIZATION_CAPABILITIES"]
        exports = ("EXPORT_IMPORT",) if self.can_export else ()
        metrics["OPTIMIZATION_CAPABILITIES"] = lambda: (*(word for word in _read(stated) if word != "EXPORT_IMPORT"), *exports)
        metrics["IMPORT_EXPORT_SUPPORT"] = self.can_export
        metrics["SUPPORTED_CONFIG_KEYS"] = tuple(sorted(self.keys(device)))
        metrics["SUPPORTED_METRICS"] = tuple(sorted((*metrics, "SUPPORTED_METRICS")))
        return freeze_mapping((name, metrics[name]) for name in sorted(metrics))

    def metric(self, device: DeviceName, name: str) -> Any:
        """Returns the value of a metric. Raises: MetricNotFoundError with the near misses and all names."""
        metrics = self.metrics(device)
        value, question = find_metric(name, metrics, f"device {device}")
        if not callable(value):
            return value
        return call_named(
            lambda: self.patience.ask(question, device.id, value), blame=self.provenance, where=f"{question} of device {device}"
        )

    def find_architecture(self, device: DeviceName) -> str:
        """Returns the architecture that the device compiles for; "" if it only passes networks on to other devices."""
        is_plain = not any(key.is_arguments for key in self.keys(DeviceName(device.name)).values())
        return str(self.metric(device, "DEVICE_ARCHITECTURE")) if is_plain else ""

    def query_network(self, device: DeviceName, network: Network, config: Mapping[str, Any]) -> QueryResult:
        """Returns which nodes the device takes, checked to name every node of the network once."""
        result = self.call("query_network", device, network=network, config=share_threads(config))
        return check_query_result(result, network, blame=str(self.provenance))

    def load_network(
        self, device: DeviceName, network: Network, config: Mapping[str, Any], query: QueryResult | None = None
    ) -> Executable:
        """Returns the compiled network, checked to have the network's inputs and outputs. `query`: the answer of an earlier query."""
        if query is not None:
            check_query_result(query, network, blame=str(self.provenance))
        executable = self.call("load_network", device, network=network, config=share_threads(config), query=query)
        expected = tuple(spec.name for spec in network.inputs), tuple(spec.name for spec in network.outputs)
        return self._check_executable(executable, expected, "load_network")

    def import_network(
        self, device: DeviceName, payload: Payload, config: Mapping[str, Any], names: tuple[tuple[str, ...], tuple[str, ...]]
    ) -> Executable:
        """Returns the imported executable, checked to have the inputs and outputs that the blob records. Raises: as `_read_payload`."""
        executable = self._read_payload("import_network", device, payload, config)
        return self._check_executable(executable, names, "import_network")

    def check_payload(self, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> BlobCheck:
        """Returns the device's answer about an import. Raises: as `_read_payload`."""
        if not self.implements("check_payload"):
            return BlobCheck(str(device))
        answer = self._read_payload("check_payload", device, payload, config)
        if not isinstance(answer, BlobCheck):
            raise PluginError(f"{self.provenance} returned {type(answer).__name__} from check_payload; expected a BlobCheck")
        return answer

    def _read_payload(self, hook: str, device: DeviceName, payload: Payload, config: Mapping[str, Any]) -> Any:
        """Returns the result of a hook that reads a payload.

        Raises: BlobError for any exception of the plugin that is not an error of hetero: an untrusted blob may hold anything.
        """
        try:
            return self.call(hook, device, payload=payload, config=share_threads(config))
        except (HeteroError, MemoryError):
            raise
        except Exception as error:  # a plugin may raise anything if it cannot import a blob; becomes a BlobError
            raise BlobError(
                f"cannot import the blob on {device}: {self.provenance} failed with {type(error).__name__}: {error}; "
                "export the network again, or load the model"
            ) from error

    def _check_executable(self, executable: Any, expected: tuple[tuple[str, ...], tuple[str, ...]], hook: str) -> Executable:
        if not isinstance(executable, Executable):
            raise PluginError(f"{self.provenance} returned {type(executable).__name__} from {hook}; expected an Executable")
        for specs, transfer in ((executable.inputs, "from_host"), (executable.outputs, "to_host")):
            for spec in specs:
                if spec.memory != HOST and not self.implements(transfer):
                    raise PluginError(
                        f"{self.provenance} returned from {hook} '{spec.name}' in the memory '{spec.memory}', and has no hook {transfer}, "
                        f"by which the core would reach it; values in the memory of the host have the memory '{HOST}'"
                    )
        actual = tuple(tuple(spec.name for spec in specs) for specs in (executable.inputs, executable.outputs))
        if actual != expected:
            raise PluginError(
                f"{self.provenance} returned from {hook} an executable with inputs {actual[0]} and outputs {actual[1]}; "
                f"expected inputs {expected[0]} and outputs {expected[1]}"
            )
        for method, arguments in (("run", ("inputs", "context")), ("start", ("inputs", "context", "done"))):
            if getattr(executable, method) is None:
                continue
            with suppress(ValueError):  # a method in C may have no signature
                signature = inspect.signature(getattr(executable, method))
                try:
                    signature.bind(*arguments)
                except TypeError as error:
                    name, called = f"{type(executable).__name__}.{method}", f"{method}({', '.join(arguments)})"
                    raise PluginError(f"{self.provenance} has {name}{signature}, and the core calls {called}: {error}") from error
        return executable

    def close(self) -> None:
        """Tells the device to free its resources; a device that hangs is skipped with a warning."""
        set_log_level(None, *self._log_packages)
        if self.patience.is_exhausted:
            logger.warning("device %s is not closed: %s hangs", self.provenance.device, self.provenance)
        elif self.implements("close_device"):
            self.call("close_device", DeviceName(self.provenance.device))


_DERIVED = ("SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS", "IMPORT_EXPORT_SUPPORT")


def find_metric(name: str, metrics: Mapping[str, Any], owner: str) -> tuple[Any, str]:
    """Returns a metric by its name in any case, and its title for error messages. Raises: MetricNotFoundError."""
    folded = name.strip().upper()
    if folded not in metrics:
        raise MetricNotFoundError(word_missing(owner, "metric", name, metrics))
    return metrics[folded], f"the metric {folded}"


def _make_uuid(device: DeviceName, metrics: Mapping[str, Any]) -> str:
    """Returns an identifier of a device, made of its name, id, list and architecture."""
    from uuid import NAMESPACE_DNS, uuid5  # only this metric needs it

    ids, architecture = _read(metrics["AVAILABLE_DEVICES"]), _read(metrics["DEVICE_ARCHITECTURE"])
    number = device.id or (ids[0] if ids else "")
    return uuid5(NAMESPACE_DNS, f"{DeviceName(device.name, number, device.arguments)} {architecture}").hex


def _read(value: Any) -> Any:
    return value() if callable(value) else value
