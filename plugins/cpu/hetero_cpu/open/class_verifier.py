"""Checks the plan of a class of sizes for all of them at once: by proof, or by numbers at some sizes where no proof is found.

```text
plan ── example ──> plan_verifier, call_verifier: the steps in labels, once ──────────────────────────────┐
  └──> claims of places and calls (place_claims, call_claims) ── prover ──> proven                        ├──> ClassReport
                                                                   └──> numbers at corners and draws ─────┘
```
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero_cpu.open.boxes import Claim
from hetero_cpu.open.check import fix_plan
from hetero_cpu.open.place_claims import OpenLayout, list_place_claims
from hetero_cpu.open.plan import OpenPlan
from hetero_cpu.open.prover import Prover, Values
from hetero_cpu.open.sizes import terms_of
from hetero_cpu.open.terms import evaluate
from hetero_cpu.planning.plan_verifier import PlanFault, verify_plan

_SMALL_ARENA, _WHOLE_SAMPLES = 1 << 24, 4


@dataclass(frozen=True, slots=True)
class ClassReport:
    """`proven`: how many claims hold for all sizes of the class. `sampled`: those that were not proven and hold where they were computed.

    `tables`: how many small arrays, which functions make when the plan is bound, are long enough where they were made.
    `faults`: what is wrong, with sizes for which it is.
    """

    proven: int
    sampled: tuple[str, ...]
    faults: tuple[PlanFault, ...]
    tables: int = 0

    @property
    def is_proven(self) -> bool:
        """Says whether the plan is right for all sizes of its class."""
        return not self.sampled and not self.faults


def verify_class(opened: OpenPlan) -> ClassReport:
    """Returns what is known of a plan of a class that was made here, not read from a file."""
    assert opened.origin is not None, "a plan that was stored has no symbols"
    prover = Prover(opened.origin.scope, opened.sizes)
    faults = _verify_numbers(opened, prover.samples[0])
    if faults:
        return ClassReport(0, (), faults)
    layout = OpenLayout(opened, prover)
    claims = list(list_place_claims(layout))
    if opened.plan.native_count:
        from hetero_cpu.open.call_claims import list_call_claims  # LLVM

        claims += list_call_claims(layout)
    doubted = [claim for claim in claims if not prover.proves(claim.ways)]
    refuted_at = [(claim, _find_counterexample(claim, prover)) for claim in doubted]
    wrong = tuple(_make_fault(opened, prover, claim, values) for claim, values in refuted_at if values is not None)
    unrefuted = [claim for claim, values in refuted_at if values is None]
    sampled = tuple(f"{claim.step}, value '{claim.value}': {claim.problem}" for claim in unrefuted if not claim.is_computed)
    if sampled and not wrong:
        # What no claim says of its own is computed for the plan as a whole.
        small = [values for values in prover.samples[1:] if evaluate(terms_of(opened.plan.arena_bytes), values) <= _SMALL_ARENA]
        wrong = tuple(fault for values in small[:_WHOLE_SAMPLES] for fault in _verify_numbers(opened, values))
    return ClassReport(len(claims) - len(doubted), sampled, wrong, len(unrefuted) - len(sampled))


def _verify_numbers(opened: OpenPlan, values: Values) -> tuple[PlanFault, ...]:
    """Returns what is wrong with the plan for one set of sizes."""
    plan = fix_plan(opened, _write_signature(opened, values))
    faults = verify_plan(plan)
    if not faults and plan.native_count:
        from hetero_cpu.planning.call_verifier import verify_calls  # LLVM

        faults = verify_calls(plan)
    return faults


def _write_signature(opened: OpenPlan, values: Values) -> tuple[tuple[int, ...] | None, ...]:
    return opened.sizes.write_signature([values[symbol.atom] for symbol in opened.sizes.form.symbols])


def _find_counterexample(claim: Claim, prover: Prover) -> Values | None:
    return next((values for values in prover.samples if claim.holds(values) is False), None)


def _make_fault(opened: OpenPlan, prover: Prover, claim: Claim, values: Values) -> PlanFault:
    return PlanFault(claim.step, claim.value, f"with inputs of {_write_signature(opened, values)}: {claim.problem}")
