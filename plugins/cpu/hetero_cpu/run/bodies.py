"""Bodies of If, Loop, Scan and SequenceMap that run often, by executables of their own: plans of machine code, as for a network.

The toolkit runs the first trips. Shapes that stay the same for two trips get an executable, up to three sets of shapes. Shapes that change
from trip to trip, as those of growing values, share an executable of open sizes.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hetero_core.contract import CancelToken, RunContext
from hetero_core.dtypes import dtype_of_numpy
from hetero_core.errors import RequestCancelledError
from hetero_core.network.graph import EMPTY, Graph, Network, Node
from hetero_core.network.types import TensorType, ValueSpec
from hetero_cpu.plan.tails import FEWEST_NODES
from hetero_cpu.symbols.evaluation import Signature

if TYPE_CHECKING:
    from hetero_core.kernels.execution import BoundBody, Program, Step
    from hetero_core.limits import RunLimits
    from hetero_core.network.initializers import Initializer
    from hetero_cpu.plan.open_plan import OpenPlan
    from hetero_cpu.run.instance import Trip

Array = np.ndarray[Any, Any]


class _BodyExecutable(Protocol):
    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]: ...
    def open_trip(self) -> Trip | None: ...


_Shape = tuple[int | None, ...] | None
Open = Callable[[Network], _BodyExecutable]

_FIRST_TRIPS = 48
"""Trips of the toolkit before an executable is made: planning a body takes as long as some hundred trips. A branch of If has one."""
_MOST_SHAPES = 3
"""Sets of shapes that have an executable of their own."""
_ITERATION, _TRUE = np.array(0, np.int64), np.array(True)
_REPEATED = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def open_bodies(plan: OpenPlan, constants: Mapping[str, Initializer], open_network: Open) -> None:
    """Has the bodies of a plan run by executables, which `open_network` makes; `constants`: those of the network, which bodies read."""
    steps = []
    for step in plan.steps:
        if step.foreign is not None and step.node.bodies and step.node.op_type in _REPEATED:
            inner = tuple(_open_step(own, constants, open_network) for own in step.foreign.program.steps)
            step = replace(step, foreign=replace(step.foreign, program=replace(step.foreign.program, steps=inner)))
        steps.append(step)
    plan.steps = tuple(steps)


def _open_step(step: Step, constants: Mapping[str, Initializer], open_network: Open) -> Step:
    bodies = []
    for body in step.bodies:
        graph = step.node.bodies[body.attribute]
        if step.node.op_type == "If" and len(graph.nodes) < FEWEST_NODES:
            bodies.append(body)
            continue
        own = {name: constants[name] for name in step.node.captures if name in constants and name not in body.program.captured}
        repeated = RepeatedBody(body.program, step.node, graph, own, open_network)
        bodies.append(replace(body, program=repeated))  # type: ignore[arg-type]  # it stands for a program
    function = step.function
    if step.node.op_type == "Loop":
        function = partial(run_loop, step.function)
    is_plain = step.node.since_version > 8 and not any(key.startswith("scan_") for key in step.node.attributes)
    if step.node.op_type == "Scan" and is_plain:
        function = partial(run_scan, step.function, step.node.attributes["num_scan_inputs"])
    return replace(step, function=function, bodies=tuple(bodies))


def run_loop(toolkit: Callable[..., Any], trip_count: Array | None, condition: Array | None, *carried: Any, body: BoundBody) -> Any:
    """Returns what a Loop returns; trips of a small body in machine code run without the toolkit."""
    limit = sys.maxsize if trip_count is None else int(trip_count.reshape(-1)[0])
    goes_on = condition is None or bool(condition.reshape(-1)[0])
    series = _open_series(body, (_ITERATION, _TRUE), carried, ()) if goes_on and limit > 0 else None
    if series is None:
        return toolkit(trip_count, condition, *carried, body=body)
    with series as trip:
        (counter, true), on, trips = trip.inputs[:2], trip.outputs[0], 0
        fixed = () if true is None else ((true, _TRUE),)
        while goes_on and trips < limit:
            series.run(fixed if counter is None else (*fixed, (counter, trips)))
            goes_on, trips = bool(on), trips + 1
        return series.finish()


def run_scan(toolkit: Callable[..., Any], count: int, *values: Any, body: BoundBody) -> Any:
    """Returns what a Scan over the first axes of its last `count` inputs returns, as `run_loop`."""
    states, scanned = values[:-count], values[-count:]
    length = scanned[0].shape[0]
    series = _open_series(body, (), states, tuple([array[0] for array in scanned])) if length else None
    if series is None:
        return toolkit(*values, body=body)
    with series as trip:
        places = trip.inputs[len(states) : len(states) + count]
        rows = [(place, array) for place, array in zip(places, scanned, strict=True) if place is not None]
        for step in range(length):
            series.run([(place, array[step]) for place, array in rows])
        return series.finish()


def _open_series(body: BoundBody, before: tuple[Any, ...], states: tuple[Any, ...], after: tuple[Any, ...]) -> _Series | None:
    """Returns the trips through a body whose inputs are these and its captured values; None if the toolkit is to run them."""
    program: RepeatedBody = body.program  # type: ignore[assignment]  # `open_bodies` has put it there
    values = (*before, *states, *after, *body.captured.values())
    trips = program.trips.get(tuple([getattr(value, "shape", None) for value in values]))
    if not trips or body.limits is not None:
        return None
    try:
        trip = trips.pop()
    except IndexError:  # another thread has taken the last
        return None
    series = _Series(trip, trips, body, states, len(before))
    if series.fits and all(place is None or place.dtype == value.dtype for place, value in zip(trip.inputs, values, strict=True)):
        return series
    trips.append(trip)
    return None


class _Series:
    """The trips of a Loop or Scan in one run, a context that holds a trip."""

    def __init__(self, trip: Trip, trips: deque[Trip], body: BoundBody, states: Sequence[Any], first: int) -> None:
        """`trips`: to which the trip goes back; `first`: the inputs before the states, behind a condition among the outputs if any."""
        self._trip, self._trips, self._body = trip, trips, body
        # Of the states; the next states, then the outputs of each trip.
        places, outputs = trip.inputs[first : first + len(states)], trip.outputs[min(first, 1) :]
        self._results, self._seen = outputs[: len(states)], outputs[len(states) :]
        self._columns: list[list[Array]] = [[] for _ in self._seen]
        pairs = zip(trip.inputs[len(trip.inputs) - len(body.captured) :], body.captured.values(), strict=True)
        self._captured = [(place, array) for place, array in pairs if place is not None]
        self._next = [(place, state) for place, state in zip(places, states, strict=True) if place is not None]
        self._moves = [(place, result) for place, result in zip(places, self._results, strict=True) if place is not None]
        self.fits = all(place.shape == result.shape for place, result in self._moves)
        # A trip may write a result where another input lay, which is written before the result is read.
        own = [place for place in trip.inputs if place is not None]
        self._are_apart = not any(
            other is not place and np.may_share_memory(other, result) for place, result in self._moves for other in own
        )

    def __enter__(self) -> Trip:
        return self._trip

    def __exit__(self, *_: object) -> None:
        self._trips.append(self._trip)

    def run(self, pairs: Iterable[tuple[Array, Any]]) -> None:
        """Runs a trip on the states of the last one; `pairs`: further places and their values. Raises: RequestCancelledError."""
        body = self._body
        if body.is_cancelled is not None and body.is_cancelled():
            raise RequestCancelledError(f"cancelled before a body of node {body.node.label}")
        for own in (self._next, self._captured, pairs):
            for place, array in own:
                place[...] = array
        self._trip.call()
        for column, array in zip(self._columns, self._seen):  # noqa: B905  # of one length; strict takes 0.13 us
            column.append(array.copy())
        self._next = self._moves if self._are_apart else [(place, result.copy()) for place, result in self._moves]

    def finish(self) -> tuple[Array, ...]:
        """Returns the last states, then the outputs of all trips, stacked."""
        return (*(result.copy() for result in self._results), *map(np.stack, self._columns))


class _AskedToken(CancelToken):
    """The flag of a run within a run, which asks the outer one."""

    def __init__(self, is_cancelled: Callable[[], bool]) -> None:
        self._is_cancelled = is_cancelled

    @property
    def is_set(self) -> bool:  # type: ignore[override]  # a flag that is never written
        return self._is_cancelled()


class RepeatedBody:
    """A body in place of its program. Safe for threads: two of them may make an executable, of which one is used."""

    def __init__(
        self, program: Program, node: Node, graph: Graph, constants: Mapping[str, Initializer], open_network: Open
    ) -> None:
        """`constants`: outer constants that the body reads."""
        self.outputs, self.memory = program.outputs, program.memory
        self._program, self._node, self._graph, self._constants, self._open = program, node, graph, constants, open_network
        self._count = 0
        self._last: Signature = ()
        self._of_shapes: dict[Signature, _BodyExecutable] = {}
        self._of_all: tuple[Sequence[_Shape], _BodyExecutable] | None = None
        """The executable of open sizes, and the shapes that it takes."""
        self.trips: dict[Signature, deque[Trip]] = {}
        """Of small bodies in machine code alone, by shapes: those that no run uses."""

    def run(
        self,
        inputs: tuple[Any, ...],
        captured: Mapping[str, Any] = EMPTY,
        *,
        is_cancelled: Callable[[], bool] | None = None,
        limits: RunLimits | None = None,
    ) -> tuple[Any, ...]:
        """Returns the body's outputs, as `Program.run` does."""
        if limits is not None:
            return self._program.run(inputs, captured, is_cancelled=is_cancelled, limits=limits)
        values = (*inputs, *captured.values()) if captured else inputs
        signature = tuple([getattr(value, "shape", None) for value in values])
        executable = self._of_shapes.get(signature)
        if executable is None and self._of_all is not None:
            shapes, of_all = self._of_all
            executable = of_all if list(map(_find_common_shape, shapes, signature)) == shapes else None
        executable = executable or self._find(values, signature)
        if executable is None:
            return self._program.run(inputs, captured, is_cancelled=is_cancelled)
        if signature in self._of_shapes and (trip := executable.open_trip()) is not None:
            self.trips.setdefault(signature, deque()).append(trip)
        return executable.run(values, RunContext() if is_cancelled is None else RunContext(token=_AskedToken(is_cancelled)))

    def _find(self, values: Sequence[Any], signature: Signature) -> _BodyExecutable | None:
        """Returns a new executable for a trip; None as long as the toolkit is to run it."""
        self._count += 1
        last, self._last = self._last, signature
        first = 1 if self._node.op_type == "If" else _FIRST_TRIPS
        if self._count <= first or not all(isinstance(value, np.ndarray) and value.dtype != object for value in values):
            return None
        executable = None
        if signature == last and len(self._of_shapes) < _MOST_SHAPES:
            self._of_shapes[signature] = executable = self._open(self._write_network(values, signature))
        elif signature != last or self._of_all is not None:
            # Sizes that were the same so far may change as well.
            before = last if self._of_all is None else self._of_all[0]
            shapes = list(map(_find_common_shape, signature, before))
            executable = self._open(self._write_network(values, shapes))
            self._of_all = shapes, executable
        return executable

    def _write_network(self, values: Sequence[Any], shapes: Sequence[Any]) -> Network:
        """Returns the body as a network, with the values that it captures behind its inputs."""
        from hetero_core.network.hints import drop_shape  # only a body that runs often needs these
        from hetero_core.network.inference import infer_types

        graph, names = self._graph, (*(spec.name for spec in self._graph.inputs), *self._program.captured)
        inputs = tuple(
            ValueSpec(name, TensorType(dtype_of_numpy(value.dtype), shape))
            for name, value, shape in zip(names, values, shapes, strict=True)
        )
        constants = {**self._constants, **graph.initializers}
        types = {name: drop_shape(value_type) for name, value_type in graph.types.items()}
        types.update((spec.name, spec.type) for spec in inputs)
        types.update((name, constant.type) for name, constant in constants.items())
        outputs = tuple(replace(spec, type=types.get(spec.name, drop_shape(spec.type))) for spec in graph.outputs)
        name, opsets = f"{self._node.name}/{graph.name}", MappingProxyType({node.domain: node.opset for node in graph.nodes})
        known = MappingProxyType(constants), MappingProxyType(types)
        return infer_types(Network(name, inputs, outputs, graph.nodes, *known, opsets=opsets))


def _find_common_shape(shape: _Shape, other: _Shape) -> _Shape:
    """Returns the shape with None for each size in which two shapes differ; None for different ranks."""
    if shape is None or other is None or len(shape) != len(other):
        return None
    return tuple([size if size == its_size else None for size, its_size in zip(shape, other, strict=True)])
