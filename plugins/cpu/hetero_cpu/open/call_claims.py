"""Claims about the calls of a plan for all sizes: chunks write all that a step states, each byte once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hetero_cpu.machine.compiler import find_width
from hetero_cpu.machine.native import NativeCall
from hetero_cpu.open.boxes import Box, Claim, claim_all, claim_inside, claim_same, find_runs, make_box, order_axes
from hetero_cpu.open.place_claims import OpenLayout
from hetero_cpu.open.plan import OpenStep
from hetero_cpu.open.prover import Values
from hetero_cpu.open.sizes import terms_of
from hetero_cpu.open.terms import Terms, add, evaluate, multiply
from hetero_cpu.open.written_boxes import NoBoxError, Written, find_written
from hetero_cpu.planning.byte_runs import subtract
from hetero_cpu.planning.plan import Block, PlannedStep
from hetero_cpu.planning.recipe import Recipe

_LONGEST_TABLE = 1 << 20


def list_call_claims(layout: OpenLayout) -> Iterator[Claim]:
    """Yields what must hold of calls."""
    for step, own in zip(layout.plan.steps, layout.origin.steps, strict=True):
        if isinstance(step.work, Recipe) and step.work.kernels:
            yield from _list_of_step(layout, step, own)


def _list_of_step(layout: OpenLayout, step: PlannedStep, own: OpenStep) -> Iterator[Claim]:
    name = f"step {step.node.label}"
    calls = [layout.origin.calls[index] for action in own.actions if isinstance(action, range) for index in action]
    for value, call in zip(step.clears, calls, strict=False):
        yield from _list_of_halo(layout, name, value, call)
    calls = calls[len(step.clears) :]
    if any(call.kernel.writes is None for call in calls):
        # As where numbers are checked: nothing tells what such a kernel writes.
        return
    targets = layout.list_written(step)
    hits: dict[int, list[Box]] = {}
    for number, call in enumerate(calls):
        title = f"call {number}, {call.kernel.name}"
        try:
            written = find_written(call, find_width())
        except NoBoxError as error:
            yield _doubt(name, targets[0][0], f"{title}: {error}")
            continue
        yield claim_all(name, targets[0][0], f"{title}: its chunks do not share its work", written.shared)
        yield from _list_of_tables(layout, name, title, call, written)
        for box in written.boxes:
            yield _claim_distinct(layout, name, targets[0][0], title, box)
            target = _find_target(layout, box, [its for _, its in targets])
            if target is None:
                around, value = layout.find_scratch(step), "its working memory"
            else:
                value, around = targets[target]
                hits.setdefault(target, []).append(box)
            yield claim_inside(layout.prover, name, value, f"{title}, writes what the step does not state", box, around)
    if step.work.calls_functions:  # type: ignore[union-attr]  # a recipe
        # Functions may write the rest.
        return
    for index, (value, box) in enumerate(targets):
        own_boxes = hits.get(index, [])
        problem = "the step states to write it, and no chunk of its calls does"
        if len(own_boxes) == 1:
            yield claim_same(layout.prover, name, value, problem, own_boxes[0], box)
        else:
            yield _doubt(name, value, problem)


def _list_of_tables(layout: OpenLayout, name: str, title: str, call: NativeCall, written: Written) -> Iterator[Claim]:
    """Yields that small arrays which are made when the plan is bound are as long as a call reads them. Only numbers can tell."""
    makers = {number: key for key, base in layout.origin.scope.tables.items() for (number,) in base.terms}
    numbers = dict(zip(call.kernel.parameters, call.numbers, strict=False))
    for parameter, nbytes in written.tables.items():
        terms = terms_of(numbers[parameter])
        for (make, parts), base in ((makers[product[0]], product) for product in terms if product and product[0] in makers):
            need = add(terms_of(nbytes), {product: factor for product, factor in terms.items() if product != base})

            def holds(values: Values, make: Any = make, parts: Any = parts, need: Terms = need) -> bool | None:
                sizes = [evaluate(dict(part), values) for part in parts]
                return bool(make(*sizes).nbytes >= evaluate(need, values)) if max(sizes, default=0) <= _LONGEST_TABLE else None

            yield Claim(name, parameter, f"{title}, reads more of a table than there is", (), holds, is_computed=True)


def _doubt(step: str, value: str, problem: str) -> Claim:
    """Returns a claim that has no proof and no numbers: the calls are checked as a whole for the sizes that come."""
    return Claim(step, value, problem, (), lambda _: None)


def _claim_distinct(layout: OpenLayout, step: str, value: str, title: str, box: Box) -> Claim:
    """Returns the claim that no two places of a box's grid share a byte, so that chunks which share it do not either."""
    ordered = order_axes(layout.prover, box)
    sums: list[Terms] = []
    inner = ordered.nbytes
    for size, stride in reversed(ordered.axes):
        sums.append(add(stride, inner, -1))
        inner = multiply(size, stride)
    return Claim(step, value, f"chunks of {title}, write the same bytes", (tuple(sums),), lambda _: None)


def _find_target(layout: OpenLayout, box: Box, targets: Sequence[Box]) -> int | None:
    """Returns which of the values that a step states a call writes; None for working memory.

    It is the same one for all sizes: the example tells, or the first sizes at which the arrays are not too many runs to look at.
    """
    for values in layout.prover.samples:
        runs, around = find_runs(box, values), [find_runs(target, values) for target in targets]
        countable = [own for own in around if own is not None]
        if runs is not None and len(countable) == len(targets):
            return next((index for index, own in enumerate(countable) if not subtract(runs, own).count), None)
    return None


def _list_of_halo(layout: OpenLayout, name: str, value: str, call: NativeCall) -> Iterator[Claim]:
    """Yields that a call writes all zeros around images: before the first row, between two rows, behind the last one."""
    block, array, whole = layout.plan.places[value], layout.arrays[value], layout.find_block(value)
    assert isinstance(block, Block)
    batch, _, height, width = array.shape
    image, pixel, row = array.strides[0], array.strides[3], array.strides[2]
    halo = block.halo
    begin = layout.origin.bases[""] + layout.plan.offsets[value]
    first = halo.top * row + halo.left * pixel
    last = first + (height - 1) * row + width * pixel
    expected = (
        make_box(begin, [(batch, image)], first),
        make_box(begin + first + width * pixel, [(batch, image), (height - 1, row)], (halo.left + halo.right) * pixel),
        make_box(begin + last, [(batch, image)], halo.right * pixel + halo.bottom * row),
    )
    written = find_written(call, find_width())
    yield claim_all(name, value, "chunks do not share the zeros around it", written.shared)
    for box, own in zip(written.boxes, expected, strict=True):
        yield claim_same(layout.prover, name, value, "not all zeros around it are written, or other bytes", box, own)
        yield claim_inside(layout.prover, name, value, "zeros are written outside of its block", box, whole)
