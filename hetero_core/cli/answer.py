"""The answer that a command returns to `main`, the exit codes, and the conversion of values to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetero_core.errors import (
    DeviceNotFoundError,
    DeviceUnavailableError,
    HeteroError,
    LoadError,
    PluginError,
    UnsupportedNodesError,
)

OK = 0
WRONG_RESULT = 1
BAD_USAGE = 2
NO_DEVICE = 3
BUG = 70
OUTPUT_LOST = 74
INTERRUPTED = 130
BROKEN_PIPE = 141


class UsageError(HeteroError, ValueError):
    """The command line asks for something impossible: an option, a pair or an input file is wrong."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one command: `fields` is what --json prints, `text` what is printed otherwise, `remarks` on standard error."""

    text: str
    fields: Mapping[str, Any]
    exit_code: int = OK
    remarks: tuple[str, ...] = ()


def exit_code_of_error(error: HeteroError) -> int:
    """Returns 3 where a device is missing or cannot be used, 2 for everything else that is wrong with the call."""
    return NO_DEVICE if isinstance(error, DeviceNotFoundError | DeviceUnavailableError | LoadError | PluginError) else BAD_USAGE


def error_to_json(error: Exception, exit_code: int) -> dict[str, Any]:
    """Returns what --json prints in place of an answer."""
    fields: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "exit_code": exit_code}
    fields["notes"] = list(getattr(error, "__notes__", ()))
    if isinstance(error, UnsupportedNodesError):
        fields["refusals"] = error.refusals
    return {"error": fields}


def to_json(value: Any) -> Any:
    """Returns a value as JSON can hold it: tuples as lists, NaN and infinities as texts, anything unknown as its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return str(value)
