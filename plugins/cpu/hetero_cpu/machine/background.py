"""One thread that compiles kernels while something else serves."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from hetero_core.runtime.first_runs import FIRST_RUNS, FirstRuns
from hetero_cpu.machine.compiler import COMPILER, Kernel, give_back_memory


class OrderDroppedError(Exception):
    """The kernels are not needed any more; never leaves the device."""


logger = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]
LONGEST_DELAY = 1.0
"""Seconds from an order until it begins beside a first run, which planning and LLVM take the interpreter lock and a processor from."""


@dataclass(frozen=True, slots=True)
class Order:
    """Kernels to compile, and the functions to call when they are."""

    kernels: Iterable[Kernel]
    done: Done
    is_wanted: Callable[[], bool]
    begin: threading.Event | None
    latest: float
    """The time of the monotonic clock at which the order begins though `begin` is not set."""


class BackgroundCompiler:
    """Takes orders from any thread; its own thread starts with the first one, and ends with the process."""

    def __init__(self, first_runs: FirstRuns | None = None) -> None:
        """`first_runs`: orders wait for them; without it, for the first runs of this object's own orders."""
        self._first_runs = first_runs or FirstRuns()
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()

    def order(
        self,
        kernels: Iterable[Kernel],
        done: Done,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        begin: threading.Event | None = None,
    ) -> None:
        """Has kernels compiled, then calls `done` in the compiling thread: with None, or with the error that stopped it.

        `is_wanted` is asked before each kernel; OrderDroppedError is the error if they are not wanted. `begin` is set when the first
        run of a network ends: nothing is compiled before the first runs of the process have ended, or LONGEST_DELAY seconds have
        passed since the order. `kernels` is gone through in the compiling thread, and may take its time to find out which they are.
        """
        if begin is not None:
            self._first_runs.expect(begin)
        self._orders.put(Order(kernels, done, is_wanted, begin, monotonic() + LONGEST_DELAY))
        with self._lock:
            if self._thread is None and not self._is_over.is_set():
                self._thread = threading.Thread(target=self._work, name="hetero-cpu-compiler", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            error: Exception | None = None
            try:
                self._compile(order)
            except Exception as raised:  # noqa: BLE001  # handed to the caller of `order`
                error = raised
            # Compiling fails at the end of the process, which starts no threads any more.
            if self._is_over.is_set() or (error is not None and not threading.main_thread().is_alive()):
                COMPILER.rest()
                return
            try:
                order.done(error)
            except Exception:
                logger.exception("the plan of machine code could not take over")
            # Behind the plan, which waits for no process to end.
            COMPILER.rest()
            # The executable and memory of the plan before may be freed now, not with the next order.
            del order, error
            give_back_memory()

    def _compile(self, order: Order) -> None:
        if order.begin is not None:
            self._first_runs.wait(order.latest, self._is_over.is_set)
        self._require_wanted(order)
        COMPILER.expect()
        COMPILER.compile_all(order.kernels, lambda: self._require_wanted(order))
        # The emitted texts are free memory now, and the packed weights come next.
        give_back_memory()

    def _require_wanted(self, order: Order) -> None:
        if self._is_over.is_set() or not order.is_wanted():
            raise OrderDroppedError("nobody wants these kernels")

    def close(self) -> None:
        """Ends the thread, after the kernel that it is at: LLVM must not be at work when the process takes itself apart."""
        self._is_over.set()
        self._orders.put(None)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def forget_thread(self) -> None:
        """Makes a forked child start a thread of its own, for new orders only."""
        self._orders, self._lock, self._thread = queue.SimpleQueue(), threading.Lock(), None


BACKGROUND = BackgroundCompiler(FIRST_RUNS)
"""The process-wide compiler; its thread starts with the first order."""

atexit.register(BACKGROUND.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BACKGROUND.forget_thread)
