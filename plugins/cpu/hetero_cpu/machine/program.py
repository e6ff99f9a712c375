"""A list of calls of machine code that runs in one call from Python, without the interpreter lock."""

from __future__ import annotations

import atexit
import ctypes
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from hetero_core.runtime.executors import call_in_child
from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.compiler import COMPILER
from hetero_cpu.machine.interpreter import (
    ALONE,
    COLUMNS,
    HELPER,
    MOST_CHUNKS,
    SEMAPHORE,
    STOP,
    TEAM_BYTES,
    TOGETHER,
    open_interpreter,
)

logger = logging.getLogger(__name__)

_LINE_BYTES = 128
_helpers: dict[threading.Thread, Array] = {}
"""Every thread that runs, and the memory of its team."""


class Team:
    """A caller and `workers` - 1 threads that help it. One thread at a time may run programs with it.

    A worker's number is 0 for the caller and 1 to `workers` - 1 for the threads. They end on `close` and with the team.
    """

    __slots__ = ("__weakref__", "_end", "_memory", "_threads", "address", "workers")

    def __init__(self, workers: int) -> None:
        self.workers = workers
        memory = np.zeros(TEAM_BYTES + _LINE_BYTES, np.uint8)
        begin = -address_of(memory) % _LINE_BYTES
        self._memory, self.address = memory[begin : begin + TEAM_BYTES], address_of(memory) + begin
        self._threads = _start_threads(self._memory, workers)
        # Only tells them: garbage collection may hold a lock that a thread needs in order to end.
        self._end = weakref.finalize(self, _stop, self._memory, len(self._threads))
        self._end.atexit = False

    def close(self) -> None:
        """Ends the threads and waits for them; a run in progress goes on alone, and so do later ones."""
        # Not by the finalizer, which does nothing any more when the process takes itself apart: the threads would never end.
        if self._end.detach() is not None:
            _stop(self._memory, len(self._threads))
        _join(self._threads)


class TeamPool:
    """Teams for the runs of a network: up to `workers` threads for each of `streams` runs, fewer if more runs are under way.

    A run that begins alone has all threads of a stream. Each of several runs has the largest team that leaves as much to the
    others: half of the threads, a quarter and so on; it works alone if that is a single thread. Teams are made when they are first
    needed. Their threads end on `close` and with the pool.
    """

    __slots__ = ("_is_closed", "_runs", "_slots")

    def __init__(self, workers: int, *, streams: int = 1) -> None:
        self._is_closed = False
        self._runs: deque[None] = deque()  # its length is the number of runs that are under way
        # By the number of runs; the last is for all larger numbers, and has none. A slot is free while it is here: a team, or the size
        # of a team that is not made yet. No lock, which a fork could leave locked.
        self._slots: list[deque[Team | int]] = []
        threads = workers * streams
        while workers > 1:
            slots = deque[Team | int]([workers] * (threads // workers))
            self._slots += [slots] * (threads // workers - len(self._slots))
            workers //= 2
        self._slots.append(deque())

    @contextmanager
    def lease(self) -> Iterator[Team | None]:
        """Yields a team for the caller alone; None if the caller works alone, as after `close`."""
        runs = self._runs
        slots = self._slots[min(len(runs), len(self._slots) - 1)]
        try:
            team = slots.pop() if slots else None
        except IndexError:  # another thread closes
            team = None
        runs.append(None)
        try:
            if isinstance(team, int):
                team = Team(team)
            yield team
        finally:
            runs.pop()
            if team is not None:
                # To the end from which the next run takes: the team that ran last is awake.
                slots.append(team)
                if self._is_closed:
                    self.close()

    def close(self) -> None:
        """Ends the threads: of free teams now, of those in use when they come back."""
        self._is_closed = True
        for slots in self._slots:
            with suppress(IndexError):  # another thread closes, too
                while slots:
                    if isinstance(team := slots.pop(), Team):
                        team.close()


def _start_threads(memory: Array, workers: int) -> list[threading.Thread]:
    function, started = open_interpreter(HELPER, 2), list[threading.Thread]()
    for number in range(1, workers):
        thread = threading.Thread(target=_help, args=(function, memory, number), name=f"hetero-CPU-team_{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads for us
            logger.warning("a team of %d threads works with %d: %s", workers, number, error)
            break
        started.append(thread)
    return started


def _help(function: Callable[[int, int], None], memory: Array, number: int) -> None:
    import signal  # a network with one thread has no helpers

    # Signals are for the threads that run Python.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _helpers[threading.current_thread()] = memory
    try:
        function(address_of(memory), number)
    finally:
        del _helpers[threading.current_thread()]


def _stop(memory: Array, helpers: int) -> None:
    memory[STOP : STOP + 8].view(np.int64)[0] = 1
    library = ctypes.CDLL(None)
    for _ in range(helpers):
        library.sem_post(ctypes.c_void_p(address_of(memory) + SEMAPHORE))


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


def _stop_all() -> None:
    """Machine code must not outlive the memory that it runs in, which goes when the interpreter does."""
    helpers = list(_helpers.items())
    for _, memory in helpers:
        _stop(memory, len(helpers))
    _join([thread for thread, _ in helpers])


atexit.register(_stop_all)
call_in_child(_helpers.clear)


Numbers = np.ndarray[Any, Any]


class NativeProgram:
    """Calls in the order in which they run. Kernels that are not compiled yet are, here.

    Keeps all memory that the calls point to. One thread at a time may run it, unless its calls may run beside themselves.
    """

    __slots__ = ("_alone", "_keep", "_rows", "_several", "_table", "_together", "numbers", "view")

    def __init__(self, calls: Sequence[NativeCall], numbers: Numbers, chunks: Numbers) -> None:
        """`numbers`: of all calls, in order, and the `chunks` of each, in place of those of the calls, which may be symbols."""
        self.numbers = numbers
        """A change counts from the next run on."""
        self.view = numbers.data
        """The same numbers, of which Python reads and writes a few faster."""
        self._rows = np.zeros((len(calls), len(COLUMNS)), np.int64)
        begin = address_of(numbers)
        for row, call in zip(self._rows, calls, strict=True):
            row[:2] = COMPILER.compile(call.kernel), begin
            begin += numbers.itemsize * len(call.numbers)
        self.set_chunks(np.arange(len(calls)), chunks)
        self._keep = tuple(array for call in calls for array in call.keep)
        self._table = address_of(self._rows)
        self._alone, self._together = open_interpreter(ALONE, 3), open_interpreter(TOGETHER, 5)

    def set_chunks(self, calls: Numbers, chunks: Numbers) -> None:
        """Has these calls other counts of chunks."""
        assert ((chunks >= 0) & (chunks <= MOST_CHUNKS)).all(), "chunks of a call: a planner's mistake"
        self._rows[calls, 2] = chunks
        # How many of the calls before have several chunks: if there is none between two places, a team is of no use. Made for a team.
        self._several: list[int] = []

    def run(self, begin: int, end: int, team: Team | None = None) -> None:
        """Runs calls begin to end - 1, in order; with a team, if it is given and a call has several chunks."""
        if team is None or team.workers == 1 or not self._has_several(begin, end):
            self._alone(self._table, begin, end)
        else:
            self._together(self._table, begin, end, team.address, team.workers - 1)

    def bind(self, begin: int, end: int) -> Callable[[], object]:
        """Returns the call that runs calls begin to end - 1 without a team, in half of the time; valid as long as the program lives."""
        return partial(self._alone, *map(ctypes.c_int64, (self._table, begin, end)))

    def _has_several(self, begin: int, end: int) -> bool:
        """Says whether one of these calls has several chunks."""
        self._several = self._several or [0, *np.cumsum(self._rows[:, 2] > 1).tolist()]
        return self._several[begin] < self._several[end]
