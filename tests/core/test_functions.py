"""Model-local functions: inlined with names "call/inner", each node with the opset of its function."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from hetero_core.errors import InvalidNetworkError
from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network
from hetero_core.network.scopes import make_unique
from hetero_core.network.writer import needs_wrappers, network_to_proto


def parse(text: str, *, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "f": 1]> {text}')


def operators(network: Network) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return [(node.name, node.operator, node.inputs, node.outputs) for node in network.nodes]


def test_call_is_inlined_with_names_of_call_and_inner_node() -> None:
    network = read_network(
        parse("""g (float[2] x) => (y) { [call] y = f.twice(x) }
        <domain: "f", opset_import: ["": 21]> twice (a) => (b) { [first] m = Relu(a) b = Neg(m) }""")
    )
    assert operators(network) == [
        ("call/first", "Relu-14", ("x",), ("call/m",)),
        ("call/Neg_1", "Neg-13", ("call/m",), ("y",)),
    ]
    assert [node.original_name for node in network.nodes] == ["first", ""]
    assert [node.origins for node in network.nodes] == [("call/first",), ("call/Neg_1",)]


def test_inlined_node_keeps_the_opset_of_its_function() -> None:
    network = read_network(
        parse("""g (float[2,3,4] x) => (y) { [s] a = Softmax(x) [call] y = f.old(a) }
        <domain: "f", opset_import: ["": 9]> old (a) => (b) { [s] b = Softmax(a) }""")
    )
    assert [(node.name, node.opset, node.since_version) for node in network.nodes] == [("s", 21, 13), ("call/s", 9, 1)]
    assert network.type_of("y") == network.type_of("x")


def test_two_calls_get_values_and_names_of_their_own() -> None:
    network = read_network(
        parse("""g (float[2] x) => (y) { m = f.twice(x) y = f.twice(m) }
        <domain: "f", opset_import: ["": 21]> twice (a) => (b) { m = Relu(a) b = Neg(m) }""")
    )
    assert operators(network) == [
        ("twice_0/Relu_0", "Relu-14", ("x",), ("twice_0/m",)),
        ("twice_0/Neg_1", "Neg-13", ("twice_0/m",), ("m",)),
        ("twice_1/Relu_0", "Relu-14", ("m",), ("twice_1/m",)),
        ("twice_1/Neg_1", "Neg-13", ("twice_1/m",), ("y",)),
    ]


def test_duplicate_name_is_made_unique() -> None:
    network = read_network(
        parse("""g (float[2] x) => (z) { ["call/n"] "call/m" = Abs(x) [call] y = f.twice("call/m") z = Add(y, "call/m") }
        <domain: "f", opset_import: ["": 21]> twice (a) => (b) { [n] m = Relu(a) b = Neg(m) }""")
    )
    assert operators(network)[:3] == [
        ("call/n", "Abs-13", ("x",), ("call/m",)),
        ("call/Relu_0", "Relu-14", ("call/m",), ("call/m_1",)),
        ("call/Neg_1", "Neg-13", ("call/m_1",), ("y",)),
    ]


def test_attributes_come_from_the_call_or_the_default() -> None:
    network = read_network(
        parse("""g (float[2] x) => (z) { [p] y = f.act<alpha = 0.25>(x) [q] z = f.act(y) }
        <domain: "f", opset_import: ["": 21]> act <alpha, beta: float = 0.5> (a) => (b) {
            m = HardSigmoid<alpha: float = @alpha, beta: float = @beta>(a)  b = Neg(m)
        }""")
    )
    assert [dict(node.attributes) for node in network.nodes if node.op_type == "HardSigmoid"] == [
        {"alpha": 0.25, "beta": 0.5},
        {"beta": 0.5},
    ]


def test_constant_that_refers_to_an_attribute_takes_its_value() -> None:
    network = read_network(
        parse("""g (float[2] x) => (y) { [c] y = f.scale<by = 3.0>(x) }
        <domain: "f", opset_import: ["": 21]> scale <by> (a) => (b) { k = Constant<value_float: float = @by>() b = Mul(a, k) }""")
    )
    assert [node.name for node in network.nodes] == ["c/Mul_1"]
    assert network.initializers["c/k"].array.tolist() == 3


def test_nested_calls_are_inlined_with_a_path() -> None:
    network = read_network(
        parse("""g (float[2] x) => (y) { [top] y = f.outer(x) }
        <domain: "f", opset_import: ["": 21, "f": 1]> outer (a) => (b) { [in] m = f.inner(a) b = Neg(m) }
        <domain: "f", opset_import: ["": 13]> inner (a) => (b) { [n] b = Relu(a) }""")
    )
    assert [(node.name, node.opset) for node in network.nodes] == [("top/in/n", 13), ("top/Neg_1", 21)]
    assert network.nodes[0].outputs == ("top/m",)


def test_call_inside_a_body_is_inlined_into_the_body() -> None:
    network = read_network(
        parse("""g (bool c, float[2] x) => (y) {
            y = If(c) <then_branch = t () => (p) { [call] p = f.twice(x) }, else_branch = e () => (q) { q = Neg(x) }>
        }
        <domain: "f", opset_import: ["": 21]> twice (a) => (b) { m = Relu(a) b = Neg(m) }""")
    )
    body = network.nodes[0].bodies["then_branch"]
    assert [node.name for node in body.nodes] == ["call/Relu_0", "call/Neg_1"]
    assert network.nodes[0].captures == ("x",)


def test_body_inside_a_function_captures_by_the_outer_names() -> None:
    network = read_network(
        parse("""g (bool k, float[2] a) => (y) { [call] y = f.choose(k, a) }
        <domain: "f", opset_import: ["": 21]> choose (c, x) => (r) {
            w = Abs(x)
            r = If(c) <then_branch = t () => (a) { a = Relu(w) }, else_branch = e () => (q) { q = Neg(x) }>
        }""")
    )
    node = network.nodes[1]
    assert node.captures == ("call/w", "a")
    # The value "a" of the body must not hide the value "a" of the outer graph.
    assert node.bodies["then_branch"].nodes[0].outputs == ("call/a",)


def test_overload_chooses_the_function() -> None:
    model = parse("""g (float[2] x) => (y) { y = f.pick(x) }
        <domain: "f", opset_import: ["": 21]> pick (a) => (b) { b = Relu(a) }
        <domain: "f", opset_import: ["": 21]> pick (a) => (b) { b = Neg(a) }""")
    model.functions[1].overload = "negative"
    assert [node.op_type for node in read_network(model).nodes] == ["Relu"]
    model.graph.node[0].overload = "negative"
    assert [node.op_type for node in read_network(model).nodes] == ["Neg"]


def test_missing_input_and_unused_output_of_a_call() -> None:
    network = read_network(
        parse("""g (float[2] x) => (y) { [c] y = f.clip(x) }
        <domain: "f", opset_import: ["": 21]> clip (a, low) => (b, extra) { b = Clip(a, low) extra = Neg(b) }""")
    )
    assert operators(network) == [
        ("c/Clip_0", "Clip-13", ("x",), ("y",)),
        ("c/Neg_1", "Neg-13", ("y",), ("c/extra",)),
    ]


def test_function_that_returns_its_input_becomes_a_copy() -> None:
    network = read_network(
        parse("""g (float[2] x) => (y, z) { [c] y, z = f.both(x) }
        <domain: "f", opset_import: ["": 21]> both (a) => (a, b) { b = Neg(a) }""")
    )
    assert sorted(operators(network)) == [
        ("c/Identity_1", "Identity-21", ("x",), ("y",)),
        ("c/Neg_0", "Neg-13", ("x",), ("z",)),
    ]


def test_pin_of_a_call_goes_to_its_nodes_without_a_pin() -> None:
    model = parse("""g (float[2] x) => (y) { [c] y = f.twice(x) }
        <domain: "f", opset_import: ["": 21]> twice (a) => (b) { [p] m = Relu(a) [q] b = Neg(m) }""")
    model.graph.node[0].metadata_props.add(key="hetero.affinity", value="GPU")
    model.functions[0].node[1].metadata_props.add(key="hetero.affinity", value="CPU")
    assert read_network(model).affinity == {"c/p": "GPU", "c/q": "CPU"}


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            """<domain: "f", opset_import: ["": 21, "f": 1]> a (x) => (y) { [n] y = f.b(x) }
            <domain: "f", opset_import: ["": 21, "f": 1]> b (x) => (y) { [m] y = f.a(x) }""",
            r"node 'c/n/m' \(call of 'a'\) is a call of a function by itself: f:a -> f:b -> f:a",
        ),
        (
            """<domain: "f", opset_import: ["": 21]> a () => (y) { y = Constant<value_float = 1.0>() }""",
            r"node 'c' \(call of 'a'\) has 1 inputs; its function 'a' takes 0",
        ),
        (
            """<domain: "f", opset_import: ["": 21]> a (x) => (y) { z = Relu(x) }""",
            "output 'y' is produced by nothing",
        ),
        (
            """<domain: "f", opset_import: ["": 99]> a (x) => (y) { y = Relu(x) }""",
            "function 'a' imports opset 99 of domain 'ai.onnx'; the installed onnx knows it up to",
        ),
    ],
)
def test_function_that_cannot_be_inlined_is_refused(functions: str, message: str) -> None:
    with pytest.raises(InvalidNetworkError, match=message):
        read_network(parse(f"g (float[2] x) => (y) {{ [c] y = f.a(x) }} {functions}"))


def test_unknown_attribute_of_a_function_is_refused() -> None:
    model = parse("""g (float[2] x) => (y) { [c] y = f.a<beta = 1.0>(x) }
        <domain: "f", opset_import: ["": 21]> a <alpha> (x) => (y) { y = Elu<alpha: float = @alpha>(x) }""")
    with pytest.raises(
        InvalidNetworkError, match=r"node 'c' \(call of 'a'\) gives the attributes beta, which the function does not"
    ):
        read_network(model)


MIXED = """g (bool c, float[2,3,4] x) => (y) {
    [call] a = f.old(x)
    [if] y = If(c) <then_branch = t () => (p) { [inner] p = f.old(a) }, else_branch = e () => (q) { q = Relu(x) }>
}
<domain: "f", opset_import: ["": 9]> old (a) => (b) { [s] b = Softmax<axis = 1>(a) }"""


def test_network_of_two_opsets_is_the_same_after_writing() -> None:
    network = read_network(parse(MIXED))
    assert needs_wrappers(network)
    again = read_network(network_to_proto(network))
    assert operators(again) == operators(network)
    assert operators(again)[0][:2] == ("call/s", "Softmax-1")
    body = again.nodes[1].bodies["then_branch"]
    assert [(node.name, node.operator) for node in body.nodes] == [("inner/s", "Softmax-1")]
    assert again.fingerprint == network.fingerprint


def test_network_of_a_single_opset_needs_no_wrappers() -> None:
    network = read_network(
        parse("""g (float[2] x) => (y) { [c] y = f.a(x) }
        <domain: "f", opset_import: ["": 14]> a (x) => (y) { y = Relu(x) }""")
    )
    # Relu is the same operator in opset 14 and in 21.
    assert network.nodes[0].opset == 14
    assert not needs_wrappers(network)
    assert not network_to_proto(network).functions


class CountingSet(set[str]):
    """A set that counts its membership tests."""

    questions = 0

    def __contains__(self, name: object) -> bool:
        self.questions += 1
        return super().__contains__(name)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 10_000])
def test_first_free_number_is_found_with_few_lookups(count: int) -> None:
    used_names = CountingSet({"w", *(f"w_{number}" for number in range(1, count))})
    assert make_unique("w", used_names) == f"w_{count}"
    assert used_names.questions < 40
