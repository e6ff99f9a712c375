"""CPU_VERIFY_PLAN: a plan is checked as a whole before it runs for the first time. Imports the verifiers only where a plan is checked."""

from __future__ import annotations

import logging

from hetero_cpu.planning.plan import Plan

logger = logging.getLogger(__name__)


def is_faulty(plan: Plan, network: str) -> bool:
    """Says whether a verifier refuses the plan of a network; a warning then names the first fault."""
    from hetero_cpu.planning.plan_verifier import verify_plan

    faults = verify_plan(plan)
    if not faults and plan.native_count:
        from hetero_cpu.planning.call_verifier import verify_calls  # LLVM

        faults = verify_calls(plan)
    if faults:
        logger.warning(
            "network '%s' on CPU goes on node by node: its plan was refused by CPU_VERIFY_PLAN, with %d faults, of which the first is: %s. "
            "Please report it with what `hetero reduce` makes of the model and `hetero doctor`.",
            network,
            len(faults),
            faults[0],
        )
    return bool(faults)
