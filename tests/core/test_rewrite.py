"""Rewriting functions of passes: fusion, replacement and removal of nodes; every node keeps its origins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hetero_core import Core, HeteroError, Network, Node
from hetero_core.contract import DeviceName
from hetero_core.devices.query import query_by_transform
from hetero_core.errors import InvalidNetworkError
from hetero_core.transforms.copies import eliminate_copies
from hetero_core.transforms.rewrite import Replacement, fuse_pairs, replace_nodes


def fuse_same(first: Node, second: Node) -> Node | None:
    if first.op_type != second.op_type:
        return None
    return Node(f"{first.name}+{second.name}", first.op_type, first.inputs, second.outputs, opset=17, since_version=14)


def origins(network: Network) -> list[tuple[str, ...]]:
    return [node.origins for node in network.nodes]


def test_fusion_repeats_along_a_chain_and_joins_origins(read: Callable[..., Network]) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) c = Relu(b) y = Abs(c) }")
    fused = fuse_pairs(network, fuse_same)
    assert origins(fused) == [("Relu_0", "Relu_1", "Relu_2"), ("Abs_3",)]
    assert fused.nodes[0].inputs == ("x",)
    assert fused.nodes[0].outputs == ("c",)
    assert len(network.nodes) == 4


def test_fusion_spares_values_with_other_readers_and_outputs(read: Callable[..., Network]) -> None:
    shared = read("g (float[2] x) => (float[2] y, float[2] z) { a = Relu(x) y = Relu(a) z = Abs(a) }")
    visible = read("g (float[2] x) => (float[2] a, float[2] y) { a = Relu(x) y = Relu(a) }")
    twice = read("g (float[2] x) => (float[2] y) { a = Add(x, x) y = Add(a, a) }")
    assert fuse_pairs(shared, fuse_same) is shared
    assert fuse_pairs(visible, fuse_same) is visible
    assert len(fuse_pairs(twice, fuse_same).nodes) == 1  # a single reader, although it reads `a` twice


def test_replacement_gets_the_origins_of_the_replaced_node(read: Callable[..., Network]) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Abs(x) y = Sub(x, a) }")

    def find(node: Node) -> Replacement | None:
        if node.op_type != "Sub":
            return None
        negated = Node("n", "Neg", (node.inputs[1],), ("n",), opset=17, since_version=13)
        return Replacement((negated, Node("s", "Add", (node.inputs[0], "n"), node.outputs, opset=17, since_version=14)))

    replaced = replace_nodes(network, find)
    assert [node.op_type for node in replaced.nodes] == ["Abs", "Neg", "Add"]
    assert origins(replaced) == [("Abs_0",), ("Sub_1",), ("Sub_1",)]
    assert replace_nodes(network, lambda node: None) is network


def test_copies_vanish_but_for_outputs_and_captures(read: Callable[..., Network]) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) c = Relu(b) y = Identity(c) }")
    remaining = eliminate_copies(network)
    assert [(node.op_type, node.inputs) for node in remaining.nodes] == [("Relu", ("x",)), ("Identity", ("c",))]
    captured = read(
        """g (bool c, float[2] x) => (float[2] y) { a = Identity(x)
           y = If<then_branch = t () => (float[2] p) { p = Relu(a) }, else_branch = e () => (float[2] q) { q = Neg(x) }>(c) }"""
    )
    assert eliminate_copies(captured) is captured


def test_query_answers_in_original_names(read: Callable[..., Network]) -> None:
    """A node is refused if any of its replacements is refused; a removed node is supported."""
    network = read("g (float[2] x) => (float[2] y) { i = Identity(x) a = Relu(i) b = Relu(a) c = Abs(b) y = Sub(x, c) }")

    def transform(network: Network) -> Network:
        split = replace_nodes(
            network,
            lambda node: (
                Replacement(
                    (
                        Node("neg", "Neg", (node.inputs[1],), ("neg",), opset=17, since_version=13),
                        Node("add", "Add", (node.inputs[0], "neg"), node.outputs, opset=17, since_version=14),
                    )
                )
                if node.op_type == "Sub"
                else None
            ),
        )
        return fuse_pairs(eliminate_copies(split), fuse_same)

    result = query_by_transform(
        DeviceName("X", "1"), network, transform, lambda node, _: f"no {node.op_type}" if node.op_type in ("Relu", "Add") else None
    )
    assert dict(result.supported) == {"Identity_0": "X.1", "Abs_3": "X.1"}
    assert result.refused["Sub_4"].startswith("no Add")
    assert result.refused["Relu_1"] == result.refused["Relu_2"] == "no Relu (it becomes part of 'Relu_1+Relu_2' (Relu-14))"


@pytest.mark.parametrize("body", ["a = Identity()", "a = Identity(x, x)", "a = Identity(, x)"])
def test_identity_with_a_wrong_number_of_inputs_is_refused(read: Callable[..., Network], body: str) -> None:
    with pytest.raises(InvalidNetworkError, match="Identity_0"):
        read(f"g (float[2] x) => (float[2] y) {{ {body} y = Abs(a) }}")


def test_identity_with_an_unknown_attribute_is_not_eliminated(read: Callable[..., Network], core: Core) -> None:
    network = read("g (float[2] x) => (float[2] y) { a = Identity <more = 1>(x) y = Abs(a) }")
    assert eliminate_copies(network) is network
    with pytest.raises(HeteroError):
        core.load_network(network, "CPU")
