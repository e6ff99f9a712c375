"""The policy LITERAL: the procedure of the design document at any size, and the refusal of what it may give."""

from __future__ import annotations

import random

import onnx.parser
import pytest
from hetero_hetero.subgraphs import Subgraph, select_subgraphs

from hetero_core import Core
from hetero_core.errors import AffinityError

# a1 -> a2, b2 -> b1, a1 -> b1, b2 -> a2, numbered a1, a2, b1, b2
CROSSING: list[list[int]] = [[], [0, 3], [3, 0], []]
MODEL = """<ir_version: 8, opset_import: ["": 17]> crossing (float[2] x) => (float[2] y, float[2] z) {
    [a1] p = Relu (x) [b2] q = Abs (x) [a2] y = Sum (p, q) [b1] z = Add (p, q) }"""


def select_with_sets(predecessors: list[list[int]], devices: list[str], priorities: str) -> list[set[int]]:
    """Returns the subgraphs as the document takes them, written with sets; nodes are in topological order."""
    count = len(predecessors)
    consumers = [[target for target in range(count) if source in predecessors[target]] for source in range(count)]
    below: list[set[int]] = [set() for _ in range(count)]
    for node in reversed(range(count)):
        below[node] = set(consumers[node]).union(*(below[target] for target in consumers[node]))

    def returns(members: list[int], rejected: set[int]) -> bool:
        return any(middle in below[one] and other in below[middle] for middle in rejected for one in members for other in members)

    subgraphs = []
    for device in priorities:
        free = {node for node in range(count) if devices[node] == device}
        while free:
            candidates, roots = [], sorted(free)
            while roots:
                members, rejected = [roots[0]], set[int]()
                while True:
                    near = (
                        other for one in reversed(members) for other in (*sorted(consumers[one]), *sorted(set(predecessors[one])))
                    )
                    node = next((other for other in near if other not in members and other not in rejected), None)
                    if node is None:
                        break
                    members.append(node) if node in free else rejected.add(node)
                    while returns(members, rejected):
                        rejected.add(members.pop())
                candidates.append(set(members))
                roots = [node for node in roots if node not in members]
            subgraphs.append(max(candidates, key=len))
            free -= subgraphs[-1]
    return subgraphs


def has_circle(predecessors: list[list[int]], parts: list[set[int]]) -> bool:
    """Says whether parts wait for each other: none of those that are left has all of its sources."""
    pending = list(parts)
    while pending:
        waiting = set().union(*pending)
        ready = [part for part in pending if not any(source in waiting - part for node in part for source in predecessors[node])]
        if not ready:
            return True
        pending = [part for part in pending if part not in ready]
    return False


def test_example_of_the_document_gives_its_three_subgraphs() -> None:
    predecessors = {1: [], 2: [1], 3: [2], 4: [2], 5: [3, 4], 6: [5], 7: [6]}
    devices = {node: "second" if node == 4 else "first" for node in predecessors}
    parts = select_subgraphs(predecessors, devices, ["first", "second"], "LITERAL")
    assert parts == [Subgraph("first", (1, 2)), Subgraph("second", (4,)), Subgraph("first", (3, 5, 6, 7))]


def test_random_graphs_give_what_the_procedure_with_sets_gives_or_are_refused() -> None:
    draw, refused = random.Random(17), 0
    for _ in range(300):
        count = draw.randint(2, 14)
        predecessors = [sorted({draw.randrange(node) for _ in range(draw.randint(0, 2))}) if node else [] for node in range(count)]
        devices = [draw.choice("AAB") for _ in range(count)]
        expected = select_with_sets(predecessors, devices, "AB")
        if has_circle(predecessors, expected):
            refused += 1
            with pytest.raises(AffinityError, match="wait for each other"):
                select_subgraphs(predecessors, devices, "AB", "LITERAL")
            continue
        parts = select_subgraphs(predecessors, devices, "AB", "LITERAL")
        assert sorted(map(sorted, expected)) == sorted(list(part.nodes) for part in parts)
    assert 5 < refused < 100


def test_subgraphs_that_wait_for_each_other_are_refused_with_the_circle() -> None:
    with pytest.raises(AffinityError) as caught:
        select_subgraphs(CROSSING, "AABB", "AB", "LITERAL", ["a1", "a2", "b1", "b2"])
    message = str(caught.value)
    assert "the policy LITERAL gives subgraphs that wait for each other" in message
    assert "{a1, a2} on A" in message
    assert "LARGEST_FIRST, the default," in message


def test_network_whose_literal_plan_has_a_circle_is_refused_by_the_names_of_its_nodes(core: Core) -> None:
    pins = {"a1": "TEMPLATE", "a2": "TEMPLATE", "b1": "CPU", "b2": "CPU"}
    network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity(pins)
    with pytest.raises(AffinityError, match=r"\{a1, a2\} on TEMPLATE"):
        core.load_network(network, "HETERO:TEMPLATE,CPU", {"HETERO_SUBGRAPH_POLICY": "LITERAL"})
    assert len(core.load_network(network, "HETERO:TEMPLATE,CPU").get_metric("HETERO_SUBGRAPHS")) == 3


def test_query_that_asks_for_the_trace_has_every_step_in_its_plan(core: Core) -> None:
    pins = {"a1": "TEMPLATE", "a2": "TEMPLATE", "b1": "CPU", "b2": "CPU"}
    network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity(pins)
    plan = core.query_network(network, "HETERO:TEMPLATE,CPU", {"HETERO_TRACE_SELECTION": "YES"}).plan
    assert plan is not None
    assert "Merge [a2]\n       subgraph [a1,a2], rejected []" in plan.selection
    plain = core.query_network(network, "HETERO:TEMPLATE,CPU").plan
    assert plain is not None
    assert plain.selection == ""
    assert dict(plain.procedures) == {"CONTRACTED": 4}


@pytest.mark.parametrize("policy", ["FEWEST", "LEVELS"])
def test_query_under_another_policy_traces_that_policy(core: Core, policy: str) -> None:
    pins = {"a1": "TEMPLATE", "a2": "TEMPLATE", "b1": "CPU", "b2": "CPU"}
    network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity(pins)
    config = {"HETERO_TRACE_SELECTION": "YES", "HETERO_SUBGRAPH_POLICY": policy}
    plan = core.query_network(network, "HETERO:TEMPLATE,CPU", config).plan
    assert plan is not None
    assert dict(plan.procedures) == {policy: 4}
    assert plan.selection.startswith(f"Policy {policy}\n")
    lines = [f"    {stage.device}: [{','.join(stage.nodes)}]" for stage in plan.stages]
    assert plan.selection.splitlines()[-len(lines) :] == lines
