"""The plans of classes of sizes that one network has: found, kept for later processes, compiled while the toolkit answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_core.limits import RunLimits
from hetero_core.network.types import ValueSpec
from hetero_cpu.machine.background import OrderDroppedError
from hetero_cpu.plan.plan import ExecutionPlan
from hetero_cpu.run.instance import Instance
from hetero_cpu.symbols.size_class import Signature

if TYPE_CHECKING:
    from hetero_cpu.machine.compiler import Kernel
    from hetero_cpu.machine.program import TeamPool
    from hetero_cpu.operators.weights import PackedWeights
    from hetero_cpu.plan.open_plan import OpenPlan
    from hetero_cpu.run.instance import OpenInstance
    from hetero_cpu.stored.payload import NetworkSource
    from hetero_cpu.stored.plans import StoredClasses


@dataclass(slots=True, eq=False)
class PlanInUse:
    """A plan, and its instances that no run has. `is_refuted`: a run has shown that it is wrong, or made of wrong types.

    `needs_check`: its next run is computed twice. `calls_blas`: a run without limits may call NumPy's BLAS.
    """

    plan: ExecutionPlan
    free: list[Instance] = field(default_factory=list)
    is_refuted: bool = False
    needs_check: bool = False
    calls_blas: bool = field(init=False)

    def __post_init__(self) -> None:
        self.calls_blas = self.plan.calls_blas

    def measure(self, inputs: tuple[Any, ...]) -> int:
        """Returns the bytes of the arena of a run."""
        return self.plan.arena_bytes

    def run(self, inputs: tuple[Any, ...], context: RunContext, teams: TeamPool | None) -> tuple[Any, ...]:
        """Returns the outputs. Raises: WrongTypeError; what the steps raise."""
        try:
            instance = self.free.pop()
        except IndexError:
            instance = Instance(self.plan)
        try:
            if teams is None or not self.plan.kernels:
                return instance.run(inputs, context)
            with teams.lease() as team:
                return instance.run(inputs, context, team)
        finally:
            self.free.append(instance)


class OpenPlanInUse(PlanInUse):
    """A plan of a class of sizes."""

    __slots__ = ("_own", "appended", "opened")

    def __init__(self, opened: OpenPlan) -> None:
        super().__init__(opened.plan)
        self.opened = opened
        self.calls_blas |= opened.late_calls_toolkit
        self._own: list[OpenInstance] = []
        self.appended: frozenset[str] = frozenset()

    def covers(self, signature: Signature) -> bool:
        """Says whether a set of input shapes is of the class."""
        return self.opened.match(signature) is not None

    def measure(self, inputs: tuple[Any, ...]) -> int:
        """Returns the bytes of the arena of a run."""
        products = self.opened.match(_read_signature(inputs))
        assert products is not None
        return self.opened.measure_arena(products)

    def run(self, inputs: tuple[Any, ...], context: RunContext, teams: TeamPool | None) -> tuple[Any, ...]:
        """Returns the outputs, as `PlanInUse.run` does."""
        from hetero_cpu.run.instance import OpenInstance

        products = self.opened.match(_read_signature(inputs))
        assert products is not None
        try:
            instance = self._own.pop()
        except IndexError:
            instance = OpenInstance(self.opened, self.appended)
        try:
            if teams is None:
                return instance.run(products, inputs, context)
            with teams.lease() as team:
                return instance.run(products, inputs, context, team)
        finally:
            self._own.append(instance)


def _read_signature(inputs: tuple[Any, ...]) -> Signature:
    return tuple([getattr(array, "shape", None) for array in inputs])


def has_room(limits: RunLimits, nbytes: int) -> bool:
    """Says whether a run may have so many bytes beside what it holds."""
    return limits.memory_limit is None or limits.held + nbytes <= limits.memory_limit


def open_teams(workers: int, streams: int) -> TeamPool:
    """Returns the threads that help runs."""
    from hetero_cpu.machine.program import TeamPool  # LLVM

    return TeamPool(workers, most=streams)


logger = logging.getLogger(__name__)

Planning = Generator["Kernel", None, PlanInUse]
"""Yields the kernels of a plan, then packs its weights and returns it."""

MOST_CLASSES = 16
_MANY_CONSTANTS = 1 << 24
"""Bytes of constants from which on a load reads the plans of earlier processes: a run would wait 2 ms for each megabyte, which is read
and packed. Loads of smaller networks are to be short."""
_MOST_FAILURES = 3
"""Sets of input shapes that none but themselves could share a plan with, after which a network without a class gets none."""


class OpenPlans:
    """Used under the lock of the network that has them, but for plans on disk."""

    __slots__ = (
        "_failures", "_inputs", "_keeping", "_open_stored", "_reading", "_stored", "_verifies", "appended", "plans",
    )  # fmt: skip

    def __init__(self, inputs: tuple[ValueSpec, ...], *, verifies: bool) -> None:
        self.plans: list[OpenPlanInUse] = []
        self.appended: frozenset[str] = frozenset()
        """Outputs that only the next run reads, to which a run may append where they lie."""
        self._failures, self._inputs, self._verifies = 0, inputs, verifies
        self._reading = Lock()
        self._open_stored: Callable[[], StoredClasses] | None = None
        self._stored: StoredClasses | None = None
        self._keeping: list[Thread] = []

    def keep_on_disk(self, source: NetworkSource, weights: PackedWeights, workers: int) -> None:
        """Has plans read from earlier processes, and kept for later ones; those of a network with many constants are read at once."""

        def open_stored() -> StoredClasses:
            from hetero_cpu.stored.plans import StoredClasses

            return StoredClasses(source.open(), weights, workers)

        self._open_stored = open_stored
        # A blob that brings a plan need not be read.
        is_read = source.plan is None
        if is_read and sum(constant.nbytes for constant in source.open().initializers.values()) >= _MANY_CONSTANTS:
            stored = self._read_stored()
            for opened in [] if stored is None else stored.open_all():
                self.add(opened)

    def find_stored(self, signature: Signature) -> OpenPlanInUse | None:
        """Returns the plan of an earlier process for a class that input shapes belong to; None if no such plan is stored."""
        stored = self._read_stored()
        return None if stored is None else stored.find(signature)

    def keep(self, opened: OpenPlanInUse, signature: Signature) -> None:
        """Keeps a plan that was made for input shapes for later processes, if plans are kept."""
        stored = self._read_stored()
        if stored is not None:
            stored.keep(opened, signature)

    def keep_aside(self, opened: OpenPlanInUse, signature: Signature) -> None:
        """Does what `keep` does while the caller goes on; the process does not end before."""
        thread = Thread(target=self.keep, args=(opened, signature), name="hetero-cpu-plans")
        try:
            thread.start()
        except RuntimeError:
            # There may be no further thread.
            self.keep(opened, signature)
        else:
            self._keeping = [*(other for other in self._keeping if other.is_alive()), thread]

    def wait(self) -> None:
        """Waits until what is to be kept is."""
        for thread in self._keeping:
            thread.join()

    def _read_stored(self) -> StoredClasses | None:
        with self._reading:
            if self._stored is None and self._open_stored is not None:
                self._stored = self._open_stored()
            return self._stored

    def find(self, signature: Signature) -> OpenPlanInUse | None:
        """Returns the plan of a class that input shapes belong to, the newest one where there are several."""
        return next((opened for opened in reversed(self.plans) if opened.covers(signature)), None)

    def is_wanted(self, signature: Signature) -> bool:
        """Says whether another class may be made, of which these input shapes are an example; sizes of 0 and 1 are no symbols."""
        if self._failures >= _MOST_FAILURES and not self.plans:
            return False
        return any(
            size > 1 and not isinstance(dimension, int)
            for spec, sizes in zip(self._inputs, signature, strict=True)
            if sizes is not None
            # A declared rank is a hint.
            for size, dimension in zip(sizes, spec.shape or (None,) * len(sizes), strict=False)
        )

    def add(self, opened: OpenPlanInUse) -> None:
        """Adds the plan of a class; the oldest one leaves if there are too many."""
        opened.appended, opened.needs_check = self.appended, self._verifies
        self.plans.append(opened)
        del self.plans[:-MOST_CLASSES]

    def note_failure(self) -> None:
        """Says that a class could not be made."""
        self._failures += 1

    def refute(self) -> None:
        """Keeps all plans from being used again."""
        for opened in self.plans:
            opened.is_refuted = True


def has_interpreters(workers: int) -> bool:
    """Says whether what all plans of machine code need is compiled already."""
    from hetero_cpu.machine.compiler import COMPILER  # LLVM
    from hetero_cpu.machine.interpreter import list_interpreters

    return COMPILER.load_stored(list_interpreters(workers))


def load_plan(planning: Planning) -> PlanInUse | None:
    """Returns the plan if all of its kernels are shipped or stored; None if one has to be compiled."""
    from hetero_cpu.machine.compiler import COMPILER  # LLVM

    try:
        while COMPILER.load_stored([next(planning)]):
            pass
    except StopIteration as stop:
        plan: PlanInUse = stop.value
        return plan
    planning.close()
    return None


def compile_plan(planning: Planning, workers: int) -> PlanInUse:
    """Returns the plan when its kernels are compiled."""
    from hetero_cpu.machine.compiler import COMPILER  # LLVM

    plans: list[PlanInUse] = []
    try:
        COMPILER.compile_all(_list_kernels(planning, workers, plans))
    finally:
        COMPILER.rest()
    return plans[0]


def order_plan(
    planning: Planning,
    take_over: Callable[[PlanInUse | None, BaseException | None], None],
    *,
    is_wanted: Callable[[], bool],
    begin: Event,
    workers: int,
) -> None:
    """Has a plan made and its kernels compiled by the thread that does so for all, then handed to `take_over`."""
    from hetero_cpu.machine.background import BACKGROUND

    plans: list[PlanInUse] = []
    BACKGROUND.order(
        _list_kernels(planning, workers, plans),
        lambda error: take_over(plans[0] if plans else None, error),
        is_wanted=is_wanted,
        begin=begin,
    )


def _list_kernels(planning: Planning, workers: int, plans: list[PlanInUse]) -> Iterator[Kernel]:
    """Yields the kernels of a plan, which `plans` gets, after those that all plans need: LLVM is at work while the plan is made."""
    from hetero_cpu.machine.interpreter import list_interpreters

    yield from list_interpreters(workers)
    plans.append((yield from planning))


def warn_of_error(error: BaseException | None, network: str) -> None:
    """Logs that a network stays with the toolkit because of an error; an order that nobody wants any more is none."""
    if error is not None and not isinstance(error, OrderDroppedError):
        logger.warning("network '%s' goes on node by node: its kernels could not be compiled: %s", network, error)
