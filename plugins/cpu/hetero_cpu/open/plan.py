"""A plan for a class of sizes as data: calls whose numbers are sums of symbols, bound to sizes without planning.

```text
OpenNetwork ── build_plan ──> Plan with symbols ── bind once, to addresses that are symbols ──> numbers, arrays, actions
sizes ── match: do the guards hold? ──> products of atoms ── bind: all numbers, all arrays ──> OpenInstance
```
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.graph import Node
from hetero_core.records import record
from hetero_cpu.open.arrays import Memory as OpenMemory
from hetero_cpu.open.arrays import OpenArray, lay_open
from hetero_cpu.open.evaluation import Evaluator, write_function, write_tuple
from hetero_cpu.open.network import OpenNetwork, Signature, compile_late
from hetero_cpu.open.sizes import is_open, terms_of
from hetero_cpu.open.terms import NotOpenError, Terms
from hetero_cpu.plan import Block, Derived, Foreign, Plan, PlannedStep

if TYPE_CHECKING:
    from hetero_cpu.jit.native import NativeCall

Array = np.ndarray[Any, Any]
Products = np.ndarray[Any, Any]

_MOST_KNOWN = 256


@record(frozen=True, slots=True)
class OpenStep:
    """A step: a range of calls of machine code, functions of open arrays, or a node of the toolkit, in order."""

    node: Node
    actions: tuple[Any, ...]
    foreign: Foreign | None = None
    writes: tuple[str, ...] = ()


@record(frozen=True, slots=True)
class BoundNumbers:
    """All numbers of a plan for a set of sizes: parts of one array of int64. Addresses count from the begin of their memory.

    `calls` and `chunks`: of the calls of machine code; `laid`: of arrays; `extra`: of functions; `elements`: of late constants;
    `tables`: what small arrays are made of.
    """

    calls: Array
    chunks: Array
    laid: Array
    extra: Array
    elements: Array
    tables: Array


class OpenPlan:
    """The plan of one class of sizes. Safe for threads."""

    def __init__(self, plan: Plan, opened: OpenNetwork, late: Sequence[str]) -> None:
        """`plan` has symbols; `late` are the constants that are inputs behind those of the network. Raises: NotOpenError."""
        scope = opened.scope
        self.scope, self.plan = scope, plan
        self.bases = bases = {"": scope.open_base("")} | {root: scope.open_base(root) for root in plan.outside.roots}
        self.arrays = _lay_arrays(plan, bases)
        self.calls: list[NativeCall] = []
        self.steps = tuple(self._bind(step, bases[""]) for step in plan.steps)
        needed = {value for step in self.steps if step.foreign for value in step.foreign.reads} | set(plan.places)
        self.late = tuple(name for name in late if name in needed)
        self.inputs = (*(value for value in plan.inputs if value not in late), *self.late)
        self.program, self._reads = compile_late(self.late, opened.shapes)
        self._elements = {name: opened.shapes.elements[name] for name in {*self._reads, *self.late} & set(opened.shapes.elements)}
        self.dtypes = {name: np.dtype(np.int64) for name in self._elements}
        self._finish(opened, bases)
        self._known: OrderedDict[Signature, Products | None] = OrderedDict()

    def _bind(self, step: PlannedStep, base: Any) -> OpenStep:
        if isinstance(step.work, Foreign):
            return OpenStep(step.node, (), step.work, step.writes)
        scratch = lay_open((step.work.scratch,), np.uint8, address=base + step.scratch_offset)
        reads, writes = ([self.arrays[value] for value in values] for values in (step.work.reads, step.writes))
        calls: list[Any] = [_bind_halo(self.plan, value, base) for value in step.clears]
        calls += step.work.bind(reads, writes, scratch)
        actions: list[Any] = []
        for call in calls:
            if isinstance(call, partial):
                actions.append(call)
            elif callable(call):
                raise NotOpenError(f"{step.node.label} calls a function that cannot be bound again")
            else:
                place = len(self.calls)
                self.calls.append(call)
                if actions and isinstance(actions[-1], range):
                    actions[-1] = range(actions[-1].start, place + 1)
                else:
                    actions.append(range(place, place + 1))
        return OpenStep(step.node, tuple(actions))

    def _finish(self, opened: OpenNetwork, bases: Mapping[str, Any]) -> None:
        """Writes all numbers down as tables, and the guards, of which there will be no more."""
        scope = self.scope
        numbers = [number for call in self.calls for number in call.numbers]
        chunks = [call.chunks for call in self.calls]
        self._laid = _list_laid(self)
        laid = [number for array in self._laid for number in (array.address, *array.shape, *array.strides)]
        extra = [number for step in self.steps for action in step.actions for number in _list_numbers(action)]
        elements = [number for array in self._elements.values() for number in array.reshape(-1)]
        self._tables = [(make, len(own)) for make, own in scope.tables]
        own_terms: list[Terms] = [dict(key) for _, own in scope.tables for key in own]
        parts = [*([terms_of(number) for number in part] for part in (numbers, chunks, laid, extra, elements)), own_terms]
        guards = [dict(key) for kind in (scope.at_least_zero, scope.equal_zero, scope.not_zero) for key in kind]
        self._guard_ends = len(scope.at_least_zero), len(scope.at_least_zero) + len(scope.equal_zero)
        arena = [terms_of(self.plan.arena_bytes)]
        self._sizes = tuple(opened.symbols)
        self._places = opened.symbols
        together = [terms for part in parts for terms in part]
        self._evaluator = Evaluator(scope, self._sizes, [*together, *guards, *arena])
        self._guards, self._numbers, self._arena = (self._evaluator.tabulate(part) for part in (guards, together, arena))
        ends = list(accumulate(len(part) for part in parts))
        self._parts = [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        self.index_of_array = {id(array): index for index, array in enumerate(self._laid)}
        self.index_of_output = {value: self.index_of_array[id(self.arrays[value])] for value in self.plan.outside.outputs}
        self._find_rows(parts[0], bases)
        self._number_of_base = {number: name for name, base in bases.items() for (number,) in base.terms}
        self.base_of_array = [self.find_base(array) for array in self._laid]
        self._limits = tuple(scope.bounds[number] for number in self._sizes)
        self._write_functions(opened)

    def _write_functions(self, opened: OpenNetwork) -> None:
        """Writes what reads sizes from input shapes, the shapes that belong to sizes, and the arrays that numbers describe."""
        places = (self._places[number][0] for number in self._sizes)
        self._read_sizes = write_function(("shapes",), write_tuple(f"shapes[{index}][{axis}]" for index, axis in places))
        shapes = [_write_shape(spec.shape) for spec in opened.network.inputs]
        self._write_shapes = write_function([f"a{number}" for number in self._sizes], write_tuple(shapes))
        arrays, begin = [], 0
        for array in self._laid:
            middle, end = begin + 1 + len(array.shape), begin + 1 + len(array.shape) + len(array.strides)
            shape, strides = (
                write_tuple(f"n[{index}]" for index in span) for span in (range(begin + 1, middle), range(middle, end))
            )
            arrays.append(f"(n[{begin}], {shape}, {strides})")
            begin = end
        self._describe_arrays = write_function(("n",), write_tuple(arrays))

    def _find_rows(self, numbers: Sequence[Terms], bases: Mapping[str, Any]) -> None:
        """Writes down which numbers of calls are addresses in which memory."""
        rows: dict[tuple[int, ...], list[int]] = {}
        for row, number in enumerate(numbers):
            for product in number:
                if self.scope.has_base({product: 1}):
                    rows.setdefault(product, []).append(row)

        def find(base: Any) -> Products:
            return np.array([row for product in base.terms for row in rows.get(product, ())], np.int64)

        self.rows_in_arena = find(bases[""])
        self.roots = self.plan.outside.roots
        rows_of_root = [find(bases[root]) for root in self.roots]
        self.rows_outside = np.concatenate([np.zeros(0, np.int64), *rows_of_root])
        self.roots_of_rows = np.repeat(np.arange(len(rows_of_root)), [len(own) for own in rows_of_root])
        self._rows_of_tables = [find(base) for base in self.scope.tables.values()]

    def find_base(self, array: OpenArray) -> str | None:
        """Returns in which memory an array lies, by name: "" is the arena; None for a constant."""
        numbers = [number for product in terms_of(array.address) for number in product if number in self._number_of_base]
        return self._number_of_base[numbers[0]] if numbers else None

    @property
    def is_single(self) -> bool:
        """Says whether the class is one set of sizes."""
        return all(low == high for low, high in self._limits)

    def match(self, signature: Signature) -> Products | None:
        """Returns the products of atoms for a set of input shapes; None where it is not of the class."""
        try:
            return self._known[signature]
        except KeyError:
            products = self._match(signature)
            self._known[signature] = products
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
            return products

    def read_sizes(self, signature: Signature) -> dict[int, int]:
        """Returns the symbols' values by atom, for a set of input shapes of the class."""
        return dict(zip(self._sizes, self._read_sizes(signature), strict=True))

    def _match(self, signature: Signature) -> Products | None:
        try:
            sizes = self._read_sizes(signature)
        except (IndexError, TypeError):
            # Of inputs with fewer axes, or that are no arrays.
            return None
        if not all(low <= size <= high for size, (low, high) in zip(sizes, self._limits, strict=True)):
            return None
        if self._write_shapes(*sizes) != signature:
            return None
        products = self._evaluator.derive(sizes)
        if products is None:
            return None
        values = self._guards.evaluate(products)
        least, equal = self._guard_ends
        holds = (values[:least] >= 0).all() and not values[least:equal].any() and values[equal:].all()
        return products if holds else None

    def bind_numbers(self, products: Products) -> BoundNumbers:
        """Returns all numbers for a set of sizes, by one product of a matrix."""
        numbers = self._numbers.evaluate(products).astype(np.int64)
        return BoundNumbers(*[numbers[part] for part in self._parts])

    def measure_arena(self, products: Products) -> int:
        """Returns the bytes of the arena."""
        return int(self._arena.evaluate(products)[0])

    def read_laid(self, numbers: BoundNumbers) -> tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]:
        """Returns of each open array that is touched by name its address without the base, its shape and its strides."""
        laid: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] = self._describe_arrays(numbers.laid.tolist())
        return laid

    def list_inside(self) -> tuple[dict[str, OpenArray], dict[str, Array]]:
        """Returns the arrays in the arena that a run touches by name, and the constants."""
        outside = {*self.plan.outside.roots, *self.plan.outside.outputs}
        arrays = {name: self.arrays[name] for name in _list_touched(self) if name in self.arrays and name not in outside}
        inside = {name: array for name, array in arrays.items() if isinstance(array, OpenArray)}
        return inside, {name: array for name, array in arrays.items() if name not in inside}

    def bind_actions(self, numbers: BoundNumbers, actions: Sequence[Any], find: Callable[[OpenArray], Array]) -> list[Any]:
        """Returns with arrays and numbers for these sizes: the functions of all steps, in order."""
        extra = iter(numbers.extra.tolist())
        return [self.bind_action(action, find, lambda _: next(extra)) for action in actions]

    def bind_action(self, action: Any, find: Callable[[OpenArray], Array], fix: Callable[[Any], int]) -> Any:
        """Returns an action, a part of one or an argument with its arrays and numbers."""
        if isinstance(action, OpenArray):
            return find(action)
        if is_open(action):
            return fix(action)
        if isinstance(action, partial):
            arguments = [self.bind_action(part, find, fix) for part in action.args]
            named = {key: self.bind_action(part, find, fix) for key, part in action.keywords.items()}
            return partial(action.func, *arguments, **named)
        if isinstance(action, (tuple, list)):
            return type(action)(self.bind_action(part, find, fix) for part in action)
        if isinstance(action, slice):
            return slice(*(self.bind_action(part, find, fix) for part in (action.start, action.stop, action.step)))
        return action

    def bind_tables(self, numbers: BoundNumbers, calls: Array) -> list[Array]:
        """Returns the tables for these sizes, and writes into the numbers of calls where they are."""
        values = numbers.tables.tolist()
        tables, begin = [], 0
        for (make, count), rows in zip(self._tables, self._rows_of_tables, strict=True):
            table = make(*values[begin : begin + count])
            calls[rows] += table.ctypes.data
            begin += count
            tables.append(table)
        return tables

    def compute_late(self, numbers: BoundNumbers) -> tuple[Array, ...]:
        """Returns the late constants."""
        elements, begin = {}, 0
        for name, array in self._elements.items():
            elements[name] = numbers.elements[begin : begin + array.size].reshape(array.shape)
            begin += array.size
        computed = iter(()) if self.program is None else iter(self.program.run(tuple(elements[name] for name in self._reads)))
        return tuple(elements[name] if name in elements else next(computed) for name in self.late)


def _write_shape(shape: Sequence[Any] | None) -> str:
    """Returns the expression of a shape, by the names of its symbols."""
    if shape is None:
        return "None"
    return write_tuple(f"a{next(iter(size.terms))[0]}" if is_open(size) else repr(size) for size in shape)


def _lay_arrays(plan: Plan, bases: Mapping[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = dict(plan.constants)
    outside = set(plan.outside.roots)

    def find(value: str) -> Any:
        if value not in arrays:
            place = plan.places[value]
            if isinstance(place, Derived):
                arrays[value] = place.make(find(place.source))
            else:
                address = bases[value] if value in outside else bases[""] + plan.offsets[value]
                arrays[value] = place.lay(lay_open((place.nbytes,), np.uint8, address=address, memory=OpenMemory(value)))
        return arrays[value]

    for value in plan.places:
        find(value)
    return arrays


def _bind_halo(plan: Plan, value: str, base: Any) -> Any:
    from hetero_cpu.jit.staging import bind_clear  # LLVM

    block = plan.places[value]
    assert isinstance(block, Block)
    return bind_clear(block.padded_shape, block.halo, lay_open((block.nbytes,), np.uint8, address=base + plan.offsets[value]))


def _list_touched(plan: OpenPlan) -> list[str]:
    """Returns the values whose arrays somebody touches by name: inputs, outputs, those of the toolkit's nodes."""
    names = [*plan.inputs, *plan.plan.outputs]
    for step in plan.steps:
        if step.foreign is not None:
            names += [*step.foreign.reads, *step.writes]
    return list(dict.fromkeys(names))


def _list_laid(plan: OpenPlan) -> list[OpenArray]:
    """Returns the open arrays that somebody touches by name: inputs, outputs, those of functions and of the toolkit's nodes."""
    arrays = [plan.arrays[name] for name in _list_touched(plan) if isinstance(plan.arrays.get(name), OpenArray)]
    for step in plan.steps:
        for action in step.actions:
            arrays += _list_arrays(action)
    return list({id(array): array for array in arrays}.values())


def _list_parts(action: Any) -> list[Any]:
    if isinstance(action, partial):
        return [*action.args, *action.keywords.values()]
    if isinstance(action, (tuple, list)):
        return list(action)
    return [action.start, action.stop, action.step] if isinstance(action, slice) else []


def _list_arrays(action: Any) -> list[OpenArray]:
    if isinstance(action, OpenArray):
        return [action]
    return [array for part in _list_parts(action) for array in _list_arrays(part)]


def _list_numbers(action: Any) -> list[Any]:
    if is_open(action):
        return [action]
    return [number for part in _list_parts(action) for number in _list_numbers(part)]
