"""CPU passes the conformance kit with all operators, TEMPLATE and a split with a sample; `nox -s kit` runs all checks on all three."""

from __future__ import annotations

from functools import cache

import pytest
from hetero_tests.samples import IS_WHOLE, sample_cases

from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import LEVELS
from hetero_core.conformance.report import report_to_json
from hetero_core.conformance.runner import Outcome, Target, make_target, run_checks

# Cases that the kernels toolkit refuses: Gradient differentiates the graph around it, and no kernel can see that graph.
LEFT_OUT = ["test_gradient_of_add", "test_gradient_of_add_and_mul"]
# Device -> level -> n: every n-th case of the backend suite runs. Without an entry, and in the session `kit`, every case runs.
EVERY = {
    "CPU": {"hetero": 6, "choices": 3},
    "TEMPLATE": {"operators": 20, "hetero": 12},
    "HETERO:TEMPLATE,CPU": {"operators": 20, "hetero": 12},
}
# The least number of passed cases if all run; all of them pass on the device's own kernels.
LEAST = 2031

# Device -> number of random graphs; plugins/cpu/tests/test_graphs.py has more for CPU.
GRAPHS = {"CPU": 20, "TEMPLATE": 8, "HETERO:TEMPLATE,CPU": 8}


@cache
def find_target(device: str) -> Target:
    return make_target(device)


def require_level(device: str, level: str, every: int) -> None:
    """Asserts that every check of the level passes; for operators, that no case is wrong and only LEFT_OUT is refused."""
    target = find_target(device)
    checks = choose_checks([level], cases=GRAPHS[device])
    outcomes: tuple[Outcome, ...] = tuple(run_checks(sample_cases(checks, every), target))
    failures = {outcome.check.name: outcome.reason for outcome in outcomes if outcome.status == "failed"}
    assert failures == {}
    assert len(outcomes) > 0
    if level == "operators":
        operators = report_to_json(target, outcomes, {})["operators"]
        assert operators["wrong"] == 0
        assert operators["passed"] + operators["refused"] == operators["cases"] >= 2033 // every
        assert operators["native"] == operators["passed"]
        refused = [refusal["case"] for refusal in operators["refusals"]]
        assert set(refused) <= set(LEFT_OUT)
        if IS_WHOLE or every == 1:
            assert operators["passed"] >= LEAST
            assert refused == LEFT_OUT


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", EVERY)
def test_device_passes_every_check_of_the_level(device: str, level: str) -> None:
    require_level(device, level, EVERY[device].get(level, 1))
