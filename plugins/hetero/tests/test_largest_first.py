"""LITERAL and LARGEST_FIRST: the procedure to the letter; contraction if subgraphs would wait for each other; levels beyond its steps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import onnx.parser
import pytest
from hetero_hetero import largest_first
from hetero_hetero.digraph import build_digraph, sort_topologically, split_components
from hetero_hetero.largest_first import Work, take_turns
from hetero_hetero.subgraphs import run_selection, select_subgraphs
from hetero_hetero.trace import SelectionLog

from hetero_core import Core
from hetero_core.errors import AffinityError

from .test_subgraphs import CROSSING, Graph, list_edges, make_graph

MODEL = """<ir_version: 8, opset_import: ["": 17]> crossing (float[2] x) => (float[2] y, float[2] z) {
    [a1] p = Relu (x) [b2] q = Abs (x) [a2] y = Sum (p, q) [b1] z = Add (p, q) }"""
PINS = {"a1": "TEMPLATE", "a2": "TEMPLATE", "b1": "CPU", "b2": "CPU"}


def make_fed_graph(shape: random.Random, count: int, devices: int) -> Graph:
    """A graph with edges to each node from 1 to 3 earlier nodes."""
    predecessors = [[shape.randrange(node) for _ in range(shape.randint(1, 3))] if node else [] for node in range(count)]
    return predecessors, ["A" if shape.random() > 0.3 else shape.choice("ABCD"[:devices]) for _ in range(count)]


def make_layers(shape: random.Random, count: int, devices: int, width: int) -> Graph:
    """A graph of layers, with edges to each node from two of the five layers before."""
    predecessors = [
        [max(0, node // width - shape.randint(1, 5)) * width + shape.randrange(width) for _ in range(2)] if node >= width else []
        for node in range(count)
    ]
    return predecessors, [shape.choice("ABCD"[:devices]) for _ in range(count)]


def select_by_hand(predecessors: Sequence[Sequence[int]], device_of_node: Sequence[str], *, contracts: bool) -> list[set[int]]:
    """The procedure with plain sets: grow from every root anew in every round, roll back on conflict, take the largest.

    With `contracts`, reachability is the same for every node of a selected subgraph.
    """
    order = sort_topologically(dict(enumerate(predecessors)))
    place = {node: number for number, node in enumerate(order)}
    edges = {(place[source], place[target]) for source, target in list_edges(predecessors)}
    subgraphs: list[set[int]] = []
    for device in "ABCD":
        free = sorted(place[node] for node, name in enumerate(device_of_node) if name == device)
        while free:
            candidates: list[list[int]] = []
            while roots := [node for node in free if not any(node in candidate for candidate in candidates)]:
                candidates.append(grow_by_hand(edges, subgraphs if contracts else [], free, roots[0]))
            subgraphs.append(set(max(candidates, key=len)))
            free = [node for node in free if node not in subgraphs[-1]]
    return [{order[number] for number in part} for part in subgraphs]


def grow_by_hand(edges: set[tuple[int, int]], units: Sequence[set[int]], free: Sequence[int], root: int) -> list[int]:
    members, rejected = [root], set[int]()
    while True:
        near = [
            node
            for member in reversed(members)
            for node in (*sorted(b for a, b in edges if a == member), *sorted(a for a, b in edges if b == member))
            if node not in members and node not in rejected
        ]
        if not near:
            return members
        if near[0] in free:
            members.append(near[0])
        else:
            rejected.add(near[0])
        while walk(edges, units, members) & walk({(b, a) for a, b in edges}, units, members) & rejected:
            rejected.add(members.pop())


def walk(edges: set[tuple[int, int]], units: Sequence[set[int]], starts: Sequence[int]) -> set[int]:
    """All nodes reachable from `starts`; reaching a member of a unit reaches the whole unit."""
    reached: set[int] = set()
    border = set(starts)
    while border:
        border = {target for source, target in edges if source in border} - reached
        border = border.union(*(unit for unit in units if unit & border)) - reached
        reached |= border
    return reached


FAMILIES: Mapping[str, Callable[[random.Random, int, int], Graph]] = {
    "sparse": lambda shape, count, devices: make_graph(shape, count, devices, 0.8, 10),
    "middling": lambda shape, count, devices: make_graph(shape, count, devices, 2, 60),
    "dense": lambda shape, count, devices: make_graph(shape, count, devices, 8, 60),
    "fed by any": make_fed_graph,
    "deep": lambda shape, count, devices: make_layers(shape, count, devices, 2),
    "wide": lambda shape, count, devices: make_layers(shape, count, devices, 12),
}


def select_to_the_letter(graph: Graph) -> set[frozenset[int]] | None:
    """The subgraphs of LITERAL, or None for a cycle."""
    try:
        return {frozenset(part.nodes) for part in select_subgraphs(*graph, "ABCD", "LITERAL")}
    except AffinityError:
        return None


@pytest.mark.parametrize("contracts", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_procedure_equals_the_handwritten_procedure(family: str, contracts: bool) -> None:
    shape = random.Random(f"{family} by hand")
    for _ in range(30):
        predecessors, devices = FAMILIES[family](shape, shape.randint(4, 24), shape.randint(2, 4))
        graph = build_digraph(predecessors, devices, "ABCD")
        subgraphs = {
            frozenset(part.index_of_position[position] for position in members)
            for _, part in split_components(graph)
            for turn in take_turns(part, Work(math.inf), SelectionLog(), contracts=contracts)
            for members in turn
        }
        assert subgraphs == {frozenset(part) for part in select_by_hand(predecessors, devices, contracts=contracts)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [65, 100, 250, 700])
def test_larger_graphs_give_the_sound_subgraphs_of_literal(family: str, count: int) -> None:
    shape = random.Random(f"{family} {count}")
    for _ in range(max(2, 1500 // count)):
        graph = FAMILIES[family](shape, count, shape.randint(2, 4))
        literal = select_to_the_letter(graph)
        selection = run_selection(*graph, "ABCD")
        if literal is not None:
            assert {frozenset(part.nodes) for part in selection.subgraphs} == literal
            assert set(selection.procedure_of_node.values()) == {"LITERAL"}
        else:
            assert "CONTRACTED" in selection.procedure_of_node.values()


def test_network_of_2000_nodes_follows_the_letter() -> None:
    count, shape = 2000, random.Random(7)
    predecessors = [[node - 1, *([node - 4] if node % 4 == 0 else [])] if node else [] for node in range(count)]
    devices = [shape.choice("AAAB") for _ in range(count)]
    selection = run_selection(predecessors, devices, "AB")
    assert set(selection.procedure_of_node.values()) == {"LITERAL"}
    assert list(selection.subgraphs) == select_subgraphs(predecessors, devices, "AB", "LITERAL")


def test_crossing_is_contracted_and_its_neighbour_part_is_not() -> None:
    predecessors, devices = [[], [0, 3], [3, 0], [], [], [4]], "AABBAB"
    selection = run_selection(predecessors, devices, "AB")
    assert selection.procedure_of_node == {4: "LITERAL", 5: "LITERAL", **dict.fromkeys(range(4), "CONTRACTED")}
    assert {part.nodes for part in selection.subgraphs} == {(0, 1), (2,), (3,), (4,), (5,)}


def test_graph_beyond_the_steps_is_selected_by_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    large = make_fed_graph(random.Random(2), 200, 3)
    both = [[], [0], *([source + 2 for source in sources] for sources in large[0])], ["A", "B", *large[1]]
    needed = run_selection(*both, "ABCD")
    assert "LEVELS" not in needed.procedure_of_node.values()
    monkeypatch.setattr(largest_first, "MOST_WORK", 100_000 + 202 * largest_first.WORK_OF_LEVELS)
    selection = run_selection(*both, "ABCD", traces=True)
    assert selection.procedure_of_node == {0: "LITERAL", 1: "LITERAL", **dict.fromkeys(range(2, 202), "LEVELS")}
    levels = {tuple(node + 2 for node in part.nodes) for part in select_subgraphs(*large, "ABCD", "LEVELS")}
    assert {part.nodes for part in selection.subgraphs} == {(0,), (1,)} | levels
    assert "without steps to show" in selection.trace


def test_graph_of_many_nodes_is_selected_by_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_first, "MOST_NODES", 10)
    predecessors = [[node - 1] if node else [] for node in range(11)]
    assert set(run_selection(predecessors, "AB" * 5 + "A", "AB").procedure_of_node.values()) == {"LEVELS"}
    assert set(run_selection(predecessors, "A" * 11, "AB").procedure_of_node.values()) == {"LITERAL"}


def test_literal_subgraphs_in_a_circle_are_refused() -> None:
    with pytest.raises(AffinityError) as caught:
        select_subgraphs(CROSSING, "AABB", "AB", "LITERAL", ["a1", "a2", "b1", "b2"])
    message = str(caught.value)
    assert "the policy LITERAL gives subgraphs that wait for each other" in message
    assert "{a1, a2} on A" in message
    assert "LARGEST_FIRST, the default," in message


def test_literal_plan_with_a_circle_is_refused_by_node_names(core: Core) -> None:
    network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity(PINS)
    with pytest.raises(AffinityError, match=r"\{a1, a2\} on TEMPLATE"):
        core.load_network(network, "HETERO:TEMPLATE,CPU", {"HETERO_SUBGRAPH_POLICY": "LITERAL"})
    assert len(core.load_network(network, "HETERO:TEMPLATE,CPU").get_metric("HETERO_SUBGRAPHS")) == 3


def test_query_with_the_trace_has_every_step_in_its_plan(core: Core) -> None:
    network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity(PINS)
    plan = core.query_network(network, "HETERO:TEMPLATE,CPU", {"HETERO_TRACE_SELECTION": "YES"}).plan
    assert plan is not None
    assert "Merge [a2]\n       subgraph [a1,a2], rejected []" in plan.selection
    plain = core.query_network(network, "HETERO:TEMPLATE,CPU").plan
    assert plain is not None
    assert plain.selection == ""
    assert dict(plain.procedures) == {"CONTRACTED": 4}


@pytest.mark.parametrize("policy", ["FEWEST", "LEVELS"])
def test_query_under_another_policy_traces_that_policy(core: Core, policy: str) -> None:
    network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity(PINS)
    config = {"HETERO_TRACE_SELECTION": "YES", "HETERO_SUBGRAPH_POLICY": policy}
    plan = core.query_network(network, "HETERO:TEMPLATE,CPU", config).plan
    assert plan is not None
    assert dict(plan.procedures) == {policy: 4}
    assert plan.selection.startswith(f"Policy {policy}\n")
    lines = [f"    {stage.device}: [{','.join(stage.nodes)}]" for stage in plan.stages]
    assert plan.selection.splitlines()[-len(lines) :] == lines
