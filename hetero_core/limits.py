"""The limits of one run: how many bytes its values may take, and how far it has come when somebody asks.

The core makes one for a run with MEMORY_LIMIT or DEADLINE and hands it on as `context.limits`; without these keys there is none, and
nothing is counted. A device tells it each node that it begins, asks for room before it makes a result whose size is known, and lets
it hold what it made. Imports no array library.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from hetero_core.errors import MemoryLimitError


class RunLimits:
    """What one run may take, shared by the parts of a split network. Safe for threads.

    A value counts from when it was made until nobody has it any more: the memory that it stands in, once, however many views of it
    there are. `node` is the last one that was begun.
    """

    __slots__ = ("_freed", "_held", "_lock", "_nbytes_of_root", "_references", "_where", "memory_limit", "node")

    def __init__(self, where: str, *, memory_limit: int | None = None) -> None:
        """`where` begins the message of an error: "network 'g' on CPU"; `memory_limit` in bytes, None for no limit."""
        self._where = where
        self.memory_limit = memory_limit
        self.node = ""
        self._held = 0
        self._lock = threading.Lock()
        self._nbytes_of_root: dict[int, int] = {}
        self._references: dict[int, Any] = {}
        # A value may die in any thread at any time, also while the lock is held: its end is only noted here.
        self._freed: deque[int] = deque()

    @property
    def held(self) -> int:
        """The bytes of the values that were made and are still there."""
        with self._lock:
            self._forget_freed()
            return self._held

    def enter(self, node: str) -> None:
        """Says that a node begins: its label, as "'conv1' (Conv-22)"."""
        self.node = node

    def exempt(self, values: Iterable[Any]) -> None:
        """Counts these as nothing: inputs and constants, whose memory is not the run's, and views of them."""
        if self.memory_limit is None:
            return
        with self._lock:
            self._forget_freed()
            for value in values:
                for root in _find_roots(value):
                    if id(root) not in self._nbytes_of_root:
                        self._note(root, 0)

    def require(self, nbytes: int) -> None:
        """Asks for room before the node that was begun makes a result of this size.

        Raises: MemoryLimitError where it would be more than the limit together with what is held.
        """
        if self.memory_limit is not None and nbytes + self.held > self.memory_limit:
            self._refuse(nbytes, self.held)

    def hold(self, values: Iterable[Any]) -> None:
        """Counts what the node that was begun has made.

        Raises: MemoryLimitError where it is more than the limit.
        """
        if self.memory_limit is None:
            return
        added = 0
        with self._lock:
            self._forget_freed()
            for value in values:
                for root in _find_roots(value):
                    if id(root) not in self._nbytes_of_root:
                        added += self._note(root, _measure(root))
            held = self._held
        if held > self.memory_limit:
            self._refuse(added, held - added)

    def _note(self, root: Any, nbytes: int) -> int:
        """Counts one piece of memory; returns its bytes. What cannot be watched counts while it is made, and no longer."""
        key = id(root)
        freed = self._freed
        try:
            self._references[key] = weakref.ref(root, lambda _: freed.append(key))
        except TypeError:
            if self.memory_limit is not None and nbytes > self.memory_limit:
                self._refuse(nbytes, self._held)
            return 0
        self._nbytes_of_root[key] = nbytes
        self._held += nbytes
        return nbytes

    def _forget_freed(self) -> None:
        """Takes away what has died. An id is given anew only after its owner has died, and so after its end was noted."""
        while self._freed:
            key = self._freed.popleft()
            self._references.pop(key, None)
            self._held -= self._nbytes_of_root.pop(key, 0)

    def _refuse(self, nbytes: int, held: int) -> None:
        node = f"node {self.node}" if self.node else "its outputs"
        raise MemoryLimitError(
            f"{self._where}: {node} {'needs' if self.node else 'need'} {nbytes} bytes, beside {held} that are held; MEMORY_LIMIT is "
            f"{self.memory_limit}. Raise the limit, or give smaller inputs"
        )


def _find_roots(value: Any) -> list[Any]:
    """Returns the arrays that own the memory of a value; none for what stands in memory that no array owns, as a mapped file."""
    if isinstance(value, list):
        return [root for element in value for root in _find_roots(element)]
    if not hasattr(value, "nbytes"):
        return []
    while True:
        base = getattr(value, "base", None)
        if base is None:
            flags = getattr(value, "flags", None)
            return [value] if flags is None or getattr(flags, "owndata", True) else []
        if not hasattr(base, "nbytes"):
            return []
        value = base


def _measure(array: Any) -> int:
    """Returns the bytes of an array; texts count as if each were in it alone."""
    nbytes = int(array.nbytes)
    if getattr(array.dtype, "kind", "") == "O":
        nbytes += sum(sys.getsizeof(text) for text in array.reshape(-1).tolist())
    return nbytes
