"""Compiles a graph into bound steps, which an array device loads and runs.

`compile_program` does once what is the same in all runs: it converts constants to the device's memory (or keeps them on the host where a
kernel wants them there), binds attributes, and fixes the order and the last use of each value. `Program.run` then only calls kernels.
Shape-only arithmetic stays on the host; every other change of memory is an explicit transfer step. The bodies of If, Loop, Scan and
SequenceMap are programs, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero_core.contract import Extension
from hetero_core.dtypes import dtype_of_numpy
from hetero_core.errors import HeteroError, UnsupportedNodesError
from hetero_core.kernels.execution import ABSENT, Body, BoundBody, KernelMemory, Program, Step
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import (
    ANY,
    NO_EXTENSIONS,
    TOOLKIT,
    Dtypes,
    Extensions,
    KernelRecord,
    TypeOf,
    explain_size,
    find_kernel,
    find_refusals,
    find_type,
    take_prepared,
)
from hetero_core.kernels.tables import InputTypes, KernelTable
from hetero_core.limits import RunLimits
from hetero_core.network.graph import EMPTY, Graph, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import TensorType, ValueSpec, ValueType, sizes_of
from hetero_core.transforms.constants import LARGEST_GROWTH

# Arithmetic on shapes works on a few numbers; a result of more elements, or of an open size, is data.
_LARGEST_SHAPE_VALUE = 1024


def compile_program(
    graph: Graph,
    *,
    xp: Namespace = np,
    to_host: Callable[[Array], Any] | None = None,
    from_host: Callable[[Any], Array] | None = None,
    extensions: Extensions = NO_EXTENSIONS,
    dtypes: Dtypes = ANY,
    host_inputs: Collection[str] = (),
    table: KernelTable = TOOLKIT,
    renews: bool = False,
) -> Program:
    """Returns the program of a graph.

    `to_host` and `from_host` copy a tensor; with NumPy they are not needed. `extensions` maps (domain, op_type) to an object with
    a `function(*inputs, **attributes)`, used if no kernel exists. `dtypes` are the element types of the device. `host_inputs` are
    inputs of the graph that are given in host memory. `table` has the kernels. With `renews` a program on the host holds no renewable
    constant: a step makes those that it reads, and releases them.

    Raises: UnsupportedNodesError naming each node that the table's kernels cannot run, with the reason.
    """
    refusals = find_refusals(graph, extensions=extensions, dtypes=dtypes, table=table)
    if refusals:
        listed = "; ".join(f"node '{name}': {reason}" for name, reason in refusals.items())
        raise UnsupportedNodesError(
            f"cannot compile network '{graph.name}': {listed}", {name: {"kernels": reason} for name, reason in refusals.items()}
        )
    copies = to_host or _keep, from_host or (_keep if xp is np else xp.asarray)
    memory = KernelMemory(xp, *(partial(_map_tensors, copy) for copy in copies))
    return _Compiler(graph, memory, table, extensions, EMPTY, {}, lambda _: None, renews=renews).compile(host_inputs)


def find_host_inputs(graph: Graph) -> frozenset[str]:
    """Returns the inputs that every reader wants on the host, as shapes and axes: they need no copy in the memory of a device."""
    names = {spec.name for spec in graph.inputs}
    host_inputs: set[str] = set()
    elsewhere = {spec.name for spec in graph.outputs}
    for node in graph.nodes:
        record = find_kernel(node)
        elsewhere.update(node.captures)
        for index, name in enumerate(node.inputs):
            (host_inputs if record is not None and index in record.host else elsewhere).add(name)
    return frozenset((names & host_inputs) - elsewhere)


def _keep(array: Array) -> Array:
    return array


def _map_tensors(copy: Callable[[Any], Any], value: Any) -> Any:
    """Returns a value with its tensors copied: a tensor, a sequence, or a map or an absent optional, which stay as they are."""
    if isinstance(value, list):
        return [_map_tensors(copy, element) for element in value]
    return copy(np.asarray(value) if isinstance(value, np.generic) else value) if hasattr(value, "dtype") else value


class _Compiler:
    """The state of a compilation: slots, constants, steps. A value has up to two slots: on the device and on the host."""

    def __init__(
        self,
        graph: Graph,
        memory: KernelMemory,
        table: KernelTable,
        extensions: Extensions,
        outer_constants: Mapping[str, Initializer],
        converted: dict[int, Array],
        outer_type_of: TypeOf,
        *,
        renews: bool = False,
    ) -> None:
        self._graph = graph
        self._outputs = frozenset(spec.name for spec in graph.outputs)
        self._renews = renews and memory.is_host
        self._memory = memory
        self._table = table
        self._extensions = extensions
        own = {spec.name for spec in graph.inputs} | {value for node in graph.nodes for value in node.writes}
        self._constants = {name: value for name, value in {**outer_constants, **graph.initializers}.items() if name not in own}
        self._converted = converted
        self._type_of = partial(find_type, graph, self._constants, outer_type_of)
        self._values: list[Any] = [None]
        self._slots: dict[tuple[str, bool], int] = {}
        self._captured: dict[str, int] = {}
        self._constant_slots: set[int] = {ABSENT}
        self._shape_values: set[str] = set()
        self._steps: list[Step] = []

    def compile(self, host_inputs: Collection[str] = ()) -> Program:
        input_slots = tuple(self._add_slot(spec.name, on_host=spec.name in host_inputs) for spec in self._graph.inputs)
        for node in self._graph.nodes:
            try:
                self._add_node(node)
            except Exception as error:  # any error names the node
                error.add_note(f"while compiling node {node.label}")
                raise
        output_slots = tuple(
            self._read(self._graph.nodes[-1] if self._graph.nodes else None, spec.name, False) for spec in self._graph.outputs
        )
        return Program(
            self._graph.inputs,
            self._graph.outputs,
            tuple(self._captured),
            self._memory,
            self._table,
            self._mark_releases(output_slots),
            tuple(self._values),
            input_slots,
            tuple(self._captured.values()),
            output_slots,
        )

    def _add_slot(self, name: str, *, on_host: bool) -> int:
        self._values.append(None)
        slot = len(self._values) - 1
        self._slots[name, on_host and not self._memory.is_host] = slot
        return slot

    def _read(self, node: Node | None, name: str, on_host: bool) -> int:
        """Returns the slot of a value in a memory; adds a transfer before `node` if the value is not there yet."""
        if not name:
            return ABSENT
        on_host = on_host and not self._memory.is_host
        slot = self._slots.get((name, on_host))
        if slot is not None:
            return slot
        if name in self._constants:
            return self._add_constant(name, on_host=on_host)
        source = self._slots.get((name, not on_host))
        if source is None:
            source = self._captured[name] = self._add_slot(name, on_host=False)
            if not on_host:
                return source
        assert node is not None, f"output '{name}' lies in the wrong memory of a graph without nodes"
        copy = self._memory.to_host if on_host else self._memory.from_host
        target = self._add_slot(name, on_host=on_host)
        self._steps.append(Step(node, copy, (source,), (target,), value=name))
        return target

    def _add_constant(self, name: str, *, on_host: bool) -> int:
        constant = self._constants[name]
        slot = self._add_slot(name, on_host=on_host)
        self._constant_slots.add(slot)
        if on_host or self._memory.is_host:
            is_apart = self._renews and constant.is_renewable and name not in self._outputs
            self._values[slot] = constant if is_apart else constant.array
            return slot
        if id(constant) not in self._converted:
            self._converted[id(constant)] = self._memory.from_host(constant.array)
        self._values[slot] = self._converted[id(constant)]
        return slot

    def _add_node(self, node: Node) -> None:
        record = self._table.find(node)
        runs_on_host = self._runs_on_host(node, record)
        shapes_only = record is not None and record.reads_shapes
        host = () if record is None else record.host
        sources = tuple(
            self._read(node, name, on_host=(index in host) or (runs_on_host and not shapes_only))
            for index, name in enumerate(node.inputs)
        )
        bodies = tuple(self._add_body(node, attribute, body) for attribute, body in node.bodies.items())
        targets = tuple(self._add_slot(name, on_host=runs_on_host) if name else ABSENT for name in node.outputs)
        function = self._bind(node, record, np if runs_on_host else self._memory.xp)
        if self._renews and any(isinstance(self._values[slot], Initializer) for slot in sources):
            function = partial(_run_renewing, function)
        may_grow = (len(node.reads) > 1 or bool(node.attributes)) and targets[:1] not in ((), (ABSENT,))
        self._steps.append(Step(node, function, sources, targets, bodies=bodies, may_grow=may_grow))

    def _runs_on_host(self, node: Node, record: KernelRecord | None) -> bool:
        """Says whether a node runs on the host: its kernel does, or it is arithmetic on shapes and its result stays small.

        Arithmetic on shapes reads shapes, or nothing but values that came from them (at least one) and constants.
        """
        if self._memory.is_host or record is None or record.bodies:
            return False
        names = [name for name in node.inputs if name]
        is_arithmetic = any(name in self._shape_values for name in names) and all(
            name in self._shape_values or name in self._constants for name in names
        )
        if record.reads_shapes or (is_arithmetic and self._stays_small(node, record)):
            self._shape_values.update(node.writes)
            return True
        return record.runs_on_host

    def _stays_small(self, node: Node, record: KernelRecord) -> bool:
        for value in node.writes:
            sizes = sizes_of(self._type_of(value))
            if bool(record.host) if sizes is None else prod(sizes) > _LARGEST_SHAPE_VALUE:
                return False
        return True

    def _bind(self, node: Node, record: KernelRecord | None, xp: Namespace) -> Callable[..., Any]:
        if record is None:
            attributes = {name: value for name, value in node.attributes.items() if not isinstance(value, Graph)}
            return partial(self._extensions[node.domain, node.op_type].function, **attributes)
        function = bind_kernel(node, record, xp, tuple(self._type_of(name) for name in node.inputs))
        untyped = [index for index, name in enumerate(node.inputs) if name and not _is_typed(self._type_of(name))]
        unknown = tuple(index for index in untyped if record.dtypes_of_input(index) != ANY)
        return _check_run(function, node, record, unknown) if unknown or record.largest is not None else function

    def _add_body(self, node: Node, attribute: str, body: Graph) -> Body:
        program = _Compiler(
            body, self._memory, self._table, self._extensions, self._constants, self._converted, self._type_of
        ).compile()
        return Body(attribute, program, tuple((name, self._read(node, name, on_host=False)) for name in program.captured))

    def _mark_releases(self, output_slots: tuple[int, ...]) -> tuple[Step, ...]:
        read_later = self._constant_slots | set(output_slots)
        steps: list[Step] = []
        for step in reversed(self._steps):
            touched = dict.fromkeys((*step.sources, *(slot for body in step.bodies for _, slot in body.captures), *step.targets))
            releases = tuple(slot for slot in touched if slot not in read_later)
            read_later.update(releases)
            steps.append(replace(step, releases=releases))
        return tuple(reversed(steps))


def bind_kernel(node: Node, record: KernelRecord, xp: Namespace, input_types: InputTypes) -> Callable[..., Any]:
    """Returns the kernel of a node as a function of its inputs alone (bodies aside); absent inputs are None."""
    attributes = {
        name: value for name, value in node.attributes.items() if not isinstance(value, Graph) and name not in record.unread
    }
    if record.counts_outputs:
        # An axis is split for all outputs, also for those that nothing reads.
        requested = [index + 1 for index, name in enumerate(node.outputs) if name or record.outputs is None]
        attributes["output_count"] = max(requested, default=0)
    if record.prepare is not None:
        prepared = take_prepared(node, record, input_types) if xp is np else record.prepare(xp, input_types, **attributes)
        attributes = {"prepared": prepared}
    return partial(record.function, xp, **attributes)


def _run_renewing(function: Callable[..., Any], *inputs: Any, **bodies: BoundBody) -> Any:
    """Returns the results of a kernel that gets the arrays of constants, which are released afterwards."""
    try:
        return function(*[x.array if isinstance(x, Initializer) else x for x in inputs], **bodies)
    finally:
        for x in inputs:
            if isinstance(x, Initializer):
                x.release()


def _is_typed(value_type: ValueType | None) -> bool:
    # The known types of sequences and optionals were checked when the node was claimed.
    return value_type is not None and not (isinstance(value_type, TensorType) and value_type.dtype is None)


def _check_run(function: Callable[..., Any], node: Node, record: KernelRecord, untyped: tuple[int, ...]) -> Callable[..., Any]:
    """Returns the function with checks of types and sizes that may be open when a graph is compiled."""

    def refuse(reason: str) -> UnsupportedNodesError:
        return UnsupportedNodesError(f"cannot run node '{node.name}': {reason}", {node.name: {"kernels": reason}})

    def check_sizes(names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        for name, value in zip(names, values, strict=False):
            nbytes = getattr(value, "nbytes", 0)
            if record.largest is not None and nbytes > record.largest:
                raise refuse(explain_size(node, name, nbytes, record.largest))

    def run_checked(*inputs: Array, **bodies: BoundBody) -> Any:
        for index in untyped:
            dtype = dtype_of_numpy(inputs[index].dtype) if hasattr(inputs[index], "dtype") else None
            if dtype is not None and dtype not in record.dtypes_of_input(index):
                raise refuse(f"input '{node.inputs[index]}' of {node.operator} has dtype {dtype}, for which there is no kernel")
        check_sizes(node.inputs, inputs)
        results = function(*inputs, **bodies)
        check_sizes(node.outputs, results if isinstance(results, tuple) else (results,))
        return results

    return run_checked


def compile_node(
    node: Node, types: Mapping[str, ValueType], initializers: Mapping[str, Initializer], extensions: Extensions = NO_EXTENSIONS
) -> Program:
    """Returns a program of a node; its inputs are the values that the node reads, without constants, its outputs those that it writes."""
    constants = {name: initializers[name] for name in node.reads if name in initializers}
    inputs = tuple(ValueSpec(name, types.get(name, TensorType(None, None))) for name in node.reads if name not in constants)
    outputs = tuple(ValueSpec(name, types.get(name, TensorType(None, None))) for name in node.writes)
    known = {name: types[name] for name in (*node.reads, *node.writes) if name in types}
    return compile_program(Graph(node.name, inputs, outputs, (node,), constants, known), extensions=extensions)


def evaluate_node(node: Node, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns the outputs of a node by position, None if it has no kernel or fails: the run then reports the reason.

    A node that would make much more than it reads fails before it does: a file of a kilobyte can ask for terabytes.
    """
    if find_kernel(node) is None:
        return None
    constants = {name: Initializer.of_array(np.asarray(array)) for name, array in zip(node.inputs, inputs, strict=True) if name}
    limits = RunLimits(node.label, memory_limit=sum(constant.nbytes for constant in constants.values()) + LARGEST_GROWTH)
    try:
        program = compile_node(node, {name: constant.type for name, constant in constants.items()}, constants)
        results = program.run((), limits=limits)
    except (HeteroError, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    array_of_value = dict(zip(node.writes, results, strict=True))
    return tuple(array_of_value.get(name) for name in node.outputs)


@dataclass(frozen=True)
class HostOperator:
    """A custom operator that `compile_program` takes. `read` copies a tensor to the host, `write` copies a tensor to the device."""

    extension: Extension
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]

    def function(self, *inputs: Any, **attributes: Any) -> Any:
        """Returns the operator's results, in device memory."""
        results = self.extension.function(*(_map_tensors(self.read, value) for value in inputs), **attributes)
        if isinstance(results, tuple):
            return tuple(_map_tensors(self.write, value) for value in results)
        return _map_tensors(self.write, results)
