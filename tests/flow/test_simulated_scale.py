"""The simulation of scale ends where the slowest resource of its load says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from simulate_scale import Load, simulate_fleet, simulate_pipeline


@pytest.mark.parametrize(
    ("load", "nodes", "expected"),
    [
        pytest.param(Load(1, 0, 0, 0), 8, 8.0, id="stages"),
        pytest.param(Load(1, 0.25, 0, 0), 8, 4.0, id="largest-node"),
        pytest.param(Load(1, 0, 0, 0.5), 8, 2.0, id="transfer"),
        pytest.param(Load(1, 0, 0.0625, 0), 8, 2.0, id="program"),
    ],
)
def test_pipeline_is_bounded_by_its_slowest_resource(load: Load, nodes: int, expected: float) -> None:
    assert simulate_pipeline(load, nodes) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("message", "expected"), [(0.0, 8.0), (0.25, 4.0)])
def test_fleet_is_bounded_by_its_nodes_or_the_program(message: float, expected: float) -> None:
    assert simulate_fleet(Load(1, 0, message, 0), 8) == pytest.approx(expected, rel=0.01)
