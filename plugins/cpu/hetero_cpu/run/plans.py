"""A plan in use by a network, its way from a generator of kernels, and its verification.

CPU_VERIFY=YES: the toolkit computes the first run of each plan once more, node by node, before it and on copies of the inputs: a plan may
write into outputs of the caller that are inputs as well. States, the profile and outputs that the caller has set belong to the plan's run.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator
from copy import deepcopy
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import RunContext
from hetero_core.errors import WrongPlanWarning
from hetero_core.network.graph import Network

if TYPE_CHECKING:  # a run of the toolkit needs none of these
    from hetero_core.kernels.execution import Program
    from hetero_cpu.machine.compiler import Kernel
    from hetero_cpu.machine.program import TeamPool
    from hetero_cpu.plan.open_plan import OpenPlan
    from hetero_cpu.run.instance import Instance
    from hetero_cpu.symbols.evaluation import Products


logger = logging.getLogger(__name__)

Outputs = tuple[Any, ...]


class ArenaTooLargeError(Exception):
    """The machine has too little memory for the arena and the outputs of a run, which has no MEMORY_LIMIT; never leaves the device."""


class WrongTypeError(Exception):
    """A kernel made another type than was inferred, so that the plan does not hold; never leaves the device."""


def lay_input(array: Any) -> Any:
    """Returns an input in C order; only caches that grow come in another order."""
    return array if not isinstance(array, np.ndarray) or array.flags.c_contiguous else np.ascontiguousarray(array)


class PlanInUse:
    """A plan, and its instances that no run has. `is_refuted`: a run has shown that it is wrong, or made of wrong types.

    `needs_check`: its next run is computed twice. `calls_blas`: a run without limits may call NumPy's BLAS. `appended`: outputs that
    only the next run reads, to which a run may append in place. `slow`: names of nodes of the model that take most of a run.
    """

    __slots__ = ("_free", "appended", "calls_blas", "is_refuted", "needs_check", "opened", "plan", "slow")

    def __init__(self, opened: OpenPlan) -> None:
        self.opened, self.plan = opened, opened.plan
        self.calls_blas = self.plan.has_products or opened.shape_constants.has_products
        self.appended: frozenset[str] = frozenset()
        self.is_refuted = self.needs_check = False
        self.slow: tuple[str, ...] = ()
        self._free: list[Instance] = []

    @property
    def is_native(self) -> bool:
        """True if machine code alone runs it."""
        return bool(self.plan.kernels) and not self.plan.foreign_count and not self.is_refuted

    def run(self, products: Products, inputs: tuple[Any, ...], context: RunContext, teams: TeamPool | None) -> tuple[Any, ...]:
        """Returns the outputs; `products`: of the sizes of the inputs. Raises: WrongTypeError; errors of the steps."""
        try:
            instance = self._free.pop()
        except IndexError:
            from hetero_cpu.run.instance import Instance  # imports the modules of plans

            instance = Instance(self.opened, self.appended)
        try:
            if teams is None or not self.plan.kernels:
                return instance.run(products, inputs, context)
            with teams.lease() as team:
                return instance.run(products, inputs, context, team)
        finally:
            self._free.append(instance)


Planning = Generator["Kernel", None, PlanInUse]
"""Yields the kernels of a plan, then packs its weights and returns it."""


def load_plan(planning: Planning) -> PlanInUse | None:
    """Returns the plan if all of its kernels are shipped or stored; None if a kernel has to be compiled."""
    from hetero_cpu.machine.compiler import COMPILER  # LLVM

    try:
        while COMPILER.load_stored(next(planning)):
            pass
    except StopIteration as stop:
        plan: PlanInUse = stop.value
        return plan
    planning.close()
    return None


def compile_plan(planning: Planning) -> PlanInUse:
    """Returns the plan when its kernels are compiled."""
    from hetero_cpu.machine.compiler import COMPILER  # LLVM

    try:
        plan: PlanInUse = COMPILER.compile_all(planning)
    finally:
        COMPILER.rest()
    return plan


class Verifier:
    """Verifies the plans of one network and counts its work."""

    def __init__(self, network: Network) -> None:
        self._name, self._outputs = network.name, [spec.name for spec in network.outputs]
        self.plans = 0
        """The number of plans whose answer agreed with the toolkit's."""
        self.seconds = 0.0
        """The seconds that the toolkit took."""
        self.has_refuted = False
        """Whether the answer of a plan differed."""

    def run(self, inputs: Outputs, context: RunContext, run_plan: Callable[[], Outputs], program: Program) -> Outputs:
        """Returns the answer of the plan if it agrees with that of `program`; otherwise warns and returns the answer of `program`."""
        if is_random(program):
            logger.info("network '%s' has random operators: its plans cannot be verified", self._name)
            return run_plan()
        from hetero_core.testing.compare import describe_mismatch  # only a verified run compares

        began = perf_counter()
        expected = program.run(deepcopy(inputs), is_cancelled=context.cancelled, limits=context.limits)
        self.seconds += perf_counter() - began
        outputs = run_plan()
        answers = zip(self._outputs, outputs, expected, strict=True)
        faults = [describe_mismatch(actual, right, name=f"output '{name}'") for name, actual, right in answers]
        if not any(faults):
            self.plans += 1
            return outputs
        self.has_refuted = True
        warnings.warn(
            f"network '{self._name}' on CPU: a plan gave another answer than the toolkit: {next(filter(None, faults))}. The network goes "
            "on node by node, which is right and slower. Please report it with the smallest model that shows it, as found by "
            "`hetero reduce MODEL.onnx -d TEMPLATE -d CPU -c CPU_KERNELS=JIT -o SMALL.onnx`, and with the output of `hetero doctor`",
            WrongPlanWarning,
            stacklevel=2,
        )
        return expected


def is_random(program: Program) -> bool:
    """Says whether two runs of a program may differ: an operator of it, or of a body, is random."""
    from hetero_core.transforms.constants import RANDOM_OPERATORS  # as above

    return any(
        (not step.node.domain and step.node.op_type in RANDOM_OPERATORS) or any(is_random(body.program) for body in step.bodies)
        for step in program.steps
    )
