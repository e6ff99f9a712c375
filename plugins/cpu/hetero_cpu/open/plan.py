"""A plan for a class of sizes as data: calls whose numbers are sums of symbols, bound to sizes without planning.

```text
OpenNetwork ── build_plan ──> ExecutionPlan with symbols ── tabulating.py ──> OpenPlan <── stored_form.py ──> file
sizes ── match: do the guards hold? ──> products of atoms ── bind: all numbers, all arrays ──> OpenInstance
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.graph import Node
from hetero_core.records import record
from hetero_cpu.open.evaluation import Table, write_function, write_tuple
from hetero_cpu.open.late import write_late
from hetero_cpu.open.size_class import Products, SizeClass
from hetero_cpu.planning.plan import ExecutionPlan, Foreign

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_cpu.machine.native import NativeCall
    from hetero_cpu.open.tabulating import Origin

Array = np.ndarray[Any, Any]
Indices = np.ndarray[Any, Any]


@record(frozen=True, slots=True)
class ArrayMark:
    """Stands for an array of a function: its place among the arrays of the plan."""

    index: int


@record(frozen=True, slots=True)
class NumberMark:
    """Stands for a number of a function: its place among these numbers."""

    index: int


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


PARTS = 6
"""Of the numbers of a plan, as `BoundNumbers` has them."""


@record(frozen=True, slots=True)
class LateConstants:
    """Constants that follow from sizes: their names, what computes them by nodes of the network, and the values that it reads.

    `elements`: the shapes of values whose elements are numbers of the plan.
    """

    names: tuple[str, ...]
    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    elements: Mapping[str, tuple[int, ...]]
    program: Program | None


@record(frozen=True, slots=True)
class NumberForm:
    """The numbers of a plan, and what each is for.

    `counts`: of each part. `laid`: element type and rank of the arrays that somebody touches by name or function; `inside`: those in the
    arena, by value; `outputs`: those of outputs outside of it. `rows_...`: the numbers of calls that are addresses in the arena, in each
    memory outside, in each table.
    """

    table: Table
    counts: tuple[int, ...]
    arena: Table
    laid: tuple[tuple[np.dtype[Any], int], ...]
    inside: Mapping[str, int]
    outputs: Mapping[str, int]
    rows_in_arena: Indices
    rows_of_roots: tuple[Indices, ...]
    rows_of_tables: tuple[Indices, ...]


class OpenPlan:
    """The plan of one class of sizes. Safe for threads."""

    def __init__(
        self,
        plan: ExecutionPlan,
        sizes: SizeClass,
        numbers: NumberForm,
        late: LateConstants,
        *,
        inputs: Sequence[str],
        calls: Sequence[NativeCall],
        steps: Sequence[OpenStep],
        tables: Sequence[tuple[Callable[..., Array], int]],
        constants: Mapping[str, Array],
        origin: Origin | None = None,
    ) -> None:
        """`inputs`: those of the network, without late constants. Of `calls` only the kernels, the counts of numbers and what they keep
        are read. `steps` have marks for arrays and numbers. `tables`: what makes each, and of how many numbers. `constants`: those that
        are touched by name. `origin`: what the plan was made of; None where it was stored.
        """
        self.plan, self.sizes, self.numbers, self.late = plan, sizes, numbers, late
        self.calls, self.steps, self.constants, self.origin = tuple(calls), tuple(steps), constants, origin
        self.tables = tuple(tables)
        self.inputs = (*inputs, *late.names)
        self.roots = plan.outside.roots
        self.match = sizes.match
        ends = list(accumulate(numbers.counts))
        self._parts = [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        self.rows_in_arena = numbers.rows_in_arena
        self.rows_outside = np.concatenate([np.zeros(0, np.int64), *numbers.rows_of_roots])
        self.roots_of_rows = np.repeat(np.arange(len(numbers.rows_of_roots)), [len(own) for own in numbers.rows_of_roots])
        self._measure = numbers.arena.write_first()
        self._compute_late = None if late.program is None else write_late(late.program)
        self._describe_arrays = _write_description([rank for _, rank in numbers.laid])

    def bind_numbers(self, products: Products) -> BoundNumbers:
        """Returns all numbers for a set of sizes, by one product of a matrix."""
        numbers = self.numbers.table.evaluate(products)
        return BoundNumbers(*[numbers[part] for part in self._parts])

    def measure_arena(self, products: Products) -> int:
        """Returns the bytes of the arena."""
        return int(self._measure(products.tolist()))

    def read_laid(self, numbers: BoundNumbers) -> tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]:
        """Returns of each open array that is touched by name its address without the base, its shape and its strides."""
        laid: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] = self._describe_arrays(numbers.laid.tolist())
        return laid

    def bind_actions(self, numbers: BoundNumbers, actions: Sequence[Any], find: Callable[[int], Array]) -> list[Any]:
        """Returns functions with arrays and numbers for these sizes; `find` gives an array by its place."""
        extra = numbers.extra.tolist()

        def bind(part: Any) -> Any:
            if type(part) is ArrayMark:
                return find(part.index)
            return extra[part.index] if type(part) is NumberMark else part

        return [map_action(action, bind) for action in actions]

    def bind_tables(self, numbers: BoundNumbers, calls: Array) -> list[Array]:
        """Returns the tables for these sizes, and writes into the numbers of calls where they are."""
        values = numbers.tables.tolist()
        tables, begin = [], 0
        for (make, count), rows in zip(self.tables, self.numbers.rows_of_tables, strict=True):
            table = make(*values[begin : begin + count])
            calls[rows] += table.ctypes.data
            begin += count
            tables.append(table)
        return tables

    def compute_late(self, numbers: BoundNumbers) -> tuple[Array, ...]:
        """Returns the late constants."""
        late = self.late
        elements, begin = {}, 0
        for name, shape in late.elements.items():
            size = int(np.prod(shape, dtype=np.int64))
            elements[name] = numbers.elements[begin : begin + size].reshape(shape)
            begin += size
        computed = iter(() if self._compute_late is None else self._compute_late(*[elements[name] for name in late.reads]))
        return tuple(elements[name] if name in elements else next(computed) for name in late.names)


def _write_description(ranks: Sequence[int]) -> Callable[[Sequence[int]], Any]:
    """Returns what makes (address, shape, strides) of each array of these ranks, of their numbers one after the other."""
    arrays, begin = [], 0
    for rank in ranks:
        middle, end = begin + 1 + rank, begin + 1 + 2 * rank
        shape, strides = (write_tuple(f"n[{index}]" for index in span) for span in (range(begin + 1, middle), range(middle, end)))
        arrays.append(f"(n[{begin}], {shape}, {strides})")
        begin = end
    return write_function(("n",), write_tuple(arrays))


def map_action(action: Any, bind: Callable[[Any], Any]) -> Any:
    """Returns a function with `bind(part)` in the place of each of its arguments and of their parts."""
    if isinstance(action, partial):
        arguments = [map_action(part, bind) for part in action.args]
        named = {key: map_action(part, bind) for key, part in action.keywords.items()}
        return partial(action.func, *arguments, **named)
    if type(action) in (tuple, list):
        return type(action)(map_action(part, bind) for part in action)
    if isinstance(action, slice):
        return slice(*(map_action(part, bind) for part in (action.start, action.stop, action.step)))
    return bind(action)
