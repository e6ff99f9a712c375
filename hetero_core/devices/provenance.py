"""The origin of a plugin: its distribution and version, for error messages and blobs; and calls whose errors name it.

SystemExit and other errors of a plugin that are no Exception become a PluginError. KeyboardInterrupt on the main thread is the user's and
passes; a plugin that raises it on another thread has interrupted nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import importlib_metadata

from hetero_core.errors import PluginError


@dataclass(frozen=True, slots=True)
class Provenance:
    """The device name, the distribution that announces it, its version, and the module or object that implements it."""

    device: str
    distribution: str
    version: str
    module: str

    def __str__(self) -> str:
        return f"plugin {self.device} ({self.distribution} {self.version})".replace(" )", ")")


def describe_object(name: str, plugin: object) -> Provenance:
    """Returns the provenance of a plugin that was registered at run time: its distribution, where its module belongs to one."""
    module = getattr(plugin, "__name__", None) or type(plugin).__module__
    top = str(module).partition(".")[0]
    distribution, version = find_distribution(top)
    return Provenance(name, distribution or f"module {module}", version, str(module))


def read_identity(distribution: Any) -> tuple[str, str]:
    """Returns name and version of an installed distribution (an `importlib_metadata.Distribution`, or None for an unknown one)."""
    if distribution is None:
        return "an unknown distribution", ""
    return distribution.name, distribution.version


@cache
def find_core_version() -> str:
    """Returns the version of hetero-core that is installed."""
    return importlib_metadata.version("hetero-core")


@cache
def find_distribution(top_level: str) -> tuple[str, str]:
    """Returns name and version of the distribution that installs a top-level package; two empty texts where none does.

    Cost: reads the file lists of all distributions, some 0.2 s, once for each package.
    """
    names = importlib_metadata.packages_distributions().get(top_level, [])
    return (names[0], importlib_metadata.version(names[0])) if names else ("", "")


Result = TypeVar("Result")


def is_interrupt(error: BaseException) -> bool:
    """Says whether an error is an interrupt by the user."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def describe_exit(error: BaseException, *, blame: str, where: str) -> PluginError:
    """Returns the error for a plugin that raised what is no Exception; `blame` names the plugin, `where` what it was asked."""
    text = f": {error}" if str(error) else ""
    return PluginError(
        f"{blame} raised {type(error).__name__}{text} in {where}; a plugin raises an Exception where it fails, and ends nobody's "
        "program. Mend or uninstall it"
    )


def call_plugin(call: Callable[[], Result], *, blame: object, where: str) -> Result:
    """Returns what a call of a plugin returns. Raises: PluginError for what is no Exception; the plugin's own error otherwise."""
    try:
        return call()
    except BaseException as error:  # a plugin may end its program; everything goes on, an exit as an error that names the plugin
        if isinstance(error, Exception) or is_interrupt(error):
            raise
        raise describe_exit(error, blame=str(blame), where=where) from error


def call_named(call: Callable[[], Result], *, blame: object, where: str) -> Result:
    """Returns what a call of a plugin returns. Raises: as `call_plugin`; a note to the plugin's own error names the plugin."""
    try:
        return call_plugin(call, blame=blame, where=where)
    except Exception as error:  # a plugin may raise anything; it goes on with a note that names the plugin
        error.add_note(f"raised by {blame} in {where}")
        raise


def read_mapping(answer: Any, *, blame: str, where: str) -> dict[str, Any]:
    """Returns a copy of what a plugin returned, when it is a mapping with texts for keys.

    Raises: PluginError.
    """
    if not isinstance(answer, Mapping):
        raise PluginError(f"{blame} returned {type(answer).__name__} from {where}; expected a mapping by name")
    try:
        copy = dict(answer)
    except BaseException as error:  # a plugin's own mapping may raise anything while it is read
        if is_interrupt(error):
            raise
        raise PluginError(f"{blame} returned a mapping from {where} that fails with {type(error).__name__}: {error}") from error
    for name in copy:
        if not isinstance(name, str):
            raise PluginError(f"{blame} returned a mapping from {where} with the key {name!r}; expected texts")
    return copy
