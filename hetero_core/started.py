"""Devices that start runs by themselves: checks of what `start` returns, and of the calls of `done`.

Both are easy to get wrong in a way that only shows as a run that never ends, so that the error says what was returned or told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from hetero_core.errors import PluginError

logger = logging.getLogger(__name__)
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


def end_once(
    done: Callable[..., object],
    *,
    where: str,
    leave: Callable[[], None] | None = None,
    take_home: Callable[[Any], Any] | None = None,
) -> Callable[..., None]:
    """Returns the function that a device calls at the end of a run. It passes on the first call alone to `done`.

    A second call is ignored with a warning: the request may be in its next run by then. `where` names the plugin and the network,
    `take_home` brings outputs to the host, and `leave` notes that the run is over for the device.
    """
    first = threading.Lock()

    def end(*told: Any) -> None:
        if not first.acquire(blocking=False):
            logger.warning("%s called `done` a second time for one run; the call is ignored", where)
            return
        outputs, error = read_end(told, where=where)
        if error is None and take_home is not None:
            try:
                outputs = take_home(outputs)
            except BaseException as failure:  # noqa: BLE001  # told to whoever waits, as an error of the run
                outputs, error = None, failure
        # Over for the device: whoever is told may close the network.
        if leave is not None:
            leave()
        done(outputs, error)

    return end
