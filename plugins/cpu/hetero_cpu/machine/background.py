"""One thread that compiles kernels while something else serves."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any

from hetero_core.runtime.executors import call_in_child
from hetero_core.runtime.first_runs import FIRST_RUNS, FirstRuns
from hetero_cpu.machine.compiler import COMPILER, Kernel, give_back_memory


class OrderDroppedError(Exception):
    """The kernels are not needed any more; never leaves the device."""


logger = logging.getLogger(__name__)

Done = Callable[[Any, BaseException | None], None]
LONGEST_DELAY = 1.0
"""Seconds from an order until it begins beside a first run, which planning and LLVM take the interpreter lock and a processor from."""


class BackgroundCompiler:
    """Takes orders from any thread; its own thread starts with the first one, and ends with the process."""

    _orders: queue.SimpleQueue[Callable[[], None] | None]
    _thread: threading.Thread | None

    def __init__(self, first_runs: FirstRuns | None = None) -> None:
        """`first_runs`: orders wait for them; without it, for the first runs of this object's own orders."""
        self._first_runs = first_runs or FirstRuns()
        self._is_over = threading.Event()
        self.forget_thread()

    def order(
        self,
        kernels: Iterable[Kernel],
        done: Done,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        begin: threading.Event | None = None,
    ) -> None:
        """Has kernels compiled, then calls `done` in the compiling thread with the result of their generator, and the error if one came.

        `is_wanted` is asked before each kernel; OrderDroppedError is the error if they are not wanted. `begin` is set when the first
        run of a network ends: nothing is compiled before the first runs of the process have ended, or LONGEST_DELAY seconds have
        passed since the order. `kernels` is gone through in the compiling thread, and may take its time to find out which they are.
        """
        if begin is not None:
            self._first_runs.expect(begin)
        self._orders.put(partial(self._compile, kernels, done, is_wanted, monotonic() + LONGEST_DELAY))
        with self._lock:
            if self._thread is None and not self._is_over.is_set():
                self._thread = threading.Thread(target=self._work, name="hetero-cpu-compiler", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (compile_order := self._orders.get()) is not None and not self._is_over.is_set():
            compile_order()
            # The executable and memory of the plan before may be freed now, not with the next order.
            del compile_order
            give_back_memory()

    def _compile(self, kernels: Iterable[Kernel], done: Done, is_wanted: Callable[[], bool], latest: float) -> None:
        def require_wanted() -> None:
            if self._is_over.is_set() or not is_wanted():
                raise OrderDroppedError("nobody wants these kernels")

        plan, error = None, None
        try:
            self._first_runs.wait(latest, self._is_over.is_set)
            require_wanted()
            COMPILER.expect()
            plan = COMPILER.compile_all(kernels, require_wanted)
            # The emitted texts are free memory now, and the packed weights come next.
            give_back_memory()
        except Exception as raised:  # noqa: BLE001  # handed to the caller of `order`
            error = raised
        # Compiling fails at the end of the process, which starts no threads any more.
        if not self._is_over.is_set() and (error is None or threading.main_thread().is_alive()):
            try:
                done(plan, error)
            except Exception:
                logger.exception("the plan of machine code could not take over")
        # Behind the plan, which waits for no process to end.
        COMPILER.rest()

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
call_in_child(BACKGROUND.forget_thread)
