"""DEADLINE and MEMORY_LIMIT where the core itself keeps them: values that make sense, the time of a load, the bytes of constants."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

from hetero_core.contract import DeviceName, Payload
from hetero_core.devices.registry import CallTarget
from hetero_core.devices.watch import OutOfTimeError, call_within, find_deadline
from hetero_core.errors import ConfigValueError, DeadlineExceededError, MemoryLimitError
from hetero_core.network.graph import Network, iterate_graphs
from hetero_core.network.initializers import Initializer

Result = TypeVar("Result")

_MOST_LATE_CALLS = 8
"""Loads of one device that may be without an answer at once; each keeps a thread, and whatever the device holds for it."""


def read_deadline(config: Mapping[str, Any]) -> float | None:
    """Returns the seconds of DEADLINE, None for no limit. Raises: ConfigValueError."""
    seconds: float | None = config.get("DEADLINE")
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise ConfigValueError(f"configuration key DEADLINE: expected seconds above 0, got {seconds:g}; leave it out for no limit")
    return seconds


def read_memory_limit(config: Mapping[str, Any]) -> int | None:
    """Returns the bytes of MEMORY_LIMIT, None for no limit. Raises: ConfigValueError."""
    nbytes: int | None = config.get("MEMORY_LIMIT")
    if nbytes is not None and nbytes <= 0:
        raise ConfigValueError(f"configuration key MEMORY_LIMIT: expected bytes above 0, got {nbytes}; leave it out for no limit")
    return nbytes


def call_in_time(
    call: Callable[[], Result],
    target: CallTarget,
    *,
    what: str,
    discard: Callable[[Result], None] | None = None,
) -> Result:
    """Returns what a query, a load or an import returns; with DEADLINE, or within a load that has one, within that time.

    `what` begins the message: "loading network 'g'". What comes too late is given to `discard`.

    Raises: DeadlineExceededError that says which plugin was at work; what the call raises.
    """
    seconds = read_deadline(target.config)
    outer = find_deadline()
    # Within a whole that has less time left, the whole is what ends in time.
    if seconds is None or (outer is not None and outer <= monotonic() + seconds):
        return call()
    patience = target.entry.patience
    if patience.late_calls.count >= _MOST_LATE_CALLS:
        raise DeadlineExceededError(
            f"{what} on {target.device} was not begun: {patience.late_calls.count} calls before have not returned after their DEADLINE; "
            f"{target.entry.provenance} hangs. Start the process anew"
        )

    def come_back(result: Any, error: BaseException | None) -> None:
        patience.late_calls.add(-1)
        if error is None and discard is not None:
            discard(result)

    try:
        return call_within(
            seconds,
            call,
            thread=f"hetero-{target.device} {what}",
            is_budget=True,
            on_set_aside=lambda: patience.late_calls.add(1),
            on_return=come_back,
        )
    except OutOfTimeError as error:
        place = f"it is in {error.place}" if error.place else "it is in the core itself"
        raise DeadlineExceededError(
            f"{what} on {target.device} has not ended within DEADLINE={seconds:g} s: {place}. It was set aside, and its thread goes on; "
            "give it more time, or look at the device"
        ) from None


def check_constants(network: Network, device: DeviceName, config: Mapping[str, Any]) -> None:
    """Raises MemoryLimitError where the constants of a network, those of bodies included, take more than MEMORY_LIMIT together."""
    limit = read_memory_limit(config)
    if limit is None:
        return
    constants: dict[int, tuple[str, Initializer]] = {}
    for graph in iterate_graphs(network):
        constants.update((id(constant), (name, constant)) for name, constant in graph.initializers.items())
    total = sum(constant.nbytes for _, constant in constants.values())
    if total > limit:
        name, largest = max(constants.values(), key=lambda entry: entry[1].nbytes)
        raise MemoryLimitError(
            f"cannot load network '{network.name}' on {device}: its constants take {total} bytes, the largest, '{name}' {largest.type}, "
            f"{largest.nbytes}; MEMORY_LIMIT is {limit}. Raise the limit, or take a smaller network"
        )


def check_sections(payload: Payload, name: str, device: DeviceName, config: Mapping[str, Any]) -> None:
    """Raises MemoryLimitError where the sections of a blob take more than MEMORY_LIMIT together."""
    limit = read_memory_limit(config)
    total = sum(memoryview(section).nbytes for section in payload.sections.values())
    if limit is not None and total > limit:
        raise MemoryLimitError(
            f"cannot import network '{name}' on {device}: its blob holds {total} bytes; MEMORY_LIMIT is {limit}. Raise the limit"
        )


def describe_model(model: object) -> str:
    """Returns a model as messages name it before it was read."""
    if isinstance(model, Network):
        return f"network '{model.name}'"
    return f"network '{os.fspath(model)}'" if isinstance(model, (str, os.PathLike)) else "a network"
