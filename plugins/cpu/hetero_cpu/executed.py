"""Metrics of a network on CPU, and its executed graph: the steps of the plan that was used last, with the order of axes in the arena."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Executable
from hetero_core.executed import ExecutedNode, list_nodes, name_layout
from hetero_core.network.types import ValueType
from hetero_cpu.planning.later import name_nodes
from hetero_cpu.planning.plan import ExecutionPlan, Foreign, PlannedStep, count_constant_bytes

if TYPE_CHECKING:
    from collections import OrderedDict

    from hetero_core.kernels.execution import Program
    from hetero_core.network.graph import Network
    from hetero_cpu.open_plans import OpenPlans
    from hetero_cpu.planning.plans_in_use import PlanInUse
    from hetero_cpu.planning.signature import Signature
    from hetero_cpu.planning.weights import PackedWeights
    from hetero_cpu.sources import NetworkSource
    from hetero_cpu.verification import Verifier

MOST_PLANS = 16


class TellingExecutable(Executable):
    """An executable on CPU that tells its steps and its metrics."""

    source: NetworkSource
    _only_plan: PlanInUse | None
    _program: Program | None
    _plans: OrderedDict[Signature, PlanInUse]
    _open_plans: OpenPlans
    _plan_count: int
    _is_ordered: bool
    native_weights: PackedWeights
    _verifier: Verifier

    def metrics(self) -> Mapping[str, Any]:
        """Metrics of the plans: how many were made and may be kept, their memory, and their steps that call the toolkit."""
        from hetero_cpu.open.sizes import value_of  # an import of a blob needs no symbols

        return {
            "CPU_PLANS": lambda: (self._plan_count, MOST_PLANS),
            "CPU_ARENA_BYTES": lambda: max((value_of(plan.arena_bytes) for plan in self._list_plans()), default=0),
            "CPU_WEIGHT_BYTES": lambda: self.native_weights.nbytes + sum(memory.nbytes for memory in self.source.packed),
            "CPU_CONSTANT_BYTES": lambda: count_constant_bytes(
                self._list_plans(), (*self.source.constants, *self._list_toolkit_constants()), packed=self.source.packed
            ),
            "CPU_KERNELS_READY": lambda: not self._is_ordered,
            "CPU_NATIVE_STEPS": lambda: max((plan.native_count for plan in self._list_plans()), default=0),
            "CPU_FOREIGN_STEPS": lambda: max((plan.foreign_count for plan in self._list_plans()), default=0),
            "CPU_VERIFIED_PLANS": lambda: self._verifier.plans,
            "CPU_VERIFY_SECONDS": lambda: self._verifier.seconds,
            "CPU_REFUTED": lambda: self._verifier.has_refuted,
        }

    @property
    def transformed(self) -> Network:
        """The network after the passes that do not ask for sizes."""
        return self.source.open()

    @property
    def calls_blas(self) -> bool:
        """True if a run without limits may call NumPy's BLAS, and also where it depends on the shapes of the inputs."""
        in_use = self._only_plan
        return in_use is None or in_use.needs_check or in_use.is_refuted or in_use.plan.calls_blas

    def _list_toolkit_constants(self) -> list[Any]:
        program = self._program
        return [] if program is None else [value for value in program.values if hasattr(value, "__array_interface__")]

    def _list_plans(self) -> list[ExecutionPlan]:
        return [in_use.plan for in_use in (*self._plans.copy().values(), *self._open_plans.plans)]

    def keep_states(self, output_of_input: Mapping[str, str]) -> Mapping[str, Any]:
        """Notes which outputs only the next run reads: a cache among them grows where it lies."""
        self._open_plans.appended = frozenset(output_of_input.values())
        return {}

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """The steps of the plan that was used last; before the first run of a network with open sizes its nodes one by one."""
        network = self.source.open()
        used = self._only_plan or next(iter([*reversed(list(self._plans.values())), *reversed(self._open_plans.plans)]), None)
        if used is None or used.is_refuted:
            return list_nodes(name_nodes(network), network.types, kernel="toolkit")
        return list_steps(used.plan, network.types)


def list_steps(plan: ExecutionPlan, types: Mapping[str, ValueType]) -> tuple[ExecutedNode, ...]:
    """Returns the steps of a plan in order. Layouts are those in the arena, a layout of four axes in channels last is "acdb"."""
    return tuple(
        ExecutedNode(
            step.node.name,
            step.node.op_type,
            step.node.origins,
            step.work.reads,
            step.writes,
            _name_kernel(step),
            tuple(_find_layout(step.strides.get(value)) for value in step.writes),
            tuple(types.get(value) for value in step.writes),
        )
        for step in plan.steps
    )


def _name_kernel(step: PlannedStep) -> str:
    if isinstance(step.work, Foreign):
        return "toolkit"
    return "machine code" if step.work.kernels else "NumPy"


def _find_layout(strides: tuple[int, ...] | None) -> str:
    """Returns the axes from the largest stride to the smallest, those of equal strides in order; "" where they are not known."""
    return "" if strides is None else name_layout(sorted(range(len(strides)), key=lambda axis: -strides[axis]))
