"""Caches of a plan to which a run appends in place: which calls append, and their numbers for other memory.

```text
plan:  a call of attention that appends, with past keys as an input and all keys as an output, both used by no other call
run:   newest view of a growing cache? ── yes ──> the same memory, no rows of the past to copy   ── numbers of the call ──> run
                                       └─ no ───> new memory with room, the past copied from where it lies
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from hetero_cpu.machine.memory import ALIGNMENT
from hetero_cpu.operators.attention import find_cache_numbers
from hetero_cpu.plan.open_plan import OpenPlan
from hetero_cpu.symbols.evaluation import Products, write_function, write_tuple

Array = np.ndarray[Any, Any]

_LEAST_ROOM = 64


class CacheMemory(np.ndarray[Any, Any]):
    """The bytes of a growing cache; the views of it hold them. `length`: of the newest view. Safe for threads."""

    length: int
    lock: Lock

    def claim(self, begin: int, end: int, capacity: int) -> bool:
        """Says whether the caller may write from `begin` to `end`: True if the newest view ends at `begin`, which is then `end`."""
        with self.lock:
            if self.length != begin or end > capacity:
                return False
            self.length = end
            return True


def open_cache(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns a cache of a shape, contents undefined, in new memory with room for half as many keys again, at an aligned address."""
    batch, heads, length, width = shape
    capacity = length + max(length // 2, _LEAST_ROOM)
    row_bytes = width * dtype.itemsize
    memory = CacheMemory((batch * heads * capacity * row_bytes + ALIGNMENT,), np.uint8)
    memory.length, memory.lock = length, Lock()
    begin = -memory.__array_interface__["data"][0] % ALIGNMENT
    whole: Array = np.ndarray((batch, heads, capacity, width), dtype, memory, begin)
    cache: Array = whole[:, :, :length]
    return cache


def extend_cache(cache: Array, length: int) -> Array | None:
    """Returns the view of a longer cache in the same memory, with an end that the caller has to write; None if it cannot grow there."""
    whole = cache.base
    memory = getattr(whole, "base", None)
    if type(memory) is not CacheMemory or type(whole) is not np.ndarray or cache.strides != whole.strides:
        return None
    if cache.ndim != 4 or cache.dtype != whole.dtype or cache.shape[:2] + cache.shape[3:] != whole.shape[:2] + whole.shape[3:]:
        return None
    # A view may begin at another key, which has the same strides.
    if cache.__array_interface__["data"][0] != whole.__array_interface__["data"][0]:
        return None
    if not memory.claim(cache.shape[2], length, whole.shape[2]):
        return None
    longer: Array = whole[:, :, :length]
    return longer


FEWEST_BYTES = 1 << 16
"""Of a cache that grows in place: a smaller cache is copied as fast."""


@dataclass(frozen=True, slots=True)
class Appending:
    """A cache: the external memory of its input, by index, and the name of its output.

    `numbers`: the positions of the numbers that change with the memory: rows of the past to copy, its strides of a batch and of a
    head, the same strides of the whole. `fixed`: the positions of both addresses and of the bytes of a head's past.
    """

    past: int
    output: str
    numbers: tuple[int, ...]
    fixed: tuple[int, ...]


def list_appending(plan: OpenPlan, outputs: Collection[str]) -> tuple[Appending, ...]:
    """Returns the caches among these outputs that can grow in place: no other call reads or writes the memory of either."""
    own: list[Appending] = []
    rows_of_roots = plan.rows_of_roots
    root_of_row = {row: root for root, rows in enumerate(rows_of_roots) for row in rows.tolist()}
    output_of_root = {root: value for value, root in plan.plan.external.outputs.items() if value in outputs}
    begin = 0
    for call in plan.calls:
        for fields in find_cache_numbers(call.kernel.name):
            past, present = (root_of_row.get(begin + fields[name]) for name in ("past", "whole"))
            if past is not None and present is not None and len(rows_of_roots[past]) == len(rows_of_roots[present]) == 1:
                output = output_of_root.get(plan.roots[present])
                if output is not None and plan.roots[past] in plan.plan.external.inputs:
                    names = ("past_rows", "past_batch", "past_head", "whole_batch", "whole_head")
                    numbers = tuple(begin + fields[name] for name in names)
                    fixed = tuple(begin + fields[name] for name in ("past", "whole", "past_bytes"))
                    own.append(Appending(past, output, numbers, fixed))
        begin += len(call.numbers)
    return tuple(own)


class AppendedCaches:
    """The caches of an instance. Used by one run at a time."""

    def __init__(self, appending: Collection[Appending], numbers: Array, plan: OpenPlan) -> None:
        """`numbers`: of the program."""
        self._appending, self._numbers = tuple(appending), numbers
        self._positions = np.array([number for own in self._appending for number in own.numbers], np.int64)
        known = (write_tuple(plan.table.write((*own.numbers, *own.fixed))) for own in self._appending)
        self._read_known = write_function(plan.sizes.parameters, write_tuple(known))
        self._known: tuple[tuple[int, ...], ...] = ()
        self.pasts = frozenset(own.past for own in self._appending)

    def bind(self, products: Products) -> None:
        """Has the numbers of calls those for a set of sizes: for arrays in C order, addresses from the begin of their memories."""
        self._known = self._read_known(*products)

    def open(self, pasts: dict[int, Array], shapes: Mapping[str, tuple[int, ...]], *, can_grow: bool) -> dict[str, Array]:
        """Has the calls read these inputs, by memory, and append if possible; returns the caches that grow, by output.

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


def _fits(past: Array, shape: tuple[int, ...], known: tuple[int, ...]) -> bool:
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
    return is_large and known == (1, shape[1] * head, head, shape[1] * whole, whole, 0, 0, head)
