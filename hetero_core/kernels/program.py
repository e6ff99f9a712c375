"""Compiles a graph into bound steps, which an array device loads and runs.

`compile_program` does once what is the same in all runs: it converts constants to the device's memory (or keeps them on the host where a
kernel wants them there), binds attributes, and fixes the order and the last use of each value. `Program.run` then only calls kernels.
Shape-only arithmetic stays on the host; every other change of memory is an explicit transfer step. The bodies of If, Loop, Scan and
SequenceMap are programs, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
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
    return _Compiler(graph, memory, table, extensions, EMPTY, {}, None, renews=renews and memory.is_host).compile(host_inputs)


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


@dataclass
class _Compiler:
    """The state of a compilation: slots, constants, steps. A value has up to two slots: on the device and on the host."""

    graph: Graph
    memory: KernelMemory
    table: KernelTable
    extensions: Extensions
    outer_constants: Mapping[str, Initializer]
    converted: dict[int, Array]
    outer_type_of: TypeOf | None
    renews: bool = False
    values: list[Any] = field(default_factory=lambda: [None])
    slots: dict[tuple[str, bool], int] = field(default_factory=dict)
    captured: dict[str, int] = field(default_factory=dict)
    constant_slots: set[int] = field(default_factory=lambda: {ABSENT})
    shape_values: set[str] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        own = {spec.name for spec in self.graph.inputs} | {value for node in self.graph.nodes for value in node.writes}
        constants = {**self.outer_constants, **self.graph.initializers}
        self.constants = {name: value for name, value in constants.items() if name not in own}
        self.type_of = partial(find_type, self.graph, self.constants, self.outer_type_of)

    def compile(self, host_inputs: Collection[str] = ()) -> Program:
        input_slots = tuple(self._add_slot(spec.name, on_host=spec.name in host_inputs) for spec in self.graph.inputs)
        for node in self.graph.nodes:
            try:
                self._add_node(node)
            except Exception as error:  # any error names the node
                error.add_note(f"while compiling node {node.label}")
                raise
        output_slots = tuple(
            self._read(self.graph.nodes[-1] if self.graph.nodes else None, spec.name, False) for spec in self.graph.outputs
        )
        return Program(
            self.graph.inputs,
            self.graph.outputs,
            tuple(self.captured),
            self.memory,
            self.table,
            self._mark_releases(output_slots),
            tuple(self.values),
            input_slots,
            tuple(self.captured.values()),
            output_slots,
        )

    def _add_slot(self, name: str, *, on_host: bool) -> int:
        self.values.append(None)
        slot = len(self.values) - 1
        self.slots[name, on_host and not self.memory.is_host] = slot
        return slot

    def _read(self, node: Node | None, name: str, on_host: bool) -> int:
        """Returns the slot of a value in a memory; adds a transfer before `node` if the value is not there yet."""
        if not name:
            return ABSENT
        on_host = on_host and not self.memory.is_host
        slot = self.slots.get((name, on_host))
        if slot is not None:
            return slot
        if name in self.constants:
            return self._add_constant(name, on_host=on_host)
        source = self.slots.get((name, not on_host))
        if source is None:
            source = self.captured[name] = self._add_slot(name, on_host=False)
            if not on_host:
                return source
        assert node is not None, f"output '{name}' lies in the wrong memory of a graph without nodes"
        copy = self.memory.to_host if on_host else self.memory.from_host
        target = self._add_slot(name, on_host=on_host)
        self.steps.append(Step(node, copy, (source,), (target,), value=name))
        return target

    def _add_constant(self, name: str, *, on_host: bool) -> int:
        constant = self.constants[name]
        slot = self._add_slot(name, on_host=on_host)
        self.constant_slots.add(slot)
        if on_host or self.memory.is_host:
            is_apart = self.renews and constant.is_renewable and name not in {spec.name for spec in self.graph.outputs}
            self.values[slot] = constant if is_apart else constant.array
            return slot
        if id(constant) not in self.converted:
            self.converted[id(constant)] = self.memory.from_host(constant.array)
        self.values[slot] = self.converted[id(constant)]
        return slot

    def _add_node(self, node: Node) -> None:
        record = self.table.find(node)
        runs_on_host = self._runs_on_host(node, record)
        shapes_only = record is not None and record.reads_shapes
        host = () if record is None else record.host
        sources = tuple(
            self._read(node, name, on_host=(index in host) or (runs_on_host and not shapes_only))
            for index, name in enumerate(node.inputs)
        )
        bodies = tuple(self._add_body(node, attribute, body) for attribute, body in node.bodies.items())
        targets = tuple(self._add_slot(name, on_host=runs_on_host) if name else ABSENT for name in node.outputs)
        function = self._bind(node, record, np if runs_on_host else self.memory.xp)
        if self.renews and any(isinstance(self.values[slot], Initializer) for slot in sources):
            function = partial(_run_renewing, function)
        may_grow = (len(node.reads) > 1 or bool(node.attributes)) and targets[:1] not in ((), (ABSENT,))
        self.steps.append(Step(node, function, sources, targets, bodies=bodies, may_grow=may_grow))

    def _runs_on_host(self, node: Node, record: KernelRecord | None) -> bool:
        """Says whether a node runs on the host: its kernel does, or it is arithmetic on shapes and its result stays small.

        Arithmetic on shapes reads shapes, or nothing but values that came from them (at least one) and constants.
        """
        if self.memory.is_host or record is None or record.bodies:
            return False
        names = [name for name in node.inputs if name]
        is_arithmetic = any(name in self.shape_values for name in names) and all(
            name in self.shape_values or name in self.constants for name in names
        )
        if record.reads_shapes or (is_arithmetic and self._stays_small(node, record)):
            self.shape_values.update(node.writes)
            return True
        return record.runs_on_host

    def _stays_small(self, node: Node, record: KernelRecord) -> bool:
        for value in node.writes:
            sizes = sizes_of(self.type_of(value))
            if bool(record.host) if sizes is None else prod(sizes) > _LARGEST_SHAPE_VALUE:
                return False
        return True

    def _bind(self, node: Node, record: KernelRecord | None, xp: Namespace) -> Callable[..., Any]:
        if record is None:
            attributes = {name: value for name, value in node.attributes.items() if not isinstance(value, Graph)}
            return partial(self.extensions[node.domain, node.op_type].function, **attributes)
        types = tuple(self.type_of(name) for name in node.inputs)
        function = bind_kernel(node, record, xp, types)
        # The known types of sequences and optionals were checked when the node was claimed.
        untyped = tuple(
            index
            for index, known in enumerate(types)
            if (known is None or (isinstance(known, TensorType) and known.dtype is None))
            and node.inputs[index]
            and record.dtypes_of_input(index) != ANY
        )
        return _check_run(function, node, record, untyped) if untyped or record.largest is not None else function

    def _add_body(self, node: Node, attribute: str, body: Graph) -> Body:
        program = _Compiler(body, self.memory, self.table, self.extensions, self.constants, self.converted, self.type_of).compile()
        return Body(attribute, program, tuple((name, self._read(node, name, on_host=False)) for name in program.captured))

    def _mark_releases(self, output_slots: tuple[int, ...]) -> tuple[Step, ...]:
        read_later = self.constant_slots | set(output_slots)
        steps: list[Step] = []
        for step in reversed(self.steps):
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
