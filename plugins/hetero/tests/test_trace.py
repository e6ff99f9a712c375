"""The trace: the procedure step by step, on the project's first example, and the page of the docs that shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hetero_hetero.subgraphs import POLICIES, run_selection
from hetero_hetero.trace import MOST_CHARACTERS

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "partitioning.md"

DIAMOND = {1: [], 2: [1], 3: [2], 4: [2], 5: [3, 4], 6: [5], 7: [6]}
DEVICE_IN_DIAMOND = {node: "second" if node == 4 else "first" for node in DIAMOND}

# The two walks of the document: kind of step, node, subgraph, rejected nodes, and the node in the condition after the step.
WALK_FROM_1 = [
    ("Take root", "1", "1", "", "holds"),
    ("Merge", "2", "1,2", "", "holds"),
    ("Merge", "3", "1,2,3", "", "holds"),
    ("Merge", "5", "1,2,3,5", "", "open 4"),
    ("Merge", "6", "1,2,3,5,6", "", "open 4"),
    ("Merge", "7", "1,2,3,5,6,7", "", "open 4"),
    ("Cannot merge", "4", "1,2,3,5,6,7", "4", "broken 4"),
    ("Roll back", "7", "1,2,3,5,6", "4,7", "broken 4"),
    ("Roll back", "6", "1,2,3,5", "4,6,7", "broken 4"),
    ("Roll back", "5", "1,2,3", "4,5,6,7", "holds"),
]
WALK_FROM_5 = [
    ("Take root", "5", "5", "", "holds"),
    ("Merge", "6", "5,6", "", "holds"),
    ("Merge", "7", "5,6,7", "", "holds"),
    ("Merge", "3", "3,5,6,7", "", "holds"),
    ("Merge", "2", "2,3,5,6,7", "", "open 4"),
    ("Cannot merge", "4", "2,3,5,6,7", "4", "broken 4"),
    ("Roll back", "2", "3,5,6,7", "2,4", "holds"),
]


def trace(
    predecessors: Mapping[int, Sequence[int]] | Sequence[Sequence[int]],
    devices: Mapping[int, str] | Sequence[str],
    priorities: Sequence[str],
    policy: str = "LARGEST_FIRST",
    names: Sequence[str] | None = None,
) -> str:
    return run_selection(predecessors, devices, priorities, policy, names, traces=True).trace


def read_steps(text: str) -> list[tuple[str, str, str, str, str]]:
    """Returns the steps of a trace in the form of the walks above."""
    matches = re.findall(r"  \d+\. (.+) \[(.*)\]\n +subgraph \[(.*)\], rejected \[(.*)\]\n +condition (.*)\n", text)
    steps = []
    for kind, node, subgraph, rejected, condition in matches:
        through = re.search(r"through \[(.*?)\]", condition)
        state = "broken" if condition.startswith("broken") else "open"
        steps.append((kind, node, subgraph, rejected, f"{state} {through[1]}" if through else condition))
    return steps


@pytest.mark.parametrize("policy", ["LARGEST_FIRST", "LITERAL"])
def test_first_round_walks_as_the_document_does(policy: str) -> None:
    text = trace(DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"], policy)
    assert text.startswith(f"Policy {policy}\n")
    assert re.findall(r"Possible roots: (.*)", text)[:3] == ["[1,2,3,5,6,7]", "[5,6,7]", "[], end"]
    assert read_steps(text)[:17] == WALK_FROM_1 + WALK_FROM_5
    assert re.findall(r"Candidates: (.*)", text) == ["[1,2,3], [3,5,6,7]", "[1,2]", "[4]"]
    assert re.findall(r"Largest: (.*)", text) == ["[3,5,6,7]. Left: [1,2]", "[1,2]. Left: []", "[4]. Left: []"]


@pytest.mark.parametrize("policy", POLICIES)
def test_trace_ends_with_the_subgraphs_that_run(policy: str) -> None:
    for predecessors, devices, priorities in [
        (DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"]),
        ({1: [], 2: [], 3: [2], 4: [1, 3]}, {1: "A", 2: "B", 3: "A", 4: "B"}, ["A", "B"]),
    ]:
        selection = run_selection(predecessors, devices, priorities, policy, traces=True)
        shown = selection.trace.partition("Subgraphs, in an order in which they can run:\n")[2]
        lines = [f"    {part.device}: [{','.join(map(str, part.nodes))}]" for part in selection.subgraphs]
        assert shown.splitlines() == lines
        assert selection.subgraphs == run_selection(predecessors, devices, priorities, policy).subgraphs


@pytest.mark.parametrize(("policy", "what"), [("FEWEST", "Waves were run"), ("LEVELS", "Nodes were grouped by levels")])
def test_policies_without_steps_say_so(policy: str, what: str) -> None:
    text = trace(DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"], policy)
    assert what in text
    assert "without steps to show" in text
    assert read_steps(text) == []


def test_waves_of_the_example_are_those_that_run() -> None:
    text = trace(DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"], "FEWEST")
    assert text.endswith("    first: [1,2,3]\n    second: [4]\n    first: [5,6,7]\n")


def test_trace_of_contracted_subgraphs_says_so() -> None:
    # a1 -> a2, b2 -> b1, a1 -> b1, b2 -> a2
    text = trace([[], [0, 3], [3, 0], []], "AABB", "AB", names=["a1", "a2", "b1", "b2"])
    assert "subgraphs would wait for each other" in text
    assert re.findall(r"Largest: (.*?)\.", text) == ["[a1,a2]", "[b2]", "[b1]"]
    assert ("Roll back", "b1", "b2", "a2,b1", "holds") in read_steps(text)


def test_parts_without_an_edge_between_them_are_traced_apart() -> None:
    text = trace([[], [0], [], [2], [3]], "ABABA", "AB", names=["a", "b", "c", "d", "e"])
    assert re.findall(r"Part of (.*)", text) == ["2 nodes that begins with [a]", "3 nodes that begins with [c]"]


def test_part_on_one_device_is_one_subgraph_without_steps() -> None:
    text = trace([[], [0], [], [2]], "AAAA", "A")
    assert text.count("All of them are on one device: one subgraph") == 2
    assert text.endswith("    A: [0,1]\n    A: [2,3]\n")


def test_names_replace_the_numbers_in_the_text() -> None:
    text = trace([[], [0]], ["CPU", "GPU"], ["GPU", "CPU"], names=["conv", "relu"])
    assert "Possible roots: [relu]" in text
    assert text.endswith("Subgraphs, in an order in which they can run:\n    CPU: [conv]\n    GPU: [relu]\n")


def test_long_trace_is_cut_and_counts_omitted_steps() -> None:
    count = 400
    predecessors = [[node - 1] if node else [] for node in range(count)]
    text = trace(predecessors, ["AB"[node % 2] for node in range(count)], "AB", names=[f"node_{node}" for node in range(count)])
    steps, _, subgraphs = text.partition("Subgraphs, in an order in which they can run:\n")
    assert len(steps) < 1.1 * MOST_CHARACTERS
    left_out = re.search(r"\.\.\. (\d+) more steps are left out\n$", steps)
    assert left_out is not None
    # A root, and a failed merge for each neighbour: 398 nodes have two neighbours, two end nodes have only a single neighbour.
    assert len(re.findall(r"^ +condition ", steps, re.MULTILINE)) + int(left_out[1]) == 398 * 3 + 2 * 2
    assert len(subgraphs.splitlines()) == count


def test_page_shows_the_text_that_the_trace_prints() -> None:
    shown = re.search(r"<!-- generated: trace -->\n```text\n(.*?)```\n<!-- end -->", PAGE.read_text("utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == trace(DIAMOND, DEVICE_IN_DIAMOND, ["first", "second"])
