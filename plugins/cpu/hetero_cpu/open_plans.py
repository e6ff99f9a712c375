"""The plans of classes of sizes that one network has: found, made when a second set of input shapes comes, compiled behind NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hetero_core.network.graph import Network
from hetero_cpu.kernel_choice import AUTO
from hetero_cpu.plans_in_use import OpenPlanInUse, PlanInUse
from hetero_cpu.signature import Signature

if TYPE_CHECKING:
    from hetero_cpu.open.plan import OpenPlan

MOST_CLASSES = 16
_MOST_FAILURES = 3
"""Sets of input shapes that none but themselves could share a plan with, after which a network without a class gets none."""


class OpenPlans:
    """Used under the lock of the network that has them, but for `make`."""

    __slots__ = ("_failures", "_ordered", "plans")

    def __init__(self) -> None:
        self.plans: list[OpenPlanInUse] = []
        self._failures, self._ordered = 0, False

    def find(self, signature: Signature) -> OpenPlanInUse | None:
        """Returns the plan of a class that input shapes belong to, the newest one where there are several."""
        return next((opened for opened in reversed(self.plans) if opened.covers(signature)), None)

    def is_wanted(self) -> bool:
        """Says whether another class may be made."""
        return not self._ordered and (self._failures < _MOST_FAILURES or bool(self.plans))

    def add(self, opened: OpenPlanInUse) -> None:
        """Adds the plan of a class; the oldest one leaves where there are too many."""
        self.plans.append(opened)
        del self.plans[:-MOST_CLASSES]

    def note_failure(self) -> None:
        """Says that a class could not be made."""
        self._failures += 1

    def note_order(self, *, is_under_way: bool) -> None:
        """Says whether kernels of a class are being compiled; no other class is made meanwhile."""
        self._ordered = is_under_way

    def refute(self) -> None:
        """Keeps all plans from being used again."""
        for opened in self.plans:
            opened.is_refuted = True


def load_kernels(opened: OpenPlan, kernels: str) -> bool:
    """Says whether the kernels of a plan are there; they are compiled now, unless NumPy answers meanwhile."""
    from hetero_cpu.jit.compiler import COMPILER  # LLVM

    if kernels == AUTO:
        return COMPILER.load_stored(opened.plan.kernels)
    try:
        for kernel in opened.plan.kernels:
            COMPILER.compile(kernel)
    finally:
        COMPILER.rest()
    return True


def make_plan_in_use(
    network: Network,
    opened: OpenPlan,
    signature: Signature,
    enter: Callable[[], PlanInUse],
    *,
    checks_plan: bool,
) -> OpenPlanInUse:
    """Returns a plan for runs, checked as a whole for these input shapes where `checks_plan`; `enter` says what of it is to be verified."""
    entered = enter()
    own = OpenPlanInUse(
        opened,
        is_refuted=entered.is_refuted,
        needs_check=entered.needs_check,
        name=entered.name,
        network=network.name if checks_plan else "",
    )
    own.covers(signature)
    return own
