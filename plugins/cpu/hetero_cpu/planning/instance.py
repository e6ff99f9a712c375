"""A plan with memory: the arena, the arrays in it, and the calls of a run. Used by one run at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import RunContext
from hetero_cpu.planning.arena import ALIGNMENT
from hetero_cpu.planning.calls import BoundStep, CurrentRun, StepCalls, list_actions
from hetero_cpu.planning.outside import OutsideArrays
from hetero_cpu.planning.plan import Block, Derived, ExecutionPlan, Foreign, PlannedStep
from hetero_cpu.planning.recipe import Array, Call, Recipe

if TYPE_CHECKING:
    from hetero_cpu.machine.native import NativeCall
    from hetero_cpu.machine.team import Team

_LITTLE_BYTES = 16384
"""The bytes that a step may read, write and work in together and still count as small: between small steps cancellation is not checked."""


Binder = Callable[[Recipe, list[Array], list[Array], Array], "Sequence[Call | NativeCall]"]
"""Returns the calls of a recipe on what it reads, what it writes, and bytes to work in."""
_NOTHING: Mapping[str, Array] = {}


class WrongTypeError(Exception):
    """A kernel made another type than was inferred, so that the plan does not hold; never leaves the device."""


class Instance:
    """Not safe for threads: one run uses it at a time."""

    __slots__ = (
        "_arrays", "_calls", "_current", "_inputs", "_memory", "_outputs", "_outside", "_program", "_silence",
    )  # fmt: skip

    def __init__(self, plan: ExecutionPlan) -> None:
        self._memory = allocate_arena(plan.arena_bytes)
        self._arrays = lay_arrays(plan, self._memory)
        self._current = current = CurrentRun()
        native: list[NativeCall] = []
        bind = _bind_alike() if plan.native_count else lambda recipe, *arrays: recipe.bind(*arrays)
        steps = tuple([self._bind(step, plan, native, bind) for step in plan.steps])
        self._program = _make_program(native)
        self._calls = StepCalls(steps, current, self._program)
        # The array of each input and output; None if it has no place in the arena.
        self._inputs = tuple((value, self._arrays.get(value)) for value in plan.inputs)
        self._outputs = tuple((value, self._arrays.get(value)) for value in plan.outputs)
        self._outside = OutsideArrays(plan, self._program, native, self._arrays) if plan.outside.roots else None
        # What a foreign step calls may be the user's function, which is to see the user's own context.
        self._silence = None if plan.foreign_count else make_silence()

    def _bind(self, step: PlannedStep, plan: ExecutionPlan, native: list[NativeCall], bind: Binder) -> BoundStep:
        if isinstance(step.work, Foreign):
            return BoundStep(step.node, (bind_foreign(step.work, step.writes, self._arrays, self._current),))
        scratch = self._memory[step.scratch_offset : step.scratch_offset + step.work.scratch]
        reads = [self._arrays[value] for value in step.work.reads]
        writes = [self._arrays[value] for value in step.writes]
        calls: list[Any] = [bind_halo(plan, value, self._memory) for value in step.clears]
        calls += bind(step.work, reads, writes, scratch)
        is_little = sum([array.nbytes for array in (*reads, *writes, scratch)]) <= _LITTLE_BYTES
        return BoundStep(step.node, tuple(list_actions(calls, native)), is_little)

    def run(self, inputs: Sequence[Any], context: RunContext, team: Team | None = None) -> tuple[Any, ...]:
        """Returns the outputs in arrays of their own, or in those that the context brings; a team helps with machine code.

        Raises: RequestCancelledError when the context is cancelled between two steps; WrongTypeError. Errors carry the node as a note.
        """
        current = self._current
        current.token, current.limits, current.team = context.token, context.limits, team
        try:
            outside = _NOTHING
            if self._outside is not None:
                outside = self._outside.move(inputs, context.outputs, owns_presets=context.owns_outputs)
            for (value, place), array in zip(self._inputs, inputs, strict=True):
                if place is None:
                    current.passed[value] = lay_inputs((array,))[0]
                elif value not in outside:
                    place[...] = array
            # ONNX lets infinities and NaN arise in silence. The state belongs to the thread, so requests do not disturb each other.
            if self._silence is not None and context.profile is None and context.limits is None:
                self._silence.run(self._calls.run_unwatched)
            else:
                with np.errstate(all="ignore"):
                    self._calls.run(context.profile, context.limits)
            return self._take_out(outside, context.outputs)
        finally:
            current.team = None
            current.passed.clear()

    def _take_out(self, own_outputs: Mapping[str, Array], presets: Sequence[Array | None] | None) -> tuple[Any, ...]:
        outputs: list[Any] = []
        for index, (value, place) in enumerate(self._outputs):
            if place is None:
                outputs.append(own_value(self._current.passed[value], self._memory))
                continue
            if value in own_outputs:
                outputs.append(own_outputs[value])
                continue
            preset = None if presets is None else presets[index]
            if preset is None or preset.shape != place.shape or preset.dtype != place.dtype:
                # C order, whatever the order in the arena.
                outputs.append(place.copy())
            else:
                preset[...] = place
                outputs.append(preset)
        return tuple(outputs)


def _bind_alike() -> Binder:
    from hetero_cpu.planning.alike_calls import AlikeCalls  # LLVM

    return AlikeCalls().bind


def make_silence() -> Context:
    """Returns an empty context in which NumPy's functions let infinities and NaN arise; 0.05 us to enter, `np.errstate` takes 0.8."""
    silence = Context()
    silence.run(np.seterr, all="ignore")
    return silence


def bind_foreign(work: Foreign, writes: Sequence[str], arrays: dict[str, Array], current: CurrentRun) -> Call:
    """Returns the call of a node of the toolkit on arrays by name, or on what was passed on by name."""
    passed = current.passed

    def call() -> None:
        results = work.program.run(
            tuple(arrays[value] if value in arrays else passed[value] for value in work.reads),
            is_cancelled=current.is_cancelled,
            limits=current.limits,
        )
        for value, place, result in zip(writes, work.placed, results, strict=True):
            if place is None:
                passed[value] = result
            else:
                _copy_result(arrays[place], result, value)

    return call


def _make_program(calls: Sequence[NativeCall]) -> Any:
    if not calls:
        return None
    from hetero_cpu.machine.program import NativeProgram  # LLVM

    return NativeProgram(calls)


def bind_halo(plan: ExecutionPlan, value: str, memory: Array) -> NativeCall:
    """Returns the call that writes the zeros around a value."""
    from hetero_cpu.operators.convolution.staging import bind_clear  # LLVM

    block = plan.places[value]
    assert isinstance(block, Block)
    return bind_clear(block.padded_shape, block.halo, memory[plan.offsets[value] : plan.offsets[value] + block.nbytes])


def allocate_arena(nbytes: int) -> Array:
    """Returns bytes that begin at a multiple of the alignment."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    aligned: Array = memory[begin : begin + nbytes]
    return aligned


def lay_arrays(plan: ExecutionPlan, memory: Array) -> dict[str, Array]:
    """Returns all values of a plan that lie in the arena, and its constants."""
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


def _copy_result(target: Array, result: Any, value: str) -> None:
    if result.shape != target.shape or result.dtype != target.dtype:
        raise WrongTypeError(f"value '{value}' is {result.dtype}{list(result.shape)}, not {target.dtype}{list(target.shape)}")
    np.copyto(target, result)


def lay_inputs(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the inputs with caches that grow, which alone are in another order, in C order."""
    return tuple(
        [own if not isinstance(own, np.ndarray) or own.flags.c_contiguous else np.ascontiguousarray(own) for own in inputs]
    )


def own_value(value: Any, memory: Array) -> Any:
    """Returns a value that was passed on by name, copied where it lies in the arena, which the next run writes."""
    if isinstance(value, list):
        return [own_value(element, memory) for element in value]
    if not isinstance(value, np.ndarray):
        return value
    if np.may_share_memory(value, memory):
        return np.array(value, order="C")
    return np.ascontiguousarray(value) if value.ndim else value
