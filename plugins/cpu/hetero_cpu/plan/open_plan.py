"""A plan for a class of sizes: calls with sums of symbols as numbers, bound to sizes without planning.

```text
network with symbols ── build_plan ──> ExecutionPlan with symbols ──> OpenPlan
sizes ── match: do the guards hold? ──> products of atoms ── bind: numbers of calls, arrays ──> Instance
```
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_cpu.operators.weights import PackedWeights
from hetero_cpu.plan.passes import join_open_network
from hetero_cpu.plan.plan import Block, Derived, ExecutionPlan, Foreign, PlannedStep, list_actions, may_multiply
from hetero_cpu.plan.planner import build_plan
from hetero_cpu.symbols.arrays import OpenArray, lay_open
from hetero_cpu.symbols.evaluation import Evaluator, Signature, SizeClass, compile_sums, write_function, write_tuple
from hetero_cpu.symbols.network import compile_shape_constants, expose_shape_constants, open_network
from hetero_cpu.symbols.sizes import NotOpenError, Scope, terms_of

if TYPE_CHECKING:
    from hetero_core.kernels.execution import Program
    from hetero_cpu.machine.calls import NativeCall
    from hetero_cpu.machine.compiler import Kernel

logger = logging.getLogger(__name__)

_MOST_TABLES = 32
"""Forms of a table that are kept."""

Array = np.ndarray[Any, Any]
Place = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Address, shape and strides of an array."""
Description = tuple[tuple[Place, ...], tuple[Any, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step: ranges of calls of machine code and functions of open arrays, or a node of the toolkit, in order."""

    node: Node
    actions: tuple[Any, ...]
    foreign: Foreign | None = None
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShapeConstants:
    """Constants that follow from sizes: their names, the program that returns them, and the elements that it reads, with symbols."""

    names: tuple[str, ...] = ()
    elements: tuple[Array, ...] = ()
    program: Program | None = None

    @property
    def has_products(self) -> bool:
        """True if `may_multiply` holds for a node."""
        return self.program is not None and any(may_multiply(step.node) for step in self.program.steps)


class OpenPlan:
    """The plan of one class of sizes. Safe for threads.

    Its numbers are rows of a table, in this order: those of calls of machine code, their chunks, the places of `laid` arrays (address,
    shape, strides), elements of shape constants, arguments of tables.
    """

    def __init__(self, plan: ExecutionPlan, scope: Scope, shapes: Sequence[Any], shape_constants: ShapeConstants) -> None:
        """`shapes`: of the inputs without shape constants. Raises: NotOpenError."""
        self.plan, self.scope, self.shape_constants, self.roots = plan, scope, shape_constants, plan.external.roots
        self.bases = {name: scope.open_base(name) for name in ("", *self.roots)}
        """The symbol of each memory; "" is the arena."""
        self.arrays = _lay_arrays(plan, self.bases)
        calls: list[NativeCall] = []
        self.steps = tuple(_bind_step(plan, step, self.bases[""], self.arrays, calls) for step in plan.steps)
        self.calls = tuple(calls)
        # Shape constants are behind all inputs.
        self.inputs = (*plan.inputs[: len(shapes)], *shape_constants.names)
        # Only machine code knows the address of an external input.
        touched = [*(value for value in self.inputs if value not in plan.external.inputs), *plan.outputs]
        for step in self.steps:
            touched += [*step.foreign.reads, *step.writes] if step.foreign is not None else ()
        arrays = [self.arrays[name] for name in touched if name in self.arrays]
        arrays += self._list_parts()
        self.laid = list({id(array): array for array in arrays if isinstance(array, OpenArray)}.values())
        """The arrays that are used by name or function."""
        self.place_of_array = {id(array): place for place, array in enumerate(self.laid)}
        external = {*self.roots, *plan.external.outputs}
        named = {name: self.arrays[name] for name in touched if name in self.arrays and name not in external}
        self.inside = {name: self.place_of_array[id(array)] for name, array in named.items() if isinstance(array, OpenArray)}
        """The places in `laid` of the values in the arena."""
        self.outputs = {value: self.place_of_array[id(self.arrays[value])] for value in plan.external.outputs}
        """The places in `laid` of outputs outside of the arena."""
        self.constants = {name: array for name, array in named.items() if name not in self.inside}
        self._tabulate(shapes)

    def _list_parts(self) -> list[OpenArray]:
        """Returns the arrays of functions. Raises: NotOpenError for an array outside of the arena."""
        functions = [action for step in self.steps for action in step.actions if isinstance(action, partial)]
        parts = [part for action in functions for part in action.args if isinstance(part, OpenArray)]
        if any(self.bases[""].terms.keys().isdisjoint(terms_of(part.address)) for part in parts):
            raise NotOpenError("a function of memory that lies outside of the arena")
        return parts

    def _tabulate(self, shapes: Sequence[Any]) -> None:
        scope, shape_constants = self.scope, self.shape_constants
        numbers = [number for call in self.calls for number in call.numbers]
        chunks = [call.chunks for call in self.calls]
        places = [number for array in self.laid for number in (array.address, *array.shape, *array.strides)]
        elements = [number for own in shape_constants.elements for number in own.reshape(-1)]
        together = [*map(terms_of, [*numbers, *chunks, *places, *elements]), *(dict(key) for _, own in scope.tables for key in own)]
        arena, bases = terms_of(self.plan.arena_bytes), [*self.bases.values(), *scope.tables.values()]
        guards = [dict(key) for keys in scope.guards.values() for key in keys]
        evaluator = Evaluator(scope, [*together, arena, *guards], bases)
        self.sizes = SizeClass(scope, shapes, evaluator)
        self.match = self.sizes.match
        self.table = table = evaluator.tabulate(together)
        self.number_count, self.call_count = len(numbers), len(chunks)
        is_call = table.rows < self.number_count
        self.rows_of_roots = [
            table.rows[is_call & (table.columns == column)]
            for column in range(table.products + 1, table.products + 1 + len(self.roots))
        ]
        """The numbers of calls that are addresses in each external memory."""
        # np.unique imports masked arrays, which takes 16 ms of a first run.
        rows = np.flatnonzero(np.bincount(table.rows))
        rows = rows[rows < self.number_count + self.call_count]
        self.rows = rows[rows < self.number_count]
        """The numbers of calls that depend on sizes or on addresses of memory."""
        self.chunk_rows = rows[len(self.rows) :] - self.number_count
        """The calls with chunks that depend on sizes."""
        self.evaluate_numbers = compile_sums(table, rows)
        """Returns the numbers of calls in `rows`, and behind them the chunks of those in `chunk_rows`.

        They follow from products, and the begins of the arena, of memories outside and of tables.
        """
        self.measure_arena: Callable[..., int] = write_function(evaluator.parameters, *evaluator.tabulate([arena]).write([0]))
        """Returns the bytes of the arena for products."""
        self.describe: Callable[..., Description] = write_function(evaluator.parameters, self._write_description())
        """Returns all other numbers for products: the places of `laid`, elements of shape constants, arguments of tables.

        Addresses count from the begin of their memory; elements without axes are plain numbers.
        """
        # Sizes of images often share some: those of a height.
        self._tables = tuple((lru_cache(_MOST_TABLES)(make), len(own)) for make, own in scope.tables)

    def _write_description(self) -> str:
        """Returns the expression of the parts of a description."""
        sums = iter(self.table.write(range(self.number_count + self.call_count, len(self.table.constants))))
        arrays = []
        for array in self.laid:
            address, *parts = next(sums), *(write_tuple(islice(sums, len(array.shape))) for _ in range(2))
            arrays.append(write_tuple([address, *parts]))
        elements = write_tuple(_write_elements(own.shape, sums) for own in self.shape_constants.elements)
        return write_tuple([write_tuple(arrays), elements, write_tuple(sums)])

    def bind_tables(self, values: Sequence[int]) -> tuple[Array, ...]:
        """Returns the tables for a set of sizes."""
        arguments = iter(values)
        return tuple([make(*islice(arguments, count)) for make, count in self._tables])

    def compute_shape_constants(self, elements: Sequence[Any]) -> tuple[Array, ...]:
        """Returns the shape constants; `elements`: as `describe` returns them."""
        program = self.shape_constants.program
        return () if program is None else program.run([np.array(own, np.int64) for own in elements])


def _write_elements(shape: Sequence[int], sums: Iterator[str]) -> str:
    if not shape:
        return next(sums)
    return write_tuple([_write_elements(shape[1:], sums) for _ in range(shape[0])])


def _bind_step(plan: ExecutionPlan, step: PlannedStep, base: Any, arrays: Mapping[str, Any], calls: list[NativeCall]) -> OpenStep:
    """Returns a step; its calls of machine code are appended to `calls`."""
    if isinstance(step.work, Foreign):
        return OpenStep(step.node, (), step.work, step.writes)
    scratch = lay_open((step.work.scratch,), np.uint8, address=base + step.scratch_offset)
    reads, writes = ([arrays[value] for value in values] for values in (step.work.reads, step.writes))
    bound: list[Any] = []
    for value in step.clears:
        from hetero_cpu.operators.images import bind_clear  # LLVM

        block = plan.places[value]
        assert isinstance(block, Block)
        memory = lay_open((block.nbytes,), np.uint8, address=base + plan.offsets[value])
        bound.append(bind_clear(block.padded_shape, block.halo, memory))
    bound += step.work.bind(reads, writes, scratch)
    if any(callable(call) and not isinstance(call, partial) for call in bound):
        raise NotOpenError(f"{step.node.label} calls a function that cannot be bound again")
    return OpenStep(step.node, tuple(list_actions(bound, calls)))


def _lay_arrays(plan: ExecutionPlan, bases: Mapping[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = dict(plan.constants)

    def find(value: str) -> Any:
        if value not in arrays:
            place = plan.places[value]
            if isinstance(place, Derived):
                arrays[value] = place.make(find(place.source))
            else:
                address = bases[value] if value in bases else bases[""] + plan.offsets[value]
                arrays[value] = place.lay(lay_open((place.nbytes,), np.uint8, address=address))
        return arrays[value]

    for value in plan.places:
        find(value)
    return arrays


def make_fixed_plan(plan: ExecutionPlan, signature: Signature) -> OpenPlan:
    """Returns the plan of a set of input shapes, as the plan of a class without symbols."""
    return OpenPlan(plan, Scope(), signature, ShapeConstants())


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
        opened, open_shapes = open_network(network, signature, example)
        joined, constants = expose_shape_constants(join_open_network(opened, open_shapes.scope))
        plan = build_plan(joined, weights, extensions, workers=workers, scope=open_shapes.scope)
        yield from plan.kernels
        begin_packing()
        # Binding packs the weights in order.
        weights.pack_all(workers)
        foreign = [step.work for step in plan.steps if isinstance(step.work, Foreign)]
        needed = {value for work in foreign for value in work.reads} | set(plan.places)
        names = tuple(name for name in constants if name in needed)
        shape_constants = ShapeConstants(names, *compile_shape_constants(names, open_shapes)) if names else ShapeConstants()
        open_plan = OpenPlan(plan, open_shapes.scope, [spec.shape for spec in opened.inputs], shape_constants)
    except (NotOpenError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        # A step needs facts of its arrays that open sizes cannot tell: each set of sizes is planned alone then.
        logger.info("network '%s' is planned for each set of sizes: %s: %s", network.name, type(error).__name__, error)
        return None
    if open_plan.sizes.is_single or open_plan.match(signature) is None:
        logger.info("network '%s': what was planned holds for the sizes %s alone", network.name, signature)
        return None
    return open_plan
