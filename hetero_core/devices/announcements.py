"""Announcements: the devices and wrappers that installed packages announce by entry points, and their modules once they are imported.

Reading entry points imports nothing. A module is checked against the contract before any of its hooks is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pluggy

from hetero_core import hookspecs
from hetero_core.devices.hooks import check_hooks
from hetero_core.devices.provenance import Provenance, read_identity
from hetero_core.errors import DeviceUnavailableError, PluginError

DEVICES_GROUP = "hetero_core.devices"
WRAPPERS_GROUP = "hetero_core.wrappers"


@dataclass(frozen=True, slots=True)
class Announcement:
    """A plugin that is known by name: by an entry point (not loaded yet) or as an object given at run time."""

    provenance: Provenance
    entry_point: Any = None
    plugin: Any = None


def read_announcements(entry_points: Iterable[Any]) -> dict[str, list[Announcement]]:
    """Returns the plugins that announce each device name; more than one where distributions contradict each other."""
    announced: dict[str, list[Announcement]] = {}
    for entry_point in entry_points:
        name = entry_point.name.strip().upper()
        provenance = Provenance(name, *read_identity(entry_point.dist), entry_point.value)
        claims = announced.setdefault(name, [])
        # One distribution may be seen twice on the path, as when it is installed and stands in the working folder.
        if all(claim.provenance != provenance for claim in claims):
            claims.append(Announcement(provenance, entry_point=entry_point))
    return announced


def load_entry_point(announcement: Announcement) -> Any:
    """Returns the module of an announcement, imported. Raises: DeviceUnavailableError with what its import raised."""
    provenance = announcement.provenance
    try:
        return announcement.entry_point.load()
    except (Exception, SystemExit) as error:
        raise DeviceUnavailableError(
            f"device {provenance.device} is not available: {provenance} cannot be imported from '{provenance.module}': "
            f"{type(error).__name__}: {error}"
        ) from error


def load_wrappers(entry_points: Iterable[Any]) -> list[Any]:
    """Returns the wrapper modules. A broken one is an error at once: what it would have guarded must not run unguarded."""
    wrappers = []
    for entry_point in entry_points:
        distribution = "" if entry_point.dist is None else f" ({' '.join(read_identity(entry_point.dist))})"
        blame = f"wrapper '{entry_point.name}'{distribution}"
        try:
            wrapper = entry_point.load()
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{blame} cannot be imported from '{entry_point.value}': {type(error).__name__}: {error}; mend or uninstall it"
            ) from error
        _check_wrapper(wrapper, blame)
        wrappers.append(wrapper)
    return wrappers


def _check_wrapper(wrapper: Any, blame: str) -> None:
    """Raises PluginError for a wrapper with an unknown hook, or with a hook that would answer instead of the device."""
    manager = manage_plugin(wrapper, blame, cure="; mend or uninstall it")
    for caller in manager.get_hookcallers(wrapper) or ():
        if not all(implementation.wrapper for implementation in caller.get_hookimpls()):
            raise PluginError(
                f"{blame} answers {caller.name} for every device; mark it with @hookimpl(wrapper=True), or uninstall it"
            )


def check_api(plugin: Any, provenance: Provenance) -> None:
    """Raises PluginError where a plugin states that it requires another version of the contract."""
    required = getattr(plugin, "requires_api", None)
    if required is None:
        return
    if not (isinstance(required, tuple) and len(required) == 2 and all(isinstance(part, int) for part in required)):
        raise PluginError(f"{provenance} states requires_api = {required!r}; expected (major, minor)")
    if required[0] != hookspecs.API[0] or required[1] > hookspecs.API[1]:
        offered, needed = (".".join(map(str, version)) for version in (hookspecs.API, required))
        raise PluginError(f"{provenance} requires the plugin API {needed}; this hetero-core has {offered}")


def manage_plugin(plugin: Any, blame: Provenance | str, *, cure: str = "") -> pluggy.PluginManager:
    """Returns a manager that holds this plugin alone. Raises: PluginError where its hooks do not fit the contract."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    check_hooks(plugin, blame)
    try:
        manager.register(plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{blame} does not fit the contract: {error}{cure}") from error
    return manager
