"""A plan for a class of sizes as data: calls with sums of symbols as numbers, bound to sizes without planning.

```text
OpenNetwork ── build_plan ──> ExecutionPlan with symbols ── tabulating.py ──> OpenPlan
sizes ── match: do the guards hold? ──> products of atoms ── bind: numbers of calls, arrays ──> OpenInstance
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.graph import Node
from hetero_cpu.plan.plan import ExecutionPlan, Foreign, may_multiply
from hetero_cpu.symbols.evaluation import Products, Sums, Table, write_function, write_tuple
from hetero_cpu.symbols.size_class import SizeClass

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_cpu.machine.calls import NativeCall
    from hetero_cpu.plan.tabulating import Origin


_MOST_TABLES = 32
"""Forms of a table that are kept."""

Array = np.ndarray[Any, Any]
Indices = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ArrayMark:
    """Stands for an array of a function: its place among the arrays of the plan."""

    index: int


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step: a range of calls of machine code, functions with marks for arrays, or a node of the toolkit, in order."""

    node: Node
    actions: tuple[Any, ...]
    foreign: Foreign | None = None
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """The numbers of arrays for a set of sizes. Addresses count from the begin of their memory.

    `laid`: of each array that is touched by name or function its address, shape and strides. `elements`: of shape constants and of
    their inputs, a plain number for each that has no axes; `tables`: the arguments of small arrays.
    """

    laid: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    elements: tuple[Any, ...]
    tables: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShapeConstants:
    """Constants that follow from sizes: their names, the program that computes them, and the values that it reads.

    `elements`: the shapes of values whose elements are numbers of the plan.
    """

    names: tuple[str, ...]
    reads: tuple[str, ...]
    elements: Mapping[str, tuple[int, ...]]
    program: Program | None

    @property
    def has_products(self) -> bool:
        """True if `may_multiply` holds for a node."""
        return self.program is not None and any(may_multiply(step.node) for step in self.program.steps)


@dataclass(frozen=True, slots=True)
class NumberForm:
    """The numbers of a plan, and the purpose of each.

    `counts`: of the calls of machine code, their chunks, arrays, shape constants and tables. `laid`: element type and rank of the arrays
    that are used by name or function; `inside`: the arrays in the arena, by value; `outputs`: the arrays of outputs outside of it.
    `rows_...`: the numbers of calls that are addresses in the arena, in each external memory, in each table.
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
        shape_constants: ShapeConstants,
        *,
        inputs: Sequence[str],
        calls: Sequence[NativeCall],
        steps: Sequence[OpenStep],
        tables: Sequence[tuple[Callable[..., Array], int]],
        constants: Mapping[str, Array],
        origin: Origin | None = None,
    ) -> None:
        """`inputs`: of the network, without shape constants. Of `calls` only the kernels, the counts of numbers and their `keep`
        are read. `steps` have marks for arrays. `tables`: the function that makes each, and its number of arguments.
        `constants`: the arrays that are used by name. `origin`: the plan with symbols; None if the plan was stored.
        """
        self.plan, self.sizes, self.numbers, self.shape_constants = plan, sizes, numbers, shape_constants
        self.calls, self.steps, self.constants, self.origin = tuple(calls), tuple(steps), constants, origin
        self.tables = tuple(tables)
        # Sizes of images often share some: those of a height.
        self._tables = tuple((lru_cache(_MOST_TABLES)(make), count) for make, count in tables)
        self.inputs = (*inputs, *shape_constants.names)
        self.roots = plan.external.roots
        self.match = sizes.match
        calls_end = numbers.counts[0]
        chunks_end = calls_end + numbers.counts[1]
        placed = _add_begins(numbers, len(sizes.form.derivation.products))
        rows = placed.list_open_rows()
        rows = rows[rows < chunks_end]
        self.rows = rows[rows < calls_end]
        """The numbers of calls that depend on sizes or on addresses of memory."""
        self.chunk_rows = rows[len(self.rows) :] - calls_end
        """The calls with chunks that depend on sizes."""
        self._open_numbers = Sums(placed, rows)
        parameters = sizes.form.derivation.parameters
        self._measure: Callable[..., int] = write_function(parameters, *numbers.arena.write([0]))
        self._describe = write_function(parameters, _write_described(numbers, shape_constants, chunks_end))
        index_of_element = {name: index for index, name in enumerate(shape_constants.elements)}
        self._constant_reads = [index_of_element[name] for name in shape_constants.reads]
        # The index of the elements of each shape constant; None if it is computed.
        self._constant_elements = [index_of_element.get(name) for name in shape_constants.names]

    def bind_numbers(self, products: Products, begins: Sequence[int]) -> Array:
        """Returns the numbers of calls in `rows`, and behind them the chunks of those in `chunk_rows`, for a set of sizes.

        `begins`: of the arena, of memories outside and of tables.
        """
        return self._open_numbers.evaluate((*products, *begins))

    def measure_arena(self, products: Products) -> int:
        """Returns the bytes of the arena."""
        return self._measure(*products)

    def describe(self, products: Products) -> Described:
        """Returns all other numbers for a set of sizes."""
        return Described(*self._describe(*products))

    def bind_tables(self, values: Sequence[int]) -> tuple[Array, ...]:
        """Returns the tables for a set of sizes."""
        tables, begin = [], 0
        for make, count in self._tables:
            tables.append(make(*values[begin : begin + count]))
            begin += count
        return tuple(tables)

    def compute_shape_constants(self, elements: Sequence[Any]) -> tuple[Array, ...]:
        """Returns the shape constants; `elements`: as `Described` has them."""
        program = self.shape_constants.program
        reads = tuple([np.asarray(elements[index], np.int64) for index in self._constant_reads])
        computed = iter(() if program is None else program.run(reads))
        return tuple(
            [next(computed) if index is None else np.array(elements[index], np.int64) for index in self._constant_elements]
        )


def _add_begins(numbers: NumberForm, products: int) -> Table:
    """Returns the table with addresses that are sums as well: behind the products come the begins of all memories."""
    in_memories = [numbers.rows_in_arena, *numbers.rows_of_roots, *numbers.rows_of_tables]
    rows, memories = np.concatenate(in_memories), np.repeat(np.arange(len(in_memories)), list(map(len, in_memories)))
    begins = (rows, products + memories, np.ones(len(rows), np.int64))
    entries = [
        np.concatenate([np.asarray(own, np.int64), others]) for own, others in zip(numbers.table.entries, begins, strict=True)
    ]
    return Table(numbers.table.constants, (entries[0], entries[1], entries[2]))


def _write_described(numbers: NumberForm, shape_constants: ShapeConstants, begin: int) -> str:
    """Returns the expression of the parts of a description, from row `begin` on."""
    sums = iter(numbers.table.write(range(begin, len(numbers.table))))
    arrays = []
    for _, rank in numbers.laid:
        address, shape, strides = next(sums), write_tuple(islice(sums, rank)), write_tuple(islice(sums, rank))
        arrays.append(f"({address}, {shape}, {strides})")
    elements = write_tuple(_write_elements(shape, sums) for shape in shape_constants.elements.values())
    return write_tuple([write_tuple(arrays), elements, write_tuple(sums)])


def _write_elements(shape: Sequence[int], sums: Iterator[str]) -> str:
    if not shape:
        return next(sums)
    return write_tuple([_write_elements(shape[1:], sums) for _ in range(shape[0])])


def map_action(action: partial[Any], bind: Callable[[Any], Any]) -> partial[Any]:
    """Returns a function with `bind(argument)` in the place of each of its arguments."""
    return partial(action.func, *map(bind, action.args))
