"""Caches of a plan to which a run appends where they lie: which calls append, and what their numbers are for other memory.

```text
plan:  a call of attention that appends, whose past keys are an input and whose keys are an output, both of no other call
run:   newest view of a growing cache? ── yes ──> the same memory, no rows of the past to copy   ── numbers of the call ──> run
                                       └─ no ───> new memory with room, the past copied from where it lies
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hetero_core.records import record
from hetero_cpu.open.cache_memory import extend_cache, open_cache
from hetero_cpu.open.plan import OpenPlan
from hetero_cpu.operators.attention.kernel import find_cache_numbers

Array = np.ndarray[Any, Any]

FEWEST_BYTES = 1 << 16
"""Of a cache that grows in place: a smaller one is copied as fast."""


@record(frozen=True, slots=True)
class Appending:
    """One cache: the memories of its input and of its output, by their place among those outside the arena, and the output's name.

    `numbers`: where the numbers of the call stand that change with the memory: rows of the past to copy, its strides of a batch and of a
    head, the same strides of the whole. `fixed`: those of where both begin in their memories, and of the bytes of a head's past.
    """

    past: int
    present: int
    output: str
    numbers: tuple[int, int, int, int, int]
    fixed: tuple[int, int, int]


def list_appending(plan: OpenPlan, outputs: Collection[str]) -> tuple[Appending, ...]:
    """Returns the caches among these outputs that can grow in place: no other call reads or writes the memory of either."""
    own: list[Appending] = []
    root_of_row = dict(zip(plan.rows_outside.tolist(), plan.roots_of_rows.tolist(), strict=True))
    uses = np.bincount(plan.roots_of_rows, minlength=len(plan.roots)) if plan.roots else np.zeros(0, np.int64)
    output_of_root = {root: value for value, root in plan.plan.outside.outputs.items() if value in outputs}
    begin = 0
    for call in plan.calls:
        for fields in find_cache_numbers(call.kernel.name):
            past, present = (root_of_row.get(begin + fields[name]) for name in ("past", "whole"))
            if past is not None and present is not None and uses[past] == uses[present] == 1:
                output = output_of_root.get(plan.roots[present])
                if output is not None and plan.roots[past] in plan.plan.outside.inputs:
                    names = ("past_rows", "past_batch", "past_head", "whole_batch", "whole_head")
                    rows, past_batch, past_head, batch, head = (begin + fields[name] for name in names)
                    fixed = begin + fields["past"], begin + fields["whole"], begin + fields["past_bytes"]
                    own.append(Appending(past, present, output, (rows, past_batch, past_head, batch, head), fixed))
        begin += len(call.numbers)
    return tuple(own)


class AppendedCaches:
    """The caches of an instance. Used by one run at a time."""

    def __init__(self, appending: Collection[Appending], numbers: Array) -> None:
        """`numbers`: of the program."""
        self._appending, self._numbers = tuple(appending), numbers
        self._positions = np.array([number for own in self._appending for number in own.numbers], np.int64)
        self._fixed = np.array([number for own in self._appending for number in own.fixed], np.int64)
        self._known: list[list[int]] = []
        self.pasts = frozenset(own.past for own in self._appending)

    def bind(self) -> None:
        """Takes the numbers of the program as those for arrays in C order, whose addresses count from the begin of their memories."""
        numbers, fixed = self._numbers[self._positions].reshape(-1, 5), self._numbers[self._fixed].reshape(-1, 3)
        self._known = [[*own, *other] for own, other in zip(numbers.tolist(), fixed.tolist(), strict=True)]

    def open(self, pasts: dict[int, Array], shapes: Mapping[str, tuple[int, ...]], *, can_grow: bool) -> dict[str, Array]:
        """Has the calls read these inputs, by memory, and append where that is possible; returns the caches that grow, by output.

        `shapes`: of outputs. An input that no call can read as it lies is copied, in `pasts`.
        """
        values: list[int] = []
        caches: dict[str, Array] = {}
        for own, known in zip(self._appending, self._known, strict=True):
            past, shape = pasts[own.past], shapes[own.output]
            if not _fits(past, shape, known):
                pasts[own.past] = np.ascontiguousarray(past)
                values += known[:5]
            elif not can_grow:
                values += (known[0], *past.strides[:2], *known[3:5])
            else:
                longer = extend_cache(past, shape[2])
                cache = open_cache(shape, past.dtype) if longer is None else longer
                caches[own.output] = cache
                values += (known[0] if longer is None else 0, *past.strides[:2], *cache.strides[:2])
        self._numbers[self._positions] = values
        return caches


def _fits(past: Array, shape: tuple[int, ...], known: list[int]) -> bool:
    """Says whether the numbers of a call are those of an input and an output as a whole, which is longer; each head is one row.

    A model may cut the past before it appends, as with a sliding window: then the call reads a part of the input.
    """
    if past.ndim != 4 or len(shape) != 4 or past.shape[:2] + past.shape[3:] != shape[:2] + shape[3:] or past.shape[2] >= shape[2]:
        return False
    row_bytes = shape[3] * past.itemsize
    if past.strides[2:] != (row_bytes, past.itemsize):
        return False
    head, whole = past.shape[2] * row_bytes, shape[2] * row_bytes
    is_large = shape[0] * shape[1] * whole >= FEWEST_BYTES
    return is_large and known == [1, shape[1] * head, head, shape[1] * whole, whole, 0, 0, head]
