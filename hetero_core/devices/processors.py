"""The number of processors that this process may use (its affinity mask and the quota of its control groups), their features, and the
memory of the host.

A container usually sees every processor of its machine and is stopped by the kernel when it has used its quota; threads beyond that
only take time from each other. Source: Linux, cgroup-v2 (cpu.max).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from math import ceil


def count_processors() -> int:
    """Returns the number of processors that this process may use now, at least 1.

    The mask is read on each call (a system call), the quota once per process, because it is read from files.
    """
    quota, mask = find_quota(), count_affinity()
    return mask if quota is None else max(1, min(mask, ceil(quota)))


def read_processor_flags(cpuinfo: str | os.PathLike[str] = "/proc/cpuinfo") -> tuple[str, ...]:
    """Returns the feature flags of the first processor; empty if the system does not list them."""
    lines = _read(cpuinfo).splitlines()
    return next((tuple(line.partition(":")[2].split()) for line in lines if line.startswith(("flags", "Features"))), ())


def grants_flag(flag: str) -> bool:
    """Returns whether the instruction CPUID agrees with a flag of /proc/cpuinfo, as far as NumPy knows the flag.

    An emulator of another processor shows the file of its host. NumPy does not know AVX-VNNI; processors that have it have GFNI.
    """
    from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]  # NumPy has no stub of it

    feature = "AVX512F" if flag.startswith("avx512") else {"avx2": "AVX2", "avx_vnni": "GFNI", "fma": "FMA3"}.get(flag, "")
    return bool(__cpu_features__.get(feature, True))


def count_affinity() -> int:
    """Returns the number of processors in the affinity mask, or of the machine if the system has no affinity masks."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def find_quota(root: str | os.PathLike[str] = "/") -> float | None:
    """Returns the processors' worth of time that the control groups of this process allow, None if they set no limit.

    It is the smallest limit of the process's group and of the groups around it; `root` is the folder of the file system.
    """
    memberships = [line.removeprefix("0::/") for line in _read(root, "proc/self/cgroup").splitlines() if line.startswith("0::/")]
    # A container may see its own group as the root, or the path of a group outside, which starts with "..".
    group = [piece for piece in "".join(memberships).split("/") if piece not in ("", "..")]
    texts = [_read(root, "/".join(("sys/fs/cgroup", *group[:depth], "cpu.max"))) for depth in range(len(group) + 1)]
    # "max 100000", or quota and period in microseconds
    limits = [text.split() for text in texts if re.fullmatch(r"[1-9]\d* [1-9]\d*\s*", text)]
    return min((int(quota) / int(period) for quota, period in limits), default=None)


TOTAL_MEMORY, FREE_MEMORY = "DEVICE_TOTAL_MEM_SIZE", "DEVICE_FREE_MEM_SIZE"
"""The metrics: bytes."""
WEIGHTS_ONCE_KEY = "WEIGHTS_ONCE"
"""The key of devices that can hold each weight in a single form for all sizes of inputs, in place of several faster forms."""


def describe_host_memory(root: str | os.PathLike[str] = "/") -> Mapping[str, Callable[[], int]]:
    """Returns the two metrics of a device in the host's memory; empty if the platform does not tell."""
    if read_host_memory(root) is None:
        return {}
    return {TOTAL_MEMORY: lambda: (read_host_memory(root) or (0, 0))[0], FREE_MEMORY: lambda: (read_host_memory(root) or (0, 0))[1]}


def read_host_memory(root: str | os.PathLike[str] = "/") -> tuple[int, int] | None:
    """Returns the total and the free bytes of memory, within the limit of the control group; None if the platform does not tell.

    Free bytes are available without swapping, caches of files included; `root` is the folder of the file system.
    """
    fields = _read_fields(root, "proc/meminfo")
    try:
        total, free = (int(fields[name]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError):
        return None
    limit, used = (_read(root, f"sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdecimal() and used.isdecimal():
        # The used bytes hold caches of files, which the system gives up.
        caches = int(_read_fields(root, "sys/fs/cgroup/memory.stat").get("inactive_file", 0))
        total, free = min(total, int(limit)), min(free, max(int(limit) - int(used) + caches, 0))
    return total, free


LARGE_BYTES = 1 << 26
"""Values below this size are made without a look at the memory of the machine."""
_MARGIN = 16


def read_spare_memory(root: str | os.PathLike[str] = "/") -> int | None:
    """Returns the bytes that a run may take: the free ones of the machine or the control group, less a sixteenth.

    Swap space counts unless a control group has less memory than the machine. None if the platform does not tell.
    """
    memory, fields = read_host_memory(root), _read_fields(root, "proc/meminfo")
    if memory is None:
        return None
    total, free = memory
    is_whole = total == int(fields["MemTotal"]) * 1024
    return free - free // _MARGIN + (int(fields.get("SwapFree", 0)) * 1024 if is_whole else 0)


def _read_fields(root: str | os.PathLike[str], path: str) -> dict[str, str]:
    """Returns name -> number of the lines of a file, "MemTotal:  24684096 kB" or "file 81920"."""
    pieces = (line.replace(":", " ").split() for line in _read(root, path).splitlines())
    return {words[0]: words[1] for words in pieces if len(words) > 1}


def _read(*path: str | os.PathLike[str]) -> str:
    """Returns the text of a file, "" if it cannot be read."""
    try:
        with open(os.path.join(*path), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""
