"""Moving values between two memories, and the record of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any

from hetero_core.network.types import HOST, ValueSpec
from hetero_core.profile import Profile


def move_value(
    value: Any, move: Callable[[Any], Any], profile: Profile | None, name: str, source: str, targets: tuple[str, ...]
) -> Any:
    """Returns what `move` makes of a value; the profile, where there is one, gets its time, bytes and ends of what was copied."""
    if profile is None:
        return move(value)
    began = perf_counter()
    moved = move(value)
    seconds = perf_counter() - began
    if moved is value:
        return moved
    # An array of a device may know its bytes or not; the one on the host does.
    nbytes = max(getattr(value, "nbytes", 0), getattr(moved, "nbytes", 0))
    profile.add_transfer(name, nbytes, seconds, source=source, targets=targets)
    return moved


def bring_in(
    inputs: tuple[Any, ...],
    specs: tuple[ValueSpec, ...],
    resident: Collection[str],
    from_host: Callable[[Any, ValueSpec], Any],
    profile: Profile | None,
    device: str,
) -> tuple[Any, ...]:
    """Returns the inputs of a run, each in the memory that its spec names; `resident` ones are there already."""

    def place(value: Any, spec: ValueSpec) -> Any:
        return move_value(value, lambda array: from_host(array, spec), profile, spec.name, HOST, (device,))

    return tuple(
        value if spec.memory == HOST or value is None or spec.name in resident else place(value, spec)
        for value, spec in zip(inputs, specs, strict=True)
    )


def take_home(
    outputs: Any,
    specs: tuple[ValueSpec, ...],
    resident: Collection[str],
    to_host: Callable[[Any], Any],
    profile: Profile | None,
    device: str,
) -> Any:
    """Returns the outputs of a run on the host, but for `resident` ones; what is no tuple stays, for the check that blames the plugin."""
    if not isinstance(outputs, tuple):
        return outputs
    return tuple(
        value
        if spec.memory == HOST or value is None or spec.name in resident
        else move_value(value, to_host, profile, spec.name, device, (HOST,))
        for value, spec in zip(outputs, specs, strict=False)
    )
