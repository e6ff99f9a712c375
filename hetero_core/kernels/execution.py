"""A compiled graph and its execution: steps over numbered slots, with a list of values per run.

`program.compile_program` builds it. Kernels of If, Loop, Scan and SequenceMap get their bodies as `BoundBody`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from hetero_core.devices.processors import LARGE_BYTES, read_spare_memory
from hetero_core.errors import RequestCancelledError
from hetero_core.executed import ExecutedNode, list_nodes
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.sizes import require_room
from hetero_core.kernels.tables import KernelTable
from hetero_core.limits import RunLimits
from hetero_core.network.graph import EMPTY, Node
from hetero_core.network.types import ValueSpec, ValueType
from hetero_core.profile import Profile

IsCancelled = Callable[[], bool] | None
ABSENT = 0
"""The slot that always holds None."""


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """The memory in which a program computes: the array namespace, and the copies from and to the host."""

    xp: Namespace
    to_host: Callable[[Array], Any]
    from_host: Callable[[Any], Array]

    @property
    def is_host(self) -> bool:
        """Says whether the namespace computes in host memory, so that nothing is ever transferred."""
        return self.xp is np


@dataclass(frozen=True, slots=True)
class Body:
    """A body in the compiled program: its attribute, its own program, and the slots of its captured values in the outer program."""

    attribute: str
    program: Program
    captures: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel call or a transfer. `sources` and `targets` are slots; `releases` are slots that are not read after this step.

    Only a transfer has a `value`. A step that `may_grow` can make larger values than it reads.
    """

    node: Node
    function: Callable[..., Any]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    releases: tuple[int, ...] = ()
    bodies: tuple[Body, ...] = ()
    value: str = ""
    may_grow: bool = False


@dataclass(frozen=True, slots=True)
class BoundBody:
    """A body as a control-flow kernel gets it: a call with the body's inputs returns a tuple of its outputs."""

    program: Program
    captured: Mapping[str, Array]
    is_cancelled: IsCancelled
    node: Node
    limits: RunLimits | None = None

    def __call__(self, *inputs: Array) -> tuple[Array, ...]:
        """Returns the body's outputs. Raises: RequestCancelledError between two trips, also of a body without nodes."""
        if self.is_cancelled is not None and self.is_cancelled():
            raise RequestCancelledError(f"cancelled before a body of node {self.node.label}")
        return self.program.run(inputs, self.captured, is_cancelled=self.is_cancelled, limits=self.limits)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph. It is immutable, so that several threads may run it at once; each run has its own values.

    `values` is the list with which every run begins: constants in their slots, None elsewhere.
    """

    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    captured: tuple[str, ...]
    memory: KernelMemory
    table: KernelTable
    steps: tuple[Step, ...]
    values: tuple[Any, ...]
    input_slots: tuple[int, ...]
    captured_slots: tuple[int, ...]
    output_slots: tuple[int, ...]

    def list_steps(self, types: Mapping[str, ValueType]) -> tuple[ExecutedNode, ...]:
        """Returns the nodes in order of execution, for `Executable.executed_nodes`; copies between the memories are left out."""
        return list_nodes([step.node for step in self.steps if not step.value], types, kernel="toolkit")

    # ONNX lets infinities and NaN arise in silence. The state belongs to the thread, so requests do not disturb other requests.
    @np.errstate(all="ignore")
    def run(
        self,
        inputs: Sequence[Array],
        captured: Mapping[str, Array] = EMPTY,
        *,
        profile: Profile | None = None,
        is_cancelled: IsCancelled = None,
        limits: RunLimits | None = None,
    ) -> tuple[Array, ...]:
        """Returns the outputs by position, C-contiguous.

        An output may be an input, a constant or share memory with them. The work of a body counts for its node.

        Raises: RequestCancelledError when `is_cancelled()` says so between two steps; MemoryLimitError if `limits` has no room for
        the results of a step. Errors of a kernel carry the node as a note.
        """
        values = list(self.values)
        for slot, array in zip(self.input_slots, inputs, strict=True):
            values[slot] = array
        for slot, name in zip(self.captured_slots, self.captured, strict=True):
            values[slot] = captured[name]
        if limits is not None:
            limits.exempt(values)
        elif self.memory.is_host:
            for array in inputs:
                if getattr(array, "nbytes", 0) > LARGE_BYTES:
                    limits = _limit_by_machine(values)
                    break
        for step in self.steps:
            if is_cancelled is not None and is_cancelled():
                raise RequestCancelledError(f"cancelled before node {step.node.label}")
            started = perf_counter() if profile is not None else 0.0
            if limits is not None:
                limits.enter(step.node.label)
                if not step.value:
                    require_room(limits, step.node, [values[slot] for slot in step.sources], table=self.table)
            _run_step(step, values, is_cancelled, limits)
            if limits is not None:  # the results are counted before the next step begins
                limits.hold(values[slot] for slot in step.targets if slot != ABSENT)
            elif step.may_grow and getattr(values[step.targets[0]], "nbytes", 0) > LARGE_BYTES and self.memory.is_host:
                limits = _limit_by_machine(values)
            if profile is not None:
                seconds = perf_counter() - started
                if step.value:
                    profile.add_transfer(step.value, getattr(values[step.targets[0]], "nbytes", 0), seconds)
                else:
                    profile.add(step.node, seconds)
            for slot in step.releases:
                values[slot] = None
        return tuple([_lay_out(self.memory.xp, values[slot], limits) for slot in self.output_slots])


def _limit_by_machine(values: list[Any]) -> RunLimits | None:
    """Returns the limits of a run with large values: the memory of the machine beside `values`; None if the platform does not tell."""
    spare = read_spare_memory()
    if spare is None:
        return None
    limits = RunLimits("a run", memory_limit=spare, is_of_machine=True)
    limits.exempt(values)
    return limits


def _run_step(step: Step, values: list[Any], is_cancelled: IsCancelled, limits: RunLimits | None) -> None:
    inputs = [values[slot] for slot in step.sources]
    try:
        if not step.bodies:
            results = step.function(*inputs)
        else:
            bodies = {}
            for body in step.bodies:
                captured = {name: values[slot] for name, slot in body.captures}
                bodies[body.attribute] = BoundBody(body.program, captured, is_cancelled, step.node, limits)
            results = step.function(*inputs, **bodies)
    except Exception as error:  # any error names the node
        error.add_note(f"while running node {step.node.label}")
        raise
    for slot, result in zip(step.targets, results if isinstance(results, tuple) else (results,)):  # noqa: B905  # strict takes 0.13 us
        if slot != ABSENT:
            # NumPy makes scalars of arrays without dimensions.
            values[slot] = np.asarray(result) if isinstance(result, np.generic) else result


def _lay_out(xp: Namespace, value: Any, limits: RunLimits | None) -> Any:
    """Returns an output C-contiguous, as arrays cross borders; copies only what is not.

    A copy counts: a body may expand a number in each of 10**6 trips, and the views of it count for nothing.
    """
    flags = getattr(value, "flags", None)
    if flags is None or flags.c_contiguous:
        return value
    if limits is None:
        return xp.asarray(value, order="C")
    limits.require(value.nbytes)
    copy = xp.asarray(value, order="C")
    limits.hold((copy,))
    return copy
