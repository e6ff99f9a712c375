"""A plan of machine code as numbers: its calls with the addresses taken out, so that another process binds it without planning.

Rules: a call that calls Python, or reads memory that will not be there, refuses the capture. What is captured steers machine code and is
checked by nobody, so it is kept in the user's private folder and never in a blob.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero_core.network.graph import Node
from hetero_core.records import record
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.native import NativeCall, address_of, list_addresses
from hetero_cpu.planning.addresses import Address
from hetero_cpu.planning.instance import allocate_arena, bind_halo, lay_arrays
from hetero_cpu.planning.plan import NOTHING_OUTSIDE, Block, Derived, Outside, Plan, PlannedStep
from hetero_cpu.planning.recipe import Recipe

Array = np.ndarray[Any, Any]

ARENA = "arena"
"""The place of what lies in the arena."""
_OUTSIDE = "outside/"
"""Before the name of a value: the place of what lies in its block, which a run moves to memory of the caller."""


@record(frozen=True, slots=True)
class View:
    """An array in the arena: bytes from its begin, shape, strides in bytes."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@record(frozen=True, slots=True)
class CapturedCall:
    """A call of a kernel. `numbers[position]` for (position, place) in `addresses` count from the begin of the place: the arena, a block
    of it that a run moves, an area or an array."""

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
    outside: Outside = NOTHING_OUTSIDE


def capture_plan(plan: Plan, areas: Mapping[str, Array]) -> tuple[CapturedPlan, dict[str, Array]] | None:
    """Returns the plan, and the small arrays beside `areas` that its calls read, by place; None where not all of it is machine code.

    `areas`: arrays that lie one by one in memory that whoever binds the plan will have, by place.
    """
    memory = allocate_arena(plan.arena_bytes)
    bound = _bind_steps(plan, memory)
    if bound is None:
        return None
    arrays = lay_arrays(plan, memory)
    places = _Places({ARENA: memory, **areas}, {name_block(root): arrays[root] for root in plan.outside.roots})
    steps = []
    for step, calls in zip(plan.steps, bound, strict=True):
        captured = [places.capture(call) for call in calls]
        if any(call is None for call in captured):
            return None
        steps.append((_strip(step.node), tuple(call for call in captured if call is not None)))
    values = {}
    for value in dict.fromkeys((*plan.inputs, *plan.outputs, *plan.outside.roots)):
        if value in plan.places:
            array = arrays[value]
            values[value] = View(array.ctypes.data - memory.ctypes.data, array.dtype.str, array.shape, array.strides)
        elif value in plan.outputs:
            return None
    # Else an extension type, which `dtype.str` does not name.
    if any(np.dtype(view.dtype) != arrays[value].dtype for value, view in values.items()):
        return None
    return CapturedPlan(tuple(steps), values, plan.inputs, plan.outputs, plan.arena_bytes, outside=plan.outside), places.small


def name_block(root: str) -> str:
    """Returns the place of what lies in the block of a value outside the arena."""
    return _OUTSIDE + root


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


class _Places:
    """Where the arrays of addresses lie: in the arena, in an area, or in small arrays of their own, which are gathered here."""

    def __init__(self, areas: Mapping[str, Array], blocks: Mapping[str, Array]) -> None:
        """`blocks`: parts of the arena that are places of their own."""
        self._blocks = [(*_measure(array), place) for place, array in blocks.items()]
        spans = sorted((*_measure(array), place) for place, array in areas.items() if array.size)
        self._begins = [begin for begin, _, _ in spans]
        self._spans = spans
        self.small: dict[str, Array] = {}
        self._place_of_array: dict[tuple[int, int], str] = {}

    def capture(self, call: NativeCall) -> CapturedCall | None:
        """Returns the call with its addresses counted from their places; None where the elements of an array do not lie side by side."""
        numbers, addresses = [int(number) for number in call.numbers], []
        for position, address in list_addresses(call):
            located = self._locate(address)
            if located is None:
                return None
            place, begin = located
            numbers[position] -= begin
            addresses.append((position, place))
        return CapturedCall(call.kernel.name, tuple(numbers), call.chunks, tuple(addresses))

    def _locate(self, address: Address) -> tuple[str, int] | None:
        """Returns the place of an address, and where that begins."""
        first = int(address.array.ctypes.data)
        for begin, end, place in self._blocks:
            if begin <= first < end:
                return place, begin
        index = bisect_right(self._begins, first) - 1
        if index >= 0:
            begin, end, place = self._spans[index]
            # An array without elements may stand at the end of the arena.
            if first < end or (first == end and place == ARENA):
                return place, begin
        memory = _find_memory(address.array)
        if memory is None:
            return None
        span = _measure(memory)
        place = self._place_of_array.setdefault(span, f"array/{len(self.small)}")
        self.small.setdefault(place, memory)
        return place, span[0]


def _find_memory(array: Array) -> Array | None:
    """Returns an array whose elements lie side by side and hold those of another one; None where there is none."""
    memory: Any = array
    while isinstance(memory, np.ndarray) and not memory.flags.c_contiguous:
        memory = memory.base
    return memory if isinstance(memory, np.ndarray) and memory.size and not memory.dtype.hasobject else None


def _measure(array: Array) -> tuple[int, int]:
    return int(array.ctypes.data), int(array.ctypes.data) + array.nbytes


def restore_plan(captured: CapturedPlan, areas: Mapping[str, Array]) -> Plan:
    """Returns the plan in the terms of `Instance`; `areas` holds the memory of every place but the arena."""
    arena = Block((captured.arena_bytes,), np.dtype(np.uint8), (0,))
    places: dict[str, Block | Derived] = {"": arena}
    places |= {value: Derived("", partial(_lay_view, view)) for value, view in captured.values.items()}
    keep = tuple(areas.values())
    blocks = {name_block(root): captured.values[root] for root in captured.outside.roots}
    steps = []
    for node, calls in captured.steps:
        kernels = {call.kernel: Kernel(call.kernel, _refuse_to_emit) for call in calls}
        bind = partial(_bind_calls, calls, kernels, areas, blocks, keep)
        recipe = Recipe((), bind, scratch=captured.arena_bytes, kernels=tuple(kernels.values()))
        steps.append(PlannedStep(node, recipe, ()))
    return Plan(tuple(steps), places, {"": 0}, {}, captured.inputs, captured.outputs, captured.arena_bytes, captured.outside)


def _lay_view(view: View, arena: Array) -> Array:
    return np.ndarray(view.shape, view.dtype, arena.data, view.offset, view.strides)


def _refuse_to_emit(name: str, width: int) -> Any:
    raise AssertionError(f"kernel {name} of a captured plan is loaded, never emitted")


def _bind_calls(
    calls: Sequence[CapturedCall],
    kernels: Mapping[str, Kernel],
    areas: Mapping[str, Array],
    blocks: Mapping[str, View],
    keep: tuple[Array, ...],
    reads: Sequence[Array],
    writes: Sequence[Array],
    arena: Array,
) -> list[NativeCall]:
    begins = {place: address_of(array) for place, array in (*areas.items(), (ARENA, arena))}
    begins |= {place: address_of(_lay_view(view, arena)) for place, view in blocks.items()}
    bound = []
    for call in calls:
        numbers = list(call.numbers)
        for position, place in call.addresses:
            numbers[position] = begins[place] + numbers[position]
        bound.append(NativeCall(kernels[call.kernel], tuple(numbers), call.chunks, (arena, *keep)))
    return bound
