"""The subgraphs of every policy: their guarantees on any graph, and the optimum on graphs small enough for exhaustive search."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hetero_hetero.subgraphs import POLICIES, Subgraph, select_subgraphs
from hypothesis import given, settings
from hypothesis import strategies as st

Graph = tuple[list[list[int]], list[str]]

CONNECTED = ("LARGEST_FIRST", "LEVELS")
# LITERAL refuses some graphs; its tests are in test_largest_first.py.
SOUND = tuple(policy for policy in POLICIES if policy != "LITERAL")
DIAMOND = {1: [], 2: [1], 3: [2], 4: [2], 5: [3, 4], 6: [5], 7: [6]}
DEVICE_IN_DIAMOND = {node: "B" if node == 4 else "A" for node in DIAMOND}
# a1 -> a2, b2 -> b1, a1 -> b1, b2 -> a2, numbered a1, a2, b1, b2
CROSSING: list[list[int]] = [[], [0, 3], [3, 0], []]


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 60) -> Graph:
    """A graph numbered at random, with repeated edges, on up to four devices."""
    count = draw(st.integers(1, max_nodes))
    shape = random.Random(draw(st.integers(0, 2**32)))
    return make_graph(
        shape, count, draw(st.integers(1, 4)), draw(st.sampled_from([0.5, 1, 2, 4])), draw(st.sampled_from([3, 10, 60]))
    )


def make_graph(shape: random.Random, count: int, devices: int, density: float, reach: int) -> Graph:
    number = list(range(count))
    shape.shuffle(number)
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for _ in range(int(density * count)):
        source = shape.randrange(count)
        target = min(count - 1, source + shape.randint(1, reach))
        if source < target:
            predecessors[number[target]] += [number[source]] * shape.choice([1, 1, 2])
    share = shape.choice([0.1, 0.3, 0.6])
    return predecessors, ["A" if shape.random() > share else shape.choice("ABCD"[:devices]) for _ in range(count)]


def make_small_graphs(seed: int, count: int, devices: int, most: int) -> list[Graph]:
    shape = random.Random(seed)
    return [
        make_graph(shape, shape.randint(4, most), devices, shape.choice([0.7, 1.2, 2]), shape.choice([3, 6, 12]))
        for _ in range(count)
    ]


def list_edges(predecessors: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return [(source, target) for target, sources in enumerate(predecessors) for source in sources]


def is_connected(nodes: Sequence[int], edges: Sequence[tuple[int, int]]) -> bool:
    reached = {nodes[0]}
    inner = [edge for edge in edges if edge[0] in nodes and edge[1] in nodes]
    for _ in nodes:
        reached |= {node for edge in inner if edge[0] in reached or edge[1] in reached for node in edge}
    return len(reached) == len(nodes)


def count_fewest_runs(predecessors: Sequence[Sequence[int]], devices: Sequence[str]) -> int:
    """The fewest runs of a single device in any order of the nodes: any acyclic plan is such an order, and any order such a plan."""
    before = [sum(1 << source for source in set(sources)) for sources in predecessors]
    cost = {(0, ""): 0}
    for _ in devices:
        following: dict[tuple[int, str], int] = {}
        for (done, last), runs in cost.items():
            for node, device in enumerate(devices):
                if not done >> node & 1 and not before[node] & ~done:
                    state = (done | 1 << node, device)
                    following[state] = min(following.get(state, 99), runs + (device != last))
        cost = following
    return min(cost.values())


def test_document_example_gives_its_result() -> None:
    assert select_subgraphs(DIAMOND, DEVICE_IN_DIAMOND, ["A", "B"]) == [
        Subgraph("A", (1, 2)),
        Subgraph("B", (4,)),
        Subgraph("A", (3, 5, 6, 7)),
    ]


def test_document_example_by_levels_gives_its_result() -> None:
    assert select_subgraphs(DIAMOND, DEVICE_IN_DIAMOND, ["A", "B"], "LEVELS") == select_subgraphs(
        DIAMOND, DEVICE_IN_DIAMOND, ["A", "B"]
    )


@pytest.mark.parametrize("policy", CONNECTED)
def test_crossing_dependencies_split_the_second_device(policy: str) -> None:
    parts = select_subgraphs(CROSSING, ["A", "A", "B", "B"], ["A", "B"], policy)
    assert parts == [Subgraph("B", (3,)), Subgraph("A", (0, 1)), Subgraph("B", (2,))]


def test_crossing_dependencies_take_three_waves() -> None:
    parts = select_subgraphs(CROSSING, ["A", "A", "B", "B"], ["A", "B"], "FEWEST")
    assert parts == [Subgraph("A", (0,)), Subgraph("B", (3, 2)), Subgraph("A", (1,))]


@pytest.mark.parametrize("policy", SOUND)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(graph=graphs())
def test_parts_cover_each_node_once_and_run_in_returned_order(policy: str, graph: Graph) -> None:
    predecessors, devices = graph
    parts = select_subgraphs(predecessors, devices, "ABCD", policy)
    home = {node: number for number, part in enumerate(parts) for node in part.nodes}
    assert sorted(node for part in parts for node in part.nodes) == list(range(len(devices)))
    assert all(devices[node] == parts[number].device for node, number in home.items())
    assert all(home[source] <= home[target] for source, target in list_edges(predecessors))
    within = {node: place for part in parts for place, node in enumerate(part.nodes)}
    assert all(within[a] < within[b] for a, b in list_edges(predecessors) if home[a] == home[b])
    if policy in CONNECTED:
        assert all(is_connected(part.nodes, list_edges(predecessors)) for part in parts)


@pytest.mark.parametrize("policy", SOUND)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(graph=graphs(30))
def test_names_and_kind_of_container_do_not_change_the_result(policy: str, graph: Graph) -> None:
    predecessors, devices = graph
    plain = select_subgraphs(predecessors, devices, "ABCD", policy)
    keyed = select_subgraphs(
        {10 * node + 3: [10 * source + 3 for source in sources] for node, sources in reversed(list(enumerate(predecessors)))},
        {10 * node + 3: (device, 0) for node, device in enumerate(devices)},
        [(device, 0) for device in "ABCD"],
        policy,
    )
    assert [((part.device, 0), tuple(10 * node + 3 for node in part.nodes)) for part in plain] == [
        (p.device, p.nodes) for p in keyed
    ]


@pytest.mark.parametrize("policy", CONNECTED)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(graph=graphs(30), second=graphs(30))
def test_parts_of_one_component_do_not_depend_on_another(policy: str, graph: Graph, second: Graph) -> None:
    shift = len(graph[0])
    both = graph[0] + [[source + shift for source in sources] for sources in second[0]], graph[1] + second[1]
    alone = select_subgraphs(*graph, "ABCD", policy) + [
        Subgraph(part.device, tuple(node + shift for node in part.nodes)) for part in select_subgraphs(*second, "ABCD", policy)
    ]
    assert sorted(select_subgraphs(*both, "ABCD", policy), key=lambda part: part.nodes) == sorted(
        alone, key=lambda part: part.nodes
    )


@pytest.mark.parametrize(("most", "count"), [(8, 100), (12, 30)])
def test_fewest_on_two_devices_equals_the_optimum(most: int, count: int) -> None:
    for predecessors, devices in make_small_graphs(most, count, 2, most):
        assert len(select_subgraphs(predecessors, devices, "AB", "FEWEST")) == count_fewest_runs(predecessors, devices)


@pytest.mark.parametrize("devices", [3, 4])
def test_fewest_on_more_devices_is_near_the_optimum(devices: int) -> None:
    samples = make_small_graphs(devices, 60, devices, 10)
    count = sum(len(select_subgraphs(*graph, "ABCD", "FEWEST")) for graph in samples)
    assert count <= 1.05 * sum(count_fewest_runs(*graph) for graph in samples)


def test_result_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "import random\n"
        "from hetero_hetero.subgraphs import select_subgraphs\n"
        "r = random.Random(3)\n"
        "p = [[r.randrange(i) for _ in range(2)] if i else [] for i in range(300)]\n"
        "d = [r.choice(['CPU', 'GPU', 'NPU']) for _ in p]\n"
        f"for policy in {SOUND}:\n"
        "    print(select_subgraphs(p, d, ['GPU', 'NPU', 'CPU'], policy))\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "77")
    ]
    assert outputs[0].count("[Subgraph") == len(SOUND)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("policy", SOUND)
def test_no_nodes_give_no_subgraphs(policy: str) -> None:
    assert select_subgraphs([], [], ["A"], policy) == []


@pytest.mark.parametrize("policy", SOUND)
def test_nodes_without_edges(policy: str) -> None:
    parts = select_subgraphs([[], [], []], ["B", "A", "B"], ["A", "B"], policy)
    apart = [Subgraph("B", (0,)), Subgraph("A", (1,)), Subgraph("B", (2,))]
    assert parts == (apart if policy in CONNECTED else [Subgraph("A", (1,)), Subgraph("B", (0, 2))])


def test_priority_decides_the_first_device() -> None:
    devices = ["A", "A", "B", "B"]
    assert Subgraph("A", (0, 1)) in select_subgraphs(CROSSING, devices, ["A", "B"])
    assert Subgraph("B", (3, 2)) in select_subgraphs(CROSSING, devices, ["B", "A"])


def test_long_chain_needs_no_recursion() -> None:
    count = 2000
    predecessors = [[node - 1] if node else [] for node in range(count)]
    for policy in POLICIES:
        assert len(select_subgraphs(predecessors, ["AB"[node % 2] for node in range(count)], "AB", policy)) == count
