"""Plugins that raise what is no Exception: SystemExit and its like would end the program that asked for a device.

They become a PluginError that names the plugin. KeyboardInterrupt is the user's where it comes on the main thread, which alone gets it from
the system, and passes; raised by a plugin on another thread it is no interrupt of anybody's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hetero_core.errors import PluginError

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
