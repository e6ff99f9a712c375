"""The search for placements against exhaustive enumeration, on costs given as tables."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hetero_hetero.placement.measured import CostTable, TransferCost, propose_placements, schedule_parts

GRAPHS = 60


def draw_costs(seed: int) -> CostTable:
    """Returns a table of 5 to 8 segments on two or three devices: a random graph with branches, costs within a factor of 10."""
    generator = np.random.default_rng(seed)
    devices = ("A", "B", "C")[: 2 if seed % 2 else 3]
    count = int(generator.integers(8, 11)) if len(devices) == 2 else int(generator.integers(5, 7))
    seconds = []
    for _ in range(count):
        row = {device: float(generator.uniform(1, 10)) for device in devices}
        if generator.random() < 0.2:
            del row[devices[int(generator.integers(len(devices)))]]
        seconds.append(row)
    flows = []
    for index in range(count - 1):
        readers = {int(reader) for reader in generator.integers(index + 1, count, size=int(generator.integers(1, 3)))}
        flows.append((index, tuple(sorted(readers)), int(generator.integers(1, 100))))
    transfers = {
        (first, second): TransferCost(float(generator.uniform(0, 1)), float(generator.uniform(0, 0.03)))
        for first in devices
        for second in devices
        if first != second and generator.random() < 0.7
    }
    return CostTable(devices, tuple(seconds), tuple(flows), transfers, overhead=float(generator.uniform(0, 0.3)))


def find_least(costs: CostTable, seconds: float) -> float:
    """Returns the least makespan of all placements, or `seconds` if that is less; no lane ends before its own work is done."""
    for placement in product(*[sorted(row) for row in costs.seconds]):
        load = dict.fromkeys(costs.devices, 0.0)
        for row, device in zip(costs.seconds, placement, strict=True):
            load[device] += row[device]
        if max(load.values()) < seconds:
            seconds = min(seconds, costs.find_seconds(placement))
    return seconds


@pytest.mark.parametrize(("is_pipeline", "graphs"), [(False, GRAPHS), (True, 20)])
def test_regret_on_small_graphs_is_at_most_five_percent(is_pipeline: bool, graphs: int) -> None:
    regrets = {}
    for seed in range(graphs):
        costs = replace(draw_costs(seed), is_pipeline=is_pipeline)
        (proposed,) = propose_placements(costs, count=1).values()
        regrets[seed] = proposed / find_least(costs, proposed) - 1
    assert {seed: regret for seed, regret in regrets.items() if regret > 0.05} == {}


def test_two_lanes_run_at_the_same_time_and_one_lane_takes_turns() -> None:
    # A part of 1 second, two parts of 3 and 4 behind it, and a part of 2 that joins them.
    before = [set(), {0}, {0}, {1, 2}]
    assert schedule_parts([1, 3, 4, 2], before, ["A", "A", "B", "A"]) == 1 + 4 + 2
    assert schedule_parts([1, 3, 4, 2], before, ["A", "A", "A", "A"]) == 1 + 3 + 4 + 2


def test_chain_is_split_unless_transfers_cost_more() -> None:
    seconds = tuple({"A": 1.0, "B": 5.0} if index < 10 else {"A": 5.0, "B": 1.0} for index in range(20))
    flows = tuple((index, (index + 1,), 100) for index in range(19))
    cheap = CostTable(("A", "B"), seconds, flows, {("A", "B"): TransferCost(1.0, 0.0), ("B", "A"): TransferCost(1.0, 0.0)})
    assert propose_placements(cheap, count=1) == {("A",) * 10 + ("B",) * 10: 10 + 1 + 10}
    dear = CostTable(("A", "B"), seconds, flows, {("A", "B"): TransferCost(0.0, 1.0), ("B", "A"): TransferCost(0.0, 1.0)})
    assert list(propose_placements(dear, count=1).values()) == pytest.approx([60])


def test_overlapping_requests_are_as_fast_as_the_fullest_lane() -> None:
    # Four equal segments in a chain: a second device speeds up overlapping requests, but not a single request.
    table = CostTable(("A", "B"), ({"A": 1.0, "B": 1.0},) * 4, tuple((index, (index + 1,), 0) for index in range(3)), overhead=0.1)
    assert list(propose_placements(table, count=1).values()) == pytest.approx([4.1])
    ((placement, seconds),) = propose_placements(replace(table, is_pipeline=True), count=1).items()
    assert seconds == pytest.approx(2.1)
    assert sorted(placement) == ["A", "A", "B", "B"]
    one_lane = replace(table, is_pipeline=True, lanes={"A": "interpreter", "B": "interpreter"})
    assert list(propose_placements(one_lane, count=1).values()) == pytest.approx([4.1])
