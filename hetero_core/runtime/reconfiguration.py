"""Configuration of a network that is loaded: its keys by today's and old names, and new values for those that may still change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.contract import ConfigKey, DeviceName, Executable
from hetero_core.devices.config import LIMIT_KEYS, convert_config, find_new_name, take_back
from hetero_core.devices.threads import PRIORITY_KEY
from hetero_core.errors import ConfigKeyError, enumerate_choices, suggest

_OWN_KEYS = (*LIMIT_KEYS, PRIORITY_KEY)
"""What the core itself reads for each run."""


def convert_settings(
    config: Mapping[str, Any], executable: Executable, keys: Mapping[str, ConfigKey], *, device: DeviceName, where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns all values under their declared names and in their types, and those that are for the device; None takes a limit back.

    `where` begins the message of an error.

    Raises: ConfigKeyError for a key that cannot change any more; ConfigValueError.
    """
    values, unset = take_back(config, keys, device=str(device), where=where)
    settings = {**dict.fromkeys(unset), **convert_config(values, keys, device=str(device), where=where)}
    allowed = {*executable.settable_keys, *_OWN_KEYS}
    for name, value in settings.items():
        if name not in allowed or (value is None and name not in LIMIT_KEYS):
            raise ConfigKeyError(
                f"{where}: {name} cannot change to {value!r} on a loaded network; the keys that can change are "
                f"{enumerate_choices(allowed)}. Load the network again with it"
            )
    return settings, {name: value for name, value in settings.items() if name not in _OWN_KEYS}


def find_key(name: str, config: Mapping[str, Any], device: DeviceName, *, where: str) -> str:
    """Returns the declared name of a key, given in any case or by its old name. Raises: ConfigKeyError with near misses and all keys."""
    folded = name.strip().upper()
    folded = folded if folded in config else find_new_name(folded, str(device))
    if folded not in config:
        raise ConfigKeyError(
            f"{where} has no configuration key '{name}'{suggest(folded, config) or ';'} its keys are {enumerate_choices(config)}"
        )
    return folded
