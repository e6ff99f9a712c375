"""New values of configuration keys for a network that is loaded: which keys may change is said by its executable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_core.contract import ConfigKey, Executable
from hetero_core.devices.config import convert_config
from hetero_core.errors import ConfigKeyError, enumerate_choices


def convert_settings(
    config: Mapping[str, Any], executable: Executable, keys: Mapping[str, ConfigKey], *, where: str
) -> dict[str, Any]:
    """Returns the values under their declared names and in their types; `where` begins the message of an error.

    Raises: ConfigKeyError for a key that cannot change any more; ConfigValueError.
    """
    settings = convert_config(config, keys, device=where)
    for name in settings:
        if name not in executable.settable_keys:
            may_change = enumerate_choices(executable.settable_keys) if executable.settable_keys else "none"
            raise ConfigKeyError(
                f"{where}: {name} cannot change on a loaded network; the keys that can are {may_change}. Load the network again with it"
            )
    return settings
