"""The memory of the machine that this process may use, for devices that compute in it. Source: Linux, proc(5) meminfo, cgroup-v2 memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

TOTAL_MEMORY, FREE_MEMORY = "DEVICE_TOTAL_MEM_SIZE", "DEVICE_FREE_MEM_SIZE"
"""The metrics: bytes."""
WEIGHTS_ONCE_KEY = "WEIGHTS_ONCE"
"""The key of devices that can hold each weight in one form for all sizes of inputs, where they would hold several that are faster."""


def describe_host_memory(root: str | os.PathLike[str] = "/") -> Mapping[str, Callable[[], int]]:
    """Returns the two metrics of a device in the host's memory; none of them where the platform does not tell."""
    if read_host_memory(root) is None:
        return {}
    return {TOTAL_MEMORY: lambda: (read_host_memory(root) or (0, 0))[0], FREE_MEMORY: lambda: (read_host_memory(root) or (0, 0))[1]}


def read_host_memory(root: str | os.PathLike[str] = "/") -> tuple[int, int] | None:
    """Returns all bytes and those that are free, both within the limit of the control group; None where the platform does not tell.

    Free is what can be had without swapping, caches of files included; `root` is the folder of the file system.
    """
    fields = {
        name: rest.split() for name, colon, rest in (line.partition(":") for line in _read(root, "proc/meminfo").splitlines())
    }
    try:
        total, free = (int(fields[name][0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, IndexError, ValueError):
        return None
    limit, used = (_read(root, f"sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdecimal() and used.isdecimal():
        total, free = min(total, int(limit)), min(free, max(int(limit) - int(used), 0))
    return total, free


def _read(root: str | os.PathLike[str], name: str) -> str:
    try:
        with open(os.path.join(root, name), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""
