"""Simulated cards: the plugin's runtime interface in NumPy, for tests and machines without a card. Shows the place of values, not speed.

The plugin's own code runs here; only the implementation of `CupyCard` is replaced.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from hetero_cupy.cupy_runtime import CardFacts

from hetero_tests.fake_array import FakeArray, FakeNamespace, Home, HostAccessError


class FakeOutOfMemoryError(MemoryError):
    """An allocation exceeds the memory of the card."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"out of memory allocating {nbytes} bytes")
        self.nbytes = nbytes


class FakeCard:
    """A card with its own memory of `memory_bytes`; the default is unlimited."""

    def __init__(self, index: int, *, memory_bytes: int | None = None, capability: str = "0.0") -> None:
        self.memory = f"ext:{index}"
        self.facts = CardFacts(f"card of make-believe {index}", capability, memory_bytes or 0, f"{index:032x}")
        self.used_bytes = 0
        self.copies: list[tuple[str, int]] = []
        self._limit = memory_bytes
        self._lock = threading.RLock()
        self._roots: set[int] = set()
        self.allocations = 0
        """The number of allocations so far."""
        self._home = Home(self.memory, self._allocate)
        self.xp = FakeNamespace(self._home)

    def _allocate(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Places a new array in the card's memory, and returns it; a view of an array in that memory is returned unchanged."""
        root = _find_root(array)
        with self._lock:
            if id(root) in self._roots or not array.nbytes:
                return array
        if root is not array:
            array = np.array(array)
        with self._lock:
            if self._limit is not None and self.used_bytes + array.nbytes > self._limit:
                raise FakeOutOfMemoryError(array.nbytes)
            self.used_bytes += array.nbytes
            self.allocations += 1
        self._keep(array, array.nbytes)
        return array

    def _keep(self, root: Any, nbytes: int) -> None:
        """Tracks an allocation until its array is freed."""
        with self._lock:
            self._roots.add(id(root))
        weakref.finalize(root, self._free, id(root), nbytes)

    def _free(self, root: int, nbytes: int) -> None:
        with self._lock:
            self._roots.discard(root)
            self.used_bytes -= nbytes

    def to_host(self, array: FakeArray) -> np.ndarray[Any, Any]:
        """Returns a copy."""
        if not isinstance(array, FakeArray):
            raise HostAccessError(f"{type(array).__name__} is not in {self.memory}")
        self.copies.append(("to_host", array.nbytes))
        copied: np.ndarray[Any, Any] = np.array(self._home.unwrap(array))
        return copied

    def from_host(self, array: np.ndarray[Any, Any]) -> FakeArray:
        """Returns a copy."""
        if not isinstance(array, np.ndarray):
            raise HostAccessError(f"{type(array).__name__} is no host array")
        self.copies.append(("from_host", array.nbytes))
        return FakeArray(self._home, np.array(array))

    def fill(self, target: FakeArray, array: np.ndarray[Any, Any]) -> None:
        """Copies a host array into `target`."""
        self.copies.append(("from_host", array.nbytes))
        self._home.unwrap(target)[...] = array

    def owns(self, value: Any) -> bool:
        """Says whether a value is in this card's memory."""
        return isinstance(value, FakeArray) and value.home is self._home

    def find_nonzero(self, flags: FakeArray) -> FakeArray:
        """Returns the indices of the true elements."""
        return FakeArray(self._home, np.flatnonzero(self._home.unwrap(flags)).astype(np.int64))

    def create_stream(self) -> object:
        """Returns a placeholder for a stream."""
        return object()

    @contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        """Does nothing, because every operation is synchronous."""
        yield

    def read_memory(self) -> tuple[int, int]:
        """Returns the free and the total bytes; a large number without a limit."""
        total = (1 << 40) if self._limit is None else self._limit
        return total - self.used_bytes, total

    def read_utilisation(self) -> int | None:
        """Returns None: a simulated card has no utilisation."""
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Says whether an error is FakeOutOfMemoryError."""
        return isinstance(error, FakeOutOfMemoryError)

    def wanted_bytes(self, error: BaseException) -> int | None:
        """Returns the requested bytes of the error."""
        return error.nbytes if isinstance(error, FakeOutOfMemoryError) else None

    def free_unused(self) -> None:
        """Does nothing, because the card has no memory pool."""


class FakeRuntime:
    """A GPU library with simulated cards."""

    def __init__(self, cards: int = 1, *, memory_bytes: int | None = None, version: str = "0", capability: str = "0.0") -> None:
        self.version = version
        self.name = f"make-believe {version}"
        self._cards = tuple(FakeCard(index, memory_bytes=memory_bytes, capability=capability) for index in range(cards))

    def cards(self) -> tuple[FakeCard, ...]:
        """Returns the cards, the same objects in each call."""
        return self._cards


def _find_root(array: np.ndarray[Any, Any]) -> Any:
    """Returns the object that owns the memory of an array."""
    root: Any = array
    while isinstance(root, np.ndarray) and root.base is not None:
        root = root.base
    return root
