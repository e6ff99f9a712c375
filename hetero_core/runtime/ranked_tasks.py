"""Tasks of networks that take turns: those of a higher MODEL_PRIORITY first, and of one priority in the order in which they came."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future
    from queue import PriorityQueue

RANKS = {"HIGH": 0, "MEDIUM": 1, "LOW": 2}
"""MODEL_PRIORITY -> rank; a lower one goes first."""


class RankedTasks:
    """A queue with the methods of SimpleQueue that an executor calls. None, which ends a thread, comes behind all tasks."""

    def __init__(self) -> None:
        from queue import PriorityQueue  # few executors have ranks

        self._queue: PriorityQueue[tuple[float, int, Any]] = PriorityQueue()
        # Two items are never compared: no two have the same number.
        self._numbers = count()

    def put(self, item: Any) -> None:
        """Adds (future, task), where the task may carry a `rank`, or None."""
        rank = math.inf if item is None else getattr(item[1], "rank", RANKS["MEDIUM"])
        self._queue.put((rank, next(self._numbers), item))

    def get(self) -> Any:
        """Returns the first item; waits for one."""
        return self._queue.get()[2]

    def get_nowait(self) -> Any:
        """Returns the first item. Raises: queue.Empty."""
        return self._queue.get_nowait()[2]


class RankedTask:
    """A task with the rank of its network."""

    __slots__ = ("_run", "rank")

    def __init__(self, run: Callable[[], Any], rank: int) -> None:
        self._run = run
        self.rank = rank

    def __call__(self) -> Any:
        """Returns what the task returns."""
        return self._run()


class Submitting(Protocol):
    """The methods of an executor that a loaded network calls."""

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        """Returns the future of a task."""

    def retire(self) -> None:
        """Lets the threads end."""


class Turns:
    """The place of one network on an executor that it shares with others."""

    def __init__(self, executor: Submitting, rank: int) -> None:
        self._executor = executor
        self._rank = rank

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        """Returns the future of a task, which runs before those of a lower priority that wait. Raises: ClosedError."""
        return self._executor.submit(RankedTask(task, self._rank))

    def set_priority(self, priority: str) -> None:
        """Gives the runs that are submitted from now on another MODEL_PRIORITY."""
        self._rank = RANKS[priority]

    def retire(self) -> None:
        """Does nothing: the threads are those of the other networks, too."""
