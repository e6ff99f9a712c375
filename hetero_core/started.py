"""Checks of a device that starts runs by itself: what its `start` returns, and with what it calls `done`.

Both are easy to get wrong in a way that only shows as a run that never ends, so that the error says what was returned or told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_core.errors import PluginError

End = tuple[Any, BaseException | None]


def call_start(start: Callable[..., object], inputs: Any, context: Any, done: Callable[..., None], *, where: str) -> None:
    """Begins a run. Raises: PluginError if `start` is a coroutine, or returns outputs, since no `done` will follow; what `start` raises."""
    result = start(inputs, context, done)
    if result is None:
        return
    if hasattr(result, "__await__") and hasattr(result, "close"):
        result.close()
        raise PluginError(f"{where}: `start` is a coroutine, which nobody awaits; write it as a plain function that calls `done`")
    if isinstance(result, tuple | list | dict):
        raise PluginError(
            f"{where}: `start` returned {type(result).__name__}; it returns nothing, and `done(outputs, None)` gets the outputs. "
            "A device that computes at once has `run` in place of `start`"
        )


def read_end(told: tuple[Any, ...], *, where: str) -> End:
    """Returns outputs and error of the arguments of `done`; the error is a PluginError if they do not have the form of the contract."""
    if len(told) != 2:
        count = f"{len(told)} argument{'' if len(told) == 1 else 's'}"
        return None, PluginError(f"{where}: `done` was called with {count}; expected done(outputs, None) or done(None, error)")
    outputs, error = told
    if error is None and outputs is None:
        return None, PluginError(f"{where}: `done` was called with neither outputs nor an error")
    if error is None or isinstance(error, BaseException):
        return outputs, error
    return None, PluginError(f"{where} called `done` with the error {error!r:.80}; expected None or an exception")
