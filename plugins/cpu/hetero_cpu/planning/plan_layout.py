"""The bytes of the arena that each value of a plan has, and those that each step states to read and write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetero_cpu.planning.byte_runs import NO_BYTES, Runs, join_all, list_runs, subtract
from hetero_cpu.planning.instance import allocate_arena, lay_arrays
from hetero_cpu.planning.plan import Block, Derived, ExecutionPlan, PlannedStep
from hetero_cpu.planning.recipe import NO_HALO, Array, Halo, Recipe


@dataclass(frozen=True, slots=True)
class Access:
    """The bytes of one step: of the zeros that it `clears` and of what it `writes` by value, of what it `reads` by value with those around
    it, and of its working memory."""

    clears: tuple[tuple[str, Runs], ...]
    reads: tuple[tuple[str, Runs, Runs], ...]
    works: Runs
    writes: tuple[tuple[str, Runs], ...]

    def list_sets(self) -> list[Runs]:
        """Returns all sets of bytes of the step."""
        reads = [runs for _, own, around in self.reads for runs in (own, around)]
        return [*(runs for _, runs in (*self.clears, *self.writes)), *reads, self.works]


class PlanLayout:
    """The bytes of the arena that each value has."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        ends = [plan.offsets[value] + block.nbytes for value, block in self.list_blocks()]
        # A plan may place a block beyond its end, which is to be found out and not to fail.
        self.memory = allocate_arena(max([plan.arena_bytes, *ends]))
        """The arena, which nobody touches: only its address counts."""
        self.arrays = lay_arrays(plan, self.memory)
        self.begin = int(self.memory.ctypes.data)
        self._runs: dict[str, Runs] = {}
        self._blocks: dict[str, Runs] = {}

    def list_blocks(self) -> Iterator[tuple[str, Block]]:
        """Yields the values that have a block, with it."""
        for value, place in self._plan.places.items():
            if isinstance(place, Block):
                yield value, place

    def find_root(self, value: str) -> str:
        """Returns the value whose block a placed value lies in."""
        place = self._plan.places[value]
        while isinstance(place, Derived):
            value, place = place.source, self._plan.places[place.source]
        return value

    def measure(self, array: Array, reach: Halo = NO_HALO) -> Runs:
        """Returns the bytes of an array of the arena, with those around each image that a step reaches."""
        begin, shape = int(array.ctypes.data) - self.begin, list(array.shape)
        if reach != NO_HALO:
            begin -= reach.top * array.strides[2] + reach.left * array.strides[3]
            shape[2], shape[3] = shape[2] + reach.top + reach.bottom, shape[3] + reach.left + reach.right
        return list_runs(begin, shape, array.strides, array.itemsize)

    def find(self, value: str) -> Runs:
        """Returns the bytes of a placed value."""
        if value not in self._runs:
            self._runs[value] = self.measure(self.arrays[value])
        return self._runs[value]

    def find_block(self, root: str) -> Runs:
        """Returns all bytes of a block, the halo included."""
        if root not in self._blocks:
            block, offset = self._plan.places[root], self._plan.offsets[root]
            assert isinstance(block, Block)
            self._blocks[root] = list_runs(offset, (block.nbytes,), (1,), 1)
        return self._blocks[root]

    def bind(self, step: PlannedStep) -> Sequence[object]:
        """Returns the calls of a recipe on the arrays of the arena."""
        assert isinstance(step.work, Recipe)
        reads, writes = ([self.arrays[value] for value in values] for values in (step.work.reads, step.writes))
        return step.work.bind(reads, writes, self.memory[step.scratch_offset : step.scratch_offset + step.scratch])

    def list_accesses(self, step: PlannedStep) -> Access:
        """Returns what a step states that it reads and writes, in bytes."""
        work = step.work
        clears = [(value, subtract(self.find_block(value), self.find(value))) for value in step.clears]
        reads = []
        for position, value in enumerate(work.reads):
            if value in self._plan.places:
                reaches = work.reaches if isinstance(work, Recipe) else ()
                reach = reaches[position] if position < len(reaches) else NO_HALO
                array = self.arrays[value]
                around = NO_BYTES if reach == NO_HALO else subtract(self.measure(array, reach), self.find(value))
                reads.append((value, self.find(value), around))
        works = NO_BYTES
        if step.scratch:
            works = list_runs(step.scratch_offset, (step.scratch,), (1,), 1)
        placed = step.writes if isinstance(work, Recipe) else tuple(value for value in work.placed if value is not None)
        writes = [(value, self.find(value)) for value in placed]
        if isinstance(work, Recipe) and work.parts:
            array = self.arrays[placed[0]]
            writes[0] = (placed[0], join_all(self.measure(array[cut]) for cut in work.parts))
        return Access(tuple(clears), tuple(reads), works, tuple(writes))


class Owners:
    """The values as which the bytes of a value are written: its own, those that it is joined of, or those that it is a view of."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._owners: dict[str, tuple[str, ...]] = {}

    def find(self, value: str) -> tuple[str, ...]:
        """Returns the owners of a placed value."""
        if value not in self._owners:
            self._owners[value] = tuple(dict.fromkeys(self._list(value)))
        return self._owners[value]

    def _list(self, value: str) -> Iterator[str]:
        plan = self._plan
        if value in plan.joins:
            for piece in plan.joins[value].pieces:
                yield from self.find(piece.source) if piece.is_moved else (value,)
            return
        place = plan.places[value]
        if isinstance(place, Block) or place.is_computed:
            yield value
        else:
            yield from self.find(place.source)
