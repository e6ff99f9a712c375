"""The memory of requests: plans that all requests of a network share, and the block of each request that they are laid out in.

A run is planned by what it did when it was first seen, or at load on zeros, where the shapes are known. Only runs that read nothing on
the way, and whose inputs all lie on the card, are planned: nothing that is computed can steer them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hetero_cupy.arena import Arena, ArenaPlan, Tracer
from hetero_cupy.runtime import Card
from hetero_cupy.traffic import CopyCounts

Work = Callable[[tuple[Any, ...]], tuple[Any, ...]]
Signature = tuple[tuple[tuple[int, ...], str], ...]


def sign_inputs(card: Card, inputs: tuple[Any, ...]) -> Signature | None:
    """Returns shapes and types; None where an input is not one array on the card, so that its value may steer the run."""
    if not all(card.owns(value) for value in inputs):
        return None
    return tuple((tuple(value.shape), str(value.dtype)) for value in inputs)


def read_plans(rows: list[Any]) -> dict[Signature, ArenaPlan]:
    """Returns the plans that a book dumped. Raises: ValueError, TypeError where they are none."""
    return {
        tuple((tuple(shape), dtype) for shape, dtype in signature): ArenaPlan(tuple(sizes), tuple(offsets), tuple(replaces), nbytes)
        for signature, sizes, offsets, replaces, nbytes in rows
    }


class PlanBook:
    """The plans of a network by signature, None for a run that cannot be planned. Two threads may find the same; either is right."""

    def __init__(self, card: Card, traffic: CopyCounts, known: Mapping[Signature, ArenaPlan]) -> None:
        self._card = card
        self._traffic = traffic
        self._plans: dict[Signature, ArenaPlan | None] = {**known}
        self.misses = 0

    def find(self, signature: Signature) -> ArenaPlan | None:
        """Returns the plan, None where there is none yet or none can be."""
        return self._plans.get(signature)

    def knows(self, signature: Signature) -> bool:
        """Says whether a run was watched."""
        return signature in self._plans

    def watch(self, run: Work, inputs: tuple[Any, ...], signature: Signature) -> tuple[Any, ...]:
        """Returns what a run returns, and plans the next ones."""
        before, tracer = self._traffic.snapshot(), Tracer()
        with self._card.place_arrays(tracer, None):
            outputs = run(inputs)
        is_still = self._traffic.snapshot() == before and all(self._card.owns(output) for output in outputs)
        self._plans[signature] = tracer.finish() if is_still else None
        return outputs

    def dump(self) -> list[Any]:
        """Returns the plans as JSON has them: signature, sizes, offsets, what is computed in whose place, bytes."""
        return [
            [signature, plan.sizes, plan.offsets, plan.replaces, plan.nbytes]
            for signature, plan in list(self._plans.items())
            if plan is not None
        ]

    @property
    def largest_bytes(self) -> int:
        """The bytes of the largest plan so far."""
        return max((plan.nbytes for plan in list(self._plans.values()) if plan is not None), default=0)

    @property
    def in_place(self) -> int:
        """Number of arrays of the largest plan that are computed in the place of another."""
        return max((plan.in_place for plan in list(self._plans.values()) if plan is not None), default=0)


class RequestMemory:
    """One block for a request, as large as its largest plan so far; the arrays of all its signatures lie in it, one run at a time."""

    def __init__(self, card: Card, book: PlanBook) -> None:
        self._card = card
        self.book = book
        self._block: Any = None
        self._arenas: dict[Signature, Arena] = {}

    def reserve(self, nbytes: int) -> None:
        """Makes the block at least as large. Raises: what the library raises where the card has no room."""
        if self._block is None or self._block.nbytes < nbytes:
            # Arrays and graphs that still use the old block keep it.
            self._block, self._arenas = None, {}
            self._block = self._card.xp.empty(max(nbytes, 1), dtype="uint8")

    def open(self, signature: Signature) -> Arena | None:
        """Returns the arena of a signature that has a plan."""
        plan = self.book.find(signature)
        if plan is None:
            return None
        arena = self._arenas.get(signature)
        if arena is None or arena.plan is not plan:
            self.reserve(plan.nbytes)
            arena = self._arenas[signature] = Arena(plan, self._block)
        return arena

    def run(self, run: Work, inputs: tuple[Any, ...], signature: Signature) -> tuple[Any, ...]:
        """Returns the outputs, which lie in the arena until the next run of the request; those of a run that was watched do not."""
        if not self.book.knows(signature):
            return self.book.watch(run, inputs, signature)
        arena = self.open(signature)
        return run(inputs) if arena is None else self.run_in(arena, run, inputs)

    def run_in(self, arena: Arena, run: Work, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the outputs of a run in an arena; an input that lies there, as an output of the last run, is copied out first."""
        free = tuple(value.copy() if self._lies_in_block(value) else value for value in inputs)
        arena.begin()
        missed = arena.misses
        with self._card.place_arrays(arena, arena.block):
            outputs = run(free)
        self.book.misses += arena.misses - missed
        return outputs

    def _lies_in_block(self, value: Any) -> bool:
        if self._block is None:
            return False
        begin = self._card.address_of(self._block)
        return begin <= self._card.address_of(value) < begin + int(self._block.nbytes)
