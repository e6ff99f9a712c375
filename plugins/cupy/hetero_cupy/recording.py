"""Recorded runs: what a run sent to the card is kept as one CUDA graph for each signature of its inputs, and launched again.

Only runs that have an arena are recorded: what a graph reads and writes has to lie where it lay, and a copy from or to the host could
not be known again. Inputs are copied into arrays of the recording; outputs lie in the arena until the next run of the request.
"""

from __future__ import annotations

from typing import Any

from hetero_core.records import record
from hetero_cupy.arena import Arena
from hetero_cupy.request_memory import RequestMemory, Signature, Work, sign_inputs
from hetero_cupy.runtime import Card, Replay

_MOST_SIGNATURES = 8
"""Recordings of one request. Each holds copies of its inputs."""


@record(frozen=True, slots=True)
class _Recording:
    # Keeps the memory that the graph works in, also after the request got a larger block.
    arena: Arena
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    replay: Replay


class Recordings:
    """The recorded runs of one request."""

    def __init__(self, card: Card, memory: RequestMemory) -> None:
        self._card = card
        self._memory = memory
        self._kept: dict[Signature, _Recording | None] = {}

    def run(self, run: Work, inputs: tuple[Any, ...], stream: Any) -> tuple[Any, ...]:
        """Returns the outputs: of a recording where there is one; else of a plain run, after which it is recorded if it may be."""
        signature = sign_inputs(self._card, inputs)
        if signature is None:
            return run(inputs)
        recording = self._kept.get(signature)
        if recording is not None:
            return _replay(recording, inputs)
        if signature in self._kept or len(self._kept) == _MOST_SIGNATURES:
            return self._memory.run(run, inputs, signature)
        own = tuple(value.copy() for value in inputs)
        outputs = self._memory.run(run, own, signature)
        recording = self._kept[signature] = self._record(run, own, signature, stream)
        return outputs if recording is None else _replay(recording, own)

    @property
    def count(self) -> int:
        """Number of recorded signatures."""
        return sum(recording is not None for recording in self._kept.values())

    def _record(self, run: Work, own: tuple[Any, ...], signature: Signature, stream: Any) -> _Recording | None:
        """Returns the recording; None for a run without an arena, or one that did not keep to it."""
        arena = self._memory.open(signature)
        if arena is None:
            return None
        outputs: tuple[Any, ...] = ()

        def work() -> None:
            nonlocal outputs
            outputs = self._memory.run_in(arena, run, own)

        # Once before: what is compiled or set up on first use cannot be recorded.
        work()
        if arena.misses:
            return None
        replay = self._card.record(stream, work)
        return None if arena.misses else _Recording(arena, own, outputs, replay)


def _replay(recording: _Recording, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    for target, value in zip(recording.inputs, inputs, strict=True):
        if target is not value:
            target[...] = value
    recording.replay.launch()
    return recording.outputs
