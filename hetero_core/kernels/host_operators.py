"""Custom operators of a device with a memory of its own: functions on arrays of the host, between copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.contract import Extension


@dataclass(frozen=True)
class HostOperator:
    """A custom operator that `compile_program` takes. `read` copies a tensor to the host, `write` copies a tensor to the device."""

    extension: Extension
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]

    def function(self, *inputs: Any, **attributes: Any) -> Any:
        """Returns the operator's results, in device memory."""
        results = self.extension.function(*(_map_tensors(self.read, value) for value in inputs), **attributes)
        if isinstance(results, tuple):
            return tuple(_map_tensors(self.write, value) for value in results)
        return _map_tensors(self.write, results)


def _map_tensors(copy: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list):
        return [_map_tensors(copy, element) for element in value]
    return copy(np.asarray(value) if isinstance(value, np.generic) else value) if hasattr(value, "dtype") else value
