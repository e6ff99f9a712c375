"""The paths that keep nodes apart: in the graph itself, and through subgraphs that run as a whole."""

from __future__ import annotations

import random

import pytest
from hetero_hetero.conflicts import explain_splits, explain_within, find_conflict_path
from hetero_hetero.subgraphs import select_subgraphs

DIAMOND = {1: [], 2: [1], 3: [2], 4: [2], 5: [3, 4], 6: [5], 7: [6]}
DEVICE_IN_DIAMOND = {node: "B" if node == 4 else "A" for node in DIAMOND}
# a1 -> a2, b2 -> b1, a1 -> b1, b2 -> a2, numbered a1, a2, b1, b2
CROSSING: list[list[int]] = [[], [0, 3], [3, 0], []]


def test_conflict_path_of_the_document_example() -> None:
    assert find_conflict_path(DIAMOND, [3, 5, 6, 7], 2) == (2, 4, 5)
    assert find_conflict_path(DIAMOND, [1, 2, 3], 5) == (2, 4, 5)
    assert find_conflict_path(DIAMOND, [3, 5, 6, 7], 4) == ()


def test_conflict_path_passes_a_subgraph_as_a_whole() -> None:
    assert find_conflict_path(CROSSING, [3], 2) == ()
    assert find_conflict_path(CROSSING, [3], 2, [(0, 1)]) == (3, 1, 0, 2)


def test_splits_are_explained_by_node_subgraph_and_path() -> None:
    parts = select_subgraphs(DIAMOND, DEVICE_IN_DIAMOND, ["A", "B"])
    splits = list(explain_splits(DIAMOND, parts, "A"))
    assert [(split.node, split.subgraph.nodes, split.path) for split in splits] == [(2, (3, 5, 6, 7), (2, 4, 5))]
    assert list(explain_splits(DIAMOND, parts, "B")) == []


def test_conflict_path_of_an_unknown_node_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        find_conflict_path(DIAMOND, [1], 9)
    assert str(caught.value) == "cannot look for a conflict path: 9 is not among the 7 nodes of the graph"


def test_splits_within_a_bound_explain_every_pair_of_neighbours_once() -> None:
    parts = select_subgraphs(DIAMOND, DEVICE_IN_DIAMOND, ["A", "B"])
    found, left = explain_within(DIAMOND, parts, steps=1000)
    assert [(split.node, split.subgraph.nodes, split.path) for split in found] == [(2, (3, 5, 6, 7), (2, 4, 5))]
    assert left == 0


@pytest.mark.parametrize("seed", range(30))
def test_splits_within_a_bound_explain_the_same_pairs_as_without(seed: int) -> None:
    generator = random.Random(seed)
    predecessors = [[generator.randrange(node) for _ in range(min(node, 2))] for node in range(25)]
    parts = select_subgraphs(predecessors, [generator.choice("AB") for _ in predecessors], "AB")
    home = {node: part for part in parts for node in part.nodes}
    found, left = explain_within(predecessors, parts, steps=10**9)
    everything = [split for device in "AB" for split in explain_splits(predecessors, parts, device)]
    assert left == 0
    assert {frozenset((home[one.node], one.subgraph)) for one in found} == {
        frozenset((home[one.node], one.subgraph)) for one in everything
    }
    assert set(found) <= set(everything)


def test_bound_ends_the_search_and_counts_the_nodes_that_are_left() -> None:
    parts = select_subgraphs(DIAMOND, DEVICE_IN_DIAMOND, ["A", "B"])
    assert explain_within(DIAMOND, parts, steps=0) == ((), 2)
