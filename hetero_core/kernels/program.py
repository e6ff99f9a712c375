"""A graph compiled into bound steps: what an array device runs.

`compile_program` binds once what does not change: constants (converted to the device's memory, or kept on the host where a kernel
wants them there), attributes, the order, the last use of each value. `Program.run` then only calls kernels. Shape-only arithmetic
stays on the host; every other change of memory is an explicit transfer step. The bodies of If, Loop, Scan and SequenceMap are
programs, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from hetero_core.dtypes import dtype_of_numpy
from hetero_core.errors import RequestCancelledError, UnsupportedNodesError
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import ANY, NO_EXTENSIONS, Dtypes, Kernel, find_kernel, find_refusals
from hetero_core.network.graph import EMPTY, Graph, Initializer, Node
from hetero_core.network.types import TensorType, ValueSpec, ValueType

_ABSENT = 0  # the slot that always holds None
# Arithmetic on shapes works on a few numbers; a result of more elements, or one that may have more, is data.
_LARGEST_SHAPE_VALUE = 1024
_GROWING = frozenset({"ConstantOfShape", "Expand", "EyeLike", "OneHot", "Pad", "Range", "Resize", "Tile"})


class ProfileLike(Protocol):
    """What a run tells its times to."""

    def add(self, node: Node, seconds: float) -> None:
        """Records that a node took this many seconds."""

    def add_transfer(self, value: str, nbytes: int, seconds: float) -> None:
        """Records that a value was copied between two memories."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a program computes: the array namespace and the two copies between it and the host."""

    xp: Namespace
    to_host: Callable[[Array], Any]
    from_host: Callable[[Any], Array]

    @property
    def is_host(self) -> bool:
        """Says whether the namespace computes in host memory, so that nothing is ever transferred."""
        return self.xp is np


@dataclass(frozen=True, slots=True)
class _Body:
    """A body in the compiled program: the attribute, its program, and where its captures lie in the outer one."""

    attribute: str
    program: Program
    captures: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """One call: sources and targets are slots; `releases` are slots whose values nobody reads later; a transfer has a `value`."""

    node: Node
    function: Callable[..., Any]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    releases: tuple[int, ...] = ()
    bodies: tuple[_Body, ...] = ()
    value: str = ""


@dataclass(frozen=True, slots=True)
class BoundBody:
    """A body as a control-flow kernel sees it: call it with the body's inputs, get a tuple of its outputs."""

    program: Program
    captured: Mapping[str, Array]
    is_cancelled: Callable[[], bool] | None

    def __call__(self, *inputs: Array) -> tuple[Array, ...]:
        """Returns the body's outputs."""
        return self.program.run(inputs, self.captured, is_cancelled=self.is_cancelled)

    @property
    def outputs(self) -> tuple[ValueSpec, ...]:
        """The names and types of the body's outputs."""
        return self.program.outputs

    def to_host(self, array: Array) -> Any:
        """Returns the array in host memory."""
        return self.program.memory.to_host(array)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph. Immutable, so that threads may run it at once; each run has its own values."""

    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    captured: tuple[str, ...]
    memory: Memory
    steps: tuple[_Step, ...]
    _values: tuple[Any, ...]
    _input_slots: tuple[int, ...]
    _captured_slots: tuple[int, ...]
    _output_slots: tuple[int, ...]

    def run(
        self,
        inputs: tuple[Array, ...],
        captured: Mapping[str, Array] = EMPTY,
        *,
        profile: ProfileLike | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> tuple[Array, ...]:
        """Returns the outputs by position, C-contiguous.

        An output may be an input, a constant or share memory with one. What a body of a node does counts for the node.

        Raises: RequestCancelledError when `is_cancelled()` says so between two steps. Errors of a kernel carry the node as a note.
        """
        values = list(self._values)
        for slot, array in zip(self._input_slots, inputs, strict=True):
            values[slot] = array
        for slot, name in zip(self._captured_slots, self.captured, strict=True):
            values[slot] = captured[name]
        # ONNX lets infinities and NaN arise in silence. The state belongs to the thread, so requests do not disturb each other.
        with np.errstate(all="ignore"):
            for step in self.steps:
                if is_cancelled is not None and is_cancelled():
                    raise RequestCancelledError(f"cancelled before node {step.node.label}")
                started = perf_counter() if profile is not None else 0.0
                _run_step(step, values, is_cancelled)
                if profile is not None:
                    _record_time(profile, step, values, perf_counter() - started)
                for slot in step.releases:
                    values[slot] = None
        return tuple(_lay_out(self.memory.xp, values[slot]) for slot in self._output_slots)


def compile_program(
    graph: Graph,
    *,
    xp: Namespace = np,
    to_host: Callable[[Array], Any] | None = None,
    from_host: Callable[[Any], Array] | None = None,
    extensions: Mapping[tuple[str, str], Any] = NO_EXTENSIONS,
    dtypes: Dtypes = ANY,
) -> Program:
    """Returns the program of a graph.

    `to_host` and `from_host` copy one tensor; with NumPy they are not needed. `extensions` maps (domain, op_type) to an object with
    a `function(*inputs, **attributes)`, used where no kernel exists. `dtypes` are the element types of the device.

    Raises: UnsupportedNodesError naming each node that the toolkit cannot run, with the reason.
    """
    refusals = find_refusals(graph, extensions=extensions, dtypes=dtypes)
    if refusals:
        listed = "; ".join(f"node '{name}': {reason}" for name, reason in refusals.items())
        raise UnsupportedNodesError(
            f"cannot compile network '{graph.name}': {listed}", {name: {"kernels": reason} for name, reason in refusals.items()}
        )
    memory = Memory(xp, _map_tensors(to_host or _keep), _map_tensors(from_host or (_keep if xp is np else xp.asarray)))
    return _Compiler(graph, memory, extensions, EMPTY, {}, lambda _: None).compile()


def _keep(array: Array) -> Array:
    return array


def _map_tensors(copy: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a copy function that takes sequences and absent optionals, too."""
    if copy is _keep:
        return copy

    def copy_value(value: Any) -> Any:
        if value is None:
            return None
        return [copy_value(element) for element in value] if isinstance(value, list) else copy(value)

    return copy_value


def _run_step(step: _Step, values: list[Any], is_cancelled: Callable[[], bool] | None) -> None:
    bodies = {
        body.attribute: BoundBody(body.program, {name: values[slot] for name, slot in body.captures}, is_cancelled)
        for body in step.bodies
    }
    try:
        results = step.function(*[values[slot] for slot in step.sources], **bodies)
    except Exception as error:
        error.add_note(f"while running node {step.node.label}")
        raise
    if not isinstance(results, tuple):
        results = (results,)
    for slot, result in zip(step.targets, results, strict=False):
        if slot != _ABSENT:
            # NumPy makes scalars of arrays without dimensions.
            values[slot] = np.asarray(result) if isinstance(result, np.generic) else result


def _record_time(profile: ProfileLike, step: _Step, values: list[Any], seconds: float) -> None:
    if not step.value:
        profile.add(step.node, seconds)
        return
    profile.add_transfer(step.value, getattr(values[step.targets[0]], "nbytes", 0), seconds)


def _lay_out(xp: Namespace, value: Any) -> Any:
    """Returns an output C-contiguous, as arrays cross borders; copies only what is not."""
    flags = getattr(value, "flags", None)
    return value if flags is None or flags.c_contiguous else xp.asarray(value, order="C")


class _Compiler:
    """The state of one compilation: slots, constants, steps. A value has up to two slots: on the device and on the host."""

    def __init__(
        self,
        graph: Graph,
        memory: Memory,
        extensions: Mapping[tuple[str, str], Any],
        outer_constants: Mapping[str, Initializer],
        converted: dict[int, Array],
        outer_type_of: Callable[[str], ValueType | None],
    ) -> None:
        self._graph = graph
        self._memory = memory
        self._extensions = extensions
        own = {spec.name for spec in graph.inputs} | {value for node in graph.nodes for value in node.writes}
        self._constants = {name: value for name, value in {**outer_constants, **graph.initializers}.items() if name not in own}
        self._converted = converted
        self._outer_type_of = outer_type_of
        self._values: list[Any] = [None]
        self._slots: dict[tuple[str, bool], int] = {}
        self._captured: dict[str, int] = {}
        self._constant_slots: set[int] = {_ABSENT}
        self._shape_values: set[str] = set()
        self._steps: list[_Step] = []

    def compile(self) -> Program:
        input_slots = tuple(self._add_slot(spec.name, on_host=False) for spec in self._graph.inputs)
        for node in self._graph.nodes:
            self._add_node(node)
        output_slots = tuple(
            self._read(self._graph.nodes[-1] if self._graph.nodes else None, spec.name, False) for spec in self._graph.outputs
        )
        return Program(
            self._graph.inputs,
            self._graph.outputs,
            tuple(self._captured),
            self._memory,
            self._mark_releases(output_slots),
            tuple(self._values),
            input_slots,
            tuple(self._captured.values()),
            output_slots,
        )

    def _type_of(self, value: str) -> ValueType | None:
        found = self._graph.type_of(value)
        if found is None and value in self._constants:
            return self._constants[value].type
        return self._outer_type_of(value) if found is None else found

    def _add_slot(self, name: str, *, on_host: bool) -> int:
        self._values.append(None)
        slot = len(self._values) - 1
        self._slots[name, on_host and not self._memory.is_host] = slot
        return slot

    def _read(self, node: Node | None, name: str, on_host: bool) -> int:
        """Returns the slot of a value in the wanted memory; adds a transfer before `node` where it lies only in the other one."""
        if not name:
            return _ABSENT
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
        self._steps.append(_Step(node, copy, (source,), (target,), value=name))
        return target

    def _add_constant(self, name: str, *, on_host: bool) -> int:
        constant = self._constants[name]
        slot = self._add_slot(name, on_host=on_host)
        self._constant_slots.add(slot)
        if on_host or self._memory.is_host:
            self._values[slot] = constant.array
            return slot
        if id(constant) not in self._converted:
            self._converted[id(constant)] = self._memory.from_host(constant.array)
        self._values[slot] = self._converted[id(constant)]
        return slot

    def _add_node(self, node: Node) -> None:
        record = find_kernel(node)
        runs_on_host = self._runs_on_host(node, record)
        shapes_only = record is not None and record.reads_shapes
        host = () if record is None else record.host
        sources = tuple(
            self._read(node, name, on_host=(index in host) or (runs_on_host and not shapes_only))
            for index, name in enumerate(node.inputs)
        )
        bodies = tuple(self._add_body(node, attribute, body) for attribute, body in node.bodies.items())
        targets = tuple(self._add_slot(name, on_host=runs_on_host) if name else _ABSENT for name in node.outputs)
        function = self._bind(node, record, np if runs_on_host else self._memory.xp)
        self._steps.append(_Step(node, function, sources, targets, bodies=bodies))

    def _runs_on_host(self, node: Node, record: Kernel | None) -> bool:
        """Says whether a node runs on the host: its kernel does, or it is arithmetic on shapes and its result stays small.

        Arithmetic on shapes reads shapes, or nothing but values that came from them (at least one) and constants.
        """
        if self._memory.is_host or record is None or record.bodies:
            return False
        names = [name for name in node.inputs if name]
        is_arithmetic = any(name in self._shape_values for name in names) and all(
            name in self._shape_values or name in self._constants for name in names
        )
        if record.reads_shapes or (is_arithmetic and self._stays_small(node)):
            self._shape_values.update(node.writes)
            return True
        return record.runs_on_host

    def _stays_small(self, node: Node) -> bool:
        for value in node.writes:
            value_type = self._type_of(value)
            sizes = value_type.shape if isinstance(value_type, TensorType) else None
            if sizes is None or any(not isinstance(size, int) for size in sizes):
                if node.op_type in _GROWING:
                    return False
            elif prod(size for size in sizes if isinstance(size, int)) > _LARGEST_SHAPE_VALUE:
                return False
        return True

    def _bind(self, node: Node, record: Kernel | None, xp: Namespace) -> Callable[..., Any]:
        attributes = {name: value for name, value in node.attributes.items() if not isinstance(value, Graph)}
        if record is None:
            return partial(self._extensions[node.domain, node.op_type].function, **attributes)
        if record.counts_outputs:
            attributes["output_count"] = max((index + 1 for index, name in enumerate(node.outputs) if name), default=0)
        function = partial(record.function, xp, **attributes)
        unknown = tuple(
            index
            for index, name in enumerate(node.inputs)
            if name and not _is_typed(self._type_of(name)) and record.dtypes_of_input(index) != ANY
        )
        return _check_dtypes(function, node, record, unknown) if unknown else function

    def _add_body(self, node: Node, attribute: str, body: Graph) -> _Body:
        program = _Compiler(body, self._memory, self._extensions, self._constants, self._converted, self._type_of).compile()
        return _Body(attribute, program, tuple((name, self._read(node, name, on_host=False)) for name in program.captured))

    def _mark_releases(self, output_slots: tuple[int, ...]) -> tuple[_Step, ...]:
        kept = self._constant_slots | set(output_slots)
        steps: list[_Step] = []
        for step in reversed(self._steps):
            touched = dict.fromkeys((*step.sources, *(slot for body in step.bodies for _, slot in body.captures), *step.targets))
            releases = tuple(slot for slot in touched if slot not in kept)
            kept.update(releases)
            steps.append(_Step(step.node, step.function, step.sources, step.targets, releases, step.bodies, step.value))
        return tuple(reversed(steps))


def _is_typed(value_type: ValueType | None) -> bool:
    # What is known of sequences and optionals was checked when the node was claimed.
    return value_type is not None and not (isinstance(value_type, TensorType) and value_type.dtype is None)


def _check_dtypes(function: Callable[..., Any], node: Node, record: Kernel, positions: tuple[int, ...]) -> Callable[..., Any]:
    """Returns the function behind a check of the inputs whose types were unknown when the graph was compiled."""

    def run_checked(*inputs: Array, **bodies: BoundBody) -> Any:
        for index in positions:
            dtype = dtype_of_numpy(inputs[index].dtype) if hasattr(inputs[index], "dtype") else None
            if dtype is not None and dtype not in record.dtypes_of_input(index):
                reason = f"input '{node.inputs[index]}' of {node.operator} has dtype {dtype}, for which there is no kernel"
                raise UnsupportedNodesError(f"cannot run node '{node.name}': {reason}", {node.name: {"kernels": reason}})
        return function(*inputs, **bodies)

    return run_checked
