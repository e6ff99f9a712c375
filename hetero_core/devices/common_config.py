"""Configuration of all devices at once: values of standard keys, which every device has. No device is created for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from hetero_core.contract import freeze_mapping
from hetero_core.devices.config import STANDARD_KEYS, convert_config, take_back
from hetero_core.devices.log_level import LOG_KEY, set_log_level
from hetero_core.errors import ConfigKeyError

_KEYS = freeze_mapping((name, key) for name, key in STANDARD_KEYS.items() if name != "DEVICE_ID")


class CommonConfig:
    """Values for all devices, below those that are set for one. Safe for threads."""

    def __init__(self) -> None:
        self._values: Mapping[str, Any] = freeze_mapping({})
        self._lock = threading.Lock()

    def read(self) -> Mapping[str, Any]:
        """Returns the values by key; a later `set` does not change what was returned."""
        return self._values

    def set(self, config: Mapping[str, Any]) -> None:
        """Keeps values; None takes one back. All of them are checked before one is kept. Raises: ConfigKeyError, ConfigValueError."""
        try:
            values, dropped = take_back(config, _KEYS, device="(all)")
            converted = convert_config(values, _KEYS, device="(all)")
        except ConfigKeyError as error:
            error.add_note("without a device, set_config takes the keys that every device has; name the device for others")
            raise
        with self._lock:
            merged = {**self._values, **converted}
            self._values = freeze_mapping((name, value) for name, value in merged.items() if name not in dropped)
        if LOG_KEY in converted or LOG_KEY in dropped:
            set_log_level(converted.get(LOG_KEY), "hetero_core")

    def close(self) -> None:
        """Gives a log level that was set back to the program."""
        if LOG_KEY in self._values:
            set_log_level(None, "hetero_core")
