"""The devices of this repository pass the conformance kit: nothing fails, nothing is wrong, and no fewer cases pass than did before."""

from __future__ import annotations

from functools import cache

import pytest

from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.check import LEVELS
from hetero_core.conformance.report import report_to_json
from hetero_core.conformance.runner import Outcome, Target, make_target, run_checks

# What the kernels toolkit does not pass: Gradient differentiates the graph around it, which no kernel can.
LEFT_OUT = ["test_gradient_of_add", "test_gradient_of_add_and_mul"]
# Device -> the cases of the backend suite that pass at least, and those of them that run on its own kernels.
LEAST = {"CPU": (2031, 2031), "TEMPLATE": (2031, 2031), "HETERO:TEMPLATE,CPU": (2031, 2031)}

# How many drawn graphs each of them is tried on here; plugins/cpu/tests/test_graphs.py has more for CPU.
GRAPHS = {"CPU": 20, "TEMPLATE": 8, "HETERO:TEMPLATE,CPU": 8}


@cache
def find_target(device: str) -> Target:
    return make_target(device)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", LEAST)
def test_device_passes_every_check_of_the_level(device: str, level: str) -> None:
    target = find_target(device)
    outcomes: tuple[Outcome, ...] = tuple(run_checks(choose_checks([level], cases=GRAPHS[device]), target))
    failures = {outcome.check.name: outcome.reason for outcome in outcomes if outcome.status == "failed"}
    assert failures == {}
    assert len(outcomes) > 0
    if level == "operators":
        operators = report_to_json(target, outcomes, {})["operators"]
        assert operators["wrong"] == 0
        assert operators["passed"] + operators["refused"] == operators["cases"] >= 2033
        assert operators["passed"] >= LEAST[device][0]
        assert operators["native"] >= LEAST[device][1]
        assert [one["case"] for one in operators["refusals"]] == LEFT_OUT
