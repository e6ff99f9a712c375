"""RAY:CPU against the conformance kit; a twentieth of the operators, as they belong to the device behind the colon."""

from __future__ import annotations

from typing import Any

import pytest

from hetero_core.cli.main import main
from hetero_core.conformance.catalogue import choose_checks
from hetero_core.conformance.runner import FAILED, make_target, run_checks


@pytest.mark.parametrize("level", ["contract", "concurrency", "export", "models"])
def test_device_keeps_the_contract(cluster: Any, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["conformance", "RAY:CPU", "--level", level])
    assert status == 0, capsys.readouterr().out


def test_operators_are_those_of_the_device_behind_the_colon(cluster: Any) -> None:
    outcomes = list(run_checks(choose_checks(("operators",), ())[::20], make_target("RAY:CPU")))
    assert [f"{outcome.check.name}: {outcome.reason}" for outcome in outcomes if outcome.status == FAILED] == []
    assert len(outcomes) > 90
