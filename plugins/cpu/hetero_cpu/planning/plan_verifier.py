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

import numpy as np

from hetero_cpu.planning.arena import ALIGNMENT
from hetero_cpu.planning.byte_runs import NO_BYTES, Labels, Runs, intersect, join_all, subtract
from hetero_cpu.planning.pieces import can_stand_for
from hetero_cpu.planning.plan import ExecutionPlan, Foreign, PlannedStep
from hetero_cpu.planning.plan_layout import Access, Owners, PlanLayout
from hetero_cpu.planning.recipe import Array, Recipe

_NOTHING = 0
_WORKING_MEMORY = "its working memory"
_BEGIN, _END = "the begin of the run", "the end of the run"


@dataclass(frozen=True, slots=True)
class PlanFault:
    """A fault of a plan: at which step, with which value, in which bytes of the arena, and what happens there."""

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
    """Returns what is wrong with a plan, in the order of its steps; nothing for a plan that may run."""
    layout = PlanLayout(plan)
    strays = tuple(_list_strays(plan, layout))
    if strays:
        # Where values lie outside of the memory that they are views of, nothing else can be told.
        return strays
    return (*_list_misplaced_pieces(plan, layout), *_list_misplaced_outside(plan, layout), *_Walk(plan, layout).list_faults())


def _list_strays(plan: ExecutionPlan, layout: PlanLayout) -> Iterator[PlanFault]:
    """Yields blocks that are not in the arena or not aligned, and values that lie outside their block."""
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


def _list_misplaced_pieces(plan: ExecutionPlan, layout: PlanLayout) -> Iterator[PlanFault]:
    """Yields the values that are to be computed in their places in a concatenation and lie elsewhere."""
    for output, join in plan.joins.items():
        for piece in join.pieces:
            if piece.is_moved and not _lie_alike(layout.arrays[piece.source], layout.arrays[output][piece.cut]):
                problem = f"it is a piece of '{output}' and does not lie in its slice of it"
                yield PlanFault("the plan", piece.source, problem, layout.find(piece.source))


def _list_misplaced_outside(plan: ExecutionPlan, layout: PlanLayout) -> Iterator[PlanFault]:
    """Yields the values outside the arena that are not all of a block in C order, as the caller's arrays are."""
    outside = plan.outside
    for value, root in (*((value, value) for value in outside.inputs), *outside.outputs.items()):
        array = layout.arrays[value]
        is_whole = layout.find_root(value) == root and layout.find(value).count == layout.find_block(root).count
        if not is_whole or not array.flags.c_contiguous:
            problem = f"it is the caller's array in a run, and not all of the block of '{root}' in C order"
            yield PlanFault("the plan", value, problem, layout.find(value))


def _lie_alike(first: Array, second: Array) -> bool:
    """Says whether two arrays are the same elements in the same places."""
    is_same = first.shape == second.shape and first.dtype == second.dtype and first.ctypes.data == second.ctypes.data
    return is_same and _list_strides(first.strides, first) == _list_strides(second.strides, second)


def _list_strides(strides: Sequence[int], array: Array) -> list[int]:
    """Returns the strides that count: an axis of one element has any."""
    return [stride for stride, size in zip(strides, array.shape, strict=True) if size > 1]


@dataclass(frozen=True, slots=True)
class _Event:
    """A step and its bytes."""

    name: str
    step: PlannedStep
    access: Access


class _Walk:
    """The run of a plan in labels of bytes."""

    def __init__(self, plan: ExecutionPlan, layout: PlanLayout) -> None:
        self._plan, self._layout = plan, layout
        self._owners = Owners(plan)
        # What a label says, and back; 0 are bytes that nobody wrote in this run.
        self._names = ["nobody in this run"]
        self._label_of: dict[str, int] = {}
        # The values that a value without a place may be a view of.
        self._seen: dict[str, tuple[str, ...]] = {value: () for value in plan.inputs if value not in plan.places}
        self._outside = tuple((root, layout.find_block(root)) for root in plan.outside.roots)
        self._events = [_Event(f"step {step.node.label}", step, layout.list_accesses(step)) for step in plan.steps]
        sets = [runs for event in self._events for runs in event.access.list_sets()]
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
        """Notes what the results of the toolkit that have no place may be views of."""
        views = tuple(
            dict.fromkeys(
                other for value in work.reads for other in ((value,) if value in self._plan.places else self._seen.get(value, ()))
            )
        )
        self._seen |= {value: views for value, place in zip(writes, work.placed, strict=True) if place is None}

    def _check_overlaps(self, event: _Event) -> Iterator[PlanFault]:
        """Yields what a step reads while it writes or works there, and what it writes twice."""
        writes, works = event.access.writes, (_WORKING_MEMORY, event.access.works)
        reads = {value: join_all((own, around)) if around.count else own for value, own, around in event.access.reads}
        for value, runs in reads.items():
            for other, others in (*writes, works):
                both = intersect(runs, others)
                if both.count and not self._may_overwrite(event, value, other):
                    yield PlanFault(event.name, value, f"the step reads it and writes '{other}' over it", both)
        for position, (value, runs) in enumerate(writes):
            for other, others in (*writes[position + 1 :], works):
                both = intersect(runs, others)
                if both.count:
                    yield PlanFault(event.name, value, f"the step writes it and '{other}' there", both)

    def _may_overwrite(self, event: _Event, value: str, output: str) -> bool:
        """Says whether a step states for every place at which it reads a value that it reads each element before it writes it."""
        work = event.step.work
        if not isinstance(work, Recipe) or output != event.access.writes[0][0]:
            return False
        is_stated = all(position in work.overwrites for position, name in enumerate(work.reads) if name == value)
        read, written = self._layout.arrays[value], self._layout.arrays[output]
        return is_stated and _lie_alike(read, written)

    def _check_strides(self, event: _Event) -> Iterator[PlanFault]:
        """Yields the arrays that the step is bound to and was not planned for."""
        for value, strides in event.step.strides.items():
            array = self._layout.arrays.get(value)
            if array is None or strides == array.strides:
                continue
            # Never looked into: only its strides count.
            planned = np.lib.stride_tricks.as_strided(np.empty(1, array.dtype), array.shape, strides)
            if not can_stand_for(array, planned):
                problem = f"the step was planned for strides of {strides} bytes and meets {array.strides}"
                yield PlanFault(event.name, value, problem, self._layout.find(value))

    def _check_outside(self, event: _Event) -> Iterator[PlanFault]:
        """Yields the accesses to memory of the caller that a run does not lead there, or that the caller does not expect."""
        work, access = event.step.work, event.access
        follows = isinstance(work, Recipe) and bool(work.kernels) and not work.calls_functions
        writes = (*access.writes, *access.clears, (_WORKING_MEMORY, access.works))
        for root, block in self._outside:
            for value, runs in () if follows else (*((value, own) for value, own, _ in access.reads), *access.writes):
                if intersect(runs, block).count:
                    problem = f"a function keeps to the arena and '{root}' lies outside of it in a run"
                    yield PlanFault(event.name, value, problem, block)
            for value, runs in writes:
                both = intersect(runs, block)
                if both.count and root in self._plan.outside.inputs:
                    yield PlanFault(event.name, value, f"it is written over the input '{root}', which is the caller's", both)
                elif both.count and value == _WORKING_MEMORY:
                    yield PlanFault(event.name, root, "the step works where the value lies, outside the arena in a run", both)

    def _check_border(self, when: str, value: str, own: Sequence[str]) -> Iterator[PlanFault]:
        """Yields a value that is copied to or from memory that is outside the arena in a run, but for those that lie there themselves."""
        for root, block in self._outside:
            both = intersect(self._layout.find(value), block)
            if both.count and value not in own:
                yield PlanFault(when, value, f"it is copied in the arena, and calls go to where '{root}' lies outside of it", both)

    def _check_read(self, when: str, value: str) -> Iterator[PlanFault]:
        """Yields what is wrong with a value that is read, wherever it is."""
        if value in self._plan.places:
            yield from self._check_labels(when, value, self._layout.find(value), self._name_owners(value))
        elif value in self._seen:
            for other in self._seen[value]:
                yield from self._check_labels(when, other, self._layout.find(other), self._name_owners(other))
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
