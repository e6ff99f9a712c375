"""LARGEST_FIRST: small parts follow the procedure to the letter, larger ones equal a direct definition without rollbacks."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from hetero_hetero.conflicts import explain_within
from hetero_hetero.digraph import build_digraph, sort_topologically
from hetero_hetero.largest_first import LITERAL_UP_TO, select_without_rollback
from hetero_hetero.subgraphs import Subgraph, order_parts, select_subgraphs
from hetero_hetero.trace import trace_selection

Graph = tuple[list[list[int]], list[str]]


def make_graph(shape: random.Random, count: int, devices: int, density: float, reach: int) -> Graph:
    """A graph of `density` edges per node, some of them twice, over at most `reach` places, numbered at random."""
    number = list(range(count))
    shape.shuffle(number)
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for _ in range(int(density * count)):
        source = shape.randrange(count)
        target = min(count - 1, source + shape.randint(1, reach))
        if source < target:
            predecessors[number[target]] += [number[source]] * shape.choice([1, 1, 2])
    share = shape.choice([0.1, 0.3, 0.6, 1.0])
    return predecessors, ["A" if shape.random() > share else shape.choice("ABCD"[:devices]) for _ in range(count)]


def make_small_graphs(seed: int, count: int, devices: int, most: int) -> list[Graph]:
    shape = random.Random(seed)
    return [
        make_graph(shape, shape.randint(4, most), devices, shape.choice([0.7, 1.2, 2]), shape.choice([3, 6, 12]))
        for _ in range(count)
    ]


def make_fed_graph(shape: random.Random, count: int, devices: int) -> Graph:
    """A graph whose nodes are fed by one to three of all earlier ones."""
    predecessors = [[shape.randrange(node) for _ in range(shape.randint(1, 3))] if node else [] for node in range(count)]
    return predecessors, ["A" if shape.random() > 0.3 else shape.choice("ABCD"[:devices]) for _ in range(count)]


def make_layers(shape: random.Random, count: int, devices: int, width: int) -> Graph:
    """A graph of layers whose nodes are fed by two of the five layers before."""
    predecessors = [
        [max(0, node // width - shape.randint(1, 5)) * width + shape.randrange(width) for _ in range(2)] if node >= width else []
        for node in range(count)
    ]
    return predecessors, [shape.choice("ABCD"[:devices]) for _ in range(count)]


def list_edges(predecessors: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return [(source, target) for target, sources in enumerate(predecessors) for source in sources]


def select_at_once(predecessors: Sequence[Sequence[int]], devices: Sequence[str]) -> list[Subgraph]:
    """What LARGEST_FIRST gives for larger parts of a graph, here for any."""
    graph = build_digraph(predecessors, devices, "ABCD")
    parts = [sorted(part) for part in select_without_rollback(graph, [range(len(graph))])]
    return [
        Subgraph(devices[graph.index_of_position[parts[i][0]]], tuple(graph.index_of_position[position] for position in parts[i]))
        for i in order_parts(graph, parts)
    ]


def select_by_definition(predecessors: Sequence[Sequence[int]], devices: Sequence[str]) -> set[frozenset[int]]:
    """Selection without rollbacks, written down directly: every root anew in every round, every test by walking the contracted graph."""
    order = sort_topologically(dict(enumerate(predecessors)))
    place = {node: position for position, node in enumerate(order)}
    unit = {node: frozenset([node]) for node in order}
    for device in sorted(set(devices)):
        free = [node for node in order if devices[node] == device]
        while free:
            behind = {node: walk_outside(predecessors, unit, free, node) for node in free}
            candidates: list[list[int]] = []
            for root in free:
                if not any(root in candidate for candidate in candidates):
                    candidates.append(grow_by_definition(predecessors, place, behind, root))
            largest: list[int] = max(candidates, key=len)
            taken = frozenset(largest)
            unit |= dict.fromkeys(taken, taken)
            free = [node for node in free if node not in taken]
    return set(unit.values())


def walk_outside(
    predecessors: Sequence[Sequence[int]], unit: Mapping[int, frozenset[int]], free: Sequence[int], start: int
) -> set[int]:
    """The nodes that a path from `start` leads to after a node that is not free."""
    edges = list_edges(predecessors)
    states, reached = [(start, False)], {(start, False)}
    for node, is_outside in states:
        for target in [t for s, t in edges if s in unit[node] and t not in unit[node]]:
            state = (min(unit[target]), is_outside or target not in free)
            if state not in reached:
                reached.add(state)
                states.append(state)
    return {node for node, is_outside in reached if is_outside}


def grow_by_definition(
    predecessors: Sequence[Sequence[int]], place: Mapping[int, int], behind: Mapping[int, set[int]], root: int
) -> list[int]:
    edges = list_edges(predecessors)
    members, rejected = [root], set[int]()
    while True:
        adjacent = [
            node
            for member in reversed(members)
            for ends in ({t for s, t in edges if s == member}, {s for s, t in edges if t == member})
            for node in sorted(ends, key=place.__getitem__)
            if node in behind and node not in members and node not in rejected
        ]
        if not adjacent:
            return members
        node = adjacent[0]
        if any(node in behind[member] or member in behind[node] for member in members):
            rejected.add(node)
        else:
            members.append(node)


def select_by_hand(predecessors: Sequence[Sequence[int]], device_of_node: Sequence[str]) -> set[frozenset[int]]:
    """The procedure of the design document in sets: grow from every root, roll back on conflict, take the largest, contract it."""
    place = {node: number for number, node in enumerate(sort_topologically(dict(enumerate(predecessors))))}
    edges = {(place[source], place[target]) for source, target in list_edges(predecessors)}
    units = {place[node]: frozenset({node}) for node in range(len(predecessors))}
    taken: set[frozenset[int]] = set()
    for device in "ABCD":
        free = sorted(place[node] for node, name in enumerate(device_of_node) if name == device)
        while free:
            candidates: list[list[int]] = []
            while roots := [node for node in free if not any(node in candidate for candidate in candidates)]:
                candidates.append(grow_by_hand(edges, free, roots[0]))
            largest = max(candidates, key=len)
            free = [node for node in free if node not in largest]
            first = min(largest)
            units[first] = frozenset().union(*(units.pop(node) for node in sorted(largest)))
            taken.add(units[first])
            edges = {tuple(first if node in largest else node for node in edge) for edge in edges}  # type: ignore[misc]  # pairs
            edges = {(source, target) for source, target in edges if source != target}
    return taken


def grow_by_hand(edges: set[tuple[int, int]], free: Sequence[int], root: int) -> list[int]:
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
        while walk(edges, members) & walk({(b, a) for a, b in edges}, members) & rejected:
            rejected.add(members.pop())


def walk(edges: set[tuple[int, int]], starts: Sequence[int]) -> set[int]:
    """All nodes behind these."""
    reached: set[int] = set()
    border = set(starts)
    while border:
        border = {target for source, target in edges if source in border} - reached
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


@pytest.mark.parametrize("family", FAMILIES)
def test_small_parts_equal_the_literal_procedure(family: str) -> None:
    shape = random.Random(family)
    for _ in range(80):
        graph = FAMILIES[family](shape, shape.randint(1, LITERAL_UP_TO), shape.randint(1, 4))
        assert tuple(select_subgraphs(*graph, "ABCD")) == trace_selection(*graph, "ABCD").subgraphs


@pytest.mark.parametrize("family", FAMILIES)
def test_traced_procedure_equals_the_one_by_hand(family: str) -> None:
    shape = random.Random(f"{family} by hand")
    for _ in range(30):
        graph = FAMILIES[family](shape, shape.randint(1, 24), shape.randint(1, 4))
        assert {frozenset(part.nodes) for part in trace_selection(*graph, "ABCD").subgraphs} == select_by_hand(*graph)


def test_small_and_large_parts_are_each_selected_by_their_own_rule() -> None:
    shape = random.Random(2)
    small, large = make_fed_graph(shape, LITERAL_UP_TO, 3), make_fed_graph(shape, LITERAL_UP_TO + 1, 3)
    both = small[0] + [[source + LITERAL_UP_TO for source in sources] for sources in large[0]], small[1] + large[1]
    literal = {part.nodes for part in trace_selection(*small, "ABCD").subgraphs}
    direct = {tuple(node + LITERAL_UP_TO for node in part.nodes) for part in select_at_once(*large)}
    assert literal != {part.nodes for part in select_at_once(*small)}
    assert direct != {tuple(node + LITERAL_UP_TO for node in part.nodes) for part in trace_selection(*large, "ABCD").subgraphs}
    assert {part.nodes for part in select_subgraphs(*both, "ABCD")} == literal | direct


def test_selection_without_rollback_equals_its_definition() -> None:
    for devices in (2, 3, 4):
        for predecessors, device_of_node in make_small_graphs(40 + devices, 120, devices, 16):
            parts = select_at_once(predecessors, device_of_node)
            assert {frozenset(part.nodes) for part in parts} == select_by_definition(predecessors, device_of_node)


def test_selection_without_rollback_stays_close_to_the_literal_procedure() -> None:
    same = parts = literal_parts = 0
    samples = [graph for devices in (2, 3, 4) for graph in make_small_graphs(devices, 300, devices, 20)]
    for predecessors, devices in samples:
        selected = select_at_once(predecessors, devices)
        literal = trace_selection(predecessors, devices, "ABCD").subgraphs
        same += tuple(selected) == literal
        parts += len(selected)
        literal_parts += len(literal)
    assert same >= 0.97 * len(samples)
    assert parts <= 1.002 * literal_parts


def test_selection_without_rollback_is_maximal_against_what_was_left() -> None:
    # Nodes of one device next to each other in two subgraphs are always kept apart by a path.
    for predecessors, devices in make_small_graphs(11, 100, 3, 20):
        parts = select_at_once(predecessors, devices)
        home = {node: number for number, part in enumerate(parts) for node in part.nodes}
        touching = {
            frozenset((home[a], home[b])) for a, b in list_edges(predecessors) if home[a] != home[b] and devices[a] == devices[b]
        }
        splits, _ = explain_within(predecessors, parts, steps=10**9)
        explained = {frozenset((home[split.node], home[split.subgraph.nodes[0]])) for split in splits}
        assert touching == explained


@pytest.mark.parametrize("was_enabled", [True, False])
def test_selection_leaves_cycle_collection_as_it_was(was_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        select_subgraphs([[], [0]], "AA", "A")
        with pytest.raises(ValueError, match="form a cycle"):
            select_subgraphs([[1], [0]], "AA", "A")
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if before else gc.disable)()
