"""The number of processors that this process may use (its affinity mask, and the share of time that control groups leave it), and what
they can do.

A container usually sees every processor of its machine and is stopped by the kernel when it has used its quota; threads beyond that
only take time from each other. Source: Linux, cgroup-v2 (cpu.max) and sched-bwc (cpu.cfs_quota_us, cpu.cfs_period_us).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import ceil


def count_processors() -> int:
    """Returns the number of processors that this process may use now, at least 1.

    The mask is read on each call (a system call), the quota once in a process: it takes files to find it.
    """
    quota = _read_quota()
    mask = count_affinity()
    return mask if quota is None else max(1, min(mask, ceil(quota)))


def read_processor_flags(cpuinfo: str | os.PathLike[str] = "/proc/cpuinfo") -> tuple[str, ...]:
    """Returns what the first processor can do, in the kernel's words; nothing if the system does not say."""
    lines = _read_lines(cpuinfo)
    return next((tuple(line.partition(":")[2].split()) for line in lines if line.startswith(("flags", "Features"))), ())


def grants_flag(flag: str) -> bool:
    """Returns whether the instruction CPUID agrees with a flag of /proc/cpuinfo, as far as NumPy knows the flag.

    An emulator of another processor shows the file of its host.
    """
    from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]  # NumPy has no stub of it

    feature = "AVX512F" if flag.startswith("avx512") else {"avx2": "AVX2", "fma": "FMA3"}.get(flag, "")
    return bool(__cpu_features__.get(feature, True))


def count_affinity() -> int:
    """Returns the number of processors in the affinity mask; all of the machine where the system has no such mask."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _read_quota() -> float | None:
    return find_quota("/")


def find_quota(root: str | os.PathLike[str]) -> float | None:
    """Returns the processors' worth of time that the control groups of this process allow, None if they set no limit.

    The smallest of the group's own limit and those of the groups around it; `root` is the folder of the file system. What cannot be
    read counts as no limit.
    """
    folders = list(_list_group_folders(root))
    quotas = [quota for folder in folders for quota in (_read_v2(folder), _read_v1(folder)) if quota is not None]
    return min(quotas, default=None)


def _list_group_folders(root: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the folders of the groups that the process is in, from each one up to where its hierarchy is mounted."""
    path_of_hierarchy = dict(_read_memberships(root))
    for line in _read_lines(os.path.join(root, "proc/self/mountinfo")):
        # id, parent, device, root within the hierarchy, mount point, options, any number of tags, "-", type, source, options
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        hierarchy = "" if kinds[0] == "cgroup2" else "cpu" if kinds[0] == "cgroup" and "cpu" in kinds[2].split(",") else None
        if hierarchy is None or hierarchy not in path_of_hierarchy:
            continue
        top = os.path.join(root, fields[4].lstrip("/"))
        inner = _take_below(_split(path_of_hierarchy[hierarchy]), _split(fields[3]))
        yield from (os.path.join(top, *inner[:depth]) for depth in range(len(inner), -1, -1))


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _take_below(group: list[str], mounted: list[str]) -> list[str]:
    """Returns the group's path below the mounted one; the mounted one itself where, as in a container, it does not show the group."""
    return group[len(mounted) :] if group[: len(mounted)] == mounted and ".." not in group else []


def _read_memberships(root: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """Yields (hierarchy, path of the group): "" for version 2, "cpu" for the one of version 1 that limits time."""
    for line in _read_lines(os.path.join(root, "proc/self/cgroup")):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield "", path
        elif "cpu" in controllers.split(","):
            yield "cpu", path


def _read_v2(folder: str) -> float | None:
    """Reads "max 100000", or quota and period in microseconds."""
    fields = " ".join(_read_lines(os.path.join(folder, "cpu.max"))).split()
    return _divide(*fields) if len(fields) == 2 else None


def _read_v1(folder: str) -> float | None:
    """Reads the quota, -1 for none, and the period in microseconds."""
    quota, period = ("".join(_read_lines(os.path.join(folder, name))) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return _divide(quota, period)


def _divide(quota: str, period: str) -> float | None:
    if not quota.strip().isdigit() or not period.strip().isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read_lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


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
    """Returns all bytes and those that are free, both within the limit of the control group; None if the platform does not tell.

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
