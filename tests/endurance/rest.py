"""Measures the resources of a process while all its workers pause ("at rest"), and finds leaks.

While threads work, the number of threads and objects is random: it depends on the networks that happen to be loaded. At rest, every
thread, open file and open device that did not exist before the first load is a leak. Python and the allocator fill their free lists in
the first third of the time; after it, objects and memory may grow by small constants. Measurements happen at rest only: listing all
objects while CPython 3.11 builds a tuple makes the construction fail with a SystemError.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

COMPILE_SECONDS = 120.0
SETTLE_SECONDS = 5.0
"""The longest wait for the next pending thread, pipe or device to end, on a busy machine."""
LARGEST_GROWTH = {"objects": 100, "blocks": 500, "allocated": 2 << 20, "memory": 8 << 20}
"""The largest tolerated growth after the first third of the time, in the units of Sample.

Measured maxima over 24 leak-free runs of twelve seconds: 12 objects, 178 blocks, 0.43 MiB allocated, 1.6 MiB memory.
In a longer run, CPython adds 0.92 MiB once, when it doubles its table of interned strings.
"""
C_LIBRARY = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Sample:
    """A measurement at rest: system threads and files, open devices, container objects and memory blocks of Python, bytes of memory.

    `allocated` counts the bytes that the C library's allocator has handed to Python, NumPy and onnx, and its per-thread caches; `memory`
    is the resident size by the system, including the allocator's free memory.
    """

    threads: int
    files: int
    devices: int
    objects: int
    blocks: int
    allocated: int
    memory: int


class Gate:
    """A gate that pauses the workers between two operations during a measurement."""

    def __init__(self, workers: int) -> None:
        self._working = workers
        self._is_open = True
        self._changed = threading.Condition()

    def pass_through(self) -> None:
        """Returns at once if the gate is open; otherwise waits until it opens."""
        with self._changed:
            if self._is_open:
                return
            self._working -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open)
            self._working += 1

    def leave(self) -> None:
        """Signs a worker off for good."""
        with self._changed:
            self._working -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the gate and waits until each worker pauses at it or has left."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: self._working == 0)

    def open(self) -> None:
        """Opens the gate, so that the workers continue."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


def measure(devices: int) -> Sample:
    """Returns the present sample; `devices` is the number of open devices."""
    # Repeated, because a collected object may release further reference cycles.
    while gc.collect():
        pass
    # Free memory of the allocator is no leak.
    with suppress(AttributeError):
        C_LIBRARY.malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        threads=count_threads(),
        files=len(os.listdir("/proc/self/fd")),
        devices=devices,
        objects=len(gc.get_objects()),
        blocks=sys.getallocatedblocks(),
        allocated=count_allocated(),
        memory=pages * os.sysconf("SC_PAGE_SIZE"),
    )


_ONE_IN_A_PROCESS = frozenset({"hetero-cpu-compiler"})
"""Process-wide threads: started by their first order, ended with the process."""


def count_threads() -> int:
    """Returns the number of system threads, including threads of libraries and excluding process-wide threads."""
    return len(os.listdir("/proc/self/task")) - sum(thread.name in _ONE_IN_A_PROCESS for thread in threading.enumerate())


def count_pipes() -> int:
    """Returns the number of open pipe ends; two of them lead to the compiler process while it has orders."""
    return sum(link.startswith("pipe:") for link in list_files())


def list_files() -> list[str]:
    """Returns the link targets of the open file descriptors, sorted."""
    return sorted(os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2`. Source: glibc, malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def count_allocated() -> int:
    """Returns the bytes allocated from glibc, over all arenas; 0 unless the C library is glibc 2.33 or later."""
    function = getattr(C_LIBRARY, "mallinfo2", None)
    if function is None:
        return 0
    function.restype = _Mallinfo
    mallinfo = function()
    return int(mallinfo.uordblks) + int(mallinfo.hblkhd)


def await_compiler(pipes: int) -> None:
    """Waits until the compiler process has ended, because its orders hold networks; a busy machine may need a minute for a kernel."""
    pause, begin = threading.Event(), time.monotonic()
    while count_pipes() > pipes and time.monotonic() - begin < COMPILE_SECONDS:
        # Frees networks without references, so that the compiler drops their orders.
        gc.collect()
        pause.wait(0.1)


def settle(count_unended: Callable[[], int]) -> None:
    """Collects garbage until `count_unended` is 0 or has not fallen for SETTLE_SECONDS."""
    pause = threading.Event()
    least, since = sys.maxsize, time.monotonic()
    while True:
        gc.collect()
        unended = count_unended()
        if unended < least:
            least, since = unended, time.monotonic()
        if not unended or time.monotonic() - since > SETTLE_SECONDS:
            return
        pause.wait(0.01)


def find_leftovers(before: Sample, sample: Sample) -> list[str]:
    """Returns an error for each resource that has grown since before the first load, with the names of threads or files."""
    names = {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": list_files(),
        "devices": [],
    }
    return [
        f"{getattr(sample, key) - getattr(before, key)} {key} are left at rest; there are {', '.join(present) or 'more open than closed'}"
        for key, present in names.items()
        if getattr(sample, key) > getattr(before, key)
    ]


def find_growth(samples: list[Sample]) -> list[str]:
    """Returns an error for each quantity that kept growing: its minimum in the last third exceeds its maximum in the first third."""
    if len(samples) < 6:
        return []
    third = len(samples) // 3
    grown = {
        key: min(getattr(sample, key) for sample in samples[-third:]) - max(getattr(sample, key) for sample in samples[:third])
        for key in LARGEST_GROWTH
    }
    return [f"{key} grew by {grown[key]}, more than {limit}" for key, limit in LARGEST_GROWTH.items() if grown[key] > limit]
