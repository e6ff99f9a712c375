"""Forks: a forked child has the memory of its parent but none of its threads, so that what was loaded before refuses to work there.

An object keeps the count of the time when it was made; another count later means another process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakSet


class _Forks:
    """`count`: how many forks lie between the interpreter's first process and this one."""

    count = 0


FORKS = _Forks()
"""For runs, which are spared the 50 ns of a function."""


def _count_fork() -> None:
    FORKS.count += 1


def call_in_child(action: Callable[[], object]) -> None:
    """Has an action called in each forked child, before anything else there: to renew a lock, which a thread of the parent may hold.

    For whatever is one in a process and is used in the child, too.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        os.register_at_fork(after_in_child=action)


_held: WeakSet[object] = WeakSet()
_kept: list[object] = []


def keep_in_child(thing: object) -> None:
    """Has an object live as long as any forked child, and what it holds: an engine that frees there waits for threads of the parent."""
    _held.add(thing)


call_in_child(_count_fork)
call_in_child(lambda: _kept.extend(_held))


def count_forks() -> int:
    """Returns how many forks lie between the interpreter's first process and this one. Costs 50 ns, where a system call costs more."""
    return FORKS.count


FORK_ADVICE = (
    "this process was forked after it was made, and has none of its threads; make a Core in the child, or start the child with "
    "multiprocessing's 'spawn'"
)
