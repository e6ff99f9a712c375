"""CPU, TEMPLATE and a split pass a sample of the conformance kit; `nox -s kit` runs all checks on all three."""

from __future__ import annotations

from functools import cache

import pytest
from hetero_tests.samples import IS_WHOLE, sample_cases

from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import LEVELS, Target
from hetero_core.conformance.report import report_to_json
from hetero_core.conformance.runner import Outcome, make_target, run_checks

# Cases that the kernels toolkit refuses: Gradient differentiates the graph around it, and no kernel can see that graph.
LEFT_OUT = ["test_gradient_of_add", "test_gradient_of_add_and_mul"]
# Device -> level -> n: every n-th case of the backend suite and of the configuration's choices runs; the session `kit` runs all levels and
# cases. The level hetero, with TEMPLATE as the second device of CPU, splits networks as it would with CPU as the second of TEMPLATE, and
# the plugin CPU has random graphs of its own.
CONTRACT = {"contract": 1, "choices": 1, "concurrency": 1, "export": 1}
EVERY = {
    "CPU": {**CONTRACT, "choices": 5, "operators": 3, "contrib": 1, "models": 1, "hetero": 12},
    "TEMPLATE": {**CONTRACT, "operators": 2, "contrib": 1, "graphs": 1},
    "HETERO:TEMPLATE,CPU": {**CONTRACT, "operators": 20, "models": 1},
}
RUNS = [(device, level) for device in EVERY for level in LEVELS if IS_WHOLE or level in EVERY[device]]
# The least number of passed cases if all run; all of them pass on the device's own kernels.
LEAST = 2031

# Device -> number of random graphs; plugins/cpu/tests/test_graphs.py has more for CPU.
GRAPHS = {"CPU": 20, "TEMPLATE": 6, "HETERO:TEMPLATE,CPU": 8}


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
@pytest.mark.parametrize(("device", "level"), RUNS)
def test_device_passes_every_check_of_the_level(device: str, level: str) -> None:
    require_level(device, level, EVERY[device].get(level, 1))
