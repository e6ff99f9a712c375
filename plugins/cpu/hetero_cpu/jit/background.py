"""One thread that compiles kernels while something else serves."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence

from hetero_cpu.jit.compiler import COMPILER, Kernel

logger = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]


class BackgroundCompiler:
    """Takes orders from any thread; its own thread starts with the first one, and ends with the process."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Sequence[Kernel], Done] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()

    def order(self, kernels: Sequence[Kernel], done: Done) -> None:
        """Has kernels compiled, then calls `done` in the compiling thread: with None, or with the error that stopped it."""
        self._orders.put((kernels, done))
        with self._lock:
            if self._thread is None and not self._is_over.is_set():
                self._thread = threading.Thread(target=self._work, name="hetero-cpu-compiler", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            kernels, done = order
            try:
                for kernel in kernels:
                    if self._is_over.is_set():
                        return
                    COMPILER.compile(kernel)
            except Exception as error:  # noqa: BLE001  # handed to whoever ordered
                done(error)
            else:
                done(None)

    def close(self) -> None:
        """Ends the thread, after the kernel that it is at: LLVM must not be at work when the process takes itself apart."""
        self._is_over.set()
        self._orders.put(None)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def forget_thread(self) -> None:
        """Makes a forked child start a thread of its own, for new orders only."""
        self._orders, self._lock, self._thread = queue.SimpleQueue(), threading.Lock(), None


BACKGROUND = BackgroundCompiler()
"""The one of this process."""

atexit.register(BACKGROUND.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BACKGROUND.forget_thread)
