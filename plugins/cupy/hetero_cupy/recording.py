"""Recorded runs: what a run sent to the card is kept as one CUDA graph for each signature of its inputs, and launched again.

A run is recorded only after one that crossed to the host nowhere: what a copy reads from or writes to on the host could not be known
again. The arrays of a recording are its own: inputs are copied into them, outputs lie in them until the next run of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetero_cupy.runtime import Card, Replay
from hetero_cupy.traffic import Traffic

Run = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Signature = tuple[tuple[tuple[int, ...], str], ...]
_MOST_SIGNATURES = 8
"""Recordings of one request. Each holds the memory of a whole run."""


@dataclass(frozen=True, slots=True)
class _Recording:
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    replay: Replay


class Recordings:
    """The recorded runs of one request."""

    def __init__(self, card: Card, traffic: Traffic) -> None:
        self._card = card
        self._traffic = traffic
        self._kept: dict[Signature, _Recording | None] = {}

    def run(self, run: Run, inputs: tuple[Any, ...], stream: Any) -> tuple[Any, ...]:
        """Returns the outputs: of a recording where there is one; else of a plain run, after which it is recorded if it may be."""
        signature = self._sign(inputs)
        if signature is None:
            return run(inputs)
        if signature in self._kept:
            recording = self._kept[signature]
            return run(inputs) if recording is None else self._replay(recording, inputs)
        before = self._traffic.snapshot()
        outputs = run(inputs)
        is_still = self._traffic.snapshot() == before and all(self._card.owns(output) for output in outputs)
        if len(self._kept) < _MOST_SIGNATURES:
            self._kept[signature] = self._record(run, inputs, stream) if is_still else None
        return outputs

    @property
    def count(self) -> int:
        """How many signatures are recorded."""
        return sum(recording is not None for recording in self._kept.values())

    def _sign(self, inputs: tuple[Any, ...]) -> Signature | None:
        """Returns shapes and types; None where an input is not one array on the card, so that its value may steer the run."""
        if not all(self._card.owns(value) for value in inputs):
            return None
        return tuple((tuple(value.shape), str(value.dtype)) for value in inputs)

    def _record(self, run: Run, inputs: tuple[Any, ...], stream: Any) -> _Recording:
        own = tuple(value.copy() for value in inputs)
        first = run(own)
        made = tuple(output.copy() for output in first)

        def work() -> None:
            for target, output in zip(made, run(own), strict=True):
                target[...] = output

        return _Recording(own, made, self._card.record(stream, work))

    def _replay(self, recording: _Recording, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for target, value in zip(recording.inputs, inputs, strict=True):
            target[...] = value
        recording.replay.launch()
        return recording.outputs
