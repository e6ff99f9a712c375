"""Plans of machine code written down and read again, without symbols and addresses.

A plan of one set of sizes is pickled, except three things. An array that is part of a constant or of packed weights is a place in one of
the plan's memories; an address among the numbers of calls is a memory and a distance; a kernel is its name. It is read without a network.

Pickled plans lie in the private store alone, as machine code does, and never in a blob. Their names hold the digest of the code
that wrote them, so that they have the expected form when they are read.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hetero_core.network.graph import Node
from hetero_core.network.initializers import Initializer
from hetero_cpu.machine.calls import Address, NativeCall
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.operators.recipe import Recipe
from hetero_cpu.operators.weights import LazyArray, PackedWeights
from hetero_cpu.plan.open_plan import NumberForm, OpenPlan, OpenStep, ShapeConstants
from hetero_cpu.plan.plan import ExecutionPlan, External, PlannedStep
from hetero_cpu.symbols.evaluation import Table
from hetero_cpu.symbols.size_class import ClassForm, SizeClass
from hetero_cpu.symbols.sizes import Size, value_of

Array = np.ndarray[Any, Any]
FindMemory = Callable[[int], Array]
"""Returns a memory of a plan by its place."""

_MOST_BYTES = 1 << 18
"""Of an array that is written out; a plan is kept beside a digest of all constants, of which it may be made."""


class NotStorableError(Exception):
    """A part of a plan cannot be written down; never leaves the device."""


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """A plan that was written down. `memories` describes each of its memories; the fields of `body` are in the code below."""

    form: ClassForm
    kernels: tuple[str, ...]
    memories: tuple[Any, ...]
    body: bytes

    def list_kernels(self) -> list[Kernel]:
        """Returns the kernels that the plan calls, which are loaded and never emitted."""
        return [Kernel(name, None) for name in self.kernels]


class Memories:
    """The memories that a plan reads: `owners`, each a constant's name, packed weights, or a small array that is written out."""

    def __init__(self, constants: Mapping[str, Initializer], weights: PackedWeights) -> None:
        self.owners: list[str | LazyArray | Array] = []
        self._place_of_owner: dict[Any, int] = {}
        spans: list[tuple[int, int, Any]] = [(*byte_bounds(lazy.get()), lazy) for lazy in weights.list_made()]
        # Behind packed weights, so that a weight without packing is the constant itself. A plan holds the constants that it reads: to
        # make the others again would double the memory.
        for name, constant in constants.items():
            array = constant.held if constant.is_renewable else constant.array
            if array is not None and array.nbytes and not array.dtype.hasobject:
                spans.append((*byte_bounds(array), name))
        self._spans = sorted(spans, key=lambda span: span[:2])
        self._begins = [begin for begin, _, _ in self._spans]

    def locate(self, array: Array) -> tuple[int, int] | None:
        """Returns the memory of an array and its begin; None if it is no part of constants or packed weights."""
        if not array.size:
            return None
        low, high = byte_bounds(array)
        index = bisect_right(self._begins, low) - 1
        if index < 0 or high > self._spans[index][1]:
            return None
        begin, _, owner = self._spans[index]
        return self._add(owner if isinstance(owner, str) else id(owner), owner), begin

    def locate_address(self, array: Array) -> tuple[int, int]:
        """Returns the same of any array that a call has the address of. Raises: NotStorableError."""
        place = self.locate(array)
        if place is not None:
            return place
        memory: Any = array
        while isinstance(memory, np.ndarray) and not memory.flags.c_contiguous:
            memory = memory.base
        if not isinstance(memory, np.ndarray) or memory.dtype.hasobject or memory.nbytes > _MOST_BYTES:
            raise NotStorableError(f"an array of {array.nbytes} bytes that is no constant")
        begin = int(memory.__array_interface__["data"][0])
        return self._add((begin, memory.nbytes), memory), begin

    def _add(self, key: Any, owner: Any) -> int:
        if key not in self._place_of_owner:
            self._place_of_owner[key] = len(self.owners)
            self.owners.append(owner)
        return self._place_of_owner[key]


class _Pickler(pickle.Pickler):
    def __init__(self, stream: BytesIO, memories: Memories) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._memories = memories

    def persistent_id(self, value: Any) -> Any:
        """Returns the place of an array in a memory; None for values that are pickled."""
        if type(value) is Size:
            raise NotStorableError("a number that depends on sizes")
        if not isinstance(value, np.ndarray):
            return None
        located = self._memories.locate(value)
        if located is not None:
            place, begin = located
            return place, value.__array_interface__["data"][0] - begin, value.dtype, value.shape, value.strides
        if value.nbytes > _MOST_BYTES:
            raise NotStorableError(f"an array of {value.nbytes} bytes that is no constant")
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, find_memory: FindMemory) -> None:
        super().__init__(BytesIO(content))
        self._find_memory = find_memory

    def persistent_load(self, pid: Any) -> Array:
        """Returns an array in a memory."""
        place, offset, dtype, shape, strides = pid
        memory = self._find_memory(place).reshape(-1).view(np.uint8)
        return np.ndarray(shape, dtype, memory, offset, strides)


def _dump(value: Any, memories: Memories) -> bytes:
    stream = BytesIO()
    try:
        _Pickler(stream, memories).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NotStorableError(f"{error}") from error
    return stream.getvalue()


def _load(content: bytes, find_memory: FindMemory) -> Any:
    return _Unpickler(content, find_memory).load()


def write_plan(plan: OpenPlan, memories: Memories) -> WrittenPlan:
    """Returns a plan of machine code that was made here for one set of sizes. `memories` is left to the caller.

    Raises: NotStorableError.
    """
    origin, own = plan.origin, plan.plan
    if origin is None:
        raise NotStorableError("an address that is not known")
    if plan.shape_constants.names:
        raise NotStorableError("constants that follow from sizes")
    foreign = next((step.node.label for step in plan.steps if step.foreign is not None), None)
    if foreign is not None:
        raise NotStorableError(f"{foreign}, which the toolkit computes")
    numbers = plan.numbers
    addresses = _list_addresses(origin.calls, memories)
    table = numbers.table.constants.copy()
    table[[row for row, _, _ in addresses]] = 0
    steps = [
        (
            (step.node.name, step.node.op_type, step.node.domain, step.node.opset, step.node.since_version, step.node.origins),
            step.actions,
            tuple(kernel.name for kernel in planned.work.kernels) if isinstance(planned.work, Recipe) else (),
            planned.work.reads,
            planned.writes,
            {value: tuple(map(value_of, strides)) for value, strides in planned.strides.items()},
        )
        for step, planned in zip(plan.steps, own.steps, strict=True)
    ]
    body = {
        "numbers": replace(numbers, table=Table(table, numbers.table.entries)),
        "addresses": addresses,
        "calls": [(call.kernel.name, len(call.numbers)) for call in origin.calls],
        "steps": steps,
        "tables": plan.tables,
        "constants": dict(plan.constants),
        "inputs": plan.inputs,
        "outputs": own.outputs,
        "external": (own.external.inputs, dict(own.external.outputs)),
        "arena_bytes": value_of(own.arena_bytes),
    }
    kernels = dict.fromkeys(kernel.name for kernel in (*(call.kernel for call in origin.calls), *own.kernels))
    return WrittenPlan(plan.sizes.form, tuple(kernels), (), _dump(body, memories))


def _list_addresses(calls: Iterable[NativeCall], memories: Memories) -> list[tuple[int, int, int]]:
    """Returns the addresses among the numbers of calls: the place of each among all numbers, its memory, and the distance in it."""
    addresses, begin = [], 0
    for call in calls:
        spans = [span for array in call.keep if (span := _find_span(array))]
        for row, number in enumerate(call.numbers, begin):
            if isinstance(number, Address):
                place, memory = memories.locate_address(number.array)
                addresses.append((row, place, int(number) - memory))
            elif type(number) is int and any(low <= number < high for low, high in spans):
                raise NotStorableError("a number that looks like an address")
        begin += len(call.numbers)
    return addresses


def _find_span(kept: Any) -> tuple[int, int] | None:
    if not isinstance(kept, np.ndarray) or not kept.nbytes:
        return None
    begin = int(kept.__array_interface__["data"][0])
    return begin, begin + kept.nbytes


def read_plan(written: WrittenPlan, find_memory: FindMemory) -> OpenPlan:
    """Returns a plan that was written down, its kernels named and its memories as `find_memory` has them."""
    body = _load(written.body, find_memory)
    numbers: NumberForm = body["numbers"]
    memories = {place: find_memory(place) for _, place, _ in body["addresses"]}
    for row, place, distance in body["addresses"]:
        numbers.table.constants[row] = memories[place].__array_interface__["data"][0] + distance
    steps: list[OpenStep] = []
    planned: list[PlannedStep] = []
    for named, actions, kernels, reads, writes, strides in body["steps"]:
        name, op_type, domain, opset, since_version, origins = named
        node = Node(name, op_type, (), (), domain=domain, opset=opset, since_version=since_version, origins=origins)
        steps.append(OpenStep(node, actions))
        recipe = Recipe(reads, _refuse, kernels=tuple(Kernel(kernel, None) for kernel in kernels))
        planned.append(PlannedStep(node, recipe, writes, strides=strides))
    inputs, external = body["inputs"], External(*body["external"])
    plan = ExecutionPlan(tuple(planned), {}, {}, {}, inputs, body["outputs"], body["arena_bytes"], external)
    native = [NativeCall(Kernel(name, None), (0,) * count, 0) for name, count in body["calls"]]
    if native:
        native[0] = replace(native[0], keep=tuple(memories.values()))
    return OpenPlan(
        plan, SizeClass(written.form), numbers, ShapeConstants((), (), {}, None),
        inputs=inputs, calls=native, steps=steps, tables=body["tables"], constants=body["constants"],
    )  # fmt: skip


def _refuse(*_: Any) -> Any:
    raise AssertionError("the steps of a stored plan are bound already")
