"""The literal procedure, step by step, on the example that the project starts from; and the page that shows it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hetero_hetero.subgraphs import Subgraph
from hetero_hetero.trace import OK, POSSIBLE, SELF_REFERENCE, WalkStep, trace_selection

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "partitioning.md"

DIAMOND = {1: [], 2: [1], 3: [2], 4: [2], 5: [3, 4], 6: [5], 7: [6]}
DEVICE_IN_DIAMOND = {node: "second" if node == 4 else "first" for node in DIAMOND}

# The two walks of the document: what is done with which node, subgraph, rejected list, condition and the node it names.
WALK_FROM_1 = [
    WalkStep("root", 1, (1,), (), OK),
    WalkStep("merge", 2, (1, 2), (), OK),
    WalkStep("merge", 3, (1, 2, 3), (), OK),
    WalkStep("merge", 5, (1, 2, 3, 5), (), POSSIBLE, (4,)),
    WalkStep("merge", 6, (1, 2, 3, 5, 6), (), POSSIBLE, (4,)),
    WalkStep("merge", 7, (1, 2, 3, 5, 6, 7), (), POSSIBLE, (4,)),
    WalkStep("failed merge", 4, (1, 2, 3, 5, 6, 7), (4,), SELF_REFERENCE, (4,)),
    WalkStep("rollback", 7, (1, 2, 3, 5, 6), (4, 7), SELF_REFERENCE, (4,)),
    WalkStep("rollback", 6, (1, 2, 3, 5), (4, 6, 7), SELF_REFERENCE, (4,)),
    WalkStep("rollback", 5, (1, 2, 3), (4, 5, 6, 7), OK),
]
WALK_FROM_5 = [
    WalkStep("root", 5, (5,), (), OK),
    WalkStep("merge", 6, (5, 6), (), OK),
    WalkStep("merge", 7, (5, 6, 7), (), OK),
    WalkStep("merge", 3, (3, 5, 6, 7), (), OK),
    WalkStep("merge", 2, (2, 3, 5, 6, 7), (), POSSIBLE, (4,)),
    WalkStep("failed merge", 4, (2, 3, 5, 6, 7), (4,), SELF_REFERENCE, (4,)),
    WalkStep("rollback", 2, (3, 5, 6, 7), (2, 4), OK),
]


def test_first_round_walks_as_the_document_does() -> None:
    first = trace_selection(DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"]).rounds[0]
    assert [walk.roots for walk in first.walks] == [(1, 2, 3, 5, 6, 7), (5, 6, 7)]
    assert list(first.walks[0].steps) == WALK_FROM_1
    assert list(first.walks[1].steps) == WALK_FROM_5


def test_first_round_takes_the_largest_candidate() -> None:
    first = trace_selection(DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"]).rounds[0]
    assert [walk.candidate for walk in first.walks] == [(1, 2, 3), (3, 5, 6, 7)]
    assert (first.device, first.taken, first.rest) == ("first", (3, 5, 6, 7), (1, 2))


def test_rounds_go_on_until_nothing_is_left() -> None:
    trace = trace_selection(DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"])
    assert [(part.device, part.taken) for part in trace.rounds] == [("first", (3, 5, 6, 7)), ("first", (1, 2)), ("second", (4,))]
    assert trace.subgraphs == (Subgraph("first", (1, 2)), Subgraph("second", (4,)), Subgraph("first", (3, 5, 6, 7)))


def test_taken_subgraph_becomes_one_node_that_keeps_the_rest_apart() -> None:
    # a1 -> a2, b2 -> b1, a1 -> b1, b2 -> a2
    trace = trace_selection([[], [0, 3], [3, 0], []], ["A", "A", "B", "B"], ["A", "B"], ["a1", "a2", "b1", "b2"])
    assert trace.subgraphs == (Subgraph("B", (3,)), Subgraph("A", (0, 1)), Subgraph("B", (2,)))
    assert "Merge [b1]\n       subgraph [b2,b1], rejected [{a1,a2}]\n       condition broken" in trace.text()


def test_ties_go_to_the_first_candidate() -> None:
    trace = trace_selection([[], [0], [], [2]], ["A"] * 4, ["A"])
    assert [part.taken for part in trace.rounds] == [(0, 1), (2, 3)]


def test_names_replace_the_numbers_in_the_text() -> None:
    text = trace_selection([[], [0]], ["CPU", "GPU"], ["GPU", "CPU"], names=["conv", "relu"]).text()
    assert "Possible roots: [relu]" in text
    assert text.endswith("Subgraphs, in an order in which they can run:\n    CPU: [conv]\n    GPU: [relu]\n")


def test_parts_of_random_graphs_run_in_the_returned_order() -> None:
    shape = random.Random(8)
    for _ in range(100):
        predecessors = [[shape.randrange(node) for _ in range(2)] if node else [] for node in range(20)]
        trace = trace_selection(predecessors, [shape.choice("ABC") for _ in predecessors], "ABC")
        home = {node: number for number, part in enumerate(trace.subgraphs) for node in part.nodes}
        assert len(home) == len(predecessors)
        assert all(home[source] <= home[node] for node, sources in enumerate(predecessors) for source in sources)


def test_cycle_is_refused_by_its_nodes() -> None:
    with pytest.raises(ValueError) as caught:
        trace_selection([[1], [0]], "AA", "A")
    assert str(caught.value) == "cannot select subgraphs: nodes 0 -> 1 -> 0 form a cycle; expected a graph without cycles"


def test_page_shows_the_text_that_the_tracer_prints() -> None:
    shown = re.search(r"<!-- generated: trace -->\n```text\n(.*?)```\n<!-- end -->", PAGE.read_text("utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == trace_selection(DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"]).text()
