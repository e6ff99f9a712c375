from __future__ import annotations

import random

import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Node
from hetero_core.network.reader import read_network
from hetero_core.network.topology import find_free_values, predecessors_of_nodes, sort_topologically


def node(name: str, inputs: str, outputs: str, *, captures: str = "") -> Node:
    return Node(name, "Op", tuple(inputs.split()), tuple(outputs.split()), captures=tuple(captures.split()))


def test_predecessors_are_distinct_and_ascending() -> None:
    network = read_network(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]> g (bool c, float[2] x) => (y) {
            b = Relu(x)
            a = Neg(x)
            y = If(c) <then_branch = t () => (p) { p = Add(a, b) }, else_branch = e () => (q) { q = Add(a, a) }>
        }""")
    )
    assert predecessors_of_nodes(network) == [(), (), (0, 1)]


def test_sorted_nodes_come_back_as_they_were() -> None:
    nodes = [node("a", "", "p"), node("b", "", "q"), node("c", "q p", "r")]
    assert list(sort_topologically(nodes)) == nodes


def test_sort_puts_the_earliest_free_node_next() -> None:
    nodes = [node("z", "p", "q"), node("y", "", "p"), node("x", "", "o"), node("w", "", "n", captures="q")]
    assert [each.name for each in sort_topologically(nodes)] == ["y", "z", "x", "w"]


def test_cycle_through_a_capture_is_named() -> None:
    nodes = [node("free", "", "o"), node("a", "q", "p"), node("b", "", "q", captures="p"), node("after", "q", "r")]
    with pytest.raises(
        InvalidNetworkError, match=r"the graph is cyclic: 'b' \(Op-1\) -> 'a' \(Op-1\) -> 'b' \(Op-1\)|'a' .* 'b' .* 'a'"
    ):
        sort_topologically(nodes)


@given(st.integers(0, 2**32))
def test_sort_of_a_shuffled_graph_puts_producers_first(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randrange(1, 12)
    nodes = [
        node(f"n{index}", " ".join(f"v{source}" for source in range(index) if draw.random() < 0.3), f"v{index}")
        for index in range(count)
    ]
    draw.shuffle(nodes)
    place = {each.name: index for index, each in enumerate(sort_topologically(nodes))}
    assert len(place) == count
    assert all(place[f"n{value[1:]}"] < place[each.name] for each in nodes for value in each.inputs)


def test_free_values_of_a_body_are_its_undefined_reads() -> None:
    network = read_network(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]> g (bool c, float[2] x, float[2] z) => (y) {
            y = If(c) <
              then_branch = t () => (p) <float[2] k = {1, 2}> { m = Add(x, k) p = Mul(m, z) },
              else_branch = e () => (q) { q = Relu(z) }>
        }""")
    )
    bodies = network.nodes[0].bodies
    assert find_free_values(bodies["then_branch"]) == ("x", "z")
    assert find_free_values(bodies["else_branch"]) == ("z",)
