"""A plan with memory: the arena, the arrays in it, and the calls of a run. Used by one run at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import RunContext
from hetero_core.errors import RequestCancelledError
from hetero_core.limits import RunLimits
from hetero_core.network.graph import Node
from hetero_cpu.arena import ALIGNMENT
from hetero_cpu.output_memory import OutputMemory
from hetero_cpu.outside import OutsidePlaces
from hetero_cpu.plan import Block, Derived, Foreign, Plan, PlannedStep
from hetero_cpu.recipe import Array, Call

if TYPE_CHECKING:
    from hetero_cpu.jit.native import NativeCall
    from hetero_cpu.jit.team import Team


# Calls of machine code between which nobody looks whether the run was cancelled.
_MOST_JOINED = 32


class WrongTypeError(Exception):
    """A kernel made another type than was inferred, so that the plan does not hold; never leaves the device."""


@dataclass(frozen=True, slots=True)
class BoundStep:
    """The node that a profile and errors name, and what is called: functions, and ranges of the program of machine code."""

    node: Node
    actions: tuple[Call | range, ...]


class Instance:
    """Not safe for threads: whoever runs it has it alone."""

    __slots__ = (
        "_arrays", "_cancelled", "_inputs", "_inputs_outside", "_limits", "_memory", "_outputs", "_outputs_outside", "_outside", "_passed",
        "_program", "_steps", "_strides",
    )  # fmt: skip

    def __init__(self, plan: Plan) -> None:
        self._memory = _allocate(plan.arena_bytes)
        self._arrays = _lay_arrays(plan, self._memory)
        # What has no place in the arena, by name: for the length of a run.
        self._passed: dict[str, Any] = {}
        self._cancelled: Callable[[], bool] = bool
        self._limits: RunLimits | None = None
        native: list[NativeCall] = []
        self._steps = tuple(BoundStep(step.node, self._bind(step, plan, native)) for step in plan.steps)
        # What a run does where nobody wants the times of single steps: as few calls as possible.
        self._strides = join_steps(self._steps)
        self._program = _make_program(native)
        self._inputs = plan.inputs
        self._outputs = plan.outputs
        self._inputs_outside = frozenset(plan.outside.inputs)
        self._outputs_outside = {value: (root, _open_memory(self._arrays[value])) for value, root in plan.outside.outputs.items()}
        self._outside = OutsidePlaces(self._program, {root: self._arrays[root] for root in plan.outside.roots})

    def _bind(self, step: PlannedStep, plan: Plan, native: list[NativeCall]) -> tuple[Call | range, ...]:
        if isinstance(step.work, Foreign):
            return (self._bind_foreign(step.work, step.writes),)
        scratch = self._memory[step.scratch_offset : step.scratch_offset + step.work.scratch]
        reads = [self._arrays[value] for value in step.work.reads]
        calls: list[Any] = [_bind_clear(plan, value, self._memory) for value in step.clears]
        calls += step.work.bind(reads, [self._arrays[value] for value in step.writes], scratch)
        actions: list[Call | range] = []
        for call in calls:
            if callable(call):
                actions.append(call)
                continue
            place = len(native)
            native.append(call)
            if actions and isinstance(actions[-1], range):
                actions[-1] = range(actions[-1].start, place + 1)
            else:
                actions.append(range(place, place + 1))
        return tuple(actions)

    def _bind_foreign(self, work: Foreign, writes: Sequence[str]) -> Call:
        def call() -> None:
            found = work.program.run(
                tuple(self._read(value) for value in work.reads), is_cancelled=self._cancelled, limits=self._limits
            )
            for value, place, result in zip(writes, work.placed, found, strict=True):
                if place is None:
                    self._passed[value] = result
                else:
                    _copy_result(self._arrays[place], result, value)

        return call

    def _read(self, value: str) -> Any:
        return self._arrays[value] if value in self._arrays else self._passed[value]

    def run(self, inputs: Sequence[Any], context: RunContext, team: Team | None = None) -> tuple[Any, ...]:
        """Returns the outputs in arrays of their own, or in those that the context brings; a team helps with machine code.

        Raises: RequestCancelledError when the context is cancelled between two steps; WrongTypeError. Errors carry the node as a note.
        """
        self._cancelled, self._limits = context.cancelled, context.limits
        try:
            # ONNX lets infinities and NaN arise in silence. The state belongs to the thread, so requests do not disturb each other.
            with np.errstate(all="ignore"):
                presets = (None,) * len(self._outputs) if context.outputs is None else context.outputs
                addresses = self._bring_in(inputs)
                made = self._make_outputs(presets, addresses)
                self._outside.move(addresses)
                self._run_steps(context, team)
                return tuple(
                    made[value] if value in made else self._take_out(value, preset)
                    for value, preset in zip(self._outputs, presets, strict=True)
                )
        finally:
            self._passed.clear()

    def _bring_in(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Returns the addresses of inputs that are read where they are; copies the others into the arena, or passes them on by name."""
        addresses = {}
        for value, array in zip(self._inputs, inputs, strict=True):
            if value in self._inputs_outside and _fits(array, self._arrays[value]):
                addresses[value] = array.ctypes.data
            elif value in self._arrays:
                np.copyto(self._arrays[value], array)
            else:
                self._passed[value] = array
        return addresses

    def _make_outputs(self, presets: Sequence[Array | None], addresses: dict[str, int]) -> dict[str, Array]:
        """Returns arrays for the outputs that are written where they stay, and notes the addresses of their places.

        What the caller has set is not among them: a run that was cancelled may be under way when the caller has its arrays back.
        """
        made = {}
        for value, preset in zip(self._outputs, presets, strict=True):
            if preset is None and value in self._outputs_outside:
                root, memory = self._outputs_outside[value]
                made[value], addresses[root] = memory.take()
        return made

    def _run_steps(self, context: RunContext, team: Team | None) -> None:
        cancelled, profile, limits, program = context.cancelled, context.profile, context.limits, self._program
        step: BoundStep | None = None
        try:
            for step in self._strides if profile is None else self._steps:
                if cancelled():
                    raise RequestCancelledError(f"cancelled before node {step.node.label}")
                if limits is not None:
                    limits.enter(step.node.label)
                began = 0.0 if profile is None else perf_counter()
                for action in step.actions:
                    if isinstance(action, range):
                        program.run(action.start, action.stop, team)
                    else:
                        action()
                if profile is not None:
                    profile.add(step.node, perf_counter() - began)
        except Exception as error:
            if step is not None and not isinstance(error, RequestCancelledError) and not getattr(error, "__notes__", ()):
                error.add_note(f"while running node {step.node.label}")
            raise

    def _take_out(self, value: str, preset: Array | None) -> Any:
        found = self._read(value)
        if value not in self._arrays:
            return _own(found, self._memory)
        is_fit = preset is not None and preset.shape == found.shape and preset.dtype == found.dtype
        taken = preset if is_fit and preset is not None else np.empty(found.shape, found.dtype)
        np.copyto(taken, found)
        return taken


def join_steps(steps: Sequence[BoundStep]) -> tuple[BoundStep, ...]:
    """Returns the steps with runs of machine code that follow one another as one, under the name of the first; cancelling waits for one."""
    joined: list[BoundStep] = []
    for step in steps:
        before = joined[-1].actions[-1] if joined and joined[-1].actions else None
        after = step.actions[0] if step.actions else None
        fits = len(step.actions) == 1 and isinstance(before, range) and isinstance(after, range) and before.stop == after.start
        if fits and isinstance(before, range) and isinstance(after, range) and after.stop - before.start <= _MOST_JOINED:
            last = joined[-1]
            joined[-1] = BoundStep(last.node, (*last.actions[:-1], range(before.start, after.stop)))
        else:
            joined.append(step)
    return tuple(joined)


def _open_memory(array: Array) -> OutputMemory:
    return OutputMemory(array.shape, array.dtype, array.nbytes)


def _fits(array: Array, place: Array) -> bool:
    return array.dtype == place.dtype and array.flags.c_contiguous and array.flags.aligned


def _make_program(calls: Sequence[NativeCall]) -> Any:
    if not calls:
        return None
    from hetero_cpu.jit.program import NativeProgram  # LLVM

    return NativeProgram(calls)


def _bind_clear(plan: Plan, value: str, memory: Array) -> NativeCall:
    from hetero_cpu.jit.staging import bind_clear  # LLVM

    block = plan.places[value]
    assert isinstance(block, Block)
    return bind_clear(block.padded_shape, block.halo, memory[plan.offsets[value] : plan.offsets[value] + block.nbytes])


def _allocate(nbytes: int) -> Array:
    """Returns bytes that begin at a multiple of the alignment."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    aligned: Array = memory[begin : begin + nbytes]
    return aligned


def _lay_arrays(plan: Plan, memory: Array) -> dict[str, Array]:
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


def _own(value: Any, memory: Array) -> Any:
    """Returns a value that was passed on by name, copied where it lies in the arena, which the next run writes."""
    if isinstance(value, list):
        return [_own(element, memory) for element in value]
    if not isinstance(value, np.ndarray):
        return value
    if np.may_share_memory(value, memory):
        return np.array(value, order="C")
    return np.ascontiguousarray(value) if value.ndim else value
