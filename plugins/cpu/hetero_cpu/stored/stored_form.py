"""The stored plan of a class read again, as `form_writing` has written it down; that of one set of sizes is read without a network.

What is read is checked before it is bound: types, counts, places and bounds. What it makes machine code do is trusted as the code itself
is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.native import NativeCall
from hetero_cpu.open.evaluation import Derivation, Products, Table
from hetero_cpu.open.plan import PARTS, ArrayMark, LateConstants, NumberForm, NumberMark, OpenPlan, OpenStep, map_action
from hetero_cpu.open.size_class import ClassForm, SizeClass, Symbol
from hetero_cpu.open.terms import Atom
from hetero_cpu.planning.plan import ExecutionPlan, Foreign, Outside, PlannedStep
from hetero_cpu.planning.recipe import Recipe
from hetero_cpu.stored.stored_values import ValueReader, read_count, read_dtype, require

Form = dict[str, Any]
FAULTS = (ValueError, KeyError, TypeError, IndexError, AttributeError, ImportError, RecursionError)
"""Errors that reading a plan of another form raises."""


def _read_foreign(fields: Any, network: Network | None, reader: ValueReader) -> tuple[Node, Foreign]:
    from hetero_core.kernels.single_nodes import compile_node  # the toolkit

    name, inputs, dtypes, constants, placed = fields
    (node,) = (replace(node, inputs=tuple(map(read_text, inputs))) for node in _list_nodes(network) if node.name == name)
    own = {name: Initializer.of_array(reader.read(value)) for name, value in constants.items()}
    types = {name: TensorType(read_text(dtype), None) for name, dtype in dtypes.items()}
    types |= {name: constant.type for name, constant in own.items()}
    program = compile_node(node, types, own)
    is_whole = len(placed) == len(node.writes) and all(own in (None, value) for own, value in zip(placed, node.writes, strict=True))
    require(is_whole, "a node has other outputs")
    return node, Foreign(program, tuple(spec.name for spec in program.inputs), tuple(placed))


def _list_nodes(network: Network | None) -> tuple[Node, ...]:
    return () if network is None else network.nodes


def read_class(form: Form, inputs: int) -> SizeClass:
    """Returns the class of a plan of so many inputs that was written down. Raises: ValueError, KeyError, TypeError, IndexError."""
    own = form["class"]
    symbols = tuple(Symbol(*map(read_count, fields)) for fields in own["symbols"])
    sizes = tuple(symbol.atom for symbol in symbols)
    known = set(sizes)
    shapes = tuple(None if shape is None else tuple(_read_size(size, known) for size in shape) for shape in own["shapes"])
    require(len(shapes) == inputs and len(known) == len(symbols), "its inputs are not those of the network")
    for symbol in symbols:
        shape = shapes[symbol.input]
        require(shape is not None and shape[symbol.axis] == (symbol.atom,), "a size is read from where it is not")
    atoms: dict[int, Atom] = {}
    for number, kind, parts in own["atoms"]:
        require(kind == "largest" or (kind == "quotient" and len(parts) == 2), f"it has a size of kind {kind!r}")
        read = tuple(tuple((_read_product(product, known), _read_factor(factor)) for product, factor in part) for part in parts)
        require(bool(read) and number not in known, "a size of nothing, or one of two meanings")
        require(not atoms or number > max(atoms), "sizes are not in order")
        atoms[read_count(number)] = Atom(kind, read)
        known.add(number)
    products = tuple(_read_product(product, known) for product in own["products"])
    guards = _read_table(own["guards"], len(products))
    least, equal = read_count(own["least"]), read_count(own["equal"])
    require(least <= equal <= len(guards), "its guards are fewer than it says")
    return SizeClass(ClassForm(symbols, shapes, Derivation(sizes, atoms, products), guards, least, equal))


def read_plan(
    form: Form, sizes: SizeClass, reader: ValueReader, names: tuple[str, ...], network: Network | None = None
) -> OpenPlan:
    """Returns a plan that was written down for inputs of these names. Raises: ValueError, KeyError, TypeError, IndexError."""
    calls = [(read_text(name), read_count(count)) for name, count in form["calls"]]
    tables = [(_read_function(reader, make), read_count(count)) for make, count in form["tables"]]
    numbers = _read_numbers(form, sizes, [count for _, count in calls], [count for _, count in tables])
    keep = _set_addresses(form["addresses"], numbers, reader)
    inputs, outputs = tuple(map(read_text, form["inputs"])), tuple(map(read_text, form["outputs"]))
    late = _read_late(form["late"], network)
    require(inputs == names, "its inputs are not those of the network")
    elements = sum(prod(shape) for shape in late.elements.values())
    require(numbers.counts[4] == elements, "its late constants have other elements")
    constants = {read_text(name): reader.read(value) for name, value in form["constants"].items()}
    outside = Outside(tuple(map(read_text, form["outside"][0])), dict(form["outside"][1]))
    known = {*numbers.inside, *constants}
    require(
        set(outside.outputs) == set(numbers.outputs) and set(outside.inputs) <= {*inputs, *late.names},
        "what lies outside is not known",
    )
    require(len(numbers.rows_of_roots) == len(outside.roots), "it has more memories than it names")
    steps: list[OpenStep] = []
    planned: list[PlannedStep] = []
    for fields in form["steps"]:
        _read_step(fields, network, reader, steps, planned, calls=len(calls))
    passed = {value for step in steps if step.foreign for value in step.writes}
    placed = known | passed | {*inputs, *outside.outputs}
    require(placed.issuperset(outputs), "an output lies nowhere")
    _check_marks([action for step in steps for action in step.actions], len(numbers.laid), numbers.counts[3])
    plan = ExecutionPlan(tuple(planned), {}, {}, {}, (*inputs, *late.names), outputs, read_count(form["arena_bytes"]), outside)
    native = [NativeCall(open_kernel(name), (0,) * count, 0) for name, count in calls]
    if native:
        native[0] = NativeCall(native[0].kernel, native[0].numbers, 0, tuple(keep))
    return OpenPlan(plan, sizes, numbers, late, inputs=inputs, calls=native, steps=steps, tables=tables, constants=constants)


def check_bounds(plan: OpenPlan, products: Products) -> None:
    """Checks for one set of sizes that calls have chunks and arrays lie within the arena. Raises: ValueError."""
    (_, chunks), need = plan.list_numbers(products), plan.measure_arena(products)
    require(need >= 0 and bool((chunks > 0).all()), "a call of no chunks, or an arena of no size")
    lent = set(plan.numbers.outputs.values())
    for index, (address, shape, strides) in enumerate(plan.describe(products).laid):
        require(min(shape, default=0) >= 0, f"an array of {shape}")
        first, last = _find_bytes(shape, strides, plan.numbers.laid[index][0].itemsize)
        require(
            index in lent or (address + first >= 0 and address + last <= need), f"an array at {address} of {shape} by {strides}"
        )


def _find_bytes(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Returns where the bytes of an array begin and end, counted from its first element."""
    if 0 in shape:
        return 0, 0
    reaches = [stride * (size - 1) for size, stride in zip(shape, strides, strict=True)]
    return sum(reach for reach in reaches if reach < 0), sum(reach for reach in reaches if reach > 0) + itemsize


def _read_step(
    fields: Any, network: Network | None, reader: ValueReader, steps: list[OpenStep], planned: list[PlannedStep], *, calls: int
) -> None:
    """Appends a step as a run needs it, and as what tells of a plan does."""
    named, actions, kernels, reads, writes, strides, foreign = fields
    writes, strides_of_value = tuple(map(read_text, writes)), {read_text(value): tuple(own) for value, own in strides}
    if foreign is not None:
        node, work = _read_foreign(foreign, network, reader)
        require(writes == node.writes, "a node has other outputs")
        steps.append(OpenStep(node, (), work, writes))
        planned.append(PlannedStep(node, work, writes, strides=strides_of_value))
        return
    node, own = _read_node(named), tuple(reader.read(action) for action in actions)
    require(
        all(callable(action) or (isinstance(action, range) and action.start <= action.stop <= calls) for action in own),
        "a step calls what is not there",
    )
    steps.append(OpenStep(node, own))
    recipe = Recipe(tuple(reads), _refuse, kernels=tuple(map(open_kernel, kernels)))
    planned.append(PlannedStep(node, recipe, writes, strides=strides_of_value))


def _read_numbers(form: Form, sizes: SizeClass, calls: Sequence[int], tables: Sequence[int]) -> NumberForm:
    products = len(sizes.form.derivation.products)
    table, counts = _read_table(form["table"], products), tuple(map(read_count, form["counts"]))
    laid = tuple((np.dtype(read_dtype(dtype[1])), read_count(rank)) for dtype, rank in form["laid"])
    expected = (sum(calls), len(calls), sum(1 + 2 * rank for _, rank in laid), *counts[3:5], sum(tables))
    require(len(counts) == PARTS and counts == expected and sum(counts) == len(table), "its numbers are not those of its calls")
    arena = _read_table(form["arena"], products)
    inside, outputs = ({read_text(name): read_count(index) for name, index in form[key].items()} for key in ("inside", "lent"))
    require(len(arena) == 1 and all(index < len(laid) for index in (*inside.values(), *outputs.values())), "a value lies nowhere")
    rows = [_read_rows(own, counts[0]) for own in (form["rows_in_arena"], *form["rows_of_roots"], *form["rows_of_tables"])]
    roots = 1 + len(form["rows_of_roots"])
    require(len(rows) - roots == len(tables), "its tables have no places")
    return NumberForm(table, counts, arena, laid, inside, outputs, rows[0], tuple(rows[1:roots]), tuple(rows[roots:]))


def _set_addresses(addresses: Sequence[Any], numbers: NumberForm, reader: ValueReader) -> list[Any]:
    """Writes the addresses of memories into the table; returns the memories."""
    memories: dict[int, Any] = {}
    for row, place, distance in addresses:
        if place not in memories:
            memories[place] = reader.find_memory(place)
        memory = memories[place]
        require(read_count(row) < numbers.counts[0] and read_count(distance) <= memory.nbytes, "an address lies nowhere")
        numbers.table.constants[row] = memory.__array_interface__["data"][0] + distance
    return list(memories.values())


def _read_late(fields: Any, network: Network | None) -> LateConstants:
    names, nodes, reads, elements = fields
    shapes = {read_text(name): tuple(map(read_count, shape)) for name, shape in elements.items()}
    node_of_name = {node.name: node for node in _list_nodes(network)}
    own = [node_of_name[name] for name in nodes]
    computed = [read_text(name) for name in names if name not in shapes]
    program = None
    if network is not None and own:
        from hetero_cpu.open.network import compile_late_nodes  # inference with symbols

        program = compile_late_nodes(network, own, {name: shapes[name] for name in reads}, computed)
    require(program is not None or not computed, "nothing computes its late constants")
    return LateConstants(tuple(names), tuple(nodes), tuple(reads), shapes, program)


def _check_marks(actions: Sequence[Any], arrays: int, numbers: int) -> None:
    marks: list[Any] = []
    for action in actions:
        if not isinstance(action, range):
            map_action(action, marks.append)
    own = [mark.index for mark in marks if type(mark) is NumberMark]
    require(all(mark.index < arrays for mark in marks if type(mark) is ArrayMark), "a function reads an array that is not there")
    require(sorted(set(own)) == list(range(numbers)), "functions have other numbers")


def _read_table(fields: Any, products: int) -> Table:
    constants, rows, columns, factors = map(_read_integers, fields)
    require(len(rows) == len(columns) == len(factors), "a table has no place for each factor")
    for own, most in ((rows, len(constants)), (columns, products)):
        require(not own.size or (own.min() >= 0 and own.max() < most), "a table has a place that is not there")
    return Table(constants, (rows, columns, factors))


def _read_rows(rows: Any, count: int) -> Any:
    own = _read_integers(rows)
    require(not own.size or (own.min() >= 0 and own.max() < count), "an address is no number of a call")
    return own


def _read_integers(numbers: Any) -> Any:
    own = np.array(numbers) if numbers else np.zeros(0, np.int64)
    require(own.dtype == np.int64 and own.ndim == 1, "numbers that are no integers of 64 bits")
    return own


def _read_size(size: Any, symbols: set[int]) -> int | tuple[int]:
    if isinstance(size, list):
        (atom,) = size
        require(atom in symbols, "an input has a size that is not known")
        return (read_count(atom),)
    return read_count(size)


def _read_product(product: Any, known: set[int]) -> tuple[int, ...]:
    require(all(type(number) is int and number in known for number in product), "a product of sizes that are not known")
    return tuple(product)


def _read_factor(factor: Any) -> int:
    require(type(factor) is int and abs(factor) < 1 << 62, f"{factor!r} is no factor")
    return int(factor)


def read_text(text: Any) -> str:
    """Returns a text. Raises: ValueError."""
    require(isinstance(text, str), f"{text!r} is no name")
    return str(text)


def _read_function(reader: ValueReader, value: Any) -> Callable[..., Any]:
    function = reader.read(value)
    require(callable(function), "a table is made by what is no function")
    return function  # type: ignore[no-any-return]  # as was just required


def _read_node(fields: Any) -> Node:
    name, op_type, domain, opset, since_version, origins = fields
    name, op_type, domain, *origins = map(read_text, (name, op_type, domain, *origins))
    opset, since_version = read_count(opset), read_count(since_version)
    return Node(name, op_type, (), (), domain=domain, opset=opset, since_version=since_version, origins=tuple(origins))


def open_kernel(name: Any) -> Kernel:
    """Returns a kernel of a stored plan by its name: it is loaded, never emitted. Raises: ValueError."""
    return Kernel(read_text(name), _refuse)


def _refuse(*_: Any) -> Any:
    raise AssertionError("the kernels of a stored plan are loaded and never emitted, and its steps are bound already")
