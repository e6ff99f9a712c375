"""The paths that keep nodes apart: in the graph itself, and through subgraphs that run as a whole."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hetero_hetero.conflicts import explain_within
from hetero_hetero.subgraphs import Subgraph, select_subgraphs

DIAMOND = {1: [], 2: [1], 3: [2], 4: [2], 5: [3, 4], 6: [5], 7: [6]}
DEVICE_IN_DIAMOND = {node: "B" if node == 4 else "A" for node in DIAMOND}
# a1 -> a2, b2 -> b1, a1 -> b1, b2 -> a2, numbered a1, a2, b1, b2
CROSSING: list[list[int]] = [[], [0, 3], [3, 0], []]


def test_path_through_other_subgraphs_names_entry_and_exit() -> None:
    parts = [Subgraph("A", (0, 1)), Subgraph("B", (2,)), Subgraph("B", (3,))]
    splits, unexplained = explain_within(CROSSING, parts, steps=1000)
    assert [(split.node, split.subgraph.nodes, split.path) for split in splits] == [(3, (2,), (3, 1, 0, 2))]
    assert unexplained == 0


def test_bounded_splits_explain_every_pair_of_neighbours_once() -> None:
    parts = select_subgraphs(DIAMOND, DEVICE_IN_DIAMOND, ["A", "B"])
    splits, unexplained = explain_within(DIAMOND, parts, steps=1000)
    assert [(split.node, split.subgraph.nodes, split.path) for split in splits] == [(2, (3, 5, 6, 7), (2, 4, 5))]
    assert unexplained == 0


@pytest.mark.parametrize("seed", range(30))
def test_paths_of_splits_leave_the_subgraph_and_return(seed: int) -> None:
    generator = random.Random(seed)
    predecessors = [[generator.randrange(node) for _ in range(min(node, 2))] for node in range(25)]
    parts = select_subgraphs(predecessors, [generator.choice("AB") for _ in predecessors], "AB")
    edges = {(source, node) for node, sources in enumerate(predecessors) for source in sources}
    home = {node: part for part in parts for node in part.nodes}
    splits, _ = explain_within(predecessors, parts, steps=10**9)
    for split in splits:
        first, *between, last = split.path
        assert {split.node} == {first, last} - set(split.subgraph.nodes)
        assert between
        assert not set(between) & {split.node, *split.subgraph.nodes}
        assert all(step in edges or home[step[0]] == home[step[1]] for step in pairwise(split.path))


def test_bound_ends_the_search_and_counts_remaining_nodes() -> None:
    parts = select_subgraphs(DIAMOND, DEVICE_IN_DIAMOND, ["A", "B"])
    assert explain_within(DIAMOND, parts, steps=0) == ((), 2)
