"""The arena of a request: every array that a run makes lies at a fixed place of one allocation, so that a run takes no memory.

Data flow: one run is watched (`Tracer`) -> the size of each array in the order in which they are made, and when each is let go of ->
places (`plan_arena`) -> later runs of the same signature are given these places (`Arena`). What a kernel needs for itself, copies
between strides and columns of convolutions are arrays like all others. A run that reads nothing on the way makes the same arrays in the
same order each time, since nothing that it computes can steer it; should it not, an array that does not fit, or whose place is still
in use, comes from the library's pool and is counted as a miss.
Source of the idea: Sekiyama et al. 2018, Profile-guided memory optimization for deep neural networks. Imports no array library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Protocol

from hetero_core.kernels.arena import Lifetime, place_blocks
from hetero_core.records import record

ALIGNMENT = 256
"""Bytes: what vector loads of a warp and cuBLAS ask for."""
MOST_ARRAYS = 1 << 12
"""Arrays of one run; planning takes time with their square. A run that makes more is left to the library's pool."""


_GONE, _LIVE, _LOST = range(3)
"""The state of a planned array in a run: unused, in use, or in the pool instead."""


class ArrayAllocator(Protocol):
    """A source of memory for the arrays that a run makes."""

    def take(self, nbytes: int) -> Allocation:
        """Returns where the next array lies; its memory is in use as long as the allocation is referenced."""

    def allow_in_place(self, target: int, read: int) -> None:
        """Says that the array that was made at an address is computed element by element from the one at another."""


class Allocation:
    """The memory of one array, for as long as somebody keeps it. `offset` is its place in the arena, None for the library's pool."""

    __slots__ = ("_generation", "_owner", "index", "offset")

    def __init__(self, owner: Tracer | Arena, index: int, offset: int | None, generation: int = 0) -> None:
        self._owner = owner
        self.index = index
        self.offset = offset
        self._generation = generation

    def stand_at(self, address: int) -> None:
        """Says where the memory is that the pool gave."""
        self._owner.note_address(self.index, address)

    def __del__(self) -> None:
        self._owner.release(self.index, self._generation)


@record(frozen=True, slots=True)
class ArenaPlan:
    """Sizes and offsets in bytes of the arrays in the order in which they are made, and how large the arena is.

    `clashes` are the earlier arrays on whose bytes an array stands, which must have been let go of. An array that is computed in the
    place of another, which `replaces` names, does not clash with that one; -1 for none.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    replaces: tuple[int, ...]
    nbytes: int
    clashes: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        """Raises: ValueError for places that cannot be meant: outside of the arena, or in the place of what comes later."""
        if not len(self.sizes) == len(self.offsets) == len(self.replaces):
            raise ValueError(f"{len(self.sizes)} sizes, {len(self.offsets)} offsets and {len(self.replaces)} sources are no plan")
        for index, (size, offset, source) in enumerate(zip(self.sizes, self.offsets, self.replaces, strict=True)):
            is_inside = size >= 0 <= offset <= self.nbytes - size and not offset % ALIGNMENT
            if not is_inside or not -1 <= source < index or (source >= 0 and self.offsets[source] != offset):
                raise ValueError(f"array {index} of {size} bytes cannot lie at {offset} of {self.nbytes} in the place of {source}")
        object.__setattr__(self, "clashes", _find_clashes(self.offsets, self.sizes, self.replaces))

    @property
    def in_place(self) -> int:
        """Number of arrays that are computed in the place of another."""
        return sum(source >= 0 for source in self.replaces)


class Tracer:
    """Watches one run; all of its memory comes from the library's pool."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        # The number of the last array that was made when this one was let go of.
        self._ends: dict[int, int] = {}
        self._at_address: dict[int, int] = {}
        self._sources: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> Allocation:
        """Returns an allocation from the pool."""
        self._sizes.append(nbytes)
        return Allocation(self, len(self._sizes) - 1, None)

    def note_address(self, index: int, address: int) -> None:
        """Remembers which array is where; the pool may use an address again."""
        self._at_address[address] = index

    def allow_in_place(self, target: int, read: int) -> None:
        """Remembers what an array may take the place of, if that is let go of before the next array is made."""
        index, source = self._at_address.get(target), self._at_address.get(read)
        if index is not None and source is not None and index != source and self._sizes[index] == self._sizes[source]:
            self._sources.setdefault(index, []).append(source)

    def release(self, index: int, generation: int) -> None:
        """Notes that nobody uses an array any more."""
        self._ends[index] = len(self._sizes) - 1

    def finish(self) -> ArenaPlan | None:
        """Returns the plan; what is still in use are outputs, which keep their places to the end. None for too many arrays."""
        if len(self._sizes) > MOST_ARRAYS:
            return None
        lifetimes = [Lifetime(nbytes, index, self._ends.get(index, len(self._sizes))) for index, nbytes in enumerate(self._sizes)]
        return plan_arena(lifetimes, self._sources)


def plan_arena(lifetimes: Sequence[Lifetime], sources: dict[int, list[int]]) -> ArenaPlan:
    """Returns a place for each array: `lifetimes` in the order in which they are made, `sources` what an array may take the place of.

    An array takes the place of one that ends where it begins: its own kernel is the last to read that one.
    """
    chains: dict[int, int] = {}
    claimed_sources: set[int] = set()
    for target, candidates in sources.items():
        reused = next((source for source in candidates if source not in claimed_sources and lifetimes[source].end == target), None)
        if reused is not None:
            chains[target] = reused
            claimed_sources.add(reused)
    # Each chain is one block, of the first of its arrays.
    first: dict[int, int] = {}
    ends: dict[int, int] = {}
    for index, lifetime in enumerate(lifetimes):
        first[index] = first[chains[index]] if index in chains else index
        ends[first[index]] = lifetime.end
    roots = sorted(ends)
    offsets, nbytes = place_blocks(
        [Lifetime(lifetimes[root].nbytes, lifetimes[root].begin, ends[root]) for root in roots], alignment=ALIGNMENT
    )
    place_of = dict(zip(roots, offsets, strict=True))
    places = tuple(place_of[first[index]] for index in range(len(lifetimes)))
    sizes = tuple(lifetime.nbytes for lifetime in lifetimes)
    return ArenaPlan(sizes, places, tuple(chains.get(index, -1) for index in range(len(sizes))), nbytes)


def _find_clashes(places: tuple[int, ...], sizes: tuple[int, ...], replaces: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns for each array the last ones before it that stood on its bytes: these had asked for the ones before them."""
    clashes: list[tuple[int, ...]] = []
    owned: list[tuple[int, int, tuple[int, ...]]] = []
    for index, (begin, size) in enumerate(zip(places, sizes, strict=True)):
        end, outer_ranges, overlapped_owners = begin + size, [], dict[int, None]()
        for left, right, owners in owned:
            if right <= begin or end <= left:
                outer_ranges.append((left, right, owners))
                continue
            overlapped_owners.update(dict.fromkeys(owners))
            outer_ranges += [(low, high, owners) for low, high in ((left, begin), (end, right)) if low < high]
        source = replaces[index]
        clashes.append(tuple(other for other in overlapped_owners if other != source))
        # Nobody asked whether the array is gone in whose place this one stands: whoever comes next does.
        owned = [*outer_ranges, (begin, end, (index,) if source < 0 else (index, source))] if size else outer_ranges
    return tuple(clashes)


class Arena:
    """The places of one request for one signature, in a block of memory on the card. Used by one run at a time."""

    def __init__(self, plan: ArenaPlan, block: Any) -> None:
        self.plan = plan
        self.block = block
        self._states = bytearray(len(plan.sizes))
        self._next = 0
        self._generation = 0
        self.misses = 0

    def begin(self) -> None:
        """Says that a run begins; what the one before it returned is not valid any more."""
        self._generation += 1
        self._next = 0
        self._states = bytearray(len(self._states))

    def take(self, nbytes: int) -> Allocation:
        """Returns the planned place; the pool where a run does not do what it did when it was watched."""
        index, plan = self._next, self.plan
        self._next += 1
        is_planned = index < len(plan.sizes)
        if not is_planned or plan.sizes[index] != nbytes or not self._is_free(index):
            self.misses += 1
            # Whoever comes next on these bytes asks this array alone: for the rest of the run they are left to what is there.
            if is_planned:
                self._states[index] = _LOST
            return Allocation(self, -1, None)
        self._states[index] = _LIVE
        return Allocation(self, index, plan.offsets[index], self._generation)

    def _is_free(self, index: int) -> bool:
        source = self.plan.replaces[index]
        is_lost = source >= 0 and self._states[source] == _LOST
        return not is_lost and not any(self._states[other] for other in self.plan.clashes[index])

    def release(self, index: int, generation: int) -> None:
        """Notes that nobody uses an array of this run any more; those of earlier runs do not count."""
        if index >= 0 and generation == self._generation:
            self._states[index] = _GONE

    def note_address(self, index: int, address: int) -> None:
        """Needs no addresses of the pool."""

    def allow_in_place(self, target: int, read: int) -> None:
        """Does nothing: the plan has already decided which results are computed in place."""
