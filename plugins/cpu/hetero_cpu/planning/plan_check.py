"""CPU_VERIFY_PLAN: a plan is checked as a whole before it runs for the first time. Imports the verifiers only where a plan is checked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetero_cpu.planning.plan import ExecutionPlan

if TYPE_CHECKING:  # imported where a plan is checked
    from hetero_cpu.open.plan import OpenPlan
    from hetero_cpu.planning.plan_verifier import PlanFault

logger = logging.getLogger(__name__)


def is_faulty(plan: ExecutionPlan, network: str) -> bool:
    """Says whether a verifier refuses the plan of a network; a warning then names the first fault."""
    from hetero_cpu.planning.plan_verifier import verify_plan

    faults = verify_plan(plan)
    if not faults and plan.native_count:
        from hetero_cpu.planning.call_verifier import verify_calls  # LLVM

        faults = verify_calls(plan)
    return _refuse(faults, network)


def check_class(opened: OpenPlan, network: str) -> tuple[bool, bool]:
    """Says whether the plan of a class of sizes is refused, and whether it is proven, so that no set of sizes need be checked alone."""
    from hetero_cpu.open.class_verifier import verify_class

    report = verify_class(opened)
    logger.info(
        "network '%s': of a plan for a class of sizes %d claims are proven, %d hold where they were computed: %s",
        network,
        report.proven,
        len(report.sampled),
        "; ".join(report.sampled[:3]) or "none",
    )
    return _refuse(report.faults, network), report.is_proven


def _refuse(faults: Sequence[PlanFault], network: str) -> bool:
    if faults:
        logger.warning(
            "network '%s' on CPU goes on node by node: its plan was refused by CPU_VERIFY_PLAN, with %d faults, of which the first is: %s. "
            "Please report it with what `hetero reduce` makes of the model and `hetero doctor`.",
            network,
            len(faults),
            faults[0],
        )
    return bool(faults)
