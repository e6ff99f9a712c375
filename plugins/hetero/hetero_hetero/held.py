"""The memory that the parts of a split hold after loading, as far as their devices report it."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_core.errors import DeviceMemoryError
from hetero_core.plan import HeldMemory
from hetero_core.runtime.executable import ExecutableNetwork

_ENDS = ("_WEIGHT_BYTES", "_CONSTANT_BYTES", "_ARENA_BYTES")
"""Ends of the names of metrics by which a device tells the bytes of its weights, of constants that it reads as they are, and of a run."""


def count_held_bytes(stages: Sequence[ExecutableNetwork]) -> dict[str, int]:
    """Returns device -> the bytes that its parts hold now; a device that tells nothing is not in it."""
    bytes_of_device: dict[str, int] = {}
    for stage in stages:
        names = [name for name in stage.get_metric("SUPPORTED_METRICS") if name.endswith(_ENDS)]
        if names:
            device = str(stage.device)
            bytes_of_device[device] = bytes_of_device.get(device, 0) + sum(int(stage.get_metric(name)) for name in names)
    return bytes_of_device


def require_limits(name: str, memory: Sequence[HeldMemory], stages: Sequence[ExecutableNetwork]) -> None:
    """Raises DeviceMemoryError with the numbers where a device of a network that was placed by memory holds more than its limit.

    It closes the stages then.
    """
    bytes_of_device = count_held_bytes(stages) if any(estimated.limit is not None for estimated in memory) else {}
    for estimated in memory:
        used, limit = bytes_of_device.get(estimated.device, 0), estimated.limit
        if limit is None or used <= limit:
            continue
        for stage in stages:
            stage.close()
        total = estimated.weights + estimated.border + estimated.arena
        raise DeviceMemoryError(
            f"network '{name}' does not fit: its part on {estimated.device} was estimated to hold {total} bytes "
            f"and holds {used} of {limit}. "
            f"Name a smaller limit for {estimated.device}, so that the next device takes more nodes, or raise it",
            needed=used,
            free=limit,
        )
