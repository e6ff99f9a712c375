"""The threads of one Core: a pool for each device, made on first use, ended when the Core closes or nobody holds it any more.

Threads are daemons: one that is stuck in a driver does not keep the interpreter from ending. At its exit runs that are queued are
dropped, and those in flight get `EXIT_SECONDS` to end. The pools of the standard library wait for both without a limit.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from hetero_core.errors import ClosedError
from hetero_core.runtime.forks import FORK_ADVICE, count_forks

EXIT_SECONDS = 10.0
"""How long the interpreter's exit waits for runs in flight, in all."""

_Tasks = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class Executors:
    """Thread pools by name. Threads are named `hetero-<name>_<index>`. Safe for threads; of no use in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, _Pool] = {}
        self._is_closed = False
        self._forks = count_forks()
        _open.add(self)

    def submit(self, name: str, task: Callable[[], Any], *, workers: int) -> Future[Any]:
        """Returns the future of a task that a thread of a pool runs; the first call for a name sets its `workers`.

        Raises: ClosedError after `close`, and in a forked child.
        """
        if self._forks != count_forks():
            raise ClosedError(f"cannot start a request on {name}: its Core cannot be used here: {FORK_ADVICE}")
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"cannot start a request on {name}: its Core is closed")
            pool = self._pools.get(name)
            if pool is None:
                pool = self._pools[name] = _Pool(f"hetero-{name}", max(workers, 1))
            return pool.submit(task)

    def close(self, timeout: float | None = None) -> None:
        """Drops what is queued, waits for what is running, and ends the threads; `timeout` in seconds.

        Does nothing in a forked child: the threads are not there.
        """
        if self._forks != count_forks():
            return
        with self._lock:
            self._is_closed = True
            pools, self._pools = list(self._pools.values()), {}
        deadline = None if timeout is None else monotonic() + timeout
        for pool in pools:
            pool.drop_queued()
        for pool in pools:
            pool.join(deadline)


class _Pool:
    """Up to `workers` threads, each started when no other one is idle."""

    def __init__(self, name: str, workers: int) -> None:
        self._name = name
        self._workers = workers
        self._tasks: _Tasks = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        # A thread holds the queue, not the pool: a pool that nobody holds any more ends its threads.
        weakref.finalize(self, _dismiss, self._tasks, self._threads).atexit = False

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, task))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._workers:
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=_work, args=(self._tasks, self._idle), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def drop_queued(self) -> None:
        """Cancels what no thread has begun, and tells the threads to end."""
        with suppress(Empty):
            while True:
                dropped = self._tasks.get_nowait()
                if dropped is not None:
                    dropped[0].cancel()
        _dismiss(self._tasks, self._threads)

    def join(self, deadline: float | None) -> None:
        """Waits for the threads, but for the one that asks: a callback may close the Core."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(deadline - monotonic(), 0))


def _dismiss(tasks: _Tasks, threads: list[threading.Thread]) -> None:
    for _ in threads:
        tasks.put(None)


def _work(tasks: _Tasks, idle: threading.Semaphore) -> None:
    while True:
        try:
            item = tasks.get_nowait()
        except Empty:
            idle.release()
            item = tasks.get()
        if item is None:
            return
        _run_task(*item)
        # Not kept until the next task comes: it holds a request and its arrays.
        del item


def _run_task(future: Future[Any], task: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = task()
    except BaseException as error:  # noqa: BLE001  # kept for whoever holds the future, and raised there
        future.set_exception(error)
    else:
        future.set_result(result)


_open: weakref.WeakSet[Executors] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the threads of Cores that were not closed."""
    deadline = monotonic() + EXIT_SECONDS
    for executors in list(_open):
        executors.close(max(deadline - monotonic(), 0))
