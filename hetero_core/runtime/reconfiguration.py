"""Configuration of a network that is loaded: its keys by today's and old names, and new values for those that may still change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.contract import Executable, freeze_mapping
from hetero_core.devices.config import LIMIT_KEYS, LOG_KEY, convert_config, take_back
from hetero_core.devices.provenance import call_named
from hetero_core.devices.threads import PRIORITY_KEY
from hetero_core.errors import ConfigKeyError, enumerate_choices
from hetero_core.runtime.binding import Binding
from hetero_core.runtime.load_limits import read_deadline, read_memory_limit
from hetero_core.runtime.ranked_tasks import Turns

MEASURING_KEY = "PERF_COUNT"
_OWN_KEYS = (*LIMIT_KEYS, LOG_KEY, MEASURING_KEY, PRIORITY_KEY)
"""The keys that the core itself reads, for each run."""


def change_config(
    config: Mapping[str, Any], current: Mapping[str, Any], executable: Executable, binding: Binding, *, where: str
) -> Mapping[str, Any]:
    """Returns the configuration of a loaded network with new values in it, after the device was given those that are its own.

    `where` begins the message of an error, which leaves all values as they were.

    Raises: ConfigKeyError for a key that cannot change any more; ConfigValueError; what the device raises.
    """
    settings = _convert_settings(config, executable, binding, where=where)
    changed = freeze_mapping({**current, **settings})
    read_deadline(changed)  # both raise for a value that is no limit
    read_memory_limit(changed)
    own = {name: value for name, value in settings.items() if name not in _OWN_KEYS}
    if own:
        call_named(lambda: executable.set_config(own), blame=binding.provenance, where="set_config")
    if isinstance(binding.executor, Turns):
        binding.executor.set_priority(changed[PRIORITY_KEY])
    if LOG_KEY in settings:
        binding.set_log_level(settings[LOG_KEY])
    return changed


def _convert_settings(config: Mapping[str, Any], executable: Executable, binding: Binding, *, where: str) -> dict[str, Any]:
    """Returns all values under their declared names and in their types; for None no limit, or the value that the network was loaded
    with.
    """
    device = str(binding.device)
    values, unset = take_back(config, binding.keys, device=device, where=where)
    converted = convert_config(values, binding.keys, device=device, where=where)
    allowed = {*executable.settable_keys, *_OWN_KEYS}
    for name, value in {**dict.fromkeys(unset), **converted}.items():
        if name not in allowed:
            raise ConfigKeyError(
                f"{where}: {name} cannot change to {value!r} on a loaded network; the keys that can change are "
                f"{enumerate_choices(allowed)}. Load the network again with it"
            )
    return {name: None if name in LIMIT_KEYS else binding.config[name] for name in unset} | converted
