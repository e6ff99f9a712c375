"""Plans with the instances that no run has: of one set of input shapes, or of a class of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hetero_core.contract import RunContext
from hetero_core.limits import RunLimits
from hetero_cpu.planning.instance import Instance
from hetero_cpu.planning.plan import ExecutionPlan

if TYPE_CHECKING:
    from hetero_cpu.machine.team import TeamPool
    from hetero_cpu.open.instance import OpenInstance
    from hetero_cpu.open.plan import OpenPlan
    from hetero_cpu.planning.signature import Signature


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
        from hetero_cpu.open.instance import OpenInstance

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
    from hetero_cpu.machine.team import TeamPool  # LLVM

    return TeamPool(workers, most=streams)
