"""Claims about the places of a plan for all sizes: with them, the walk in labels that the verifier makes for the example holds for all.

The order of steps, and so what is alive at each, is the same for all sizes. So it is enough that what is alive together is apart, or the
same bytes where a step may write over what it reads, and that every array lies in its block and every block in the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_cpu.open.boxes import Box, Claim, Way, box_of, claim_all, claim_apart, claim_inside, claim_same, make_box
from hetero_cpu.open.plan import OpenPlan
from hetero_cpu.open.prover import Prover, Values
from hetero_cpu.open.sizes import terms_of, value_of
from hetero_cpu.open.tabulating import Origin
from hetero_cpu.open.terms import Terms, add, evaluate
from hetero_cpu.planning.arena import ALIGNMENT
from hetero_cpu.planning.plan import Block, Derived, Foreign, PlannedStep
from hetero_cpu.planning.plan_layout import Owners
from hetero_cpu.planning.recipe import NO_HALO, Cut, Halo, Recipe

_PLAN, _WORKING_MEMORY = "the plan", "its working memory"


@dataclass(frozen=True, slots=True)
class Life:
    """The first and the last step that touches bytes; -1 is the begin of a run, the number of steps its end."""

    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """Says whether both are alive at one step."""
        return self.first <= other.last and other.first <= self.last


class OpenLayout:
    """Where values of a plan lie, as boxes of symbols, and when they are alive."""

    def __init__(self, opened: OpenPlan, prover: Prover) -> None:
        assert opened.origin is not None
        self.plan, self.prover = opened.plan, prover
        self.origin: Origin = opened.origin
        self.arrays: Mapping[str, Any] = self.origin.arrays
        self.owners = Owners(self.plan)
        self.outside = frozenset(self.plan.outside.roots)
        self.lives_of_blocks: dict[str, Life] = {}
        self.lives_of_owners: dict[str, Life] = {}
        self._boxes: dict[str, Box] = {}
        self._note_lives()

    def find_root(self, value: str) -> str:
        """Returns the value whose block a placed value lies in."""
        place = self.plan.places[value]
        while isinstance(place, Derived):
            value, place = place.source, self.plan.places[place.source]
        return value

    def find_box(self, value: str) -> Box:
        """Returns the bytes of a placed value."""
        if value not in self._boxes:
            self._boxes[value] = box_of(self.arrays[value])
        return self._boxes[value]

    def find_block(self, root: str) -> Box:
        """Returns all bytes of a block, the halo included."""
        block = self.plan.places[root]
        assert isinstance(block, Block)
        base = self.origin.bases[root] if root in self.outside else self.origin.bases[""] + self.plan.offsets[root]
        return make_box(base, (), block.nbytes)

    def find_scratch(self, step: PlannedStep) -> Box:
        """Returns the working memory of a step."""
        return make_box(self.origin.bases[""] + step.scratch_offset, (), step.scratch)

    def cut_box(self, value: str, cut: Cut) -> Box:
        """Returns the bytes of a part of a value, which no question is asked of."""
        array = self.arrays[value]
        begin, axes = array.address, []
        for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
            own = cut[axis] if axis < len(cut) else slice(None)
            start, stop = 0 if own.start is None else own.start, size if own.stop is None else own.stop
            begin = begin + start * stride
            axes.append((stop - start, stride))
        return make_box(begin, axes, array.itemsize)

    def list_written(self, step: PlannedStep) -> list[tuple[str, Box]]:
        """Returns what a step states to write: its values, the first one part by part where it has parts."""
        work = step.work
        values = step.writes if isinstance(work, Recipe) else tuple(value for value in work.placed if value is not None)
        if isinstance(work, Recipe) and work.parts:
            return [
                *((values[0], self.cut_box(values[0], cut)) for cut in work.parts),
                *((v, self.find_box(v)) for v in values[1:]),
            ]
        return [(value, self.find_box(value)) for value in values]

    def list_owned(self, owner: str) -> list[Box]:
        """Returns the bytes that are written as a value: all of it, or what no other one is computed in."""
        joined = self.plan.joins.get(owner)
        if joined is None:
            return [self.find_box(owner)]
        return [self.cut_box(owner, piece.cut) for piece in joined.pieces if not piece.is_moved]

    def _note_lives(self) -> None:
        plan, end = self.plan, len(self.plan.steps)
        seen: dict[str, tuple[str, ...]] = {}
        for value in plan.inputs:
            self._touch(value, -1)
        for index, step in enumerate(plan.steps):
            for value in (*step.work.reads, *step.clears):
                for other in (value,) if value in plan.places else seen.get(value, ()):
                    self._touch(other, index)
            for value, _ in self.list_written(step):
                self._touch(value, index)
            if isinstance(step.work, Foreign):
                views = tuple(o for v in step.work.reads for o in ((v,) if v in plan.places else seen.get(v, ())))
                seen |= {v: views for v, place in zip(step.writes, step.work.placed, strict=True) if place is None}
        for value in plan.outputs:
            for other in (value,) if value in plan.places else seen.get(value, ()):
                self._touch(other, end)

    def _touch(self, value: str, index: int) -> None:
        if value not in self.plan.places:
            return
        root = self.find_root(value)
        for lives, name in ((self.lives_of_blocks, root), *((self.lives_of_owners, owner) for owner in self.owners.find(value))):
            life = lives.get(name, Life(index, index))
            lives[name] = Life(min(life.first, index), max(life.last, index))


def list_place_claims(layout: OpenLayout) -> Iterator[Claim]:
    """Yields what must hold of places."""
    yield from _list_blocks(layout)
    yield from _list_arrays(layout)
    yield from _list_joins(layout)
    for index, step in enumerate(layout.plan.steps):
        yield from _list_written_over(layout, index, step)
        yield from _list_reaches(layout, step)
        yield from _list_strides(layout, step)


def _list_blocks(layout: OpenLayout) -> Iterator[Claim]:
    """Yields that blocks and working memory lie in the arena, aligned, and apart while they are alive together."""
    plan, prover = layout.plan, layout.prover
    arena = make_box(layout.origin.bases[""], (), plan.arena_bytes)
    lived = [(root, life) for root, life in layout.lives_of_blocks.items() if root not in layout.outside]
    spans = [(_PLAN, root, life, layout.find_block(root), plan.offsets[root]) for root, life in lived]
    for index, step in enumerate(plan.steps):
        if step.work.scratch if isinstance(step.work, Recipe) else 0:
            name = _name(step)
            spans.append((name, _WORKING_MEMORY, Life(index, index), layout.find_scratch(step), step.scratch_offset))
    for position, (step_name, value, life, box, offset) in enumerate(spans):
        yield claim_inside(prover, step_name, value, "its block ends beyond the arena", box, arena)
        yield _claim_aligned(prover, step_name, value, terms_of(offset))
        for _, other, its, around, _ in spans[:position]:
            if life.meets(its):
                yield claim_apart(prover, step_name, value, f"it shares bytes with '{other}' while both are alive", box, around)


def _claim_aligned(prover: Prover, step: str, value: str, offset: Terms) -> Claim:
    def holds(values: Values) -> bool:
        return evaluate(offset, values) % ALIGNMENT == 0

    # Without a sum to prove it is proven.
    ways: tuple[Way, ...] = ((),) if prover.is_multiple(offset, ALIGNMENT) else ()
    return Claim(step, value, f"its block is not aligned to {ALIGNMENT} bytes", ways, holds)


def _list_arrays(layout: OpenLayout) -> Iterator[Claim]:
    """Yields that each value lies in its block, and what is made of another value in that."""
    for value, place in layout.plan.places.items():
        own, root = layout.find_box(value), layout.find_root(value)
        problem = f"it lies outside the block of '{root}'"
        if isinstance(place, Block):
            yield claim_inside(layout.prover, _PLAN, value, problem, own, layout.find_block(root))
        else:
            around = layout.find_box(place.source)
            yield claim_inside(layout.prover, _PLAN, value, f"it lies outside '{place.source}', of which it is a view", own, around)


def _list_joins(layout: OpenLayout) -> Iterator[Claim]:
    """Yields that a piece lies in its own slice of a concatenation, and that the slices are side by side and all of it."""
    for output, joined in layout.plan.joins.items():
        shape = layout.arrays[output].shape
        ends: list[Any] = [0] * len(shape)
        for piece in joined.pieces:
            for axis, own in enumerate(piece.cut):
                if own.start is not None or own.stop is not None:
                    problem = f"as a piece of '{output}' it does not begin where the one before it ends"
                    start = 0 if own.start is None else own.start
                    yield claim_all(_PLAN, piece.source, problem, (start - ends[axis], ends[axis] - start))
                    ends[axis] = shape[axis] if own.stop is None else own.stop
            if piece.is_moved:
                problem = f"it is a piece of '{output}' and does not lie in its slice of it"
                slot = layout.cut_box(output, piece.cut)
                yield claim_same(layout.prover, _PLAN, piece.source, problem, layout.find_box(piece.source), slot)
        for axis, end in enumerate(ends):
            if value_of(end):
                yield claim_all(_PLAN, output, "its pieces are not all of it", (end - shape[axis], shape[axis] - end))


def _list_written_over(layout: OpenLayout, index: int, step: PlannedStep) -> Iterator[Claim]:
    """Yields that a step writes over nothing that is alive in the same block, but for what it reads in the same places."""
    name, written = _name(step), layout.list_written(step)
    for position, (value, box) in enumerate(written):
        root = layout.find_root(value)
        reads = [
            other for other in dict.fromkeys(step.work.reads) if other in layout.plan.places and layout.find_root(other) == root
        ]
        for other in reads:
            if _lies_alike(layout, layout.arrays[other], layout.arrays[value]):
                problem = f"the step writes '{value}' over it, in other places"
                yield claim_same(layout.prover, name, other, problem, layout.find_box(other), box)
            else:
                problem = f"the step reads it and writes '{value}' over it"
                yield claim_apart(layout.prover, name, other, problem, layout.find_box(other), box)
        for other, its in written[position + 1 :]:
            if layout.find_root(other) == root:
                yield claim_apart(layout.prover, name, value, f"the step writes it and '{other}' there", box, its)
        for owner, life in layout.lives_of_owners.items():
            if owner != value and life.first < index < life.last and layout.find_root(owner) == root:
                for own in layout.list_owned(owner):
                    problem = f"it is read later and the step writes '{value}' over it"
                    yield claim_apart(layout.prover, name, owner, problem, own, box)


def _lies_alike(layout: OpenLayout, first: Any, second: Any) -> bool:
    """Says whether two arrays are the same elements in the same places in the example."""
    example = layout.prover.samples[0]

    def describe(array: Any) -> tuple[Any, ...]:
        axes = zip(array.shape, array.strides, strict=True)
        numbers = [(evaluate(terms_of(size), example), evaluate(terms_of(stride), example)) for size, stride in axes]
        return evaluate(terms_of(array.address), example), array.dtype, [axis if axis[0] > 1 else 1 for axis in numbers]

    return describe(first) == describe(second)


def _list_reaches(layout: OpenLayout, step: PlannedStep) -> Iterator[Claim]:
    """Yields that the zeros around an image go as far as a step reads them."""
    reaches = step.work.reaches if isinstance(step.work, Recipe) else ()
    for value, reach in zip(step.work.reads, reaches, strict=False):
        if value not in layout.plan.places or _is_without_halo(reach):
            continue
        root = layout.find_root(value)
        block = layout.plan.places[root]
        assert isinstance(block, Block)
        sides = ("top", "left", "bottom", "right")
        own, around = layout.arrays[value], layout.arrays[root]
        sums = [getattr(block.halo, side) - getattr(reach, side) for side in sides]
        for axis in (2, 3):
            for left, right in ((own.shape, around.shape), (own.strides, around.strides)):
                sums += [left[axis] - right[axis], right[axis] - left[axis]]
        yield claim_all(_name(step), value, f"the step reads more zeros around it than '{root}' has", sums)


def _is_without_halo(halo: Halo) -> bool:
    return all(type(side) is int for side in (halo.top, halo.left, halo.bottom, halo.right)) and halo == NO_HALO


def _list_strides(layout: OpenLayout, step: PlannedStep) -> Iterator[Claim]:
    """Yields that a step meets arrays with the strides that it was planned for, or an image whose pixels lie farther apart."""
    for value, strides in step.strides.items():
        array = layout.arrays.get(value)
        if array is None or value not in layout.plan.places or any(not terms_of(size) for size in array.shape):
            continue  # an array without elements is read with any strides
        same = [axis for axis, size in enumerate(array.shape) if terms_of(size) != {(): 1}]
        ways = [tuple(_list_differences((array.strides[axis], strides[axis]) for axis in same))]
        if len(strides) == 4:
            pairs = [(array.strides[axis] * strides[3], strides[axis] * array.strides[3]) for axis in (0, 2)]
            ways.append(tuple(_list_differences([(array.strides[1], strides[1]), *pairs])))
        problem = "the step was planned for other strides than it meets"

        def holds(values: Sequence[int], ways: Sequence[Any] = ways) -> bool:
            return any(all(evaluate(terms, values) >= 0 for terms in way) for way in ways)

        yield Claim(_name(step), value, problem, tuple(ways), holds)


def _list_differences(pairs: Any) -> Iterator[Any]:
    """Yields what is at least zero where both numbers of each pair are the same."""
    for left, right in pairs:
        difference = add(terms_of(left), terms_of(right), -1)
        if difference:
            yield difference
            yield {product: -factor for product, factor in difference.items()}


def _name(step: PlannedStep) -> str:
    return f"step {step.node.label}"
