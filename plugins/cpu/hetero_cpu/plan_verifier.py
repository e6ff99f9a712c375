"""Checks a plan as a whole before it runs: what each step states that it reads and writes, against where the plan lays values.

```text
plan ── lay ──> bytes of each value ── begin, steps in order, end ──> labels of bytes: who wrote them last ──> faults
```

Nothing is computed: the arena is only an address, and each byte of it has a label. A step that reads a value must find the label of what
made it in every byte, so that it does not matter by which way a byte was lost. Cost: linear in the steps, times the runs of bytes that
their values are made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetero_cpu.arena import ALIGNMENT
from hetero_cpu.byte_runs import NO_BYTES, Labels, Runs, intersect, join_all, list_runs, subtract
from hetero_cpu.instance import allocate_arena, lay_arrays
from hetero_cpu.plan import Block, Derived, Foreign, Plan, PlannedStep
from hetero_cpu.recipe import NO_HALO, Array, Halo, Recipe

_NOTHING = 0
_BEGIN, _END = "the begin of the run", "the end of the run"


@dataclass(frozen=True, slots=True)
class PlanFault:
    """What is wrong with a plan: at which step, with which value, in which bytes of the arena, and what happens there."""

    step: str
    value: str
    problem: str
    runs: Runs = NO_BYTES

    def __str__(self) -> str:
        """The fault in one sentence."""
        where = f", bytes {self.runs.first} to {self.runs.end - 1} of the arena ({self.runs.count} of them)" if self.runs.count else ""
        return f"{self.step}, value '{self.value}'{where}: {self.problem}"


def verify_plan(plan: Plan) -> tuple[PlanFault, ...]:
    """Returns what is wrong with a plan, in the order of its steps; nothing for a plan that may run."""
    layout = _Layout(plan)
    faults = [*layout.list_faults()]
    # Where values lie outside the memory that they are views of, nothing else can be told.
    return tuple(faults) if layout.is_broken else (*faults, *_Walk(plan, layout).list_faults())


class _Layout:
    """Which bytes of the arena each value has."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        ends = [plan.offsets[value] + block.nbytes for value, block in self._list_blocks()]
        # A plan may place a block beyond its end, which is to be found out and not to fail.
        self._memory = allocate_arena(max([plan.arena_bytes, *ends]))
        self.arrays = lay_arrays(plan, self._memory)
        self.is_broken = False
        self._runs: dict[str, Runs] = {}

    def _list_blocks(self) -> Iterator[tuple[str, Block]]:
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
        begin, shape = int(array.ctypes.data) - int(self._memory.ctypes.data), list(array.shape)
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
        block, offset = self._plan.places[root], self._plan.offsets[root]
        assert isinstance(block, Block)
        return list_runs(offset, (block.nbytes,), (1,), 1)

    def list_faults(self) -> Iterator[PlanFault]:
        """Yields the values that lie where they must not."""
        plan = self._plan
        for value, block in self._list_blocks():
            offset = plan.offsets[value]
            if offset < 0 or offset + block.nbytes > plan.arena_bytes:
                yield PlanFault("the plan", value, f"its block ends beyond the arena of {plan.arena_bytes} bytes", self.find_block(value))
            if offset % ALIGNMENT:
                yield PlanFault("the plan", value, f"its block is not aligned to {ALIGNMENT} bytes", self.find_block(value))
        for value in plan.places:
            root = self.find_root(value)
            beyond = subtract(self.find(value), self.find_block(root))
            if beyond.count:
                self.is_broken = True
                yield PlanFault("the plan", value, f"it lies outside the block of '{root}', of which it is a view", beyond)
        yield from self._list_moved_pieces()
        yield from self._list_outside()

    def _list_moved_pieces(self) -> Iterator[PlanFault]:
        for output, join in self._plan.joins.items():
            for piece in join.pieces:
                if not piece.is_moved:
                    continue
                source, target = self.arrays[piece.source], self.arrays[output][piece.cut]
                if source.shape != target.shape or self.measure(source).first != self.measure(target).first or not _lie_alike(source, target):
                    problem = f"it is a piece of '{output}' and does not lie in its slice there"
                    yield PlanFault("the plan", piece.source, problem, self.find(piece.source))

    def _list_outside(self) -> Iterator[PlanFault]:
        outside = self._plan.outside
        for value, root in (*((value, value) for value in outside.inputs), *outside.outputs.items()):
            is_whole = self.find(value).count == self.find_block(root).count and self.arrays[value].flags.c_contiguous
            if not is_whole or self.find_root(value) != root:
                yield PlanFault("the plan", value, f"it lies outside the arena and is not all of the block of '{root}' in C order", self.find(value))


def _lie_alike(first: Array, second: Array) -> bool:
    strides = ([stride for stride, size in zip(array.strides, array.shape, strict=True) if size > 1] for array in (first, second))
    return first.shape == second.shape and first.dtype == second.dtype and next(strides) == next(strides)


@dataclass(frozen=True, slots=True)
class _Event:
    """One step in bytes: `clears` and `writes` by value, `reads` by value and reach, `works` in the bytes of its scratch."""

    name: str
    step: PlannedStep
    clears: tuple[tuple[str, Runs], ...]
    reads: tuple[tuple[str, Runs, Runs], ...]
    works: Runs
    writes: tuple[tuple[str, Runs], ...]


class _Walk:
    """The run of a plan in labels of bytes."""

    def __init__(self, plan: Plan, layout: _Layout) -> None:
        self._plan, self._layout = plan, layout
        self._written = {value for step in plan.steps for value in step.writes}
        self._owners: dict[str, tuple[str, ...]] = {}
        # What a label says, and back; 0 are bytes that nobody wrote in this run.
        self._names = ["nobody in this run"]
        self._label_of: dict[str, int] = {}
        # The values that a value without a place may be a view of.
        self._seen: dict[str, tuple[str, ...]] = {value: () for value in plan.inputs if value not in plan.places}
        self._events = [self._list_accesses(step) for step in plan.steps]
        sets = [runs for event in self._events for runs in self._list_sets(event)]
        sets += [layout.find(value) for value in (*plan.inputs, *plan.outputs) if value in plan.places]
        self._labels = Labels(sets, plan.arena_bytes, _NOTHING)

    def list_faults(self) -> Iterator[PlanFault]:
        """Yields what happens to values between begin and end of a run."""
        plan = self._plan
        for value in plan.inputs:
            if value in plan.places:
                yield from self._check_border(_BEGIN, value, plan.outside.inputs)
                self._mark(self._layout.find(value), f"value '{value}'")
        for event in self._events:
            yield from self._check_step(event)
        for value in plan.outputs:
            yield from self._check_read(_END, value)
            if value in plan.places:
                yield from self._check_border(_END, value, tuple(plan.outside.outputs))

    def _list_accesses(self, step: PlannedStep) -> _Event:
        plan, layout, work = self._plan, self._layout, step.work
        clears = [(value, subtract(layout.find_block(value), layout.find(value))) for value in step.clears]
        reads = []
        for position, value in enumerate(work.reads):
            if value in plan.places:
                reaches = work.reaches if isinstance(work, Recipe) else ()
                reach = reaches[position] if position < len(reaches) else NO_HALO
                array = layout.arrays[value]
                around = NO_BYTES if reach == NO_HALO else subtract(layout.measure(array, reach), layout.find(value))
                reads.append((value, layout.find(value), around))
        works = NO_BYTES
        if isinstance(work, Recipe) and work.scratch:
            works = list_runs(step.scratch_offset, (work.scratch,), (1,), 1)
        placed = step.writes if isinstance(work, Recipe) else tuple(value for value in work.placed if value is not None)
        writes = [(value, layout.find(value)) for value in placed]
        if isinstance(work, Recipe) and work.parts:
            array = layout.arrays[placed[0]]
            writes[0] = (placed[0], join_all(layout.measure(array[cut]) for cut in work.parts))
        return _Event(f"step {step.node.label}", step, tuple(clears), tuple(reads), works, tuple(writes))

    @staticmethod
    def _list_sets(event: _Event) -> list[Runs]:
        reads = [runs for _, own, around in event.reads for runs in (own, around)]
        return [*(runs for _, runs in (*event.clears, *event.writes)), *reads, event.works]

    def _check_step(self, event: _Event) -> Iterator[PlanFault]:
        for value, runs in event.clears:
            self._mark(runs, f"the zeros around '{value}'")
        for value, own, around in event.reads:
            yield from self._check_labels(event.name, value, own, [f"value '{owner}'" for owner in self._find_owners(value)])
            if around.count:
                root = self._layout.find_root(value)
                yield from self._check_labels(event.name, value, around, [f"the zeros around '{root}'"])
        for value in event.step.work.reads:
            if value not in self._plan.places:
                yield from self._check_read(event.name, value)
        yield from self._check_overlaps(event)
        yield from self._check_strides(event)
        yield from self._check_outside(event)
        if event.works.count and event.works.end > self._plan.arena_bytes:
            yield PlanFault(event.name, "", "its working memory ends beyond the arena", event.works)
        self._mark(event.works, f"the working memory of {event.name}")
        for value, runs in event.writes:
            self._mark(runs, f"value '{value}'")
        if isinstance(event.step.work, Foreign):
            views = tuple(event.step.work.reads)
            self._seen |= {value: views for value, place in zip(event.step.writes, event.step.work.placed, strict=True) if place is None}

    def _check_overlaps(self, event: _Event) -> Iterator[PlanFault]:
        """Yields what a step reads or works in while it writes there."""
        touched = [("writes", value, runs) for value, runs in event.writes]
        for value, own, around in dict(zip((read[0] for read in event.reads), event.reads, strict=True)).values():
            whole = join_all((own, around)) if around.count else own
            for action, other, runs in [*touched, ("works", "its working memory", event.works)]:
                both = intersect(whole, runs)
                if not both.count or (action == "writes" and other == event.writes[0][0] and self._may_overwrite(event, value, other)):
                    continue
                yield PlanFault(event.name, value, f"the step reads it and writes '{other}' over it", both)
        for position, (_, value, runs) in enumerate(touched):
            for other, others in [*((name, own) for name, own in event.writes[position + 1 :]), ("its working memory", event.works)]:
                both = intersect(runs, others)
                if both.count:
                    yield PlanFault(event.name, value, f"the step writes it and '{other}' there", both)

    def _may_overwrite(self, event: _Event, value: str, output: str) -> bool:
        """Says whether a step states for every place at which it reads a value that it reads each element before it writes it."""
        work = event.step.work
        if not isinstance(work, Recipe):
            return False
        is_stated = all(position in work.overwrites for position, name in enumerate(work.reads) if name == value)
        read, written = self._layout.arrays[value], self._layout.arrays[output]
        return is_stated and read.ctypes.data == written.ctypes.data and _lie_alike(read, written)

    def _check_strides(self, event: _Event) -> Iterator[PlanFault]:
        work = event.step.work
        if isinstance(work, Foreign):
            return
        for value, strides in zip(work.reads, work.strides, strict=False):
            array = self._layout.arrays[value]
            if strides is None or value not in self._plan.places or _keep_long(strides, array) == _keep_long(array.strides, array):
                continue
            problem = f"the step was planned for strides of {strides} bytes and meets {array.strides}"
            yield PlanFault(event.name, value, problem, self._layout.find(value))

    def _check_outside(self, event: _Event) -> Iterator[PlanFault]:
        """Yields the accesses to memory of the caller that a run does not lead there, or that the caller does not expect."""
        work, outside = event.step.work, self._plan.outside
        follows = isinstance(work, Recipe) and bool(work.kernels) and not work.calls_functions
        for root, block in self._outside_blocks:
            reads = [(value, join_all((own, around))) for value, own, around in event.reads]
            for value, runs in reads + list(event.writes):
                if not follows and intersect(runs, block).count:
                    yield PlanFault(event.name, value, f"a function reads or writes it where '{root}' lies, outside the arena in a run", block)
            for value, runs in [*event.writes, *event.clears, ("its working memory", event.works)]:
                both = intersect(runs, block)
                if both.count and root in outside.inputs:
                    yield PlanFault(event.name, value, f"it is written over the input '{root}', which is the caller's", both)
                elif both.count and value == "its working memory":
                    yield PlanFault(event.name, root, "the step works where the value lies, outside the arena in a run", both)

    @cached_property
    def _outside_blocks(self) -> tuple[tuple[str, Runs], ...]:
        return tuple((root, self._layout.find_block(root)) for root in self._plan.outside.roots)

    def _check_border(self, when: str, value: str, own: Sequence[str]) -> Iterator[PlanFault]:
        """Yields a value that is copied to or from memory that is outside the arena in a run, but for those that lie there themselves."""
        for root, block in self._outside_blocks:
            both = intersect(self._layout.find(value), block)
            if both.count and value not in own:
                yield PlanFault(when, value, f"it is copied in the arena, and calls go to where '{root}' lies outside of it", both)

    def _check_read(self, when: str, value: str) -> Iterator[PlanFault]:
        if value in self._plan.constants and value not in self._plan.places:
            return
        if value in self._plan.places:
            yield from self._check_labels(when, value, self._layout.find(value), [f"value '{owner}'" for owner in self._find_owners(value)])
        elif value in self._seen:
            for other in self._seen[value]:
                yield from self._check_read(when, other)
        else:
            yield PlanFault(when, value, "it is read and no step before makes it")

    def _check_labels(self, when: str, value: str, runs: Runs, expected: Sequence[str]) -> Iterator[PlanFault]:
        if not runs.count:
            return
        beyond = subtract(runs, self._layout.find_block(self._layout.find_root(value)))
        if beyond.count:
            yield PlanFault(when, value, "the step reads beyond the block in which it lies", beyond)
            return
        wanted = [self._label_of.get(name, -1) for name in expected]
        for label, bytes_of_others in self._labels.list_strangers(self._labels.find(runs), wanted):
            problem = f"it is read there and was written by {self._names[label]}, not as {' or '.join(expected)}"
            yield PlanFault(when, value, problem, bytes_of_others)

    def _mark(self, runs: Runs, name: str) -> None:
        label = self._label_of.setdefault(name, len(self._names))
        if label == len(self._names):
            self._names.append(name)
        if runs.count:
            self._labels.write(self._labels.find(runs), label)

    def _find_owners(self, value: str) -> tuple[str, ...]:
        """Returns the values as which the bytes of a value are written: its own, those that it is joined of, or that it is a view of."""
        if value not in self._owners:
            self._owners[value] = tuple(dict.fromkeys(self._list_owners(value)))
        return self._owners[value]

    def _list_owners(self, value: str) -> Iterator[str]:
        plan = self._plan
        if value in plan.joins:
            for piece in plan.joins[value].pieces:
                yield from self._find_owners(piece.source) if piece.is_moved else (value,)
            return
        place = plan.places[value]
        if value in self._written or value in plan.inputs or isinstance(place, Block):
            yield value
        else:
            yield from self._find_owners(place.source)


def _keep_long(strides: Sequence[int], array: Array) -> list[int]:
    return [stride for stride, size in zip(strides, array.shape, strict=True) if size > 1]
