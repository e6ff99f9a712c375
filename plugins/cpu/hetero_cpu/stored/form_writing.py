"""The plan of a class written down as plain lists: what planning decided, without symbols and without addresses.

The plan of one set of sizes is that of a class without symbols; it is written without a network. A plan with a function or an array that
cannot be named is refused, and one with a node of the toolkit that the network does not have as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType
from hetero_cpu.open.evaluation import Table
from hetero_cpu.open.plan import OpenPlan
from hetero_cpu.open.sizes import value_of
from hetero_cpu.planning.addresses import Address
from hetero_cpu.planning.plan import Foreign
from hetero_cpu.planning.recipe import Recipe
from hetero_cpu.stored.stored_form import Form
from hetero_cpu.stored.stored_values import NotStorableError, ValueWriter, read_count


def write_form(plan: OpenPlan, writer: ValueWriter, network: Network | None = None) -> Form:
    """Returns a plan that was made here as lists; with nodes of the toolkit where they are of `network`. Raises: NotStorableError."""
    origin = plan.origin
    if origin is None or origin.scope.has_far_constants:
        raise NotStorableError("an address that is not known")
    if network is None and plan.late.nodes:
        raise NotStorableError("constants that nodes compute")
    addresses, begin = [], 0
    for call in origin.calls:
        spans = [span for array in call.keep if (span := _find_span(array))]
        for row, number in enumerate(call.numbers, begin):
            if isinstance(number, Address):
                place, memory = writer.locate(number.array)
                addresses.append([row, place, read_count(int(number) - memory)])
            elif type(number) is int and any(low <= number < high for low, high in spans):
                raise NotStorableError("a number that looks like an address")
        begin += len(call.numbers)
    form, numbers, late, own = plan.sizes.form, plan.numbers, plan.late, plan.plan
    table = numbers.table.constants.copy()
    table[[row for row, _, _ in addresses]] = 0
    steps = [
        [
            [step.node.name, step.node.op_type, step.node.domain, step.node.opset, step.node.since_version, step.node.origins],
            [writer.write(action) for action in step.actions],
            [kernel.name for kernel in planned.work.kernels] if isinstance(planned.work, Recipe) else [],
            planned.work.reads,
            planned.writes,
            [[value, [value_of(stride) for stride in strides]] for value, strides in planned.strides.items()],
            None if step.foreign is None else _write_foreign(step.foreign, network, writer),
        ]
        for step, planned in zip(plan.steps, own.steps, strict=True)
    ]
    return {
        "class": {
            "symbols": [[symbol.atom, symbol.input, symbol.axis, symbol.low, symbol.high] for symbol in form.symbols],
            "shapes": form.shapes,
            "atoms": [[number, atom.kind, atom.parts] for number, atom in form.derivation.atoms.items()],
            "products": form.derivation.products,
            "guards": _write_table(form.guards),
            "least": form.least,
            "equal": form.equal,
        },
        "table": _write_table(numbers.table, table),
        "counts": numbers.counts,
        "arena": _write_table(numbers.arena),
        "laid": [[writer.write(dtype), rank] for dtype, rank in numbers.laid],
        "inside": numbers.inside,
        "lent": numbers.outputs,
        "rows_in_arena": numbers.rows_in_arena.tolist(),
        "rows_of_roots": [rows.tolist() for rows in numbers.rows_of_roots],
        "rows_of_tables": [rows.tolist() for rows in numbers.rows_of_tables],
        "addresses": addresses,
        "calls": [[call.kernel.name, len(call.numbers)] for call in origin.calls],
        "steps": steps,
        "tables": [[writer.write(make), count] for make, count in plan.tables],
        "late": [late.names, late.nodes, late.reads, late.elements],
        "constants": {name: writer.write(array) for name, array in plan.constants.items()},
        "inputs": plan.inputs[: len(plan.inputs) - len(late.names)],
        "outputs": own.outputs,
        "outside": [own.outside.inputs, own.outside.outputs],
        "arena_bytes": value_of(own.arena_bytes),
        "memories": writer.memories,
    }


def _write_foreign(work: Foreign, network: Network | None, writer: ValueWriter) -> list[Any]:
    """Returns a node of the toolkit, which the network has but for the names that it reads: these, its constants and the other types."""
    from hetero_core.kernels.registry import find_kernel  # the toolkit

    (step,) = work.program.steps
    node = step.node
    index = network.index_of_producer.get(node.writes[0]) if node.writes and network is not None else None
    is_own = index is not None and network is not None and _is_like(node, network.nodes[index])
    if not is_own or node.bodies or find_kernel(node) is None:
        raise NotStorableError(f"{node.label} is the toolkit's, and not the network's own")
    specs = (*work.program.inputs, *work.program.outputs)
    if any(not isinstance(spec.type, TensorType) or spec.type.dtype is None for spec in specs):
        raise NotStorableError(f"{node.label} has values of unknown types")
    computed = {spec.name for spec in work.program.inputs}
    names = zip(node.inputs, step.sources, strict=True)
    constants = {name: writer.write(np.asarray(work.program.values[slot])) for name, slot in names if name and name not in computed}
    return [node.name, node.inputs, {spec.name: spec.dtype for spec in specs}, constants, work.placed]


def _is_like(node: Node, other: Node) -> bool:
    """Says whether two nodes differ at most in what they read, as passes leave them that name a value anew."""
    fields = [(own.name, own.op_type, own.domain, own.since_version, own.outputs, own.attributes.keys()) for own in (node, other)]
    return fields[0] == fields[1] and all(value is other.attributes[key] for key, value in node.attributes.items())


def _find_span(kept: Any) -> tuple[int, int] | None:
    if not isinstance(kept, np.ndarray) or not kept.nbytes:
        return None
    begin = int(kept.__array_interface__["data"][0])
    return begin, begin + kept.nbytes


def _write_table(table: Table, constants: Any = None) -> list[Any]:
    own = table.constants if constants is None else constants
    return [own.tolist(), *(np.asarray(part, np.int64).tolist() for part in table.entries)]
