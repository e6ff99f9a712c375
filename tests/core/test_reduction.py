"""A reduced network still fails, is minimal, and needs few evaluations."""

from __future__ import annotations

import random

import pytest

from hetero_core import Core, Network
from hetero_core.debugging.reduction import reduce_network


def make_chain(core: Core, count: int) -> Network:
    import onnx.parser

    body = " ".join(f"[n{index}] v{index + 1} = Relu(v{index})" for index in range(count))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2] v0) => (float[2] v{count}) {{ {body} }}'
    return core.read_network(onnx.parser.parse_model(text))


@pytest.mark.parametrize("seed", range(20))
def test_any_set_of_nodes_that_must_be_together_is_found(seed: int) -> None:
    draw = random.Random(seed)
    with Core() as core:
        network = make_chain(core, 60)
        culprits = {f"n{index}" for index in draw.sample(range(60), draw.randint(1, 4))}
        reduced = reduce_network(network, lambda part: culprits <= {node.name for node in part.nodes})
    assert {node.name for node in reduced.nodes} == culprits


def test_one_bad_node_among_thousand_takes_few_questions() -> None:
    asked = 0

    def fails(part: Network) -> bool:
        nonlocal asked
        asked += 1
        return "n637" in part.index_of_node

    with Core() as core:
        reduced = reduce_network(make_chain(core, 1000), fails)
    assert [node.name for node in reduced.nodes] == ["n637"]
    assert asked < 30


def test_network_that_does_not_fail_is_an_error() -> None:
    with Core() as core, pytest.raises(ValueError, match="network 'g' does not fail"):
        reduce_network(make_chain(core, 3), lambda part: False)


FORK = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y, float[2] z)
{ [first] a = Relu(x) [second] b = Neg(a) [side] c = Exp(b) [third] d = Abs(b) [last] y = Sqrt(d) [end] z = Floor(c) }"""


def test_failure_hidden_by_an_extra_output_is_reduced_without_it() -> None:
    """The failure of a planner: `second` and `third` are in the same part, and `b` between them is no output of the part."""
    import onnx.parser

    def fails(part: Network) -> bool:
        return {"second", "third"} <= part.index_of_node.keys() and "b" not in part.names_of_outputs

    with Core() as core:
        reduced = reduce_network(core.read_network(onnx.parser.parse_model(FORK)), fails)
    assert [node.name for node in reduced.nodes] == ["second", "third"]
    assert [spec.name for spec in reduced.outputs] == ["d"]
