"""The interface that the device needs from a GPU library. CuPy implements it, and cards of make-believe for tests.

All further code of the plugin knows cards through these protocols only, so that the same code runs on both. Imports no array library.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

Array = Any
"""An array in a card's memory."""
HostArray = Any
"""A NumPy array."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Facts about a card, known before the first run. `capability` is the compute capability, as "9.0"; `memory_bytes` all it has;
    `uuid` its driver's identifier, 32 hexadecimal digits, "" if unknown."""

    full_name: str
    capability: str
    memory_bytes: int
    uuid: str = ""


class Card(Protocol):
    """One card. Safe for threads; `create_stream` makes the state of a single request."""

    facts: CardFacts
    memory: str
    """The name of its memory in a ValueSpec: cards with the same name share arrays."""
    xp: Any
    """The array namespace. It never reads from the card or writes to it by itself."""

    def to_host(self, array: Array) -> HostArray:
        """Returns a copy in host memory; the array is complete by then."""

    def from_host(self, array: HostArray) -> Array:
        """Returns a copy on the card, complete for every later `use` and `to_host`; the host's array may be changed at once."""

    def fill(self, target: Array, array: HostArray) -> None:
        """Copies an array into an array of its size on the card; as complete as `from_host`."""

    def owns(self, value: Any) -> bool:
        """Says whether a value is an array in this card's memory."""

    def find_nonzero(self, flags: Array) -> Array:
        """Returns the positions of true elements in a vector, int64; reads their number, 8 bytes."""

    def create_stream(self) -> Any:
        """Returns a queue of work for a request."""

    def use(self, stream: Any) -> AbstractContextManager[None]:
        """Sends the calls of this thread to a stream of the card, and waits for them at the end of the block."""

    def read_memory(self) -> tuple[int, int]:
        """Returns the free bytes and all bytes; unused memory in the library's pool counts as free."""

    def read_utilisation(self) -> int | None:
        """Returns the per cent of time that the card was busy; None if unknown."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Says whether an error is the library's for a card without room."""

    def wanted_bytes(self, error: BaseException) -> int | None:
        """Returns the number of bytes of the failed allocation, None if the error does not say."""

    def free_unused(self) -> None:
        """Frees the unused memory of the library's pool."""


class Runtime(Protocol):
    """A library for cards."""

    name: str
    """With its version, as "CuPy 14.2.0"."""
    version: str

    def cards(self) -> Sequence[Card]:
        """Returns the cards, by number; always the same objects."""
