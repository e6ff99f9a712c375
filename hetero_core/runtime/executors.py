"""The threads of a Core: an executor for each loaded network, with threads that start on first use and end with the Core or the
last reference to the executor; and forks, which leave the child without these threads.

Threads are daemons: a thread that is stuck in a driver does not keep the interpreter from ending. When it exits, queued runs are
dropped, and runs in flight get `EXIT_SECONDS` to end. The pools of the standard library wait for both without a limit.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib import _bootstrap
from itertools import count
from queue import Empty, PriorityQueue, SimpleQueue
from time import monotonic, sleep
from typing import Any, TypeAlias
from weakref import WeakSet

from hetero_core.errors import ClosedError


def call_in_child(action: Callable[[], object]) -> None:
    """Registers an action that runs first in each forked child, for example to renew a lock that a thread of the parent may hold.
    It is meant for process-wide objects that the child also uses.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        os.register_at_fork(after_in_child=action)


_held: WeakSet[object] = WeakSet()
_kept: list[object] = []


def keep_in_child(thing: object) -> None:
    """Keeps an object alive in every forked child: an engine that frees its memory there would wait for threads of the parent."""
    _held.add(thing)


call_in_child(lambda: _kept.extend(_held))


def retain(thing: object) -> None:
    """Keeps an object of the parent alive until the process ends, for the reason that `keep_in_child` gives."""
    _kept.append(thing)


logger = logging.getLogger(__name__)

IMPORT_SECONDS = 10.0
"""Seconds that a fork waits for imports of other threads, such as those of a device that AUTO loads in the background."""


def _await_imports() -> None:
    """Lets a fork wait while another thread imports: in the child the lock of that module would stay held for ever.

    It waits for modules of hetero and its plugins, and for all that hetero's own threads import. A program may import a package that
    waits for the thread that forks; the fork must not wait for that one.
    """
    locks: Mapping[str, Any] = getattr(_bootstrap, "_module_locks", {})
    end = monotonic() + IMPORT_SECONDS
    while monotonic() < end:
        own = {thread.ident for thread in threading.enumerate() if thread.name.startswith("hetero-")}
        owners = {(name.startswith("hetero_"), getattr(reference(), "owner", None)) for name, reference in list(locks.items())}
        awaited = {owner for is_ours, owner in owners if is_ours or owner in own}
        if awaited <= {None, threading.get_ident()}:
            return
        sleep(0.001)
    logger.warning("a fork has waited %g s for an import of another thread; the child cannot import that module", IMPORT_SECONDS)


if hasattr(os, "register_at_fork"):
    # The last one to register is called first. logging, imported above, takes its lock in such a call, and an import may wait for it.
    os.register_at_fork(before=_await_imports)

FORK_ADVICE = (
    "this process was forked after it was made, and has none of its threads; make a Core in the child, start the child with "
    "multiprocessing's 'spawn', or open the Core with after_fork='reopen'"
)

reopening = threading.RLock()
"""Held while a forked child opens its Cores and networks again."""
process = os.getpid()
"""The id of this process; the system takes 0.13 us to tell it, and each run asks."""


def _begin_child() -> None:
    global reopening, process
    reopening, process = threading.RLock(), os.getpid()


call_in_child(_begin_child)


RANKS = {"HIGH": 0, "MEDIUM": 1, "LOW": 2}
"""MODEL_PRIORITY -> rank; the lowest goes first."""


EXIT_SECONDS = 10.0
"""Seconds that the interpreter's exit waits for runs in flight, in all."""

_Task: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"
_Item: TypeAlias = "tuple[float, int, _Task | None]"
"""Rank, number and task. Two items are never compared beyond the number; None, which ends a thread, is sorted after all tasks."""
_numbers = count()


class ExecutorManager:
    """Makes the executors of a Core and ends them. Safe for threads; of no use in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Weak: an executor without references has no tasks.
        self._executors: weakref.WeakSet[Executor] = weakref.WeakSet()
        self._shared: weakref.WeakValueDictionary[str, Executor] = weakref.WeakValueDictionary()
        self._is_closed = False

    def create_executor(self, name: str, *, workers: int, is_shared: bool = False) -> Executor:
        """Returns a new executor of up to this many threads, 1 or more, or the shared executor of this name.

        Raises: ClosedError after `close`.
        """
        with self._lock:
            executor = self._shared.get(name) if is_shared else None
            if executor is None:
                if self._is_closed:
                    raise ClosedError(f"cannot make threads for {name}: its Core is closed")
                executor = Executor(name, workers, is_shared=is_shared)
                self._executors.add(executor)
                if is_shared:
                    self._shared[name] = executor
            return executor

    def close(self) -> None:
        """Drops all queued tasks, waits for the running tasks, and ends the threads."""
        with self._lock:
            self._is_closed = True
            executors = list(self._executors)
        _end_all(executors, None)


class Executor:
    """Up to `workers` threads, each started if no thread is idle. They are named `hetero-<name>_<index>`."""

    def __init__(self, name: str, workers: int, *, is_shared: bool = False) -> None:
        """`is_shared`: tasks of several networks take turns on it, by their rank."""
        self.workers = workers
        self._name = name
        self._lock = threading.Lock()
        self.is_closed = False
        """Whether the Core has been closed, and waits for the running tasks."""
        self._is_shared = is_shared
        self.process = os.getpid()
        self._tasks: SimpleQueue[_Item] | PriorityQueue[_Item] = PriorityQueue() if is_shared else SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        # A thread refers to the queue, not to the executor, so that the threads end with the executor's last reference.
        self._end = weakref.finalize(self, _dismiss, self._tasks, self._threads)
        self._end.atexit = False
        _open.add(self)

    def retire(self) -> None:
        """Lets the threads of a single network end: a closed network may stay referenced."""
        if not self._is_shared:
            self._end()

    def submit(self, task: Callable[[], Any], *, rank: int = RANKS["MEDIUM"]) -> Future[Any]:
        """Returns the future of a task. Tasks run in order of submission; in a shared executor, tasks of a lower rank run first.

        Raises: ClosedError after the Core was closed, and in a forked child.
        """
        if self.process != os.getpid():
            raise ClosedError(f"cannot start a request on {self._name}: its Core cannot be used here: {FORK_ADVICE}")
        future: Future[Any] = Future()
        with self._lock:
            if self.is_closed:
                raise ClosedError(f"cannot start a request on {self._name}: its Core is closed")
            self._tasks.put((rank, next(_numbers), (future, task)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self.workers:
                name = f"hetero-{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=_work, args=(self._tasks, self._idle), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def drop_queued(self) -> None:
        """Cancels the tasks that no thread has begun, takes no further task, and tells the threads to end."""
        with self._lock:
            self.is_closed = True
        with suppress(Empty):
            while True:
                _, _, dropped = self._tasks.get_nowait()
                if dropped is not None:
                    dropped[0].cancel()
        _dismiss(self._tasks, self._threads)

    def join(self, deadline: float | None) -> None:
        """Waits for the threads to end, except for the calling thread: a callback may close the Core."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(deadline - monotonic(), 0))


def _dismiss(tasks: SimpleQueue[_Item] | PriorityQueue[_Item], threads: list[threading.Thread]) -> None:
    for _ in threads:
        tasks.put((math.inf, next(_numbers), None))


def _work(tasks: SimpleQueue[_Item] | PriorityQueue[_Item], idle: threading.Semaphore) -> None:
    while True:
        try:
            _, _, item = tasks.get_nowait()
        except Empty:
            idle.release()
            _, _, item = tasks.get()
        if item is None:
            return
        _run_task(*item)
        # Released before the wait for the next task: a task holds a request and its arrays.
        del item


def _run_task(future: Future[Any], task: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = task()
        except BaseException as error:  # noqa: BLE001  # raised by the future
            future.set_exception(error)
        else:
            future.set_result(result)


def _end_all(executors: Sequence[Executor], deadline: float | None) -> None:
    for executor in executors:
        executor.drop_queued()
    for executor in executors:
        executor.join(deadline)


_open: weakref.WeakSet[Executor] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the threads of Cores that were not closed."""
    _end_all([executor for executor in list(_open) if executor.process == os.getpid()], monotonic() + EXIT_SECONDS)
