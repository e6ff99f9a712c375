"""The registry of plugins: announcements, loaded devices, and a pluggy manager for each device name.

Discovery reads entry points and imports nothing; a plugin's module is imported when its device is first needed, inside its own guard, and
checked against the contract before any of its hooks is called. ISOLATE in a call puts the isolator in front of the device:

    "ORT", {"ISOLATE": "YES", "PERF_COUNT": "YES"}  ──>  "PROCESS:ORT", {"PERF_COUNT": "YES"}
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import importlib_metadata
import pluggy

from hetero_core import hookspecs
from hetero_core.contract import DeviceName
from hetero_core.devices.config import (
    COMMON_KEYS,
    ISOLATE_KEY,
    LOG_KEY,
    STANDARD_KEYS,
    convert_changes,
    convert_value,
    require_mapping,
    set_log_level,
)
from hetero_core.devices.device import Device
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.devices.provenance import Provenance, call_named, describe_object, load_entry_point, read_identity
from hetero_core.devices.switches import PLUGINS_VARIABLE, Switches
from hetero_core.devices.watch import Patience
from hetero_core.errors import (
    ConfigKeyError,
    DeviceNameError,
    DeviceNotFoundError,
    DeviceUnavailableError,
    HeteroError,
    PluginError,
    enumerate_choices,
    suggest,
)

if TYPE_CHECKING:
    from hetero_core.core import Core


DEVICES_GROUP = "hetero_core.devices"
WRAPPERS_GROUP = "hetero_core.wrappers"
OPERATOR_TYPES_GROUP = "hetero_core.operator_types"
ROLES_GROUP = "hetero_core.roles"
"""The entry-point group of devices that the core itself uses: role -> device name. "isolator" runs a device in a process of its
own, "splitter" splits a network over a list of devices.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Announcement:
    """A plugin that is known by name: by an entry point (not loaded yet) or as an object given at run time."""

    provenance: Provenance
    patience: Patience
    entry_point: Any = None
    plugin: Any = None

    @property
    def is_factory(self) -> bool:
        """Says whether the plugin makes its device; else it is the device."""
        return self.entry_point is not None or hasattr(self.plugin, "create_device")

    def load_plugin(self) -> Any:
        """Returns the plugin, imported. Raises: DeviceUnavailableError with the error of the import."""
        if self.entry_point is None:
            return self.plugin
        title = f"device {self.provenance.device} is not available: {self.provenance}"
        return load_entry_point(self.entry_point, title, kind=DeviceUnavailableError)


def read_announcements(entry_points: Iterable[Any], timeout: float | None) -> dict[str, list[Announcement]]:
    """Returns the plugins that announce each device name; several if distributions contradict each other."""
    announced: dict[str, list[Announcement]] = {}
    for entry_point in entry_points:
        name = entry_point.name.strip().upper()
        provenance = Provenance(name, partial(read_identity, entry_point.dist), entry_point.value)
        claims = announced.setdefault(name, [])
        # A distribution may be on the path twice, for example installed and in the working folder.
        if all((f"{claim.provenance}", claim.provenance.module) != (f"{provenance}", provenance.module) for claim in claims):
            claims.append(Announcement(provenance, Patience(provenance, timeout), entry_point=entry_point))
    return announced


def load_wrappers(entry_points: Iterable[Any]) -> list[Any]:
    """Returns the wrapper modules. A broken wrapper, or one with a hook that would answer instead of the device, is an error at once:
    no device must run without its guard.
    """
    wrappers = []
    for entry_point in entry_points:
        distribution = "" if entry_point.dist is None else f" ({' '.join(read_identity(entry_point.dist))})"
        blame = f"wrapper '{entry_point.name}'{distribution}"
        cure = f"; mend or uninstall it, or leave it out by {PLUGINS_VARIABLE}=-{entry_point.name}"
        wrapper = load_entry_point(entry_point, blame, cure=cure)
        manager = manage_plugin(wrapper, blame, cure="; mend or uninstall it")
        for caller in manager.get_hookcallers(wrapper) or ():
            if not all(implementation.wrapper for implementation in caller.get_hookimpls()):
                raise PluginError(
                    f"{blame} answers {caller.name} for every device; mark it with @hookimpl(wrapper=True), or uninstall it"
                )
        wrappers.append(wrapper)
    return wrappers


def _find_fault(plugin: Any) -> str:
    """Returns how a plugin breaks the contract, with the near misses for unknown names; "" if it keeps it."""
    if inspect.isclass(plugin):
        return f"is the class {plugin.__name__}; a device is an object, as {plugin.__name__}()"
    required, offered = getattr(plugin, "requires_api", None), hookspecs.API
    if required is None:
        required = offered
    if not (isinstance(required, tuple) and len(required) == 2 and all(isinstance(part, int) for part in required)):
        return f"states requires_api = {required!r}; expected (major, minor)"
    if required[0] != offered[0] or required[1] > offered[1]:
        needed, here = (".".join(map(str, version)) for version in (required, offered))
        return f"requires the plugin API {needed}; this hetero-core has {here}"
    specs = {name: hook for name, hook in vars(hookspecs).items() if hasattr(hook, f"{hookspecs.PROJECT}_spec")}
    misfit = "does not fit the contract:"
    for name, function in inspect.getmembers_static(plugin, inspect.isfunction):
        mark = getattr(function, f"{hookspecs.PROJECT}_impl", None)
        if mark is None:
            # A module may have helpers with the names of hooks, except for the hook that it has to implement.
            if name in specs and (name == "create_device" or not inspect.ismodule(plugin)):
                return f"has {name}, which is not marked with @hookimpl and never called; mark it or rename it"
            continue
        hook = mark["specname"] or name
        if hook not in specs:
            if mark["optionalhook"]:
                continue
            return f"{misfit} unknown hook '{hook}'{suggest(hook, specs) or ';'} hooks are {enumerate_choices(specs)}"
        known = tuple(inspect.signature(specs[hook]).parameters)
        for argument, parameter in inspect.signature(function).parameters.items():
            # pluggy passes no argument that has a default.
            if argument in known and parameter.default is not parameter.empty:
                fault = f"has the argument '{argument}' with a default, and would never get it; declare it without the default"
                return f"{misfit} its {hook} {fault}"
            if argument not in (*known, "self") and parameter.default is parameter.empty:
                near = suggest(argument, known) or ";"
                return f"{misfit} its {hook} asks for '{argument}'{near} the arguments of {hook} are {', '.join(known)}"
    return ""


def manage_plugin(plugin: Any, blame: Provenance | str, *, cure: str = "") -> pluggy.PluginManager:
    """Returns a manager that holds this plugin alone. Raises: PluginError if its hooks do not fit the contract."""
    fault = _find_fault(plugin)
    if fault:
        raise PluginError(f"{blame} {fault}{cure}")
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{blame} does not fit the contract: {error}{cure}") from error
    return manager


logger = logging.getLogger(__name__)

# The nested devices that this thread is creating.
_being_created: ContextVar[tuple[str, ...]] = ContextVar("hetero_being_created", default=())


class Registry:
    """The plugins of a Core. Safe for threads: a device is created once, and a device that hangs does not delay other devices.

    `timeout`: the seconds that a plugin has to create its device, and to answer a question for the first time; None for no limit.
    `switches` leave plugins out and set CACHE_DIR.
    """

    def __init__(self, core: Core, timeout: float | None, switches: Switches) -> None:
        self._core = core
        self._timeout = timeout
        # Held for moments only; the creation of a device holds the lock of its name.
        self._lock = threading.Lock()
        self._lock_of_name: dict[str, threading.Lock] = {}
        self._is_closed = False
        entry_points = importlib_metadata.entry_points()
        wrappers = entry_points.select(group=WRAPPERS_GROUP)
        announced = read_announcements(entry_points.select(group=DEVICES_GROUP), timeout)
        self._plugins = switches.plugins
        self._left_out = switches.select(announced, [wrapper.name for wrapper in wrappers])
        self._announced = {name: claims for name, claims in announced.items() if name not in self._left_out}
        self._devices: dict[str, Device] = {}
        # Unregistered devices; loaded networks may use them until the Core closes.
        self._retired: dict[int, Device] = {}
        self._unnamed: list[tuple[weakref.ref[Device], Device]] = []
        self.wrappers = load_wrappers(wrapper for wrapper in wrappers if wrapper.name.upper() not in self._left_out)
        self.device_of_role = {entry.name: str(entry.value) for entry in entry_points.select(group=ROLES_GROUP)}
        self.operator_types = list(entry_points.select(group=OPERATOR_TYPES_GROUP))
        self._of_environment = {"CACHE_DIR": switches.cache_dir} if switches.cache_dir else {}
        # Values for all devices, which those of a device override; a new mapping with each change.
        self._common: dict[str, Any] = self._of_environment

    def names(self) -> tuple[str, ...]:
        """Returns all device names, sorted; loads nothing."""
        return tuple(sorted(self._announced))

    def announcement(self, name: str) -> Announcement:
        """Returns the announcement of a device name: the distribution that has it, and the place of its plugin.

        Raises: DeviceNotFoundError with the near misses; PluginError when two distributions claim the name.
        """
        claims = self._announced.get(name)
        if not claims:
            from hetero_core.devices.known_devices import advise_missing, suggest_device  # only errors need the directory

            advice = advise_missing(name, self._announced)
            if name in self._left_out:
                advice = f"{PLUGINS_VARIABLE}={self._plugins} leaves it out"
            hint = f"; {advice};" if advice else suggest_device(name, self._announced) or ";"
            if "," in name:
                hint = f", did you mean 'HETERO:{name}'?"
            raise DeviceNotFoundError(
                f"no plugin announces device '{name}'{hint} installed are {enumerate_choices(self._announced)}"
            )
        if len(claims) > 1:
            both = " and ".join(f"{claim.provenance.distribution} {claim.provenance.version}" for claim in claims)
            raise PluginError(f"device '{name}' is claimed by {both}; uninstall all but one of them")
        return claims[0]

    def find_versions(self, device: str) -> dict[str, str]:
        """Returns distribution and version by device name: of the device, and of every device in its arguments."""
        parsed = parse_device_name(device)
        provenance = self.announcement(parsed.name).provenance
        versions = {parsed.name: f"{provenance.distribution} {provenance.version}".strip()}
        for part in split_device_list(parsed.arguments) if parsed.arguments else ():
            versions.update(self.find_versions(part))
        return versions

    def device(self, name: str) -> Device:
        """Returns the device of a name, created on the first call.

        Raises: DeviceNotFoundError, DeviceUnavailableError with the reason, PluginError.
        """
        existing = self._devices.get(name)
        if existing is not None:
            return existing
        if name in _being_created.get():
            raise PluginError(f"device {name} is asked for while it is being created, by {' -> '.join(_being_created.get())}")
        announcement = self.announcement(name)
        with self._lock:
            lock = self._lock_of_name.setdefault(name, threading.Lock())
        with lock:
            existing = self._devices.get(name)
            return self._create_in_time(name, announcement) if existing is None else existing

    def find(self, device: str | DeviceName) -> tuple[DeviceName, Device]:
        """Returns a device by its device string. Raises: errors of device names; as `device` does."""
        parsed = parse_device_name(device)
        entry = self.device(parsed.name)
        return entry.check_name(parsed), entry

    def find_target(self, device: str | DeviceName, config: Mapping[str, Any] | None) -> CallTarget:
        """Returns the target of a call with this configuration. Raises: errors of device names and configuration."""
        parsed, entry, values = self.find_for_call(device, config)
        resolved, complete = entry.resolve(parsed, values)
        return CallTarget(resolved, entry, complete)

    def find_for_call(
        self, device: str | DeviceName, config: Mapping[str, Any] | None
    ) -> tuple[DeviceName, Device, Mapping[str, Any] | None]:
        """Returns the device that a call is for, and the values of the call for it: rewritten if the call or the device's settings have
        ISOLATE. Values that are set for the device are then passed with the call, since the isolator does not know them.

        Raises: as `find_target` does; DeviceNotFoundError if no isolator is installed.
        """
        parsed = parse_device_name(device)
        require_mapping({} if config is None else config, f"device {parsed}")
        call = {_fold(name): value for name, value in (config or {}).items()}
        existing = self._devices.get(parsed.name)
        values = {} if existing is None else existing.read_set(parsed)
        value = {**self._common, **values, **call}.get(ISOLATE_KEY)
        is_isolated = value is not None and convert_value(ISOLATE_KEY, STANDARD_KEYS[ISOLATE_KEY], value, device=str(parsed))
        isolator = self.device_of_role.get("isolator", "")
        if not is_isolated or parsed.name == isolator:
            return *self.find(parsed), config
        if isolator not in self._announced:
            raise DeviceNotFoundError(
                f"device {parsed} cannot have {ISOLATE_KEY}=YES: no plugin is installed that runs a device in a process of its own. "
                "Install one, as with 'pip install hetero-process', or leave the key out"
            )
        merged = {**values, **call, ISOLATE_KEY: False}
        device_id = parsed.id or str(merged.pop("DEVICE_ID", None) or "")
        isolated = str(DeviceName(parsed.name, device_id, parsed.arguments))
        return *self.find(DeviceName(isolator, "", isolated)), merged

    def set_common(self, config: Mapping[str, Any]) -> None:
        """Keeps values for all devices; None removes the value of a key, so that the environment's holds again. All are checked before
        any is kept. Raises: ConfigKeyError, ConfigValueError.
        """
        try:
            converted, dropped = convert_changes(config, COMMON_KEYS, device="(all)")
        except ConfigKeyError as error:
            error.add_note("without a device, set_config takes the keys that every device has; name the device for others")
            raise
        with self._lock:
            remaining = {name: value for name, value in self._common.items() if name not in dropped}
            self._common = {**self._of_environment, **remaining, **converted}
        if LOG_KEY in (*converted, *dropped):
            set_log_level(converted.get(LOG_KEY), "hetero_core")

    def register(self, name: str, plugin: Any) -> None:
        """Makes a plugin known under a name: a factory when it has `create_device`, the device itself otherwise.

        Raises: DeviceNameError for a name that is invalid in a device string; PluginError when the name is taken.
        """
        parsed = parse_device_name(name)
        if parsed.id or parsed.arguments or "," in parsed.name:
            raise DeviceNameError(f"cannot register a plugin as '{name}': expected a name without dot, colon and comma")
        with self._lock:
            if parsed.name in self._announced:
                holder = self._announced[parsed.name][0].provenance
                raise PluginError(f"device name '{parsed.name}' is taken by {holder}; unregister it first or take another name")
            provenance = describe_object(parsed.name, plugin)
            self._announced[parsed.name] = [Announcement(provenance, Patience(provenance, self._timeout), plugin=plugin)]
        self._close_unused()

    def unregister(self, name: str) -> None:
        """Forgets a name. Its device is closed when no loaded network uses it. Raises: DeviceNotFoundError, errors of closed devices."""
        parsed = parse_device_name(name)
        with self._lock:
            if parsed.name not in self._announced:
                self.announcement(parsed.name)
            claims = self._announced.pop(parsed.name)
            # The lock guards the creation of this device; a later plugin of this name gets a lock of its own.
            self._lock_of_name.pop(parsed.name, None)
            if parsed.name in self._devices:
                self._retire(claims[0], self._devices.pop(parsed.name))
        self._close_unused()

    def _retire(self, announcement: Announcement, device: Device) -> None:
        if announcement.is_factory:
            # A second object for the same plugin closes it once nothing refers to the first.
            closer = Device(device.provenance, device.manager, device.patience, dict)
            self._unnamed.append((weakref.ref(device), closer))
        else:
            # A plugin object that is itself the device may be registered again, but is closed once, with the Core.
            self._retired[id(announcement.plugin)] = device

    def _close_unused(self) -> None:
        """Closes the unnamed devices that nothing refers to; called whenever a name comes or goes, so that none pile up."""
        with self._lock:
            unused = [closer for device, closer in self._unnamed if device() is None]
            self._unnamed = [(device, closer) for device, closer in self._unnamed if device() is not None]
        _close_all(unused)

    def close(self) -> None:
        """Closes every device that was created; the first error is raised after all were tried."""
        with self._lock:
            self._is_closed = True
            for name, device in self._devices.items():
                claim = self._announced[name][0]
                self._retired[id(device if claim.is_factory else claim.plugin)] = device
            devices = [*(closer for _, closer in self._unnamed), *self._retired.values()]
            self._retired, self._devices, self._unnamed = {}, {}, []
            closed = {device.provenance for device in devices}
            unanswered = [
                claim.provenance
                for claims in self._announced.values()
                for claim in claims
                if claim.patience.is_exhausted and claim.provenance not in closed
            ]
        for provenance in unanswered:
            logger.warning("device %s is not closed: %s hangs", provenance.device, provenance)
        if LOG_KEY in self._common:
            set_log_level(None, "hetero_core")
        _close_all(devices)

    def _create_in_time(self, name: str, announcement: Announcement) -> Device:
        """Returns the device, made on a thread of its own if anything could hang. Raises: DeviceTimeoutError."""
        token = _being_created.set((*_being_created.get(), name))
        try:
            if announcement.is_factory:
                device = announcement.patience.ask("create_device", "", lambda: self._create(name, announcement))
            else:
                device = self._create(name, announcement)
        finally:
            _being_created.reset(token)
        with self._lock:
            if not self._is_closed:
                if announcement in self._announced.get(name, ()):
                    self._devices[name] = device
                else:
                    self._retire(announcement, device)
                return device
        device.close()
        return device

    def _create(self, name: str, announcement: Announcement) -> Device:
        provenance = announcement.provenance
        plugin = announcement.load_plugin()
        try:
            created = plugin
            if hasattr(plugin, "create_device"):
                factory = partial(self._manage(plugin, provenance).hook.create_device, core=self._core, name=name)
                created = call_named(factory, blame=provenance, where="create_device")
            if created is None:
                raise PluginError(f"{provenance} has a create_device that returned nothing, or that is not marked with @hookimpl")
            device = Device(provenance, self._manage(created, provenance), announcement.patience, lambda: self._common)
        except HeteroError as error:
            error.add_note(f"raised by {provenance} while it created device {name}")
            raise
        except Exception as error:  # a plugin may raise anything if its device is missing
            raise DeviceUnavailableError(
                f"device {name} is not available: {provenance} failed in create_device with {type(error).__name__}: {error}"
            ) from error
        if not device.implements("query_network") or not device.implements("load_network"):
            raise PluginError(f"{provenance} implements neither query_network nor load_network, or only one; a device needs both")
        if device.implements("infer"):
            raise PluginError(f"{provenance} implements infer, which is for wrappers; a device runs in its Executable's run")
        return device

    def _manage(self, plugin: Any, provenance: Provenance) -> pluggy.PluginManager:
        """Returns a manager that holds this plugin and the wrappers, nothing else."""
        manager = manage_plugin(plugin, provenance)
        for wrapper in self.wrappers:
            manager.register(wrapper)
        return manager


def _close_all(devices: Iterable[Device]) -> None:
    """Closes devices; the first error is raised after all were tried."""
    errors = []
    for device in devices:
        try:
            device.close()
        except Exception as error:  # noqa: BLE001  # a plugin's failure must not keep other devices open; raised below
            errors.append(error)
    if errors:
        raise errors[0]


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """The state of an installed device: its ids if it works, else the reason; `reason_of_id` has the reasons of unusable ids."""

    name: str
    distribution: str
    version: str
    ids: tuple[str, ...]
    full_name: str
    reason: str
    reason_of_id: Mapping[str, str]


def describe_device(registry: Registry, name: str) -> DeviceStatus:
    """Returns the row of an announced device; creates it."""
    provenance = Provenance(name, lambda: ("", ""), "")
    try:
        provenance = registry.announcement(name).provenance
        device = registry.device(name)
        plain = DeviceName(name)
        ids, full_name = device.metric(plain, "AVAILABLE_DEVICES"), device.metric(plain, "FULL_DEVICE_NAME")
        reasons = device.metric(plain, "UNAVAILABLE_DEVICES")
    except Exception as error:  # noqa: BLE001  # a plugin's failure is shown in its row and hides no other
        return DeviceStatus(name, provenance.distribution, provenance.version, (), "", f"{error}" or type(error).__name__, {})
    return DeviceStatus(name, provenance.distribution, provenance.version, ids, full_name, "", reasons)


def _fold(name: str) -> str:
    return name.strip().upper() if isinstance(name, str) and name.strip().upper() in (ISOLATE_KEY, "DEVICE_ID") else name


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The device of a query, a load or an import; `config` is the complete configuration of that call."""

    device: DeviceName
    entry: Device
    config: Mapping[str, Any]
