"""A plan of machine code as numbers: its calls with the addresses taken out, so that another process binds it without planning.

Rules: whatever cannot be told for sure refuses the capture; addresses are told from counts by binding the plan in two places. What is
captured steers machine code and is checked by nobody, so it is kept in the user's private folder and never in a blob.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero_core.network.graph import Node
from hetero_core.records import record
from hetero_cpu.instance import allocate_arena, bind_halo, lay_arrays
from hetero_cpu.jit.compiler import Kernel
from hetero_cpu.jit.native import NativeCall
from hetero_cpu.plan import Block, Derived, Plan, PlannedStep
from hetero_cpu.recipe import Recipe
from hetero_cpu.weights import LaterArray

Array = np.ndarray[Any, Any]

_ARENA = "arena"
# What programs of a user may have as addresses, and strides and counts never are: 4 GiB to 128 TiB.
_LOWEST_ADDRESS, _ADDRESSES_END = 1 << 32, 1 << 47


@record(frozen=True, slots=True)
class View:
    """An array in the arena: bytes from its begin, shape, strides in bytes."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@record(frozen=True, slots=True)
class CapturedCall:
    """A call of a kernel. `numbers[position]` for (position, place) in `addresses` count from the begin of the place: the arena, an area
    or an array."""

    kernel: str
    numbers: tuple[int, ...]
    chunks: int
    addresses: tuple[tuple[int, str], ...]


@record(frozen=True, slots=True)
class CapturedPlan:
    """The steps with their calls, where inputs and outputs lie, and the bytes of the arena.

    `name` is what the plan is noted by when a run of it was found right.
    """

    steps: tuple[tuple[Node, tuple[CapturedCall, ...]], ...]
    values: Mapping[str, View]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arena_bytes: int
    name: str = ""


def capture_plan(plan: Plan, areas: Mapping[str, Array]) -> tuple[CapturedPlan, dict[str, Array]] | None:
    """Returns the plan, and the small arrays beside `areas` that its calls read, by place; None where not all of it is machine code.

    `areas`: arrays that lie one by one in memory that whoever binds the plan will have, by place.
    """
    finder = _Finder(areas)
    memories = [allocate_arena(plan.arena_bytes) for _ in range(2)]
    # Both bindings live until all addresses are known: what is freed leaves its address to others.
    first, second = (_bind_steps(plan, memory) for memory in memories)
    if first is None or second is None:
        return None
    steps = []
    for step, calls, twins in zip(plan.steps, first, second, strict=True):
        captured = [finder.capture(call, twin, memories) for call, twin in zip(calls, twins, strict=True)]
        if any(call is None for call in captured):
            return None
        steps.append((_strip(step.node), tuple(call for call in captured if call is not None)))
    arrays = lay_arrays(plan, memories[0])
    values = {}
    for value in dict.fromkeys((*plan.inputs, *plan.outputs)):
        if value in plan.places:
            array = arrays[value]
            values[value] = View(array.ctypes.data - memories[0].ctypes.data, array.dtype.str, array.shape, array.strides)
        elif value in plan.outputs:
            return None
    # Else an extension type, which `dtype.str` does not name.
    if any(np.dtype(view.dtype) != arrays[value].dtype for value, view in values.items()):
        return None
    return CapturedPlan(tuple(steps), values, plan.inputs, plan.outputs, plan.arena_bytes), finder.found


def _strip(node: Node) -> Node:
    """Returns what a profile and errors say of a node."""
    return Node(
        node.name,
        node.op_type,
        (),
        (),
        domain=node.domain,
        opset=node.opset,
        since_version=node.since_version,
        origins=node.origins,
    )


def _bind_steps(plan: Plan, memory: Array) -> list[list[NativeCall]] | None:
    arrays = lay_arrays(plan, memory)
    steps = []
    for step in plan.steps:
        if not isinstance(step.work, Recipe):
            return None
        scratch = memory[step.scratch_offset : step.scratch_offset + step.work.scratch]
        reads, writes = ([arrays[value] for value in values] for values in (step.work.reads, step.writes))
        calls = [bind_halo(plan, value, memory) for value in step.clears]
        for call in step.work.bind(reads, writes, scratch):
            if not isinstance(call, NativeCall):
                return None
            calls.append(call)
        steps.append(calls)
    return steps


class _Finder:
    """Tells what the numbers of calls are."""

    def __init__(self, areas: Mapping[str, Array]) -> None:
        self._areas = [(*_measure(array), place) for place, array in areas.items()]
        self.found: dict[str, Array] = {}
        self._place_of_array: dict[tuple[int, int], str] = {}

    def capture(self, call: NativeCall, other: NativeCall, memories: Sequence[Array]) -> CapturedCall | None:
        """Returns a call that was bound twice, in two memories; None where one of its numbers cannot be told."""
        bases = [int(memory.ctypes.data) for memory in memories]
        if call.kernel != other.kernel or call.chunks != other.chunks or min(bases) < _LOWEST_ADDRESS:
            return None
        numbers, addresses = list(call.numbers), []
        for position, (number, twin) in enumerate(zip(call.numbers, other.numbers, strict=True)):
            if number == twin and not _LOWEST_ADDRESS <= number < _ADDRESSES_END:
                continue
            if number - twin == bases[0] - bases[1]:
                place, offset = _ARENA, number - bases[0]
            else:
                located = self._locate(number, twin, call.keep, other.keep)
                if located is None:
                    return None
                place, offset = located
            numbers[position] = offset
            addresses.append((position, place))
        return CapturedCall(call.kernel.name, tuple(numbers), call.chunks, tuple(addresses))

    def _locate(self, number: int, twin: int, keep: Sequence[object], other: Sequence[object]) -> tuple[str, int] | None:
        if number == twin:
            for begin, end, place in self._areas:
                if begin <= number < end:
                    return place, number - begin
        for one, two in zip(keep, other, strict=True):
            kept, kept_twin = _find_memory(one), _find_memory(two)
            if kept is None or kept_twin is None:
                continue
            begin, end = _measure(kept)
            if begin <= number < end and number - begin == twin - kept_twin.ctypes.data:
                if kept.tobytes() != kept_twin.tobytes() or _holds_addresses(kept):
                    return None
                place = self._place_of_array.setdefault((begin, end), f"array/{len(self.found)}")
                self.found.setdefault(place, kept)
                return place, number - begin
        return None


def _find_memory(kept: object) -> Array | None:
    """Returns an array whose elements lie side by side and hold those of what a call keeps; None where there is none."""
    array = kept.get() if isinstance(kept, LaterArray) else kept
    while isinstance(array, np.ndarray) and not array.flags.c_contiguous:
        array = array.base
    return array if isinstance(array, np.ndarray) and array.size and not array.dtype.hasobject else None


def _measure(array: Array) -> tuple[int, int]:
    return int(array.ctypes.data), int(array.ctypes.data) + array.nbytes


def _holds_addresses(array: Array) -> bool:
    if array.dtype.kind not in "iu" or array.itemsize < 8:
        return False
    return bool(((array >= _LOWEST_ADDRESS) & (array < _ADDRESSES_END)).any())


def restore_plan(captured: CapturedPlan, areas: Mapping[str, Array]) -> Plan:
    """Returns the plan in the terms of `Instance`; `areas` holds the memory of every place but the arena."""
    arena = Block((captured.arena_bytes,), np.dtype(np.uint8), (0,))
    places: dict[str, Block | Derived] = {"": arena}
    places |= {value: Derived("", partial(_lay_view, view)) for value, view in captured.values.items()}
    begins = {place: int(array.ctypes.data) for place, array in areas.items()}
    keep = tuple(areas.values())
    steps = []
    for node, calls in captured.steps:
        kernels = {call.kernel: Kernel(call.kernel, _refuse_to_emit) for call in calls}
        bind = partial(_bind_calls, calls, kernels, begins, keep)
        recipe = Recipe((), bind, scratch=captured.arena_bytes, kernels=tuple(kernels.values()))
        steps.append(PlannedStep(node, recipe, ()))
    return Plan(tuple(steps), places, {"": 0}, {}, captured.inputs, captured.outputs, captured.arena_bytes)


def _lay_view(view: View, arena: Array) -> Array:
    return np.ndarray(view.shape, view.dtype, arena.data, view.offset, view.strides)


def _refuse_to_emit(name: str, width: int) -> Any:
    raise AssertionError(f"kernel {name} of a captured plan is loaded, never emitted")


def _bind_calls(
    calls: Sequence[CapturedCall],
    kernels: Mapping[str, Kernel],
    begins: Mapping[str, int],
    keep: tuple[Array, ...],
    reads: Sequence[Array],
    writes: Sequence[Array],
    arena: Array,
) -> list[NativeCall]:
    begins = {**begins, _ARENA: int(arena.ctypes.data)}
    bound = []
    for call in calls:
        numbers = list(call.numbers)
        for position, place in call.addresses:
            numbers[position] += begins[place]
        bound.append(NativeCall(kernels[call.kernel], tuple(numbers), call.chunks, (arena, *keep)))
    return bound
