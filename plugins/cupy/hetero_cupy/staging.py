"""Copies between host and card by way of page-locked memory: a lane for each way, with a stream and two pieces of memory of its own.

While one piece is on its way the host fills or empties the other; while a request computes on its stream another one's inputs and a
third one's outputs are under way. Whatever has to come first is said by an event: a copy waits for who used the memory before, the host
for a piece before it uses it again, a stream for the inputs that it reads. Knows cards through `CopyEngine` alone.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

PIECE_BYTES = 4 << 20
"""Bytes of one piece of page-locked memory; larger arrays go in several turns."""


class CopyEngine(Protocol):
    """The functions of a card's library that copies need."""

    def allocate(self, nbytes: int) -> tuple[Any, np.ndarray[Any, Any], int]:
        """Returns page-locked memory: what keeps it, its bytes as an array, and its address."""

    def create_stream(self) -> Any:
        """Returns a stream that waits for no other."""

    def write(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Sends a copy to the card to a stream."""

    def read(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Sends a copy from the card to a stream."""

    def record(self, stream: Any) -> Any:
        """Returns an event: what was sent to a stream so far is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """Makes a stream wait for an event."""

    def synchronize(self, event: Any) -> None:
        """Makes the host wait for an event."""


@dataclass(slots=True)
class _Piece:
    """Page-locked memory, and the event after which nobody uses it."""

    keeper: Any
    content: np.ndarray[Any, Any]
    address: int
    free: Any = None


class CopyLane:
    """One way between host and card. Safe for threads; copies of one lane follow each other."""

    def __init__(self, engine: CopyEngine, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._engine = engine
        self._piece_bytes = piece_bytes
        self._stream = engine.create_stream()
        self._pieces: list[_Piece] = []
        # The piece that was filled longest ago is the next one, also for the next array.
        self._turn = 0
        self._lock = threading.Lock()

    def _list_pieces(self) -> list[_Piece]:
        if not self._pieces:
            self._pieces = [_Piece(*self._engine.allocate(self._piece_bytes)) for _ in range(2)]
        return self._pieces

    def write(self, array: np.ndarray[Any, Any], target: int, *, after: Any) -> Any:
        """Returns the event after which an array is on the card at an address; the array may be changed at once.

        array: C-contiguous. `after`: an event after which the memory there is free.
        """
        content = array.reshape(-1).view(np.uint8)
        with self._lock:
            pieces = self._list_pieces()
            self._engine.wait(self._stream, after)
            for begin in range(0, content.size, self._piece_bytes):
                piece, part = pieces[self._turn % 2], content[begin : begin + self._piece_bytes]
                self._turn += 1
                if piece.free is not None:
                    self._engine.synchronize(piece.free)
                np.copyto(piece.content[: part.size], part)
                self._engine.write(target + begin, piece.address, part.size, self._stream)
                piece.free = self._engine.record(self._stream)
            return self._engine.record(self._stream)

    def read(self, source: int, array: np.ndarray[Any, Any], *, after: tuple[Any, ...]) -> None:
        """Fills an array from an address on the card, and waits for it. `after`: events after which the array there is complete."""
        content = array.reshape(-1).view(np.uint8)
        begins = range(0, content.size, self._piece_bytes)
        with self._lock:
            pieces = self._list_pieces()
            for event in after:
                self._engine.wait(self._stream, event)
            for turn in range(len(begins) + 1):
                if turn < len(begins):
                    piece = pieces[turn % 2]
                    nbytes = min(self._piece_bytes, content.size - begins[turn])
                    # The host emptied this piece a turn ago.
                    self._engine.read(piece.address, source + begins[turn], nbytes, self._stream)
                    piece.free = self._engine.record(self._stream)
                if turn:
                    piece, part = pieces[(turn - 1) % 2], content[begins[turn - 1] : begins[turn - 1] + self._piece_bytes]
                    self._engine.synchronize(piece.free)
                    np.copyto(part, piece.content[: part.size])


class Copies:
    """Both lanes of a card, and the last event of its inputs."""

    def __init__(self, engine: CopyEngine, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._engine = engine
        self._in = CopyLane(engine, piece_bytes=piece_bytes)
        self._out = CopyLane(engine, piece_bytes=piece_bytes)
        self._written: Any = None

    def write(self, array: np.ndarray[Any, Any], target: int, *, current: Any) -> None:
        """Sends an array to an address that was free on the stream `current`; whoever reads it calls `join` first."""
        self._written = self._in.write(array, target, after=self._engine.record(current))

    def read(self, source: int, array: np.ndarray[Any, Any], *, current: Any) -> None:
        """Fills an array with what the stream `current` made, or an input is; complete when this returns."""
        written = self._written
        events = (self._engine.record(current), *(() if written is None else (written,)))
        self._out.read(source, array, after=events)

    def join(self, stream: Any) -> None:
        """Makes a stream wait for every array that was sent so far."""
        # Inputs of one card arrive in order, so that the last one stands for all; one of another request only makes this wait longer.
        if self._written is not None:
            self._engine.wait(stream, self._written)
