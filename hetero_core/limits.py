"""The limits of reading a model and of a run: bytes, nodes and seconds.

`ReadLimits` hold for every model that is read, unless the caller replaces them: a kilobyte of functions can stand for 10^9 nodes.
For a run with MEMORY_LIMIT or DEADLINE the core makes a `RunLimits` and passes it on as `context.limits`. Without these keys
`context.limits` is None; the kernels toolkit and CPU then count from the first large value on, and the limit is the memory that the
machine has to spare. A device reports each node that it begins (`enter`), asks for room before it makes a result of known size
(`require`), and counts each result that it made (`hold`). Imports no array library.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from time import thread_time
from typing import Any

from hetero_core.errors import MemoryLimitError, ReadLimitError

FOLDED_FLOOR, FOLDED_TIMES = 1 << 27, 16
"""Bytes of folded constants for each load: 128 MiB, and sixteen times the size of the model's constants.

Weights of 4 bits that are dequantized, reshaped and transposed take twelve times their own size.
"""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits of reading a model; `Core(read_limits=ReadLimits(nodes=10**6))` allows more.

    `nodes`: the number of nodes to which calls of model functions may be expanded; nodes that stand in the file are not counted.
    `memory`: the bytes that the names, attributes and types of expanded or inferred nodes may take beyond the file, including sparse
    constants in dense form. `depth`: how many calls and bodies may be nested. `seconds`: processor time for each MiB of the model without
    its large weights.
    """

    nodes: int = 100_000
    memory: int = 1 << 27
    depth: int = 64
    seconds: float = 15.0


class ReadBudget:
    """The part of its `ReadLimits` that the reading of a model has used so far. It belongs to the thread that reads."""

    __slots__ = ("_began", "_measure", "_memory", "_nodes", "_seconds", "_title", "_until_clock", "limits")

    def __init__(self, limits: ReadLimits, title: str, measure: Callable[[], int]) -> None:
        """`title` begins the message of an error: "'model.onnx'"; `measure` returns the bytes of the model without its large weights.

        It is called when the time for the first megabyte is over: a ModelProto of 68 MB takes 90 ms to tell its size.
        """
        self.limits = limits
        self._title, self._measure = title, measure
        self._nodes = self._memory = self._until_clock = 0
        self._seconds = limits.seconds
        self._began = thread_time()

    def take_nodes(self, count: int, owner: str) -> None:
        """Counts the nodes to which a call is expanded. Raises: ReadLimitError."""
        self._nodes += count
        if self._nodes > self.limits.nodes:
            raise self._refuse(f"{owner} expands it to {self._nodes} nodes or more", "nodes", self.limits.nodes)

    def take_memory(self, nbytes: int, owner: str) -> None:
        """Counts bytes that stay in use. Raises: ReadLimitError."""
        self._memory += nbytes
        self.require_memory(0, owner)

    def require_memory(self, nbytes: int, owner: str) -> None:
        """Checks that there is room for bytes that are freed again soon. Raises: ReadLimitError."""
        needed = self._memory + nbytes
        if needed > self.limits.memory:
            raise self._refuse(f"{owner} may take {needed} bytes beside the file", "memory", self.limits.memory)

    def check_depth(self, depth: int, owner: str) -> None:
        """Raises ReadLimitError if calls and bodies are nested too deep."""
        if depth > self.limits.depth:
            raise self._refuse(f"{owner} stands within {depth} calls and bodies", "depth", self.limits.depth)

    def check_time(self, owner: str, *, steps: int = 1) -> None:
        """Raises ReadLimitError if the time is over; the clock is read once in 64 steps."""
        self._until_clock -= steps
        if self._until_clock > 0:
            return
        self._until_clock = 64
        seconds = thread_time() - self._began
        if seconds > self._seconds:
            self._seconds = self.limits.seconds * max(ceil(self._measure() / 2**20), 1)
        if seconds > self._seconds:
            raise self._refuse(f"{owner} was reached after {seconds:.0f} s of the processor", "seconds", self.limits.seconds)

    def _refuse(self, what: str, name: str, limit: float) -> ReadLimitError:
        short = what if len(what) <= 300 else f"{what[:100]} ... {what[-200:]}"
        return ReadLimitError(
            f"cannot read network from {self._title}: {short}; ReadLimits.{name} is {limit}. Where you trust the model, read it with "
            f"Core(read_limits=ReadLimits({name}=...)) and a higher one"
        )


class RunLimits:
    """The limits of a run, shared by the parts of a split network. Safe for threads.

    A value counts from its creation until its last reference is gone. Memory counts once, however many views of it there are. `node` is
    the last node that began.
    """

    __slots__ = ("_freed", "_held", "_lock", "_roots", "_where", "is_of_machine", "memory_limit", "node")

    def __init__(self, where: str, *, memory_limit: int | None = None, is_of_machine: bool = False) -> None:
        """`where` begins the message of an error: "network 'g' on CPU"; `memory_limit` in bytes, None for no limit. `is_of_machine`:
        the limit is the free memory of the machine, and not MEMORY_LIMIT.
        """
        self._where, self.is_of_machine = where, is_of_machine
        self.memory_limit = memory_limit
        self.node = ""
        self._held = 0
        self._lock = threading.Lock()
        # By id, the bytes of the arrays that own memory, and a weak reference to each.
        self._roots: dict[int, tuple[int, Any]] = {}
        # A value may be freed in any thread at any time, also while the lock is held: its end is only recorded here.
        self._freed: deque[int] = deque()

    @property
    def held(self) -> int:
        """The bytes of the values that the run made and that are still alive."""
        with self._lock:
            self._forget_freed()
            return self._held

    def enter(self, node: str) -> None:
        """Records that a node begins, by its label: "'conv1' (Conv-22)"."""
        self.node = node

    def exempt(self, values: Iterable[Any]) -> None:
        """Excludes values from the count: inputs, constants and views of them, since the run does not own their memory."""
        if self.memory_limit is not None:
            self._add(values, lambda _: 0)

    def require(self, nbytes: int) -> None:
        """Asks for room before the current node makes a result of this size.

        Raises: MemoryLimitError if this size and the bytes that are held exceed the limit.
        """
        if self.memory_limit is not None and nbytes + self.held > self.memory_limit:
            self._refuse(nbytes, self.held)

    def hold(self, values: Iterable[Any]) -> None:
        """Counts the results of the current node. Raises: MemoryLimitError if the limit is exceeded."""
        if self.memory_limit is None:
            return
        added, held = self._add(values, _measure)
        if held > self.memory_limit:
            self._refuse(added, held - added)

    def _add(self, values: Iterable[Any], measure: Callable[[Any], int]) -> tuple[int, int]:
        """Notes the memory of values that is not noted yet; returns the bytes of these, and of all."""
        added = 0
        with self._lock:
            self._forget_freed()
            for value in values:
                for root in _find_roots(value):
                    if id(root) not in self._roots:
                        added += self._note(root, measure(root))
            return added, self._held

    def _note(self, root: Any, nbytes: int) -> int:
        """Counts the memory of `root`; returns its bytes. An object without weak references is only compared with the limit now."""
        key, freed = id(root), self._freed
        try:
            self._roots[key] = nbytes, weakref.ref(root, lambda _: freed.append(key))
        except TypeError:
            if self.memory_limit is not None and nbytes > self.memory_limit:
                self._refuse(nbytes, self._held)
            return 0
        self._held += nbytes
        return nbytes

    def _forget_freed(self) -> None:
        """Subtracts freed memory. An id is reused only after its object is freed, and so after its end was recorded."""
        while self._freed:
            self._held -= self._roots.pop(self._freed.popleft(), (0,))[0]

    def _refuse(self, nbytes: int, held: int) -> None:
        node = f"node {self.node}" if self.node else "its outputs"
        source = "not set, and this machine has {} bytes to spare" if self.is_of_machine else "{}"
        raise MemoryLimitError(
            f"{self._where}: {node} {'needs' if self.node else 'need'} {nbytes} bytes, beside {held} that are held; "
            f"MEMORY_LIMIT is {source.format(self.memory_limit)}. Raise the limit, or give smaller inputs"
        )


def _find_roots(value: Any) -> list[Any]:
    """Returns the arrays that own the memory of a value; empty if no array owns it, as for a mapped file.

    Another owner that knows its bytes, such as a buffer of an arena, counts as an array.
    """
    if isinstance(value, list):
        return [root for element in value for root in _find_roots(element)]
    if not hasattr(value, "nbytes"):
        return []
    while True:
        base = getattr(value, "base", None)
        if base is None:
            flags = getattr(value, "flags", None)
            return [value] if flags is None or getattr(flags, "owndata", True) else []
        if type(base).__name__ == "PyCapsule":
            # Memory of an engine, as ONNX Runtime's outputs have: it lives as long as this array.
            return [value]
        if not hasattr(base, "nbytes"):
            return []
        value = base


def _measure(array: Any) -> int:
    """Returns the bytes of an array; a text counts in full each time it occurs."""
    nbytes = int(array.nbytes)
    if getattr(getattr(array, "dtype", None), "kind", "") == "O":
        nbytes += sum(sys.getsizeof(text) for text in array.reshape(-1).tolist())
    return nbytes
