"""Moving one value between two memories, and the record of it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

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
