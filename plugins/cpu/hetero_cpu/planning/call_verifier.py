"""Checks the calls of machine code that a plan is bound to: by their numbers, which bytes each chunk writes.

Chunks of one call must write different bytes, all calls of a step together all that it states, and nothing else but its working memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hetero_cpu.machine.compiler import find_width
from hetero_cpu.machine.footprints import Spans
from hetero_cpu.machine.native import NativeCall
from hetero_cpu.planning.byte_runs import NO_BYTES, Runs, join_all, join_runs, subtract
from hetero_cpu.planning.instance import bind_halo
from hetero_cpu.planning.plan import ExecutionPlan, PlannedStep
from hetero_cpu.planning.plan_layout import PlanLayout
from hetero_cpu.planning.plan_verifier import PlanFault
from hetero_cpu.planning.recipe import Array, Recipe


def verify_calls(plan: ExecutionPlan) -> tuple[PlanFault, ...]:
    """Returns what is wrong with the calls of a plan that is right itself. Packs its weights, whose addresses calls have."""
    layout = PlanLayout(plan)
    return tuple(fault for step in plan.steps for fault in _check_step(plan, layout, step))


def list_spans(call: NativeCall) -> Spans | None:
    """Returns what the chunks of a call write, by address; None where its kernel does not tell."""
    kernel = call.kernel
    if kernel.writes is None:
        return None
    numbers = {**dict(zip(kernel.parameters, call.numbers, strict=False)), "chunks": call.chunks}
    spans = kernel.writes(numbers, find_width())
    # What no chunk takes is not written.
    done = spans.chunks < call.chunks
    return Spans(spans.begins[done], spans.nbytes[done], spans.chunks[done])


def _check_step(plan: ExecutionPlan, layout: PlanLayout, step: PlannedStep) -> Iterator[PlanFault]:
    if not isinstance(step.work, Recipe) or not step.work.kernels:
        return
    access = layout.list_accesses(step)
    for (value, stated), call in zip(access.clears, (bind_halo(plan, value, layout.memory) for value in step.clears), strict=True):
        yield from _check_calls(f"step {step.node.label}", value, layout, [call], stated, NO_BYTES)
    calls = layout.bind(step)
    if all(isinstance(call, NativeCall) or step.work.calls_functions for call in calls):
        native = [call for call in calls if isinstance(call, NativeCall)]
        stated = join_all(runs for _, runs in access.writes)
        written = "', '".join(value for value, _ in access.writes)
        yield from _check_calls(f"step {step.node.label}", written, layout, native, stated, access.works)


def _check_calls(
    name: str, value: str, layout: PlanLayout, calls: Sequence[NativeCall], stated: Runs, works: Runs
) -> Iterator[PlanFault]:
    """Yields what calls that follow one another write wrongly of what they state."""
    written = []
    for number, call in enumerate(calls):
        spans = list_spans(call)
        if spans is None:
            return
        begins = spans.begins - layout.begin
        runs = join_runs(begins, begins + spans.nbytes)
        more = subtract(subtract(runs, stated), works)
        if more.count:
            yield PlanFault(name, value, f"call {number}, {call.kernel.name}, writes what the step does not state", more)
        twice = _find_overlap(begins, spans)
        if twice.count:
            yield PlanFault(name, value, f"chunks of call {number}, {call.kernel.name}, write the same bytes", twice)
        written.append(runs)
    missing = subtract(stated, join_all(written))
    if missing.count:
        yield PlanFault(name, value, "the step states to write it, and no chunk of its calls does", missing)


def _find_overlap(begins: Array, spans: Spans) -> Runs:
    """Returns bytes that two chunks write; not all of them where more than two do."""
    order = np.argsort(begins, kind="stable")
    begins, ends, chunks = begins[order], (begins + spans.nbytes)[order], spans.chunks[order]
    meets = (begins[1:] < ends[:-1]) & (chunks[1:] != chunks[:-1]) & (spans.nbytes[order][1:] > 0)
    return join_runs(begins[1:][meets], np.minimum(ends[1:], ends[:-1])[meets])
