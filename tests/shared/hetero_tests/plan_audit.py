"""Runs the steps of a plan individually and observes which bytes they read and write, to check their stated accesses. For tests.

```text
R: the arena with everything but the stated reads poisoned ──> step, chunk by chunk ──> W: an arena of poison
```

Every changed byte of W was written. A result that depends on the poison proves an unstated read. A step that may overwrite its inputs
runs finally in the arena itself, with its chunks in both orders, and must give the same result. Cost: a few copies of the arena for
each chunk, so only small plans are practical.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from hetero_cpu.machine.memory import allocate_arena
from hetero_cpu.operators.recipe import Array, Recipe
from hetero_cpu.plan.plan import ExecutionPlan, Foreign, PlannedStep

from hetero_tests.plan_verifier import Access, PlanLayout, Runs, bind_halo, join_all, lay_arrays

# No written byte equals both poisons. As floats, they are a large number and NaN.
_POISONS = (0x55, 0xFF)


def audit_plan(plan: ExecutionPlan, inputs: Sequence[Array]) -> tuple[str, ...]:
    """Returns an error for each step with accesses that differ from its statement; empty for a correct plan.

    The plan is run with `inputs` in the order of the network.
    """
    audit = _Audit(plan)
    for value, array in zip(plan.inputs, inputs, strict=True):
        audit.take_in(value, array)
    # Infinities and NaN are silent, as in a normal run.
    with np.errstate(all="ignore"):
        return tuple(problem for step in plan.steps for problem in audit.audit_step(step))


@dataclass(frozen=True, slots=True)
class _Trace:
    """The result of a step on poison: the arena after it, and the bytes that each chunk of each call changed, in reverse chunk order."""

    memory: Array
    calls: tuple[tuple[Array, ...], ...]


class _Audit:
    """The state of a run: the arena before the next step, and values without a place."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan, self._layout = plan, PlanLayout(plan)
        self._memory = allocate_arena(plan.arena_bytes)
        self._memory[:] = 0
        self._arrays = lay_arrays(plan, self._memory)
        self._passed: dict[str, Any] = {}

    def take_in(self, value: str, array: Array) -> None:
        """Stores an input in its place."""
        if value in self._plan.places:
            self._arrays[value][...] = array
        else:
            self._passed[value] = array

    def audit_step(self, step: PlannedStep) -> Iterator[str]:
        """Runs a step and yields its unstated accesses."""
        if isinstance(step.work, Foreign):
            self._run_foreign(step, step.work)
            return
        work, access = step.work, self._layout.list_accesses(step)
        for value in step.clears:
            _run_call(bind_halo(self._plan, value, self._memory))
        traces = [self._trace(step, work, access, poison) for poison in _POISONS]
        stated = join_all(runs for _, runs in access.writes)
        written = [
            [np.logical_or(*pair) for pair in zip(*chunks, strict=True)]
            for chunks in zip(*(trace.calls for trace in traces), strict=True)
        ]
        result = _pick(traces[0].memory, stated)
        label = f"step {step.node.label}"
        if not np.array_equal(result, _pick(traces[1].memory, stated)):
            yield f"{label}: the result depends on bytes that it does not state to read, or is not written"
        yield from _compare_writes(label, written, stated, access.works)
        yield from self._audit_overwrites(label, step, work, access, result)

    def _trace(self, step: PlannedStep, work: Recipe, access: Access, poison: int) -> _Trace:
        source, target = (allocate_arena(self._plan.arena_bytes) for _ in range(2))
        source[:], target[:] = poison, poison
        stated_reads = join_all(runs for _, own, around in access.reads for runs in (own, around))
        _copy_bytes(source, self._memory, stated_reads)
        before = source.copy()
        bound = tuple(_join_functions(self._bind(step, work, source, target)))
        calls = tuple(tuple(_observe(call, target)) for call in bound)
        assert np.array_equal(before, source), f"step {step.node.label} writes where it reads"
        return _Trace(target, calls)

    def _bind(self, step: PlannedStep, work: Recipe, source: Array, target: Array) -> Sequence[Any]:
        read_arrays, written_arrays = lay_arrays(self._plan, source), lay_arrays(self._plan, target)
        scratch = target[step.scratch_offset : step.scratch_offset + work.scratch]
        return work.bind([read_arrays[value] for value in work.reads], [written_arrays[value] for value in step.writes], scratch)

    def _audit_overwrites(self, label: str, step: PlannedStep, work: Recipe, access: Access, result: Array) -> Iterator[str]:
        """Runs the step in the arena itself, with its chunks in reverse order and in order."""
        before = self._memory.copy()
        stated = join_all(runs for _, runs in access.writes)
        for is_reversed in (True, False):
            self._memory[:] = before
            for call in self._bind(step, work, self._memory, self._memory):
                _run_call(call, is_reversed=is_reversed)
            if not np.array_equal(result, _pick(self._memory, stated)):
                yield f"{label}: the result is another one where it takes the memory of what is read"

    def _run_foreign(self, step: PlannedStep, work: Foreign) -> None:
        known = {**self._arrays, **self._passed}
        results = work.program.run(tuple(known[value] for value in work.reads))
        for value, place, array in zip(step.writes, work.placed, results, strict=True):
            if place is None:
                self._passed[value] = array
            else:
                self._arrays[place][...] = array


def _compare_writes(label: str, written: Sequence[Sequence[Array]], stated: Runs, works: Runs) -> Iterator[str]:
    """Yields missing writes, unstated writes, and chunks that write the same bytes."""
    stated_mask, works_mask = (_spread(runs, written[0][0].size) for runs in (stated, works)) if written else (None, None)
    if stated_mask is None or works_mask is None:
        return
    everything = np.zeros_like(stated_mask)
    for number, chunks in enumerate(written):
        here = np.zeros_like(stated_mask)
        for mask in chunks:
            again = int((here & mask & ~works_mask).sum())
            if again:
                yield f"{label}: chunks of call {number} write the same {again} bytes"
            here |= mask
        everything |= here
    missing, more = int((stated_mask & ~everything).sum()), int((everything & ~stated_mask & ~works_mask).sum())
    if missing:
        yield f"{label}: {missing} bytes that it states to write are not written"
    if more:
        yield f"{label}: {more} bytes are written that it does not state"


def _join_functions(calls: Sequence[Any]) -> Iterator[Any]:
    """Yields the calls, with each run of consecutive functions joined into a function without chunks."""
    for are_functions, group in groupby(calls, callable):
        functions = list(group)
        if are_functions:
            yield lambda functions=functions: [function() for function in functions]
        else:
            yield from functions


def _observe(call: Any, memory: Array) -> Iterator[Array]:
    """Runs the chunks of a call in reverse order; yields a mask of the changed bytes for each chunk."""
    for run in _list_chunks(call, is_reversed=True):
        before = memory.copy()
        run()
        yield memory != before


def _run_call(call: Any, *, is_reversed: bool = False) -> None:
    for run in _list_chunks(call, is_reversed=is_reversed):
        run()


def _list_chunks(call: Any, *, is_reversed: bool) -> Iterable[Any]:
    if callable(call):
        return [call]
    from hetero_cpu.machine.compiler import COMPILER  # LLVM

    entry = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(COMPILER.compile(call.kernel))
    row = np.array(call.numbers, np.int64)
    chunks = reversed(range(call.chunks)) if is_reversed else range(call.chunks)
    return [lambda chunk=chunk: entry(row.ctypes.data, chunk, 0) for chunk in chunks]


def _pick(memory: Array, runs: Runs) -> Array:
    picked: Array = memory[_spread(runs, memory.size)]
    return picked


def _copy_bytes(target: Array, source: Array, runs: Runs) -> None:
    mask = _spread(runs, target.size)
    target[mask] = source[mask]


def _spread(runs: Runs, nbytes: int) -> Array:
    """Returns a mask over the arena: true for each byte of the set."""
    mask = np.zeros(nbytes + 1, np.int8)
    np.add.at(mask, runs.begins, 1)
    np.add.at(mask, runs.ends, -1)
    spread: Array = np.cumsum(mask[:-1], dtype=np.int8).astype(bool)
    return spread
