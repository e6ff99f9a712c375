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

    __slots__ = ("_checked", "_is_proven", "_network", "_own", "appended", "is_interim", "opened")

    def __init__(self, opened: OpenPlan, *, network: str = "") -> None:
        """`network`: its name, where the plan is checked before it runs: for the class, and for each set of sizes unless it is proven."""
        super().__init__(opened.plan)
        self.opened, self._network = opened, network
        self.calls_blas |= opened.late_calls_toolkit
        self._own: list[OpenInstance] = []
        self._checked: set[Signature] = set()
        self._is_proven = False
        self.appended: frozenset[str] = frozenset()
        self.is_interim = False
        """Whether it is there until kernels are compiled, of those that are at hand."""

    def covers(self, signature: Signature) -> bool:
        """Says whether a set of input shapes is of the class."""
        if self.opened.match(signature) is None:
            return False
        if self._network and not self._is_proven and not self.is_refuted and signature not in self._checked:
            self._check(signature)
        return True

    def _check(self, signature: Signature) -> None:
        from hetero_cpu.open.check import fix_plan
        from hetero_cpu.planning.plan_check import check_class, is_faulty

        if not self._checked:
            self.is_refuted, self._is_proven = check_class(self.opened, self._network)
        self._checked.add(signature)
        if not self._is_proven and not self.is_refuted:
            self.is_refuted = is_faulty(fix_plan(self.opened, signature), self._network)

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
