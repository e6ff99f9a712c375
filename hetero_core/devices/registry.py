"""The registry of plugins: what is announced, what is loaded, and one pluggy manager for each device name.

Discovery reads entry points and imports nothing; a plugin's module is imported when its device is first needed, inside its own guard.
"""

from __future__ import annotations

import logging
import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import importlib_metadata
import pluggy

from hetero_core.devices.announcements import (
    DEVICES_GROUP,
    WRAPPERS_GROUP,
    Announcement,
    check_api,
    load_entry_point,
    load_wrappers,
    manage_plugin,
    read_announcements,
)
from hetero_core.devices.blame import call_plugin
from hetero_core.devices.common_config import CommonConfig
from hetero_core.devices.device import Device
from hetero_core.devices.names import parse_device_name, split_device_list
from hetero_core.devices.operator_types import OPERATOR_TYPES_GROUP
from hetero_core.devices.patience import ask_within, describe_hanging
from hetero_core.devices.provenance import Provenance, describe_object
from hetero_core.errors import (
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

logger = logging.getLogger(__name__)

# The devices that this thread is creating, one within the other.
_being_created: ContextVar[tuple[str, ...]] = ContextVar("hetero_being_created", default=())


@dataclass(frozen=True, slots=True)
class _Retired:
    """A device whose name was removed. `closer` wraps the same plugin and closes it once `device` is referenced no more."""

    device: weakref.ref[Device]
    closer: Device


class Registry:
    """The plugins of one Core. Safe for threads: a device is created once, and a device that hangs does not delay other devices.

    `timeout`: the seconds that a plugin has to create its device, and to answer a question for the first time; None for no limit.
    """

    def __init__(self, core: Core, timeout: float | None = None) -> None:
        self._core = core
        self._timeout = timeout
        # Held for moments only; whoever creates a device holds the lock of its name.
        self._lock = threading.Lock()
        self._lock_of_name: dict[str, threading.Lock] = {}
        self._hanging: dict[str, Announcement] = {}
        self._is_closed = False
        entry_points = importlib_metadata.entry_points()
        self._announced = read_announcements(entry_points.select(group=DEVICES_GROUP))
        self._devices: dict[str, Device] = {}
        self._retired: list[_Retired] = []
        # By name and plugin: objects that are devices themselves belong to whoever registered them, and may come back.
        self._lent: dict[tuple[str, int], Device] = {}
        self.wrappers = load_wrappers(entry_points.select(group=WRAPPERS_GROUP))
        self.operator_types = list(entry_points.select(group=OPERATOR_TYPES_GROUP))
        self.common = CommonConfig()

    def names(self) -> tuple[str, ...]:
        """Returns all device names, sorted; loads nothing."""
        return tuple(sorted(self._announced))

    def announcement(self, name: str) -> Announcement:
        """Returns the announcement of a device name: the distribution that has it, and where its plugin is.

        Raises: DeviceNotFoundError with the near misses; PluginError when two distributions claim the name.
        """
        claims = self._announced.get(name)
        if not claims:
            hint = f", did you mean 'HETERO:{name}'?" if "," in name else suggest(name, self._announced) or ";"
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

    def find_kind(self, name: str) -> str:
        """Returns what the package of a device states as its `kind`, "" where it states none; imports the package, and creates nothing.

        Raises: DeviceNotFoundError; DeviceUnavailableError for a package that cannot be imported.
        """
        announcement = self.announcement(name)
        plugin = announcement.plugin if announcement.entry_point is None else load_entry_point(announcement)
        return str(getattr(plugin, "kind", ""))

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

    def created(self, name: str) -> bool:
        """Says whether the device was created already."""
        return name in self._devices

    def register(self, name: str, plugin: Any) -> None:
        """Makes a plugin known under a name: a factory when it has `create_device`, the device itself otherwise.

        Raises: DeviceNameError for a name that no device string could say; PluginError when the name is taken.
        """
        parsed = parse_device_name(name)
        if parsed.id or parsed.arguments or "," in parsed.name:
            raise DeviceNameError(f"cannot register a plugin as '{name}': expected a name without dot, colon and comma")
        with self._lock:
            if parsed.name in self._announced:
                holder = self._announced[parsed.name][0].provenance
                raise PluginError(f"device name '{parsed.name}' is taken by {holder}; unregister it first or take another name")
            self._announced[parsed.name] = [Announcement(describe_object(parsed.name, plugin), plugin=plugin)]
        self._close_unused()

    def unregister(self, name: str) -> None:
        """Forgets a name. A device that a factory made for it is closed once no loaded network is left that holds it.

        Raises: DeviceNotFoundError; what a device raises that is closed now.
        """
        parsed = parse_device_name(name)
        with self._lock:
            if parsed.name not in self._announced:
                self.announcement(parsed.name)
            claims = self._announced.pop(parsed.name)
            self._hanging.pop(parsed.name, None)
            # Another plugin of this name has nothing to do with the creation of this one.
            self._lock_of_name.pop(parsed.name, None)
            if parsed.name in self._devices:
                self._retire(parsed.name, claims[0], self._devices.pop(parsed.name))
        self._close_unused()

    def _retire(self, name: str, announcement: Announcement, device: Device) -> None:
        plugin = announcement.plugin if announcement.entry_point is None else load_entry_point(announcement)
        if hasattr(plugin, "create_device"):
            closer = Device(device.provenance, device.manager)
            closer.patience = device.patience
            self._retired.append(_Retired(weakref.ref(device), closer))
        else:
            self._lent[name, id(plugin)] = device

    def _close_unused(self) -> None:
        """Closes the retired devices that are referenced no more. Called whenever a name comes or goes, so that none pile up."""
        with self._lock:
            unused = [retired for retired in self._retired if retired.device() is None]
            self._retired = [retired for retired in self._retired if retired not in unused]
        _close_all([retired.closer for retired in unused])

    def close(self) -> None:
        """Closes every device that was created, the retired ones, too; the first error is raised after all were tried."""
        with self._lock:
            self._is_closed = True
            for name in self._devices:
                self._lent.pop((name, id(self._announced[name][0].plugin)), None)
            devices = [*(retired.closer for retired in self._retired), *self._lent.values(), *self._devices.values()]
            self._retired, self._lent, self._devices = [], {}, {}
            hanging = list(self._hanging.values())
        for announcement in hanging:
            logger.warning("device %s is not closed: %s hangs", announcement.provenance.device, announcement.provenance)
        self.common.close()
        _close_all(devices)

    def _create_in_time(self, name: str, announcement: Announcement) -> Device:
        """Returns the device, made on a thread of its own where there is anything that could hang.

        Raises: DeviceTimeoutError, also without trying where the creation before has not returned.
        """
        if self._hanging.get(name) is announcement:
            raise describe_hanging(announcement.provenance, "create_device", self._timeout, is_known=True)
        token = _being_created.set((*_being_created.get(), name))
        try:
            if self._timeout is None or not (announcement.entry_point or hasattr(announcement.plugin, "create_device")):
                return self._keep(name, announcement, self._create(name, announcement))
            return self._create_within(self._timeout, name, announcement)
        finally:
            _being_created.reset(token)

    def _create_within(self, seconds: float, name: str, announcement: Announcement) -> Device:
        def give_up() -> None:
            with self._lock:
                if self._is_announced(name, announcement):
                    self._hanging[name] = announcement

        def come_back(device: Any, error: BaseException | None) -> None:
            with self._lock:
                if self._hanging.get(name) is announcement:
                    del self._hanging[name]
            logger.info("%s has returned from create_device after all", announcement.provenance)
            if device is not None:
                self._keep(name, announcement, device)

        device = ask_within(
            seconds,
            lambda: self._create(name, announcement),
            question="create_device",
            provenance=announcement.provenance,
            on_set_aside=give_up,
            on_return=come_back,
        )
        return self._keep(name, announcement, device)

    def _keep(self, name: str, announcement: Announcement, device: Device) -> Device:
        """Returns the device that has the name from here on: this one, unless it comes too late for that."""
        with self._lock:
            if not self._is_closed:
                holder = self._devices.setdefault(name, device) if self._is_announced(name, announcement) else device
                if self._devices.get(name) is not device:
                    self._retire(name, announcement, device)
                return holder
        device.close()
        return device

    def _is_announced(self, name: str, announcement: Announcement) -> bool:
        return any(candidate is announcement for candidate in self._announced.get(name, ()))

    def _create(self, name: str, announcement: Announcement) -> Device:
        return call_plugin(
            lambda: self._create_device(name, announcement), blame=announcement.provenance, where="create_device, or its import"
        )

    def _create_device(self, name: str, announcement: Announcement) -> Device:
        provenance = announcement.provenance
        plugin = announcement.plugin if announcement.entry_point is None else load_entry_point(announcement)
        check_api(plugin, provenance)
        try:
            created = self._call_factory(name, plugin, provenance) if hasattr(plugin, "create_device") else plugin
            device = Device(provenance, self._manage(created, provenance), self._timeout, self.common.read)
        except HeteroError as error:
            error.add_note(f"raised by {provenance} while it created device {name}")
            raise
        except Exception as error:  # a plugin may raise anything where its device is not there
            raise DeviceUnavailableError(
                f"device {name} is not available: {provenance} failed in create_device with {type(error).__name__}: {error}"
            ) from error
        if not device.implements("query_network") or not device.implements("load_network"):
            raise PluginError(f"{provenance} implements neither query_network nor load_network, or only one; a device needs both")
        if device.implements("infer"):
            raise PluginError(f"{provenance} implements infer, which is for wrappers; a device runs in its Executable's run")
        return device

    def _call_factory(self, name: str, plugin: Any, provenance: Provenance) -> Any:
        created = self._manage(plugin, provenance).hook.create_device(core=self._core, name=name)
        if created is None:
            raise PluginError(f"{provenance} has a create_device that returned nothing, or that is not marked with @hookimpl")
        return created

    def _manage(self, plugin: Any, provenance: Provenance) -> pluggy.PluginManager:
        """Returns a manager that holds this plugin and the wrappers, nothing else."""
        manager = manage_plugin(plugin, provenance)
        for wrapper in self.wrappers:
            manager.register(wrapper)
        return manager


def _close_all(devices: list[Device]) -> None:
    errors = []
    for device in devices:
        try:
            device.close()
        except Exception as error:  # noqa: BLE001  # one plugin's failure must not keep the others open; raised below
            errors.append(error)
    if errors:
        raise errors[0]
