"""The steps of a run with known input shapes, without all that follows from shapes and constants.

Arithmetic on shapes and functions of constants give the same values in every run of one signature, so the first run keeps them. What
depends on the elements of inputs, and the shapes that follow from such elements, is computed in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from hetero_core.errors import RequestCancelledError
from hetero_core.kernels.execution import ABSENT, Program, Step
from hetero_core.network.graph import Node
from hetero_torch.attention_calls import join_attention
from hetero_torch.shortcuts import Call, join_linear, shorten_call

_SHAPES = frozenset({"Shape", "Size"})
_BY_ELEMENTS = frozenset({"NonZero"})
"""Operators whose results have a shape that follows from elements."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The calls of a run. `values` is what a run begins with.

    `constant_outputs` are the positions of outputs that lie where constants do; they are copied, so that they are their reader's own.
    """

    calls: tuple[tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], tuple[int, ...], Node], ...]
    values: tuple[Any, ...]
    input_slots: tuple[int, ...]
    output_slots: tuple[int, ...]
    constant_outputs: tuple[int, ...]

    def run(self, inputs: tuple[Any, ...], is_cancelled: Callable[[], bool]) -> tuple[Any, ...]:
        """Returns the outputs by position. Raises: RequestCancelledError between two calls; errors carry the node as a note."""
        values = list(self.values)
        for slot, value in zip(self.input_slots, inputs, strict=True):
            values[slot] = value
        for function, sources, targets, releases, node in self.calls:
            if is_cancelled():
                raise RequestCancelledError(f"cancelled before node {node.label}")
            try:
                results = function(*[values[slot] for slot in sources])
            except Exception as error:
                error.add_note(f"while running node {node.label}")
                raise
            if type(results) is tuple:
                for slot, result in zip(targets, results, strict=False):
                    if slot != ABSENT:
                        values[slot] = result
            else:
                values[targets[0]] = results
            for slot in releases:
                values[slot] = None
        results = [values[slot] for slot in self.output_slots]
        for index in self.constant_outputs:
            results[index] = results[index].clone()
        return tuple(results)


def find_memory(values: Iterable[Any]) -> frozenset[int]:
    """Returns the addresses of the memory of tensors."""
    return frozenset(value.untyped_storage().data_ptr() for value in values if isinstance(value, Tensor))


def own_results(results: Iterable[Any], kept_memory: frozenset[int]) -> tuple[Any, ...]:
    """Returns results of a run, with copies of those that lie where constants do: a reader may write into what it gets."""
    return tuple([result.clone() if result.untyped_storage().data_ptr() in kept_memory else result for result in results])


def find_constants(program: Program) -> frozenset[int]:
    """Returns the addresses of the constants of a program and of its bodies."""
    bodies = (find_constants(body.program) for step in program.steps for body in step.bodies)
    return find_memory(program.values).union(*bodies)


def can_plan(program: Program) -> bool:
    """Says whether a program is a sequence of calls: it has no bodies."""
    return not any(step.bodies for step in program.steps)


def fold_program(program: Program) -> Program:
    """Returns the program with what follows from constants alone computed, once for all plans: cast or dequantized weights are large."""
    values = list(program.values)
    known = {slot for slot, value in enumerate(values) if value is not None}
    steps: list[Step] = []
    with np.errstate(all="ignore"):
        for step in program.steps:
            if step.node.since_version > 0 and known.issuperset(set(step.sources) - {ABSENT}):
                _run_step(step, values, frozenset(step.releases), is_shaped=False)
                known.update(slot for slot in step.targets if slot != ABSENT)
            else:
                steps.append(replace(step, releases=tuple(slot for slot in step.releases if slot not in known)))
    return replace(program, steps=tuple(steps), values=tuple(values))


def make_plan(
    program: Program, inputs: tuple[Any, ...], is_cancelled: Callable[[], bool]
) -> tuple[CallPlan | None, tuple[Any, ...]]:
    """Returns the plan for inputs of these shapes, and the outputs of its first run.

    There is none where the shape of an output follows from elements: whether it lies where a constant does may change.
    """
    host_inputs = {slot for slot, value in zip(program.input_slots, inputs, strict=True) if not isinstance(value, Tensor)}
    fixed, shaped = find_fixed(program, host_inputs)
    values: list[Any] = list(program.values)
    for slot, value in zip(program.input_slots, inputs, strict=True):
        values[slot] = value
    calls: list[Call] = []
    shapes: dict[int, tuple[int, ...]] = {}
    _note_shapes(shapes, program.input_slots, values)
    with np.errstate(all="ignore"):
        for step in program.steps:
            if is_cancelled():
                raise RequestCancelledError(f"cancelled before node {step.node.label}")
            call = _run_step(step, values, fixed, is_shaped=shaped.issuperset({*step.sources, *step.targets} - {ABSENT}))
            _note_shapes(shapes, call.targets, values)
            if not all(slot in fixed or slot == ABSENT for slot in step.targets):
                calls.append(call)
            elif calls:
                calls[-1] = replace(calls[-1], releases=(*calls[-1].releases, *call.releases))
    fixed_values = [value if slot in fixed else None for slot, value in enumerate(values)]
    outputs = frozenset(program.output_slots)
    calls = join_attention(join_linear(calls, fixed_values, outputs), fixed_values, outputs, shapes)
    read = {slot for call in calls for slot in call.sources} | set(program.output_slots)
    start = tuple(value if slot in read else None for slot, value in enumerate(fixed_values))
    results = tuple(values[slot] for slot in program.output_slots)
    memory = find_memory(start)
    plan = CallPlan(
        tuple((call.function, call.sources, call.targets or (ABSENT,), call.releases, call.node) for call in calls),
        start,
        program.input_slots,
        program.output_slots,
        tuple(index for index, result in enumerate(results) if find_memory([result]) & memory),
    )
    return plan if shaped.issuperset(program.output_slots) else None, own_results(results, memory)


def _note_shapes(shapes: dict[int, tuple[int, ...]], slots: Iterable[int], values: Sequence[Any]) -> None:
    shapes.update((slot, tuple(values[slot].shape)) for slot in slots if isinstance(values[slot], Tensor))


def _run_step(step: Step, values: list[Any], fixed: frozenset[int], *, is_shaped: bool) -> Call:
    """Runs a step; returns its call in later runs, a shorter one where the shapes are always these."""
    arguments = [values[slot] for slot in step.sources]
    try:
        results = step.function(*arguments)
    except Exception as error:
        error.add_note(f"while running node {step.node.label}")
        raise
    for slot, result in zip(step.targets, results if isinstance(results, tuple) else (results,), strict=False):
        if slot != ABSENT:
            values[slot] = np.asarray(result) if isinstance(result, np.generic) else result
    releases = tuple(slot for slot in step.releases if slot not in fixed)
    for slot in releases:
        values[slot] = None
    call = Call(step.function, step.sources, step.targets, releases, step.node)
    is_short = is_shaped and not step.value and arguments and isinstance(arguments[0], Tensor)
    return shorten_call(call, arguments, results) if is_short else call


def find_fixed(program: Program, host_inputs: set[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the slots whose values follow from constants and the shapes of inputs, and those whose shapes do.

    `host_inputs` are the slots of inputs that are arrays of the host.
    """
    fixed = {slot for slot, value in enumerate(program.values) if value is not None}
    shaped = {*fixed, *program.input_slots}
    on_host = set(host_inputs)
    for step in program.steps:
        sources = [slot for slot in step.sources if slot != ABSENT]
        function = step.function
        is_host = isinstance(function, partial) and function.args[:1] == (np,)
        is_shape = step.node.op_type in _SHAPES and not step.node.domain and not step.value
        if is_host or is_shape or (step.value and sources[0] not in on_host):
            on_host.update(step.targets)
        known = step.node.since_version > 0
        if known and (all(slot in fixed for slot in sources) or (is_shape and sources[0] in shaped)):
            fixed.update(step.targets)
            shaped.update(step.targets)
        elif (
            known
            and step.node.op_type not in _BY_ELEMENTS
            and all(slot in fixed or (slot in shaped and slot not in on_host) for slot in sources)
        ):
            shaped.update(step.targets)
    return frozenset(fixed - {ABSENT}), frozenset(shaped)
