"""Converts an open plan at given sizes into a fixed plan for the verifier: the same places and numbers, without symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hetero_cpu.operators.recipe import Cut, Recipe
from hetero_cpu.plan.open_plan import OpenPlan, OpenStep
from hetero_cpu.plan.plan import Block, Derived, ExecutionPlan, PlannedStep, take_cut
from hetero_cpu.symbols.arrays import OpenArray
from hetero_cpu.symbols.evaluation import Products, Signature, compile_sums
from hetero_cpu.symbols.sizes import Scope, evaluate, is_open, terms_of

from hetero_tests.plan_verifier import is_piece

Array = Any
Fix = Callable[[Any], int]


def read_sizes(opened: OpenPlan, signature: Signature) -> dict[int, int]:
    """Returns the value of each symbol by atom, for input shapes of the plan's class."""
    return {atom: (signature[index] or ())[axis] for atom, (index, axis) in opened.sizes.place_of_symbol.items()}


def evaluate_atoms(scope: Scope, sizes: Mapping[int, int]) -> list[int]:
    """Returns the values of all atoms for sizes, with the addresses of the example."""
    values: list[int] = []
    for number, atom in enumerate(scope.atoms):
        parts = [evaluate(dict(part), values) for part in atom.parts]
        if atom.kind == "quotient":
            values.append(parts[0] // parts[1])
        elif atom.kind == "largest":
            values.append(max(parts))
        else:
            values.append(sizes.get(number, scope.values[number]))
    return values


def list_numbers(opened: OpenPlan, products: Products) -> tuple[Array, Array]:
    """Returns all numbers of calls and the chunks of each call for given sizes; addresses are offsets into their memory."""
    count = opened.number_count
    bases = [0] * (len(opened.bases) + len(opened.scope.tables))
    both = compile_sums(opened.table, np.arange(count + opened.call_count))((*products, *bases))
    return both[:count], both[count:]


def write_signature(opened: OpenPlan, sizes: Sequence[int]) -> Signature:
    """Returns the input shapes that have these values of the symbols, in their order."""
    value_of_symbol = dict(zip(opened.sizes.place_of_symbol, sizes, strict=True))
    values = [value_of_symbol.get(atom, 0) for atom in range(len(opened.scope.atoms))]
    return tuple(
        None if shape is None else tuple(evaluate(terms_of(size), values) for size in shape) for shape in opened.sizes.shapes
    )


def find_base(opened: OpenPlan, array: OpenArray) -> str | None:
    """Returns the name of the memory that an array lies in; None for a constant."""
    name_of_number = {number: name for name, base in opened.bases.items() for (number,) in base.terms}
    numbers = [number for product in terms_of(array.address) for number in product]
    return next((name_of_number[number] for number in numbers if number in name_of_number), None)


def fix_plan(opened: OpenPlan, signature: Signature) -> ExecutionPlan:
    """Returns the plan as bound for input shapes of its class."""
    plan = opened.plan
    values = evaluate_atoms(opened.scope, read_sizes(opened, signature))

    def fix(number: Any) -> int:
        return evaluate(terms_of(number), values)

    begins = {name: fix(base) for name, base in opened.bases.items()}
    offsets = {value: fix(offset) for value, offset in plan.offsets.items()}
    shifts = {name: begin - (offsets[name] if name else 0) for name, begin in begins.items()}

    def find_offset(value: str) -> int:
        array = opened.arrays[value]
        base = find_base(opened, array)
        assert base is not None, f"value '{value}' lies nowhere"
        return fix(array.address) - shifts[base]

    places: dict[str, Block | Derived] = {}
    for value, place in plan.places.items():
        array = opened.arrays[value]
        if isinstance(place, Block):
            places[value] = replace(place, shape=tuple(fix(size) for size in place.shape))
        elif isinstance(place.make, partial) and is_piece(place):
            places[value] = replace(place, make=partial(take_cut, cut=_fix_cut(place.make.keywords["cut"], fix)))
        else:
            move = find_offset(value) - find_offset(place.source)
            shape, strides = (tuple(fix(number) for number in part) for part in (array.shape, array.strides))
            places[value] = replace(place, make=partial(_lay, shape, strides, array.dtype, move))
    steps = []
    for step, own in zip(plan.steps, opened.steps, strict=True):
        work = step.work
        if isinstance(work, Recipe):
            bind = partial(_bind, opened, step, own, fix, shifts, find_offset)
            parts = tuple(_fix_cut(cut, fix) for cut in work.parts)
            work = replace(work, bind=bind, scratch=fix(work.scratch), parts=parts)
        strides_of = {value: tuple(fix(stride) for stride in strides) for value, strides in step.strides.items()}
        steps.append(replace(step, work=work, scratch_offset=fix(step.scratch_offset), strides=strides_of))
    return replace(plan, steps=tuple(steps), places=places, offsets=offsets, arena_bytes=fix(plan.arena_bytes))


def _fix_cut(cut: Cut, fix: Fix) -> Cut:
    return tuple(slice(*(None if part is None else fix(part) for part in (own.start, own.stop, own.step))) for own in cut)


class _Laid:
    """An `__array_interface__` for an array at an address."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], address: int, keep: Array) -> None:
        self.__array_interface__ = {
            "shape": shape, "strides": strides, "typestr": dtype.str, "data": (address, False), "version": 3
        }  # fmt: skip
        self.keep = keep


def _lay(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], move: int, source: Array) -> Array:
    return np.asarray(_Laid(shape, strides, dtype, source.ctypes.data + move, source))


def _bind(
    opened: OpenPlan,
    step: PlannedStep,
    own: OpenStep,
    fix: Fix,
    shifts: dict[str, int],
    find_offset: Callable[[str], int],
    reads: Sequence[Array],
    writes: Sequence[Array],
    scratch: Array,
) -> list[Any]:
    from hetero_cpu.machine.calls import NativeCall  # LLVM

    begin = writes[0].ctypes.data - find_offset(step.writes[0])
    number_of_base = {number: name for name, base in opened.bases.items() for (number,) in base.terms}

    def fix_number(number: Any) -> int:
        bases = [factor for product in terms_of(number) for factor in product if factor in number_of_base]
        return fix(number) - shifts[number_of_base[bases[0]]] + begin if bases else fix(number)

    def find(array: OpenArray) -> Array:
        shape, strides = (tuple(fix(number) for number in part) for part in (array.shape, array.strides))
        return np.asarray(_Laid(shape, strides, array.dtype, fix_number(array.address), scratch))

    def bind(part: Any) -> Any:
        if isinstance(part, OpenArray):
            return find(part)
        return fix(part) if is_open(part) else part

    bound: list[Any] = []
    for action in own.actions:
        if isinstance(action, range):
            for index in action:
                call = opened.calls[index]
                bound.append(NativeCall(call.kernel, tuple(map(fix_number, call.numbers)), fix(call.chunks), call.keep))
        else:
            bound.append(partial(action.func, *map(bind, action.args)))
    # The verifier fills halos itself, so their calls are skipped.
    return bound[len(step.clears) :]
