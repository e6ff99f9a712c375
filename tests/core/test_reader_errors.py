"""Refusals of the reader: each message names the object, the wrong value and the remedy."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from hetero_core.errors import InvalidNetworkError, NetworkNotFoundError, NetworkReadError
from hetero_core.network.reader import read_network

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
RELU = "g (float[2] x) => (float[2] y) { [n] y = Relu(x) }"


def parse(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + body)


def test_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(NetworkNotFoundError, match=r"cannot read network from '.*absent.onnx': there is no such file"):
        read_network(tmp_path / "absent.onnx")


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NetworkReadError, match=r"it is a folder\. Give the path of the .onnx file in it"):
        read_network(tmp_path)


def test_object_of_another_type_is_refused() -> None:
    with pytest.raises(NetworkReadError, match=r"from an object of type int; expected a path, bytes or an onnx\.ModelProto"):
        read_network(3)  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot read network from 0 bytes: it is empty"),
        (b"this is a text, not a model", "27 bytes: it is no ONNX model, or damaged or cut short"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer, not the model. Run 'git lfs pull'"),
        (b"\x08\x0a", "it is no ONNX model, it has no graph and no opset_import"),
        (b"\x12\x00", "it is no ONNX model, it has no ir_version and no graph and no opset_import"),
    ],
)
def test_bytes_that_are_no_model_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(NetworkReadError, match=message):
        read_network(content)


def test_old_ir_version_is_refused() -> None:
    model = parse(RELU)
    model.ir_version = 2
    with pytest.raises(NetworkReadError, match="its IR version is 2; expected 3 or more"):
        read_network(model)


@pytest.mark.parametrize("version", [0, -1])
def test_opset_below_one_is_refused(version: int) -> None:
    model = parse(RELU)
    model.opset_import[0].version = version
    with pytest.raises(
        InvalidNetworkError, match=f"the model imports opset {version} of domain 'ai.onnx'; expected a version of 1"
    ):
        read_network(model)


@pytest.mark.parametrize(("domain", "shown"), [("", "ai.onnx"), ("ai.onnx.ml", "ai.onnx.ml")])
def test_opset_newer_than_onnx_knows_is_refused(domain: str, shown: str) -> None:
    model = parse(RELU)
    model.opset_import.add(domain="ai.onnx.ml", version=1)
    next(entry for entry in model.opset_import if entry.domain == domain).version = 999
    with pytest.raises(
        InvalidNetworkError, match=rf"opset 999 of domain '{shown}'; the installed onnx knows it up to \d+\. Upgrade"
    ):
        read_network(model)


def test_two_opsets_of_one_domain_are_refused() -> None:
    model = parse(RELU)
    model.opset_import.add(domain="ai.onnx", version=13)
    with pytest.raises(InvalidNetworkError, match=r"the model imports opset 13 of domain 'ai\.onnx' and opset 21 of the same"):
        read_network(model)


def test_domain_without_opset_is_refused() -> None:
    message = r"node 'Twist_0' \(Twist\) is of domain 'com.acme', of which no opset is imported; imported are ai.onnx"
    with pytest.raises(InvalidNetworkError, match=message):
        read_network(parse("g (float[2] x) => (y) { y = com.acme.Twist(x) }"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "g (float[2] x) => (y) { [a] a = Add(x, c) [b] b = Relu(a) [c] c = Neg(b) [d] y = Abs(c) }",
            r"the graph is cyclic: 'a' \(Add-14\) -> 'b' \(Relu-14\) -> 'c' \(Neg-13\) -> 'a' \(Add-14\)\.",
        ),
        ("g (float[2] x) => (y) { [a] y = Add(x, w) }", r"node 'a' \(Add-14\) reads value 'w', which nothing produces"),
        ("g (float[2] x) => (z) { [a] y = Relu(x) }", "output 'z' is produced by nothing"),
        (
            "g (float[2] x) => (y) { [a] y = Relu(x) [b] y = Neg(x) }",
            r"value 'y' has two sources, node 'a' \(Relu-14\) and node 'b' \(Neg-13\)",
        ),
        ("g (float[2] x) => (y) { [a] x = Relu(x) }", "the graph is cyclic: 'a'"),
        ("g (float[2] x, float[2] x) => (y) { [a] y = Relu(x) }", "value 'x' has two sources, input 'x' and input 'x'"),
        (
            "g (x, float[2] w, z) => (y) { [a] y = Sum(x, w, z) }",
            "inputs 'x', 'z' of network 'g' are untyped; state the element type",
        ),
        (
            "g (float[2] x) => (y) <float[2] w = {1,2}, float[1] w = {1}> { y = Relu(x) }",
            r"the constant 'w' is there twice, as float32\[2\] and as float32\[1\]; expected one type. Remove one of them.",
        ),
        (
            "g (float[2] x) => (y) <float[2] w = {1,2}> { [a] w = Relu(x) y = Relu(w) }",
            r"value 'w' has two sources, constant 'w' and node 'a' \(Relu-14\)",
        ),
    ],
)
def test_model_without_a_graph_is_refused(body: str, message: str) -> None:
    with pytest.raises(InvalidNetworkError, match=message):
        read_network(parse(body))


def test_missing_value_of_a_body_names_the_outer_node() -> None:
    model = parse("""g (bool c, float[2] x) => (y) {
        [if] y = If(c) <then_branch = t () => (p) { [inner] p = Relu(zz) }, else_branch = e () => (q) { q = Neg(x) }>
    }""")
    message = r"node 'if' \(If-21\) reads value 'zz', which nothing produces"
    with pytest.raises(InvalidNetworkError, match=message):
        read_network(model)


def test_sparse_input_is_refused() -> None:
    model = parse(RELU)
    model.graph.input[0].type.sparse_tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(InvalidNetworkError, match="input 'x' has the ONNX type 'sparse_tensor_type'; supported are tensors"):
        read_network(model)


def test_initializer_contradicting_its_declared_input_is_refused() -> None:
    model = parse("g (float[2] x, int64[3] w) => (y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    with pytest.raises(InvalidNetworkError, match=r"constant 'w' is declared as int64\[3\], but holds float32\[2\]"):
        read_network(model)


def test_bodies_nested_too_deep_for_protobuf_are_refused() -> None:
    # The bytes are composed here, because protobuf cannot serialize such a message.
    def field(number: int, content: bytes) -> bytes:
        size, length = b"", len(content)
        while length > 127:
            size += bytes([length & 127 | 128])
            length >>= 7
        return bytes([number << 3 | 2]) + size + bytes([length]) + content

    graph = b""
    for _ in range(60):
        graph = field(1, field(5, field(6, graph)))
    content = b"\x08\x0a" + field(7, graph) + field(8, b"\x10\x15")
    with pytest.raises(NetworkReadError, match=r"nested deeper than protobuf reads \(100 messages"):
        read_network(content)


@pytest.mark.parametrize("name", [b"x", b"Relu", b"y", b"n"])
def test_name_that_is_not_utf8_is_refused(name: bytes) -> None:
    content = parse(RELU).SerializeToString()
    size = bytes([len(name)])
    with pytest.raises(NetworkReadError, match=r"a name in the model is not UTF-8: b'\\xff+.*'; the model is damaged"):
        read_network(content.replace(size + name, size + b"\xff" * len(name)))


def test_attribute_reference_outside_of_functions_is_refused() -> None:
    node = helper.make_node("Elu", ["x"], ["y"], name="n")
    node.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    model = parse(RELU)
    model.graph.node[0].CopyFrom(node)
    with pytest.raises(
        InvalidNetworkError, match=r"attribute 'alpha' of node 'n' \(Elu\) refers to the function attribute 'slope'"
    ):
        read_network(model)


@pytest.mark.parametrize(
    ("dims", "shown"),
    [([0, 2**62, 2**62], r"\[0, 4611686018427387904, 4611686018427387904\]"), ([1] * 65, r"\[1, .*\] and 57 more")],
)
def test_shape_that_no_array_can_have_is_refused(dims: list[int], shown: str) -> None:
    model = parse(RELU)
    model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(4 if 0 not in dims else 0))
    with pytest.raises(NetworkReadError, match=f"initializer 'w' has the shape {shown}; an array has at most 64 dimensions"):
        read_network(model)


@pytest.mark.parametrize("body", ["y = Expand(x, s)", "a = Abs(s) y = Reshape(x, a)"])
def test_shape_of_an_absurd_number_of_dimensions_is_refused(body: str) -> None:
    refusal = r"node '(Expand_0|Reshape_1)' .* makes an array of 2147483647 dimensions; an array has at most 64"
    model = parse(f"g (float[2] x, int64[2147483647] s) => (float[N] y) <int64[2147483647] a> {{ {body} }}")
    with pytest.raises(InvalidNetworkError, match=refusal):
        read_network(model)


@pytest.mark.parametrize(
    ("key", "value"),
    [("value_int", ["a", "b"]), ("value_int", "a"), ("value_floats", 1), ("value_string", 0.5), ("value_strings", [1])],
)
def test_constant_of_another_kind_than_its_name_says_is_refused(key: str, value: object) -> None:
    model = parse("g (float[2] x) => (float[2] y) { c = Constant <value_float = 1.0>() y = Add(x, c) }")
    model.graph.node[0].attribute[0].CopyFrom(helper.make_attribute(key, value))
    with pytest.raises(
        InvalidNetworkError, match=f"has the attribute '{key}' of another kind than its name says; correct its type"
    ):
        read_network(model)


MIXED = {
    "[node] y = Add (x, n)": "inputs 'x' and 'n' of node 'node' (Add-14) have element types float32 and int64; expected one type",
    "[node] y = Sum (x, x, d)": "inputs 'x' and 'd' of node 'node' (Sum-13) have element types float32 and float64",
    "[node] y = Clip (x, , d)": "inputs 'x' and 'd' of node 'node' (Clip-13) have element types float32 and float64",
    "y = If (c) <then_branch = t () => (a) { [inner] a = Mul (x, n) }, else_branch = e () => (b) { b = Neg (x) }>": (
        "inputs 'x' and 'n' of node 'inner' (Mul-14) have element types float32 and int64"
    ),
}


@pytest.mark.parametrize("body", MIXED)
def test_inputs_of_one_type_in_onnx_have_one_element_type(body: str) -> None:
    with pytest.raises(InvalidNetworkError, match=re.escape(MIXED[body])):
        read_network(parse(f"g (float[2] x, int64[2] n, double d, bool c) => (float[2] y) {{ {body} }}"))


@pytest.mark.parametrize(
    "body",
    [
        "y = Pow (x, n)",
        "y = Gather (x, n)",
        "a, b = If (c) <then_branch = t () => (p, q) { p = Neg (x) q = Neg (n) }, else_branch = e () => (r, s) { r = Neg (x) s = Neg (n) }>"
        " y = Neg (a)",
        "y, z = Loop (, c, x, n) <body = l (int64 i, bool k, float[2] p, int64[2] q) => (bool r, float[2] s, int64[2] t) "
        "{ r = Identity (k) s = Neg (p) t = Neg (q) }>",
    ],
)
def test_element_types_differ_where_onnx_lets_them(body: str) -> None:
    network = read_network(parse(f"g (float[2] x, int64[2] n, double d, bool c) => (float[2] y) {{ {body} }}"))
    assert str(network.type_of("y")) == "float32[2]"
