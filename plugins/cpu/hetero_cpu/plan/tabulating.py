"""From a plan with symbols to the plan of a class: all numbers written down as tables, and the guards, of which there will be no more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.graph import Network
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan.open_plan import (
    ArrayMark,
    Indices,
    NumberForm,
    OpenPlan,
    OpenStep,
    ShapeConstants,
    map_action,
)
from hetero_cpu.plan.passes import join_open_network
from hetero_cpu.plan.plan import Block, Derived, ExecutionPlan, Foreign, PlannedStep, list_actions
from hetero_cpu.plan.planner import build_plan
from hetero_cpu.symbols.arrays import Memory as OpenMemory
from hetero_cpu.symbols.arrays import OpenArray, lay_open
from hetero_cpu.symbols.evaluation import Evaluator
from hetero_cpu.symbols.network import OpenNetwork, compile_shape_constants, expose_shape_constants, open_network
from hetero_cpu.symbols.size_class import ClassForm, Signature, SizeClass, Symbol
from hetero_cpu.symbols.sizes import Scope, is_open, terms_of
from hetero_cpu.symbols.terms import NotOpenError, Terms

if TYPE_CHECKING:
    from hetero_cpu.machine.calls import NativeCall
    from hetero_cpu.machine.compiler import Kernel


Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """The plan of a class with its symbols: calls, steps and arrays, and the symbol of each memory; "" is the arena."""

    scope: Scope
    bases: Mapping[str, Any]
    arrays: Mapping[str, Any]
    calls: tuple[NativeCall, ...]
    steps: tuple[OpenStep, ...]

    def find_base(self, array: OpenArray) -> str | None:
        """Returns in which memory an array lies, by name; None for a constant."""
        name_of_number = {number: name for name, base in self.bases.items() for (number,) in base.terms}
        names = [name_of_number[number] for product in terms_of(array.address) for number in product if number in name_of_number]
        return names[0] if names else None


def tabulate_plan(plan: ExecutionPlan, opened: OpenNetwork, constant_names: Sequence[str]) -> OpenPlan:
    """Returns the plan of a class. `plan` has symbols; `constant_names` are the shape constants that are inputs behind all inputs.

    Raises: NotOpenError.
    """
    origin = _bind_plan(plan, opened.scope)
    needed = {value for step in origin.steps if step.foreign for value in step.foreign.reads} | set(plan.places)
    names = tuple(name for name in constant_names if name in needed)
    program, reads = compile_shape_constants(names, opened.shapes)
    elements = {name: opened.shapes.elements[name] for name in {*reads, *names} & set(opened.shapes.elements)}
    shape_constants = ShapeConstants(names, reads, {name: tuple(own.shape) for name, own in elements.items()}, program)
    inputs = tuple(value for value in plan.inputs if value not in constant_names)
    numbers = [number for own in elements.values() for number in own.reshape(-1)]
    shapes = tuple(spec.shape for spec in opened.network.inputs)
    return _tabulate(plan, origin, inputs, shapes, opened.symbols, shape_constants, numbers)


def tabulate_fixed_plan(plan: ExecutionPlan, signature: Signature) -> OpenPlan:
    """Returns the plan of a set of input shapes, as the plan of a class without symbols."""
    return _tabulate(plan, _bind_plan(plan, Scope()), plan.inputs, signature, {}, ShapeConstants((), (), {}, None), ())


def _tabulate(
    plan: ExecutionPlan,
    origin: Origin,
    inputs: tuple[str, ...],
    shapes: Sequence[Any],
    symbols: Mapping[int, tuple[tuple[int, int], ...]],
    shape_constants: ShapeConstants,
    elements: Sequence[Any],
) -> OpenPlan:
    """`inputs` of the network without shape constants, their shapes, and the inputs and axes of each symbol."""
    scope = origin.scope
    # Only machine code knows the address of an external input.
    named = [value for value in (*inputs, *shape_constants.names) if value not in plan.external.inputs]
    touched = _list_touched(origin, (*named, *plan.outputs))
    laid = _list_laid(origin, touched)
    index_of_array = {id(array): index for index, array in enumerate(laid)}
    external = {*plan.external.roots, *plan.external.outputs}
    arrays = {name: origin.arrays[name] for name in touched if name in origin.arrays and name not in external}
    inside = {name: index_of_array[id(array)] for name, array in arrays.items() if isinstance(array, OpenArray)}
    numbers = [number for call in origin.calls for number in call.numbers]
    chunks = [call.chunks for call in origin.calls]
    places = [number for array in laid for number in (array.address, *array.shape, *array.strides)]
    own_terms: list[Terms] = [dict(key) for _, own in scope.tables for key in own]
    parts = [*([terms_of(number) for number in part] for part in (numbers, chunks, places, elements)), own_terms]
    guards: list[Terms] = [dict(key) for kind in (scope.at_least_zero, scope.equal_zero, scope.not_zero) for key in kind]
    arena = [terms_of(plan.arena_bytes)]
    together = [terms for part in parts for terms in part]
    evaluator = Evaluator(scope, tuple(symbols), [*together, *guards, *arena])
    least = len(scope.at_least_zero)
    form = ClassForm(
        tuple(Symbol(number, *own[0], *scope.bounds[number]) for number, own in symbols.items()),
        tuple(map(_write_shape, shapes)),
        evaluator.derivation,
        evaluator.tabulate(guards),
        least,
        least + len(scope.equal_zero),
    )
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, terms in enumerate(parts[0]):
        bases = [product for product in terms if scope.has_base({product: 1})]
        if len(bases) > 1:
            raise NotOpenError("a number that is an address in two memories")
        for product in bases:
            rows.setdefault(product, []).append(row)

    def find_rows(base: Any) -> Indices:
        return np.array([row for product in base.terms for row in rows.get(product, ())], np.int64)

    return OpenPlan(
        plan,
        SizeClass(form),
        NumberForm(
            evaluator.tabulate(together),
            tuple(map(len, parts)),
            evaluator.tabulate(arena),
            tuple((array.dtype, len(array.shape)) for array in laid),
            inside,
            {value: index_of_array[id(origin.arrays[value])] for value in plan.external.outputs},
            find_rows(origin.bases[""]),
            tuple(find_rows(origin.bases[root]) for root in plan.external.roots),
            tuple(find_rows(base) for base in scope.tables.values()),
        ),
        shape_constants,
        inputs=inputs,
        calls=origin.calls,
        steps=_mark_steps(origin, index_of_array),
        tables=[(make, len(own)) for make, own in scope.tables],
        constants={name: array for name, array in arrays.items() if name not in inside},
        origin=origin,
    )


def _bind_plan(plan: ExecutionPlan, scope: Scope) -> Origin:
    bases = {"": scope.open_base("")} | {root: scope.open_base(root) for root in plan.external.roots}
    arrays = _lay_arrays(plan, bases)
    calls: list[NativeCall] = []
    steps = tuple(_bind_step(plan, step, bases[""], arrays, calls) for step in plan.steps)
    return Origin(scope, bases, arrays, tuple(calls), steps)


def _bind_step(plan: ExecutionPlan, step: PlannedStep, base: Any, arrays: Mapping[str, Any], calls: list[NativeCall]) -> OpenStep:
    """Returns a step; its calls of machine code are appended to `calls`."""
    if isinstance(step.work, Foreign):
        return OpenStep(step.node, (), step.work, step.writes)
    scratch = lay_open((step.work.scratch,), np.uint8, address=base + step.scratch_offset)
    reads, writes = ([arrays[value] for value in values] for values in (step.work.reads, step.writes))
    bound: list[Any] = [_bind_halo(plan, value, base) for value in step.clears]
    bound += step.work.bind(reads, writes, scratch)
    if any(callable(call) and not isinstance(call, partial) for call in bound):
        raise NotOpenError(f"{step.node.label} calls a function that cannot be bound again")
    return OpenStep(step.node, tuple(list_actions(bound, calls)))


def _lay_arrays(plan: ExecutionPlan, bases: Mapping[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = dict(plan.constants)
    external = set(plan.external.roots)

    def find(value: str) -> Any:
        if value not in arrays:
            place = plan.places[value]
            if isinstance(place, Derived):
                arrays[value] = place.make(find(place.source))
            else:
                address = bases[value] if value in external else bases[""] + plan.offsets[value]
                arrays[value] = place.lay(lay_open((place.nbytes,), np.uint8, address=address, memory=OpenMemory(value)))
        return arrays[value]

    for value in plan.places:
        find(value)
    return arrays


def _bind_halo(plan: ExecutionPlan, value: str, base: Any) -> Any:
    from hetero_cpu.operators.images import bind_clear  # LLVM

    block = plan.places[value]
    assert isinstance(block, Block)
    return bind_clear(block.padded_shape, block.halo, lay_open((block.nbytes,), np.uint8, address=base + plan.offsets[value]))


def _write_shape(shape: Sequence[Any] | None) -> tuple[int | tuple[int], ...] | None:
    """Returns a shape with (atom,) for each symbol."""
    if shape is None:
        return None
    return tuple((next(iter(size.terms))[0],) if is_open(size) else int(size) for size in shape)


def _mark_steps(origin: Origin, index_of_array: Mapping[int, int]) -> list[OpenStep]:
    """Returns the steps with marks for the arrays of functions. Raises: NotOpenError for an array outside of the arena."""

    def mark(part: Any) -> Any:
        if isinstance(part, OpenArray):
            if origin.find_base(part) != "":
                raise NotOpenError("a function of memory that lies outside of the arena")
            return ArrayMark(index_of_array[id(part)])
        return part

    return [
        OpenStep(
            step.node,
            tuple(action if isinstance(action, range) else map_action(action, mark) for action in step.actions),
            step.foreign,
            step.writes,
        )
        for step in origin.steps
    ]


def _list_touched(origin: Origin, values: Sequence[str]) -> list[str]:
    """Returns the values that are used by name: inputs, outputs, and values of the toolkit's nodes."""
    names = list(values)
    for step in origin.steps:
        if step.foreign is not None:
            names += [*step.foreign.reads, *step.writes]
    return list(dict.fromkeys(names))


def _list_laid(origin: Origin, touched: Sequence[str]) -> list[OpenArray]:
    """Returns the open arrays that are used by name: of `touched` values and of functions."""
    arrays = [origin.arrays[name] for name in touched if isinstance(origin.arrays.get(name), OpenArray)]
    for step in origin.steps:
        for action in step.actions:
            arrays += [part for part in getattr(action, "args", ()) if isinstance(part, OpenArray)]
    return list({id(array): array for array in arrays}.values())


logger = logging.getLogger(__name__)


def make_open_plan(
    network: Network,
    signature: Signature,
    example: Network,
    *,
    weights: PackedWeights,
    extensions: Mapping[tuple[str, str], Any],
    workers: int,
    begin_packing: Callable[[], None] = lambda: None,
) -> Generator[Kernel, None, OpenPlan | None]:
    """Yields the kernels of the plan of a class that input shapes belong to, then packs its weights and returns it.

    Returns None if there is no plan, or if it holds for these shapes alone. `example`: the network as it was specialized for the shapes.
    `begin_packing` is called when the consumer has taken all kernels.
    """
    try:
        opened = open_network(network, signature, example)
        joined, shape_constants = expose_shape_constants(join_open_network(opened.network, opened.scope))
        plan = build_plan(joined, weights, extensions, workers=workers, scope=opened.scope)
        yield from plan.kernels
        begin_packing()
        # Binding packs the weights in order.
        weights.pack_all(workers)
        open_plan = tabulate_plan(plan, opened, shape_constants)
    except (NotOpenError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        # A step needs facts of its arrays that open sizes cannot tell: each set of sizes is planned alone then.
        logger.info("network '%s' is planned for each set of sizes: %s: %s", network.name, type(error).__name__, error)
        return None
    if open_plan.sizes.is_single or open_plan.match(signature) is None:
        logger.info("network '%s': what was planned holds for the sizes %s alone", network.name, signature)
        return None
    return open_plan
