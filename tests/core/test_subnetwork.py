from __future__ import annotations

import onnx.parser
import pytest

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.network.types import TensorType


def read(text: str) -> Network:
    return read_network(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "com.acme": 1]> {text}'))


def names(part: Network) -> tuple[list[str], list[str], list[str]]:
    return [spec.name for spec in part.inputs], [node.name for node in part.nodes], [spec.name for spec in part.outputs]


DIAMOND = """g (float[2] x, float[N] z) => (y, b) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
    [a] a = Add(x, w) [b] b = Neg(a) [c] c = Mul(a, z) [d] y = Sum(c, b, v)
}"""


def test_part_has_typed_boundaries_and_shares_nodes() -> None:
    network = read(DIAMOND)
    part = cut_subnetwork(network, ["c", "a"], name="part")
    assert names(part) == (["x", "z"], ["a", "c"], ["a", "c"])
    assert part.name == "part"
    assert [spec.type for spec in part.inputs] == [TensorType("float32", (2,)), TensorType("float32", ("N",))]
    assert part.nodes == (network.nodes[0], network.nodes[2])
    assert list(part.initializers) == ["w"]
    assert part.initializers["w"] is network.initializers["w"]
    assert set(part.types) == {"x", "z", "w", "a", "c"}
    assert part.opsets == network.opsets


def test_inputs_of_the_network_precede_values_by_producer() -> None:
    part = cut_subnetwork(
        read("g (float[2] x, float[2] z) => (y) { [a] a = Neg(z) [b] b = Neg(x) [c] y = Sum(b, a, z, x) }"), ["c"]
    )
    assert names(part) == (["x", "z", "a", "b"], ["c"], ["y"])


def test_outputs_stand_in_the_order_of_their_producers() -> None:
    # The network lists y before b, but b is computed first.
    assert names(cut_subnetwork(read(DIAMOND), ["a", "b", "c", "d"])) == (["x", "z"], ["a", "b", "c", "d"], ["b", "y"])


def test_constants_stand_in_the_order_of_the_network() -> None:
    # ONNX Runtime 1.32 fails to load some encoders in float16 whose constants stand in the order of their readers.
    text = "g (float[2] x) => (y) <float[2] w = {1, 2}, float[2] v = {3, 4}> { [a] a = Add(x, v) [b] b = Mul(a, w) [c] y = Neg(b) }"
    part = cut_subnetwork(read(text), ["a", "b"])
    assert list(part.initializers) == ["w", "v"]


def test_set_that_is_not_convex_is_cut_as_it_is() -> None:
    part = cut_subnetwork(read("g (float[2] x) => (y) { [a] a = Neg(x) [b] b = Abs(a) [c] y = Add(a, b) }"), ["a", "c"])
    assert names(part) == (["x", "b"], ["a", "c"], ["a", "y"])


def test_captures_are_inputs_and_constants_of_bodies_come_along() -> None:
    network = read("""g (bool c, float[2] x) => (y) <float[2] w = {1, 2}> {
        [a] a = Neg(x)
        [if] y = If(c) <then_branch = t () => (p) { p = Add(a, w) }, else_branch = e () => (q) { q = Relu(x) }>
    }""")
    part = cut_subnetwork(network, ["if"])
    assert names(part) == (["c", "x", "a"], ["if"], ["y"])
    assert list(part.initializers) == ["w"]
    assert names(cut_subnetwork(network, ["a"])) == (["x"], ["a"], ["a"])


def test_affinity_is_restricted_to_the_part() -> None:
    network = read(DIAMOND).with_affinity({"a": "GPU", "d": "CPU"})
    assert cut_subnetwork(network, ["a", "b"]).affinity == {"a": "GPU"}


def test_input_or_constant_as_output_belongs_to_no_part() -> None:
    network = read("g (float[2] x) => (x, w, y) <float[2] w = {1, 2}> { [a] y = Add(x, w) }")
    assert names(cut_subnetwork(network, ["a"])) == (["x"], ["a"], ["y"])


def test_unknown_node_is_refused_with_the_near_miss() -> None:
    network = read("g (float[2] x) => (y) { [relu_one] y = Relu(x) }")
    with pytest.raises(InvalidNetworkError, match=r"network 'g' has no node 'relu_on', did you mean 'relu_one'\?"):
        cut_subnetwork(network, ["relu_on"])


def test_boundary_of_unknown_type_is_refused_by_name() -> None:
    network = read("""g (float[2] x) => (y) {
        [t] a, b = com.acme.Twist(x) [n] c = Neg(a) [m] y = Add(c, b)
    }""")
    message = (
        r"cannot cut network 'g': the element type of 'a' of node 't' \(com.acme:Twist-1\), 'b' of node 't' "
        r"\(com.acme:Twist-1\) is not known\. A custom operator's infer_types gives it"
    )
    with pytest.raises(InvalidNetworkError, match=message):
        cut_subnetwork(network, ["t"])


def test_boundary_of_unknown_rank_is_cut() -> None:
    network = read("g (float[2] x, int64[N] s) => (y) { [r] a = Reshape(x, s) [n] y = Neg(a) }")
    assert cut_subnetwork(network, ["n"]).inputs[0].type == TensorType("float32")
