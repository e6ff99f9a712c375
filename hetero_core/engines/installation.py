"""Checks that an engine is installed, new enough, and can be imported; the error names the missing package and the command that installs
it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from hetero_core.errors import DeviceUnavailableError


def find_version(distribution: str) -> str | None:
    """Returns the version of an installed distribution, None if it is not installed; imports nothing of it."""
    import importlib_metadata

    try:
        return str(importlib_metadata.version(distribution))
    except importlib_metadata.PackageNotFoundError:
        return None


def require_version(title: str, version: str, oldest: tuple[int, ...], *, distribution: str) -> None:
    """Checks that the version of an engine is at least `oldest`. Raises: DeviceUnavailableError if it is older."""
    if tuple(int(piece) for piece in version.split(".")[: len(oldest)]) < oldest:
        least = ".".join(map(str, oldest))
        raise DeviceUnavailableError(
            f"{title} {version} is too old: expected {least} or newer; pip install --upgrade {distribution}"
        )


_ORIGINALS = "__hetero_originals__"
"""The name under which an engine's module holds its own names while a front end is in their place."""


def hold_originals(module: ModuleType) -> None:
    """Stores the names of an engine's module in the module, before a front end replaces some of them."""
    vars(module).setdefault(_ORIGINALS, dict(vars(module)))


def import_engine(module: str, attribute: str, title: str, *, cure: str) -> ModuleType:
    """Returns a module with the names of an engine's module; a front end that replaces names later, or did before, does not change it.

    Raises: DeviceUnavailableError if the engine cannot be imported or lacks `attribute`.
    """
    try:
        imported = importlib.import_module(module)  # loads native libraries, so engines are imported late
    except Exception as error:  # an engine may raise anything while it loads its libraries
        raise DeviceUnavailableError(
            f"{title} is installed and cannot be imported: {type(error).__name__}: {error}; {cure}"
        ) from error
    if not hasattr(imported, attribute):
        # If two distributions share a folder, uninstalling either leaves an empty package.
        raise DeviceUnavailableError(f"{title} is installed, but its folder has no {attribute}; {cure}")
    names = ModuleType(module, imported.__doc__)
    vars(names).update({**vars(imported), **vars(imported).get(_ORIGINALS, {})})
    return names
