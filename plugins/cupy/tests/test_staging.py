"""Copies by way of page-locked memory, on streams of make-believe that do everything as late as they may: whoever forgets to wait for
something reads what was there before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hetero_cupy.staging import Copies, CopyLane

PIECE = 64


class LateStream:
    """A queue of work that is done when somebody waits for it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.done = 0

    def catch_up(self, count: int) -> None:
        while self.done < count:
            self.done += 1
            self.work[self.done - 1]()


class LateEngine:
    """Card memory is a piece of host memory; a copy happens when an event behind it is waited for, and not before.

    With `draw` some streams run on at random moments, as those of a card do. `forgets` is what the engine leaves out.
    """

    def __init__(self, *, seed: int | None = None, forgets: str = "") -> None:
        self._draw = None if seed is None else np.random.default_rng(seed)
        self._forgets = forgets
        self._streams: list[LateStream] = []
        self._lock = threading.RLock()
        self.most_in_flight = 0

    def allocate(self, nbytes: int) -> tuple[Any, np.ndarray[Any, Any], int]:
        content = np.full(nbytes, 0xEE, np.uint8)
        return content, content, content.ctypes.data

    def create_stream(self) -> LateStream:
        self._streams.append(LateStream())
        return self._streams[-1]

    def send(self, stream: LateStream, work: Callable[[], None]) -> None:
        with self._lock:
            stream.work.append(work)
            self.most_in_flight = max(self.most_in_flight, sum(bool(one.done < len(one.work)) for one in self._streams))
            if self._draw is not None and self._draw.random() < 0.3:
                late = self._streams[int(self._draw.integers(len(self._streams)))]
                late.catch_up(int(self._draw.integers(late.done, len(late.work) + 1)))

    def write(self, target: int, source: int, nbytes: int, stream: LateStream) -> None:
        self.send(stream, lambda: copy_bytes(target, source, nbytes))

    read = write

    def record(self, stream: LateStream) -> tuple[LateStream, int]:
        return stream, len(stream.work)

    def wait(self, stream: LateStream, event: tuple[LateStream, int]) -> None:
        if self._forgets != "wait":
            self.send(stream, lambda: event[0].catch_up(event[1]))

    def synchronize(self, event: tuple[LateStream, int]) -> None:
        if self._forgets != "synchronize":
            with self._lock:
                event[0].catch_up(event[1])


def copy_bytes(target: int, source: int, nbytes: int) -> None:
    read_bytes(target, nbytes)[...] = read_bytes(source, nbytes)


def read_bytes(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    import ctypes

    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8)


def serve(engine: LateEngine, copies: Copies, stream: LateStream, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns 3 * x as a request makes it: x written, doubled and added on the request's stream, the result read."""
    given, card_x, card_y = x.copy(), np.full_like(x, 77), np.full_like(x, 99)
    current = engine.create_stream()
    # The memory for x is still in use by what came before on the thread's stream.
    engine.send(current, lambda: card_x.fill(55))
    copies.write(given, card_x.ctypes.data, current=current)
    given.fill(11)
    copies.join(stream)
    engine.send(stream, lambda: np.add(card_x, card_x, out=card_y))
    engine.send(stream, lambda: np.add(card_y, card_x, out=card_y))
    result = np.full_like(x, 33)
    copies.read(card_y.ctypes.data, result, current=stream)
    return result


@pytest.mark.parametrize("seed", [None, *range(20)])
@pytest.mark.parametrize("count", [1, PIECE // 4, PIECE // 4 + 1, PIECE // 2, 5 * PIECE + 3])
def test_what_comes_back_is_what_the_request_made(seed: int | None, count: int) -> None:
    engine = LateEngine(seed=seed)
    copies = Copies(engine, piece_bytes=PIECE)
    streams = [engine.create_stream() for _ in range(2)]
    for turn in range(6):
        x = np.random.default_rng(turn).normal(size=count).astype(np.float32)
        np.testing.assert_array_equal(serve(engine, copies, streams[turn % 2], x), (x + x) + x)


@pytest.mark.parametrize("forgets", ["wait", "synchronize"])
def test_engine_that_forgets_is_found(forgets: str) -> None:
    engine = LateEngine(forgets=forgets)
    copies = Copies(engine, piece_bytes=PIECE)
    x = np.arange(5 * PIECE, dtype=np.float32)
    assert not np.array_equal(serve(engine, copies, engine.create_stream(), x), 3 * x)


def test_input_that_no_run_has_read_comes_back_as_it_was_written() -> None:
    engine = LateEngine()
    copies = Copies(engine, piece_bytes=PIECE)
    x, card, result = np.arange(100, dtype=np.int64), np.zeros(100, np.int64), np.zeros(100, np.int64)
    current = engine.create_stream()
    copies.write(x, card.ctypes.data, current=current)
    copies.read(card.ctypes.data, result, current=current)
    np.testing.assert_array_equal(result, x)


def test_inputs_of_one_request_are_under_way_while_another_computes() -> None:
    engine = LateEngine()
    copies = Copies(engine, piece_bytes=1 << 12)
    streams = [engine.create_stream() for _ in range(2)]
    arrays = [np.full(64, value, np.float32) for value in (1, 2)]
    cards = [np.zeros(64, np.float32) for _ in range(2)]
    for stream, x, card in zip(streams, arrays, cards, strict=True):
        copies.write(x, card.ctypes.data, current=engine.create_stream())
        copies.join(stream)
        engine.send(stream, lambda card=card: np.negative(card, out=card))  # type: ignore[misc]  # bound now
    # Nothing has been waited for: both requests are in their streams, and the copies in a third.
    assert [card.tolist() for card in cards] == [[0.0] * 64] * 2
    assert engine.most_in_flight == 3
    for stream, x, card in zip(streams, arrays, cards, strict=True):
        result = np.zeros(64, np.float32)
        copies.read(card.ctypes.data, result, current=stream)
        np.testing.assert_array_equal(result, -x)


def test_large_array_fills_one_piece_while_the_other_is_under_way() -> None:
    class CountingEngine(LateEngine):
        waited = 0

        def synchronize(self, event: tuple[LateStream, int]) -> None:
            self.waited += event[0].done < event[1]
            super().synchronize(event)

    engine = CountingEngine()
    lane = CopyLane(engine, piece_bytes=PIECE)
    x, card = np.arange(10 * PIECE, dtype=np.uint8), np.zeros(10 * PIECE, np.uint8)
    event = lane.write(x, card.ctypes.data, after=engine.record(engine.create_stream()))
    # The first two pieces were free; each later one waits for the one two before it, never for the last.
    assert engine.waited == 8
    engine.synchronize(event)
    np.testing.assert_array_equal(card, x)


def test_threads_do_not_mix_their_arrays() -> None:
    engine = LateEngine(seed=1)
    copies = Copies(engine, piece_bytes=PIECE)
    wrong: list[int] = []

    def work(number: int) -> None:
        stream = engine.create_stream()
        for turn in range(20):
            x = np.random.default_rng((number, turn)).normal(size=90).astype(np.float32)
            if not np.array_equal(serve(engine, copies, stream, x), (x + x) + x):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
