from __future__ import annotations

from dataclasses import replace

import onnx
import onnx.parser
import pytest

from hetero_core.errors import ExtensionError, NetworkDeclarationWarning
from hetero_core.network.graph import Network, Node
from hetero_core.network.hints import without_hints
from hetero_core.network.inference import CustomTypes, infer_types
from hetero_core.network.reader import read_network
from hetero_core.network.types import SequenceType, TensorType, ValueSpec, ValueType


def read(text: str, *, opset: int = 21, custom: CustomTypes | None = None) -> Network:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.acme": 1, "f": 1]> {text}')
    return read_network(model, infer_custom_types=custom)


def f32(*shape: int | str | None) -> TensorType:
    return TensorType("float32", shape)


def test_all_values_get_a_type() -> None:
    network = read(
        "g (float[N,4] x) => (y) <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { a = MatMul(x, w) s = Shape(a) y = Relu(a) }"
    )
    assert network.types == {
        "x": f32("N", 4),
        "w": f32(4, 2),
        "a": f32("N", 2),
        "s": TensorType("int64", (2,)),
        "y": f32("N", 2),
    }
    assert network.outputs == (ValueSpec("y", f32("N", 2)),)


def test_shapes_are_computed_through_shape_arithmetic() -> None:
    network = read("""g (float[2,3,4] x) => (y) <int64[1] k = {-1}, int64 zero = {0}, int64[1] axes = {0}> {
        s = Shape(x) d = Gather(s, zero) u = Unsqueeze(d, axes) t = Concat<axis = 0>(u, k) y = Reshape(x, t)
    }""")
    assert network.type_of("y") == f32(2, 12)


def test_large_constant_gives_its_type_without_being_read() -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (y) { y = Add(x, w) }')
    model.graph.initializer.add(name="w", data_type=1, dims=[1000], raw_data=bytes(4000))
    network = read_network(model)
    assert network.type_of("y") == f32(1000)
    assert network.initializers["w"]._array is None


def test_sizes_that_onnx_makes_up_are_unknown() -> None:
    assert read("g (float[4] x) => (y) { y = NonZero(x) }").type_of("y") == TensorType("int64", (1, None))


def test_declared_type_is_stated_and_nothing_follows_from_it() -> None:
    network = read("g (float[4] x, int64[N] s) => (y) <float[2,2] a> { a = Reshape(x, s) y = Relu(a) }")
    assert network.type_of("a") == f32(2, 2)
    assert network.type_of("y") == without_hints(network).type_of("a") == TensorType("float32")


def test_declared_names_of_sizes_join_inferred_sizes() -> None:
    network = read("g (float[N,3] x) => (float[batch,3] y) { y = Relu(x) }")
    assert network.outputs[0].type == f32("batch", 3)


def test_values_of_bodies_get_types() -> None:
    network = read("""g (int64 n, bool c, float[2] x) => (y, ys) {
        y, ys = Loop(n, c, x) <body = b (i, k, s) => (k2, s2, out) { k2 = Identity(k) s2 = Add(s, x) out = Neg(x) }>
    }""")
    body = network.nodes[0].bodies["body"]
    assert body.type_of("out") == f32(2)
    assert [spec.dtype for spec in body.inputs] == ["int64", "bool", "float32"]
    assert network.type_of("ys") == f32(None, 2)


def test_sequences_are_typed() -> None:
    network = read("g (float[2] x) => (y) { s = SequenceConstruct(x, x) y = SequenceInsert(s, x) }")
    assert network.type_of("y") == SequenceType(f32(2))


def test_list_that_a_body_maps_has_the_element_type_of_the_body() -> None:
    network = read("""g (float[2] x) => (y) {
        s = SequenceConstruct(x, x)
        y = SequenceMap (s) <body = b (float[] e) => (int64[] r) { r = Cast<to = 7>(e) }>
    }""")
    assert network.type_of("y") == SequenceType(TensorType("int64", (2,)))


def test_node_of_another_opset_is_inferred_by_its_own() -> None:
    # Squeeze-1 takes its axes as an attribute, Squeeze-13 as an input.
    network = read("""g (float[1,2,1] x) => (y) { [c] a = f.old(x) y = Relu(a) }
        <domain: "f", opset_import: ["": 9]> old (a) => (b) { m = Squeeze<axes = [0]>(a) b = Neg(m) }""")
    assert network.type_of("c/m") == f32(2, 1)
    assert network.type_of("y") == f32(2, 1)


def test_body_of_a_node_of_another_opset_is_typed() -> None:
    # The function uses If-1 of opset 9 in a model of opset 21.
    network = read("""g (bool c, float[1,2] x) => (y) { [call] y = f.old(c, x) }
        <domain: "f", opset_import: ["": 9]> old (c, a) => (b) {
            b = If(c) <then_branch = t () => (p) { m = Squeeze<axes = [0]>(a) p = Neg(m) },
                       else_branch = e () => (q) { q = Squeeze(a) }>
        }""")
    body = network.nodes[0].bodies["then_branch"]
    assert body.type_of("call/m") == f32(2)
    assert network.type_of("y") == TensorType("float32", (2,))


def test_constants_reach_a_node_of_another_opset() -> None:
    network = read("""g (float[4] x) => (y) { [c] y = f.old(x) }
        <domain: "f", opset_import: ["": 9]> old (a) => (b) { k = Constant<value = int64[2] {2, 2}>() b = Reshape(a, k) }""")
    assert network.type_of("y") == f32(2, 2)


def double_last(node: Node, inputs: tuple[ValueType | None, ...]) -> list[ValueType] | None:
    [input_type] = inputs
    if not isinstance(input_type, TensorType) or input_type.shape is None or not isinstance(input_type.shape[-1], int):
        return None
    return [TensorType(input_type.dtype, (*input_type.shape[:-1], 2 * input_type.shape[-1]))]


def test_custom_operator_is_typed_by_its_author() -> None:
    network = read(
        """g (float[2,3] x) => (y) {
            a = Relu(x) b = com.acme.Twist(a) c = Neg(b) d = com.acme.Twist(c) e = Transpose(d) y = Exp(e)
        }""",
        custom=double_last,
    )
    assert network.type_of("b") == f32(2, 6)
    assert network.outputs[0].type == f32(12, 2)


def test_custom_operator_in_a_body_is_typed() -> None:
    network = read(
        """g (bool c, float[2] x) => (y) {
            y = If(c) <then_branch = t () => (p) { m = com.acme.Twist(x) p = Neg(m) },
                       else_branch = e () => (q) { q = com.acme.Twist(x) }>
        }""",
        custom=double_last,
    )
    assert network.nodes[0].bodies["then_branch"].type_of("p") == f32(4)
    assert network.type_of("y") == f32(4)


def test_long_chain_of_custom_and_standard_nodes_is_typed() -> None:
    steps = " ".join(f"a{i} = com.acme.Twist(b{i}) b{i + 1} = Relu(a{i})" for i in range(40))
    network = read(
        f"g (float[2] x) => (y) {{ b0 = Relu(x) {steps} y = Neg(b40) }}",
        custom=lambda node, types: None if None in types else [types[0]],  # type: ignore[list-item]  # None was excluded
    )
    assert network.outputs[0].type == f32(2)


def test_custom_operator_without_author_stays_unknown() -> None:
    network = read("g (float[2] x) => (y) { a = com.acme.Twist(x) y = Relu(a) }")
    assert network.type_of("a") is None
    assert network.outputs[0].type == TensorType(None)


def test_author_who_returns_too_many_types_is_blamed() -> None:
    message = r"infer_types of the operator of node 't' \(com.acme:Twist-1\) gave 2 types; the node has 1 outputs"
    with pytest.raises(ExtensionError, match=message):
        read("g (float[2] x) => (y) { [t] y = com.acme.Twist(x) }", custom=lambda node, types: [f32(2), f32(2)])


def test_author_who_contradicts_the_declaration_is_believed() -> None:
    message = r"value 'y' of 'g' is declared as float32\[3\], but node 't' \(com.acme:Twist-1\) gives float32\[4\]"
    with pytest.warns(NetworkDeclarationWarning, match=message):
        network = read("g (float[2] x) => (float[3] y) { [t] y = com.acme.Twist(x) }", custom=double_last)
    assert network.outputs[0].type == f32(4)


def test_types_of_added_nodes_are_inferred_and_nodes_are_kept() -> None:
    network = read("g (float[2,3] x) => (y) { [a] y = Relu(x) }")
    added = Node("t", "Transpose", ("y",), ("z",), opset=21, since_version=21)
    longer = replace(network, nodes=(*network.nodes, added), outputs=(ValueSpec("z", TensorType(None)),))
    completed = infer_types(longer)
    assert completed.outputs[0].type == f32(3, 2)
    assert completed.nodes == longer.nodes


def test_inference_of_a_complete_network_changes_nothing() -> None:
    network = read("g (float[2,3] x) => (y) { a = Relu(x) y = Transpose(a) }")
    assert infer_types(network) is network


@pytest.mark.parametrize("opset", [7, 10, 11, 16])
def test_if_has_the_sizes_that_both_branches_have(opset: int) -> None:
    network = read(
        "g (bool c, float[3,4] x) => (y) { y = If (c) <then_branch = t () => (p) { p = Relu (x) }, "
        "else_branch = e () => (q) { r = Concat <axis = 0> (x, x) q = Abs (r) }> }",
        opset=opset,
    )
    assert network.outputs[0].type == f32(None, 4)


@pytest.mark.parametrize("opset", [7, 11])
def test_if_has_no_rank_if_its_branches_have_different_ranks(opset: int) -> None:
    network = read(
        "g (bool c, float[n,4] x) => (y) { y = If (c) <then_branch = t () => (p) { p = Relu (x) }, "
        "else_branch = e () => (s) { q = Flatten <axis = 0> (x) s = Squeeze <axes = [0]> (q) }> }",
        opset=opset,
    )
    assert network.outputs[0].type == TensorType("float32")


def test_sequence_of_an_if_has_the_sizes_of_its_elements() -> None:
    network = read("""g (bool c, float[5] a, float[5] b) => (y) {
        y = If (c) <then_branch = t () => (seq(float[5]) u) { u = SequenceConstruct(a) },
                    else_branch = e () => (seq(float[5]) v) { v = SequenceConstruct(b, a) }>
    }""")
    assert network.type_of("y") == SequenceType(f32(5))


def test_values_of_nested_branches_get_types() -> None:
    network = read("""g (bool c, float[N,3] x) => (y) {
        y = If (c) <
            then_branch = t () => (float[N,3] u) {
                u = If (c) <then_branch = tt () => (float[N,3] v) { p = Neg(x) v = Relu(p) },
                            else_branch = te () => (float[N,3] w) { w = Abs(x) }>
            },
            else_branch = e () => (float[N,3] z) { z = Exp(x) }
        >
    }""")
    inner = network.nodes[0].bodies["then_branch"].nodes[0].bodies["then_branch"]
    assert network.type_of("y") == f32("N", 3)
    assert inner.type_of("p") == f32("N", 3)


def test_models_of_onnx_ml_have_the_sizes_of_their_rules() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>
        g (int64[N,4] x) => (y) { y = ai.onnx.ml.Normalizer<norm = "L2">(x) }""")
    assert read_network(model).type_of("y") == f32("N", 4)


@pytest.mark.parametrize(("attribute", "bins"), [("", 9), ("<onesided = 1>", 9), ("<onesided = 0>", 16)])
def test_stft_has_half_of_its_bins_unless_it_says_otherwise(attribute: str, bins: int) -> None:
    network = read(
        "g (float[1,64,1] x) => (y) <int64 step = {8}, int64 length = {16}> " + f"{{ y = STFT {attribute} (x, step, , length) }}"
    )
    assert network.types["y"] == f32(1, 7, bins, 2)


def test_scores_of_projected_attention_are_as_long_as_past_and_keys() -> None:
    network = read(
        """g (float[B,L,32] q, float[B,S,16] k, float[B,S,12] v, float[B,2,P,8] pk, float[B,2,P,6] pv) => (y, ok, ov, scores) {
        y, ok, ov, scores = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, , pk, pv)
    }""",
        opset=23,
    )
    assert [spec.type for spec in network.outputs] == [
        f32("B", "L", 24),
        f32("B", 2, None, 8),
        f32("B", 2, None, 6),
        f32("B", 4, "L", None),
    ]
