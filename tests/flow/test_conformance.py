"""CPU, TEMPLATE and a split pass the conformance kit: CPU all operators, the others a sample; `nox -s kit` runs all checks on all three."""

from __future__ import annotations

from functools import cache

import pytest
from hetero_tests.samples import IS_WHOLE, sample_cases

from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import LEVELS
from hetero_core.conformance.report import report_to_json
from hetero_core.conformance.runner import Outcome, Target, make_target, run_checks

# What the kernels toolkit does not pass: Gradient differentiates the graph around it, which no kernel can.
LEFT_OUT = ["test_gradient_of_add", "test_gradient_of_add_and_mul"]
# Device -> level -> one of so many cases of the backend suite is tried, each where nothing is said and in the session `kit`.
EVERY = {
    "CPU": {"hetero": 6},
    "TEMPLATE": {"operators": 20, "hetero": 12},
    "HETERO:TEMPLATE,CPU": {"operators": 20, "hetero": 12},
}
# How many cases pass at least where all are tried, all of them on the device's own kernels.
LEAST = 2031

# How many drawn graphs each of them is tried on here; plugins/cpu/tests/test_graphs.py has more for CPU.
GRAPHS = {"CPU": 20, "TEMPLATE": 8, "HETERO:TEMPLATE,CPU": 8}


@cache
def find_target(device: str) -> Target:
    return make_target(device)


def require_level(device: str, level: str, every: int) -> None:
    """Requires that no check of the level fails; of the operators that no case is wrong, and none is refused but those left out."""
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
        refused = [one["case"] for one in operators["refusals"]]
        assert set(refused) <= set(LEFT_OUT)
        if IS_WHOLE or every == 1:
            assert operators["passed"] >= LEAST
            assert refused == LEFT_OUT


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", EVERY)
def test_device_passes_every_check_of_the_level(device: str, level: str) -> None:
    require_level(device, level, EVERY[device].get(level, 1))
