"""Verifies a whole plan before it runs: the stated reads and writes of each step against the places of the values.

```text
plan ── lay ──> bytes of each value ── begin, steps in order, end ──> label of each byte: its last writer ──> faults
```

Nothing is computed: the arena is only an address, and each byte of it has a label. A step that reads a value must find the label of its
producer in every byte, so that every kind of overwrite is detected. Cost: linear in the steps, times the runs of bytes of
their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from hetero_cpu.machine.calls import NativeCall
from hetero_cpu.machine.memory import ALIGNMENT, allocate_arena
from hetero_cpu.operators.images import bind_clear
from hetero_cpu.operators.recipe import NO_HALO, Array, Halo, Recipe
from hetero_cpu.plan.placing import can_stand_for
from hetero_cpu.plan.plan import Block, Derived, ExecutionPlan, Foreign, PlannedStep, take_cut


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Disjoint, non-adjacent runs from `begins[i]` to `ends[i]` - 1 in ascending order."""

    begins: Array
    ends: Array

    @property
    def count(self) -> int:
        """The number of bytes."""
        return int((self.ends - self.begins).sum())

    @property
    def first(self) -> int:
        """The first byte of a non-empty set."""
        return int(self.begins[0])

    @property
    def end(self) -> int:
        """The position after the last byte of a non-empty set."""
        return int(self.ends[-1])


NO_BYTES = Runs(np.zeros(0, np.int64), np.zeros(0, np.int64))


def join_runs(begins: Array, ends: Array) -> Runs:
    """Returns the union of runs that may overlap and have any order."""
    filled = ends > begins
    begins, ends = begins[filled], ends[filled]
    if len(begins) > 1 and not (begins[1:] > ends[:-1]).all():
        order = np.argsort(begins, kind="stable")
        begins, reached = begins[order], np.maximum.accumulate(ends[order])
        starts = np.concatenate([[True], begins[1:] > reached[:-1]])
        begins, ends = begins[starts], reached[np.concatenate([starts[1:], [True]])]
    return Runs(begins, ends)


def list_runs(begin: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Runs:
    """Returns the bytes of an array with its first element at `begin`; strides in bytes."""
    axes = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1 and stride != 0]
    if 0 in shape:
        return NO_BYTES
    begin += sum(stride * (size - 1) for stride, size in axes if stride < 0)
    length = itemsize
    begins = np.array([begin], np.int64)
    for stride, size in sorted((abs(stride), size) for stride, size in axes):
        if stride == length and len(begins) == 1:
            length *= size
        else:
            begins = (np.arange(size, dtype=np.int64)[:, None] * stride + begins).reshape(-1)
    return join_runs(begins, begins + length)


def join_all(sets: Iterable[Runs]) -> Runs:
    """Returns the union of the sets."""
    listed = list(sets)
    if not listed:
        return NO_BYTES
    return join_runs(np.concatenate([runs.begins for runs in listed]), np.concatenate([runs.ends for runs in listed]))


def intersect(first: Runs, second: Runs) -> Runs:
    """Returns the intersection of two sets. Linear in the runs of the shorter set, times a binary search in the longer set."""
    if not len(first.begins) or not len(second.begins) or first.end <= second.first or second.end <= first.first:
        return NO_BYTES
    if len(second.begins) > len(first.begins):
        first, second = second, first
    low = np.searchsorted(first.ends, second.begins, side="right")
    high = np.searchsorted(first.begins, second.ends, side="left")
    counts = np.maximum(high - low, 0)
    picked, owners = _spread(low, counts), np.repeat(np.arange(len(counts)), counts)
    return join_runs(np.maximum(first.begins[picked], second.begins[owners]), np.minimum(first.ends[picked], second.ends[owners]))


def subtract(first: Runs, second: Runs) -> Runs:
    """Returns the bytes of the first set that are not in the second."""
    if not len(first.begins) or not len(second.begins):
        return first
    low, high = min(first.first, second.first), max(first.end, second.end)
    gaps = Runs(np.concatenate([[low], second.ends]), np.concatenate([second.begins, [high]]))
    return intersect(first, join_runs(gaps.begins, gaps.ends))


def _spread(begins: Array, counts: Array) -> Array:
    """Returns the concatenated ranges begins[i] to begins[i] + counts[i] - 1 for all i."""
    total = int(counts.sum())
    before = np.cumsum(counts) - counts
    numbers: Array = np.arange(total) + np.repeat(begins - before, counts)
    return numbers


class Labels:
    """A label for each byte of a block of memory, stored once for all bytes between two borders of the sets of the constructor."""

    def __init__(self, sets: Iterable[Runs], nbytes: int, label: int) -> None:
        ends = [np.array([0, nbytes], np.int64)]
        for runs in sets:
            ends += [runs.begins, runs.ends]
        self._borders = np.unique(np.concatenate(ends))
        self._labels = np.full(len(self._borders) - 1, label, np.int32)

    def find(self, runs: Runs) -> Places:
        """Returns the positions of the labels of a set, which the constructor must have received."""
        low, high = np.searchsorted(self._borders, runs.begins), np.searchsorted(self._borders, runs.ends)
        if len(low) == 1:
            return slice(int(low[0]), int(high[0]))
        return _spread(low, high - low)

    def write(self, places: Places, label: int) -> None:
        """Sets the label of the bytes at these places."""
        self._labels[places] = label

    def list_strangers(self, places: Places, labels: Sequence[int]) -> list[tuple[int, Runs]]:
        """Returns the labels at the places that are not in `labels`, each with its bytes."""
        here = self._labels[places]
        strange = (here != labels[0]) if len(labels) == 1 else ~np.isin(here, labels)
        if not strange.any():
            return []
        numbers = (np.arange(places.start, places.stop) if isinstance(places, slice) else places)[strange]
        strange_labels = here[strange]
        return [
            (
                int(label),
                join_runs(self._borders[numbers[strange_labels == label]], self._borders[numbers[strange_labels == label] + 1]),
            )
            for label in np.unique(strange_labels)
        ]


Places = slice | Array
"""Positions of labels: a range, or a number for each label."""


@dataclass(frozen=True, slots=True)
class Access:
    """The bytes of a step: the zeros that it `clears` and the bytes that it `writes`, by value; the bytes that it `reads`, by value with
    its halo; its working memory."""

    clears: tuple[tuple[str, Runs], ...]
    reads: tuple[tuple[str, Runs, Runs], ...]
    works: Runs
    writes: tuple[tuple[str, Runs], ...]

    def list_sets(self) -> list[Runs]:
        """Returns all sets of bytes of the step."""
        reads = [runs for _, own, around in self.reads for runs in (own, around)]
        return [*(runs for _, runs in (*self.clears, *self.writes)), *reads, self.works]


class PlanLayout:
    """The bytes of each value in the arena."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        ends = [plan.offsets[value] + block.nbytes for value, block in self.list_blocks()]
        # A faulty plan may place a block beyond the end of the arena; the verifier reports it instead of failing here.
        self.memory = allocate_arena(max([plan.arena_bytes, *ends]))
        """The arena: never read or written, only its address counts."""
        self.arrays = lay_arrays(plan, self.memory)
        self.begin = int(self.memory.ctypes.data)
        self._runs: dict[str, Runs] = {}
        self._blocks: dict[str, Runs] = {}

    def list_blocks(self) -> Iterator[tuple[str, Block]]:
        """Yields each value with a block, and the block."""
        for value, place in self._plan.places.items():
            if isinstance(place, Block):
                yield value, place

    def find_root(self, value: str) -> str:
        """Returns the value that owns the block of a placed value."""
        place = self._plan.places[value]
        while isinstance(place, Derived):
            value, place = place.source, self._plan.places[place.source]
        return value

    def measure(self, array: Array, reach: Halo = NO_HALO) -> Runs:
        """Returns the bytes of an array of the arena, including the halo of each image within the reach of a step."""
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
        """Returns the calls of a recipe, bound to the arrays of the arena."""
        assert isinstance(step.work, Recipe)
        reads, writes = ([self.arrays[value] for value in values] for values in (step.work.reads, step.writes))
        return step.work.bind(reads, writes, self.memory[step.scratch_offset : step.scratch_offset + step.scratch])

    def list_accesses(self, step: PlannedStep) -> Access:
        """Returns the stated accesses of a step in bytes."""
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
    """The owners of the bytes of a value: the value itself, the pieces that it is joined from, or the values that it is a view of."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._written = {*plan.inputs, *(value for step in plan.steps for value in step.writes)}
        self._pieces: dict[str, list[str]] = {}
        for value, place in plan.places.items():
            if isinstance(place, Derived) and is_piece(place):
                self._pieces.setdefault(place.source, []).append(value)
        self._owners: dict[str, tuple[str, ...]] = {}

    def find(self, value: str) -> tuple[str, ...]:
        """Returns the owners of a placed value."""
        if value not in self._owners:
            self._owners[value] = tuple(dict.fromkeys(self._list(value)))
        return self._owners[value]

    def _list(self, value: str) -> Iterator[str]:
        place, pieces = self._plan.places[value], self._pieces.get(value, ())
        for piece in pieces:
            yield from self.find(self._find_last(piece))
        if value in self._written or (isinstance(place, Block) and not pieces):
            yield value
        elif isinstance(place, Derived) and not pieces:
            yield from self.find(place.source)

    def _find_last(self, value: str) -> str:
        """Returns the value that is written last in the memory of a piece: the piece itself, or one that overwrites it."""
        inside, last = {value}, value
        for other, place in self._plan.places.items():
            if isinstance(place, Derived) and place.source in inside and not is_piece(place):
                inside.add(other)
                last = other if other in self._written else last
        return last


def is_piece(place: Derived) -> bool:
    """Says whether a value is computed in place in a concatenation."""
    return isinstance(place.make, partial) and place.make.func is take_cut


_NOTHING = 0
_WORKING_MEMORY = "its working memory"
_BEGIN, _END = "the begin of the run", "the end of the run"


@dataclass(frozen=True, slots=True)
class PlanFault:
    """A fault of a plan: its step, value, bytes of the arena, and problem."""

    step: str
    value: str
    problem: str
    runs: Runs = NO_BYTES

    def __str__(self) -> str:
        """The fault in one sentence."""
        where = (
            f", bytes {self.runs.first} to {self.runs.end - 1} of the arena ({self.runs.count} of them)" if self.runs.count else ""
        )
        return f"{self.step}, value '{self.value}'{where}: {self.problem}"


def verify_plan(plan: ExecutionPlan) -> tuple[PlanFault, ...]:
    """Returns the faults of a plan in the order of its steps; empty for a correct plan."""
    layout = PlanLayout(plan)
    strays = tuple(_list_strays(plan, layout))
    if strays:
        # If a view lies outside its memory, no further check is meaningful.
        return strays
    return (*_list_misplaced_outside(plan, layout), *_Walk(plan, layout).list_faults())


def _list_strays(plan: ExecutionPlan, layout: PlanLayout) -> Iterator[PlanFault]:
    """Yields blocks outside the arena, unaligned blocks, and values outside their block."""
    for value, block in layout.list_blocks():
        offset = plan.offsets[value]
        if offset < 0 or offset + block.nbytes > plan.arena_bytes:
            problem = f"its block ends beyond the arena, which has {plan.arena_bytes} bytes"
            yield PlanFault("the plan", value, problem, layout.find_block(value))
        if offset % ALIGNMENT:
            yield PlanFault("the plan", value, f"its block is not aligned to {ALIGNMENT} bytes", layout.find_block(value))
    for value in plan.places:
        root = layout.find_root(value)
        beyond = subtract(layout.find(value), layout.find_block(root))
        if beyond.count:
            yield PlanFault("the plan", value, f"it lies outside the block of '{root}', of which it is a view", beyond)


def _list_misplaced_outside(plan: ExecutionPlan, layout: PlanLayout) -> Iterator[PlanFault]:
    """Yields the values outside the arena that do not fill their block in C order, as the caller's arrays do."""
    outside = plan.external
    for value, root in (*((value, value) for value in outside.inputs), *outside.outputs.items()):
        array = layout.arrays[value]
        is_whole = layout.find_root(value) == root and layout.find(value).count == layout.find_block(root).count
        if not is_whole or not array.flags.c_contiguous:
            problem = f"it is the caller's array in a run, and not all of the block of '{root}' in C order"
            yield PlanFault("the plan", value, problem, layout.find(value))


def _lie_alike(first: Array, second: Array) -> bool:
    """Says whether two arrays have the same elements at the same addresses."""
    is_same = first.shape == second.shape and first.dtype == second.dtype and first.ctypes.data == second.ctypes.data
    return is_same and _list_strides(first.strides, first) == _list_strides(second.strides, second)


def _list_strides(strides: Sequence[int], array: Array) -> list[int]:
    """Returns the relevant strides: the stride of an axis of size 1 is arbitrary."""
    return [stride for stride, size in zip(strides, array.shape, strict=True) if size > 1]


@dataclass(frozen=True, slots=True)
class _Event:
    """A step with its accesses."""

    name: str
    step: PlannedStep
    access: Access


class _Walk:
    """A symbolic run of a plan on labels of bytes."""

    def __init__(self, plan: ExecutionPlan, layout: PlanLayout) -> None:
        self._plan, self._layout = plan, layout
        self._owners = Owners(plan)
        # Label -> name, and name -> label; label 0 marks bytes without a writer in this run.
        self._names = ["nobody in this run"]
        self._label_of: dict[str, int] = {}
        # Value without a place -> the values that it may be a view of.
        self._seen: dict[str, tuple[str, ...]] = {value: () for value in plan.inputs if value not in plan.places}
        self._outside = tuple((root, layout.find_block(root)) for root in plan.external.roots)
        self._events = [_Event(f"step {step.node.label}", step, layout.list_accesses(step)) for step in plan.steps]
        sets = [runs for event in self._events for runs in event.access.list_sets()]
        sets += [layout.find(value) for value in (*plan.inputs, *plan.outputs) if value in plan.places]
        self._labels = Labels(sets, plan.arena_bytes, _NOTHING)

    def list_faults(self) -> Iterator[PlanFault]:
        """Yields the faults of a run from begin to end."""
        plan = self._plan
        for value in plan.inputs:
            if value in plan.places:
                yield from self._check_border(_BEGIN, value, plan.external.inputs)
                self._mark(self._layout.find(value), f"value '{value}'")
        for event in self._events:
            yield from self._check_step(event)
        for value in plan.outputs:
            yield from self._check_read(_END, value)
            if value in plan.places:
                yield from self._check_border(_END, value, tuple(plan.external.outputs))

    def _check_step(self, event: _Event) -> Iterator[PlanFault]:
        access = event.access
        for value, runs in access.clears:
            self._mark(runs, f"the zeros around '{value}'")
        for value, own, around in access.reads:
            yield from self._check_labels(event.name, value, own, self._name_owners(value))
            yield from self._check_labels(event.name, value, around, [f"the zeros around '{self._layout.find_root(value)}'"])
        for value in event.step.work.reads:
            if value not in self._plan.places:
                yield from self._check_read(event.name, value)
        yield from self._check_overlaps(event)
        yield from self._check_strides(event)
        yield from self._check_outside(event)
        if access.works.count and access.works.end > self._plan.arena_bytes:
            yield PlanFault(event.name, "", "its working memory ends beyond the arena", access.works)
            return
        self._mark(access.works, f"the working memory of {event.name}")
        for value, runs in access.writes:
            self._mark(runs, f"value '{value}'")
        if isinstance(event.step.work, Foreign):
            self._note_views(event.step.writes, event.step.work)

    def _note_views(self, writes: Sequence[str], work: Foreign) -> None:
        """Records the possible view sources of the toolkit's results without a place."""
        views = tuple(
            dict.fromkeys(
                source for value in work.reads for source in ((value,) if value in self._plan.places else self._seen.get(value, ()))
            )
        )
        self._seen |= {value: views for value, place in zip(writes, work.placed, strict=True) if place is None}

    def _check_overlaps(self, event: _Event) -> Iterator[PlanFault]:
        """Yields overlaps of a step's reads with its writes and working memory, and overlaps between its writes."""
        writes, works = event.access.writes, (_WORKING_MEMORY, event.access.works)
        reads = {value: join_all((own, around)) if around.count else own for value, own, around in event.access.reads}
        for value, runs in reads.items():
            for second, second_runs in (*writes, works):
                both = intersect(runs, second_runs)
                if both.count and not self._may_overwrite(event, value, second):
                    yield PlanFault(event.name, value, f"the step reads it and writes '{second}' over it", both)
        for position, (value, runs) in enumerate(writes):
            for second, second_runs in (*writes[position + 1 :], works):
                both = intersect(runs, second_runs)
                if both.count:
                    yield PlanFault(event.name, value, f"the step writes it and '{second}' there", both)

    def _may_overwrite(self, event: _Event, value: str, output: str) -> bool:
        """Says whether a step states, for every input position of a value, that it reads each element before it writes the element."""
        work = event.step.work
        if not isinstance(work, Recipe) or output != event.access.writes[0][0]:
            return False
        is_stated = all(position in work.overwrites for position, name in enumerate(work.reads) if name == value)
        read, written = self._layout.arrays[value], self._layout.arrays[output]
        return is_stated and _lie_alike(read, written)

    def _check_strides(self, event: _Event) -> Iterator[PlanFault]:
        """Yields the arrays with other strides than the step was planned for."""
        for value, strides in event.step.strides.items():
            array = self._layout.arrays.get(value)
            if array is None or array.size == 0 or strides == array.strides:
                continue
            # The elements are never read: only the strides count.
            planned = np.lib.stride_tricks.as_strided(np.empty(1, array.dtype), array.shape, strides)
            if not can_stand_for(array, planned):
                problem = f"the step was planned for strides of {strides} bytes and meets {array.strides}"
                yield PlanFault(event.name, value, problem, self._layout.find(value))

    def _check_outside(self, event: _Event) -> Iterator[PlanFault]:
        """Yields accesses to the caller's memory that a run would not redirect, or that the caller does not expect."""
        work, access = event.step.work, event.access
        writes = (*access.writes, *access.clears, (_WORKING_MEMORY, access.works))
        for root, block in self._outside:
            touched = [*((value, own) for value, own, _ in access.reads), *access.writes]
            if isinstance(work, Recipe) and work.kernels:
                touched = [(value, own) for value, own in touched if value in work.function_reads]
            for value, runs in touched:
                if intersect(runs, block).count:
                    problem = f"a function keeps to the arena and '{root}' lies outside of it in a run"
                    yield PlanFault(event.name, value, problem, block)
            for value, runs in writes:
                both = intersect(runs, block)
                if both.count and root in self._plan.external.inputs:
                    yield PlanFault(event.name, value, f"it is written over the input '{root}', which is the caller's", both)
                elif both.count and value == _WORKING_MEMORY:
                    yield PlanFault(event.name, root, "the step works where the value lies, outside the arena in a run", both)

    def _check_border(self, when: str, value: str, own: Sequence[str]) -> Iterator[PlanFault]:
        """Yields a value if its copy at the border overlaps memory outside the arena, unless the value itself lies there in a run."""
        for root, block in self._outside:
            both = intersect(self._layout.find(value), block)
            if both.count and value not in own:
                yield PlanFault(when, value, f"it is copied in the arena, and calls go to where '{root}' lies outside of it", both)

    def _check_read(self, when: str, value: str) -> Iterator[PlanFault]:
        """Yields the faults of a read of a value, with or without a place."""
        if value in self._plan.places:
            yield from self._check_labels(when, value, self._layout.find(value), self._name_owners(value))
        elif value in self._seen:
            for source in self._seen[value]:
                yield from self._check_labels(when, source, self._layout.find(source), self._name_owners(source))
        elif value not in self._plan.constants:
            yield PlanFault(when, value, "it is read and no step before makes it")

    def _check_labels(self, when: str, value: str, runs: Runs, expected: Sequence[str]) -> Iterator[PlanFault]:
        if not runs.count:
            return
        beyond = subtract(runs, self._layout.find_block(self._layout.find_root(value)))
        if beyond.count:
            yield PlanFault(when, value, "the step reads beyond the block in which it lies", beyond)
            return
        labels = [self._label_of.get(name, -1) for name in expected]
        for label, bytes_of_others in self._labels.list_strangers(self._labels.find(runs), labels):
            problem = f"it is read there and was written by {self._names[label]}, not as {' or '.join(expected)}"
            yield PlanFault(when, value, problem, bytes_of_others)

    def _mark(self, runs: Runs, name: str) -> None:
        label = self._label_of.setdefault(name, len(self._names))
        if label == len(self._names):
            self._names.append(name)
        if runs.count:
            self._labels.write(self._labels.find(runs), label)

    def _name_owners(self, value: str) -> list[str]:
        return [f"value '{owner}'" for owner in self._owners.find(value)]


def bind_halo(plan: ExecutionPlan, value: str, memory: Array) -> NativeCall:
    """Returns the call that fills the halo of a value with zeros."""
    block = plan.places[value]
    assert isinstance(block, Block)
    return bind_clear(block.padded_shape, block.halo, memory[plan.offsets[value] : plan.offsets[value] + block.nbytes])


def lay_arrays(plan: ExecutionPlan, memory: Array) -> dict[str, Array]:
    """Returns all values of a plan in the arena, and its constants."""
    arrays = dict(plan.constants)

    def find(value: str) -> Array:
        if value not in arrays:
            place = plan.places[value]
            if isinstance(place, Derived):
                arrays[value] = place.make(find(place.source))
            else:
                assert isinstance(place, Block)
                arrays[value] = place.lay(memory[plan.offsets[value] :])
        return arrays[value]

    for value in plan.places:
        find(value)
    return arrays
