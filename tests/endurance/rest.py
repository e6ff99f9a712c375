"""What a process holds while nothing works in it, and what of that is too much.

While threads work, the count of threads and objects is chance: it depends on which networks happen to be loaded. At rest nothing excuses
a thread, an open file or an open device, so none may be there that was not there before the first network was loaded. What Python and the
allocator keep for later comes in the first third of the time; after it objects and memory may grow by small constants. Between two rests
nothing is counted: whoever lists the objects while CPython 3.11 builds a tuple makes that fail with a SystemError.
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
"""How long it may take until the next of what was told to end has ended, on a machine that is busy."""
LARGEST_GROWTH = {"objects": 100, "blocks": 500, "allocated": 2 << 20, "memory": 8 << 20}
"""What may come on top after the first third of the time, in the units of Sample.

In 24 slices of twelve seconds without a leak objects grew by 12 at most, blocks by 178, what is allocated by 0.43 MiB and memory by 1.6.
Once in a longer run 0.92 MiB come on top, where CPython doubles its table of interned strings.
"""
C_LIBRARY = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Sample:
    """What there was at one rest: threads and files of the system, open devices, containers and blocks of Python, bytes of memory.

    `allocated` is what the C library's allocator has given to Python, numpy and onnx, and what its threads keep at hand; `memory` is what
    the system counts, with all that the allocator keeps for later.
    """

    threads: int
    files: int
    devices: int
    objects: int
    blocks: int
    allocated: int
    memory: int


class Gate:
    """Where workers stop between two operations while somebody counts."""

    def __init__(self, workers: int) -> None:
        self._working = workers
        self._is_open = True
        self._changed = threading.Condition()

    def pass_through(self) -> None:
        """Returns at once while the gate is open, else when it opens."""
        with self._changed:
            if self._is_open:
                return
            self._working -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open)
            self._working += 1

    def leave(self) -> None:
        """Says that this worker does not come again."""
        with self._changed:
            self._working -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Returns when each worker stands at the gate or has left."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: self._working == 0)

    def open(self) -> None:
        """Lets the workers go on."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


def measure(devices: int) -> Sample:
    """Returns what there is now; `devices` are open."""
    # More than once: what is collected may let go of what has cycles of its own.
    while gc.collect():
        pass
    # What the allocator keeps for later is no leak.
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
"""Threads that begin with their first order and end with the process."""


def count_threads() -> int:
    """Returns the number of threads that the system knows of, those of libraries included, without those that a process has one of."""
    return len(os.listdir("/proc/self/task")) - sum(thread.name in _ONE_IN_A_PROCESS for thread in threading.enumerate())


def count_pipes() -> int:
    """Returns the number of open ends of pipes; the process that compiles is reached by two as long as it has orders."""
    return sum(link.startswith("pipe:") for link in list_files())


def list_files() -> list[str]:
    """Returns what the open files are, in the system's words, sorted."""
    return sorted(os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2`. Source: glibc, malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def count_allocated() -> int:
    """Returns the bytes that are held of the C library's allocator, all arenas together; 0 for another library than glibc 2.33 or later."""
    function = getattr(C_LIBRARY, "mallinfo2", None)
    if function is None:
        return 0
    function.restype = _Mallinfo
    found = function()
    return int(found.uordblks) + int(found.hblkhd)


def await_compiler(pipes: int) -> None:
    """Waits until the process that compiles is gone, whose orders hold networks; a busy machine may take a minute over a kernel."""
    pause, begin = threading.Event(), time.monotonic()
    while count_pipes() > pipes and time.monotonic() - begin < COMPILE_SECONDS:
        # An order whose network nobody holds any more is dropped.
        gc.collect()
        pause.wait(0.1)


def settle(count_unended: Callable[[], int]) -> None:
    """Collects garbage until nothing is left that should end, or nothing of it has ended for SETTLE_SECONDS."""
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
    """Returns what is there at rest that was not there before anything was loaded, and by which names the system knows it."""
    names = {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": list_files(),
        "devices": [],
    }
    return [
        f"{getattr(sample, key) - getattr(before, key)} {key} are left at rest; there are {', '.join(found) or 'more open than closed'}"
        for key, found in names.items()
        if getattr(sample, key) > getattr(before, key)
    ]


def find_growth(samples: list[Sample]) -> list[str]:
    """Returns what went on growing: the least of the last third of the time against the most of the first third."""
    if len(samples) < 6:
        return []
    third = len(samples) // 3
    grown = {
        key: min(getattr(sample, key) for sample in samples[-third:]) - max(getattr(sample, key) for sample in samples[:third])
        for key in LARGEST_GROWTH
    }
    return [f"{key} grew by {grown[key]}, more than {limit}" for key, limit in LARGEST_GROWTH.items() if grown[key] > limit]
