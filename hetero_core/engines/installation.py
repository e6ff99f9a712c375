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


def import_engine(module: str, attribute: str, title: str, *, cure: str) -> ModuleType:
    """Returns an engine's module. Raises: DeviceUnavailableError if it cannot be imported or lacks `attribute`."""
    try:
        imported = importlib.import_module(module)  # loads native libraries, so engines are imported late
    except Exception as error:  # an engine may raise anything while it loads its libraries
        raise DeviceUnavailableError(
            f"{title} is installed and cannot be imported: {type(error).__name__}: {error}; {cure}"
        ) from error
    if not hasattr(imported, attribute):
        # If two distributions share a folder, uninstalling either leaves an empty package.
        raise DeviceUnavailableError(f"{title} is installed, but its folder has no {attribute}; {cure}")
    return imported
