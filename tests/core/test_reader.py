from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from hetero_core.errors import AffinityError, InvalidNetworkError, NetworkNotFoundError, NetworkReadError
from hetero_core.network.reader import read_network
from hetero_core.network.types import MapType, OptionalType, SequenceType, TensorType

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def parse(body: str, *, header: str = HEADER) -> onnx.ModelProto:
    return onnx.parser.parse_model(header + body)


def model_of(*nodes: onnx.NodeProto, inputs: str = "x", output: str = "y", opset: int = 21) -> onnx.ModelProto:
    """A model of float vectors, for what the text format cannot say."""
    specs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in inputs.split()]
    result = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    graph = helper.make_graph(list(nodes), "g", specs, result)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


RELU = "g (float[2] x) => (float[2] y) { [n] y = Relu(x) }"


def test_file_bytes_and_proto_give_the_same_network(tmp_path: Path) -> None:
    model = parse(RELU)
    path = tmp_path / "relu.onnx"
    onnx.save(model, path)
    content = path.read_bytes()
    networks = [read_network(source) for source in (path, str(path), content, bytearray(content), memoryview(content), model)]
    assert {network.fingerprint for network in networks} == {networks[0].fingerprint}
    assert [node.name for node in networks[0].nodes] == ["n"]


def test_change_of_the_proto_after_reading_changes_nothing() -> None:
    model = parse("g (float[2] x) => (y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    network = read_network(model)
    model.graph.initializer[0].Clear()
    model.graph.node[0].Clear()
    assert network.initializers["w"].array.tolist() == [1, 2]
    assert network.nodes[0].inputs == ("x", "w")


@pytest.mark.parametrize("ir_version", [3, 4, 10])
def test_initializer_listed_as_input_is_a_constant(ir_version: int) -> None:
    model = parse("g (float[2] x, float[2] w) => (y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    model.ir_version = ir_version
    network = read_network(model)
    assert [spec.name for spec in network.inputs] == ["x"]
    assert list(network.initializers) == ["w"]
    assert network.ir_version == ir_version


def sparse_tensor(name: str, indices: np.ndarray, values: np.ndarray, dims: list[int]) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(values, name), onnx.numpy_helper.from_array(np.asarray(indices, np.int64)), dims
    )


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_initializer_becomes_dense(indices: list[object]) -> None:
    model = parse("g (float[2,3] x) => (y) { y = Add(x, w) }")
    values = np.array([7, 8], np.float32)
    model.graph.sparse_initializer.append(sparse_tensor("w", np.array(indices), values, [2, 3]))
    assert read_network(model).initializers["w"].array.tolist() == [[0, 7, 0], [0, 0, 8]]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([6], r"sparse initializer 'w' has an index outside its shape \[2, 3\]"),
        ([-1], r"sparse initializer 'w' has an index outside its shape \[2, 3\]"),
        ([1, 2], r"sparse initializer 'w' has indices int64\[2\]; expected int64\[1\] or int64\[1,2\] for its 1 values"),
    ],
)
def test_sparse_initializer_with_wrong_indices_is_refused(indices: list[int], message: str) -> None:
    model = parse("g (float[2,3] x) => (y) { y = Add(x, w) }")
    model.graph.sparse_initializer.append(sparse_tensor("w", np.array(indices), np.array([7], np.float32), [2, 3]))
    with pytest.raises(NetworkReadError, match=message):
        read_network(model)


@pytest.mark.parametrize(
    ("attribute", "dtype", "value"),
    [
        ("value = float[2] {1, 2}", "float32", [1, 2]),
        ("value_int = 3", "int64", 3),
        ("value_ints = [3, 4]", "int64", [3, 4]),
        ("value_float = 0.5", "float32", 0.5),
        ("value_floats = [0.5, 1.5]", "float32", [0.5, 1.5]),
        ('value_string = "a"', "string", "a"),
        ('value_strings = ["a", "b"]', "string", ["a", "b"]),
    ],
)
def test_constant_node_becomes_an_initializer(attribute: str, dtype: str, value: object) -> None:
    network = read_network(parse(f"g (float[2] x) => (y) {{ c = Constant<{attribute}>() s = Shape(c) y = Relu(x) }}"))
    assert [node.op_type for node in network.nodes] == ["Shape", "Relu"]
    assert network.initializers["c"].dtype == dtype
    assert network.initializers["c"].array.tolist() == value


def test_sparse_constant_node_becomes_dense() -> None:
    value = sparse_tensor("", np.array([1]), np.array([5], np.float32), [2])
    model = model_of(helper.make_node("Constant", [], ["c"], sparse_value=value), helper.make_node("Add", ["x", "c"], ["y"]))
    assert read_network(model).initializers["c"].array.tolist() == [0, 5]


def test_constant_node_in_a_body_becomes_an_initializer_of_the_body() -> None:
    network = read_network(
        parse("""g (bool c, float[1] x) => (y) {
            y = If(c) <then_branch = t () => (a) { k = Constant<value_floats = [2.0]>() a = Mul(x, k) },
                       else_branch = e () => (b) { b = Relu(x) }>
        }""")
    )
    body = network.nodes[0].bodies["then_branch"]
    assert body.initializers["k"].array.tolist() == [2]
    assert [node.op_type for node in body.nodes] == ["Mul"]
    assert network.nodes[0].captures == ("x",)


def test_constant_node_without_value_is_refused() -> None:
    model = model_of(helper.make_node("Constant", [], ["c"], name="k"), helper.make_node("Add", ["x", "c"], ["y"]))
    with pytest.raises(
        InvalidNetworkError, match=r"node 'k' \(Constant\) has 1 outputs and 0 attributes; expected one output and one"
    ):
        read_network(model)


def test_nodes_are_sorted_and_free_ones_keep_their_order() -> None:
    network = read_network(
        parse("g (float[2] x) => (y) { [d] y = Add(b, c) [c] c = Relu(a) [b] b = Neg(a) [a] a = Abs(x) [e] e = Exp(x) }")
    )
    assert [node.name for node in network.nodes] == ["a", "c", "b", "d", "e"]


def test_capture_orders_nodes() -> None:
    network = read_network(
        parse("""g (bool c, float[2] x) => (y) {
            [if] y = If(c) <then_branch = t () => (p) { p = Relu(a) }, else_branch = e () => (q) { q = Neg(x) }>
            [a] a = Abs(x)
        }""")
    )
    assert [node.name for node in network.nodes] == ["a", "if"]
    assert network.nodes[1].captures == ("a", "x")


def test_captures_of_nested_bodies_reach_the_outer_node() -> None:
    network = read_network(
        parse("""g (bool c, bool d, float[2] x) => (y) {
            w = Abs(x)
            y = If(c) <
              then_branch = t () => (p) {
                v = Neg(x)
                p = If(d) <then_branch = tt () => (pp) { pp = Add(v, w) }, else_branch = te () => (pq) { pq = Relu(v) }>
              },
              else_branch = e () => (q) { q = Identity(x) }>
        }""")
    )
    node = network.nodes[1]
    assert node.captures == ("x", "d", "w")
    assert node.bodies["then_branch"].nodes[1].captures == ("v", "w")


def test_missing_and_repeated_names_are_made_and_originals_kept() -> None:
    network = read_network(
        parse("g (float[2] x) => (y) { a = Relu(x) [n] b = Relu(a) [n] c = Neg(b) [Relu_0] d = Abs(c) [m] y = Exp(d) }")
    )
    assert [node.name for node in network.nodes] == ["Relu_0_1", "n", "Neg_2", "Relu_0", "m"]
    assert [node.original_name for node in network.nodes] == ["", None, "n", None, None]
    assert [node.origins for node in network.nodes][:2] == [("Relu_0_1",), ("n",)]


def test_node_knows_opset_and_own_version() -> None:
    network = read_network(
        parse(
            "g (float[2] x) => (y) { a = Relu(x) b = com.acme.Twist(a) y = LayerNormalization(b, b) }",
            header='<ir_version: 8, opset_import: ["ai.onnx": 13, "com.acme": 4]>',
        )
    )
    assert [(node.domain, node.opset, node.since_version) for node in network.nodes] == [
        ("", 13, 13),
        ("com.acme", 4, 0),
        # It came with opset 17.
        ("", 13, 0),
    ]
    assert [node.operator for node in network.nodes] == ["Relu-13", "com.acme:Twist-4", "LayerNormalization-13"]
    assert network.opsets == {"": 13, "com.acme": 4}


def test_attributes_are_python_values() -> None:
    tensor = onnx.numpy_helper.from_array(np.array([1, 2], np.int8))
    node = helper.make_node(
        "Twist",
        ["x"],
        ["y"],
        domain="com.acme",
        i=3,
        f=0.5,
        s="text",
        ints=[1, 2],
        floats=[0.5, 1.5],
        strings=["a", b"\xff"],
        t=tensor,
        tensors=[tensor],
        tp=helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 2, None]),
        raw=b"\xff\xfe",
    )
    model = model_of(node)
    model.opset_import.add(domain="com.acme", version=1)
    attributes = read_network(model).nodes[0].attributes
    arrays = {key: attributes[key] for key in ("t", "tensors")}
    assert {key: value for key, value in attributes.items() if key not in arrays} == {
        "i": 3,
        "f": 0.5,
        "s": "text",
        "ints": (1, 2),
        "floats": (0.5, 1.5),
        "strings": ("a", b"\xff"),
        "tp": TensorType("float32", ("N", 2, None)),
        "raw": b"\xff\xfe",
    }
    assert arrays["t"].tolist() == arrays["tensors"][0].tolist() == [1, 2]
    assert not arrays["t"].flags.writeable


def test_attribute_that_is_a_list_of_graphs_is_refused() -> None:
    body = helper.make_graph([], "b", [], [])
    model = model_of(helper.make_node("Relu", ["x"], ["y"], name="n", bodies=[body]))
    with pytest.raises(InvalidNetworkError, match=r"attribute 'bodies' of node 'n' \(Relu\) is a list of graphs; supported are"):
        read_network(model)


def test_attribute_given_twice_is_refused() -> None:
    node = helper.make_node("Elu", ["x"], ["y"], name="n", alpha=1.0)
    node.attribute.append(node.attribute[0])
    with pytest.raises(InvalidNetworkError, match=r"node 'n' \(Elu\) has the attribute 'alpha' twice"):
        read_network(model_of(node))


def test_types_of_sequences_optionals_and_maps_are_read() -> None:
    vector = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N"])
    sequence = helper.make_sequence_type_proto(vector)
    mapping = onnx.TypeProto()
    mapping.map_type.key_type = TensorProto.STRING
    mapping.map_type.value_type.CopyFrom(vector)
    model = parse(RELU)
    for name, value_type in (("s", sequence), ("o", helper.make_optional_type_proto(sequence)), ("m", mapping)):
        model.graph.input.append(helper.make_value_info(name, value_type))
    assert [spec.type for spec in read_network(model).inputs[1:]] == [
        SequenceType(TensorType("float32", ("N",))),
        OptionalType(SequenceType(TensorType("float32", ("N",)))),
        MapType("string", TensorType("float32", ("N",))),
    ]


@pytest.mark.parametrize(
    ("kind", "values", "raw"),
    [
        (TensorProto.INT4, [-8, 7, -1], bytes([0x78, 0x0F])),
        (TensorProto.UINT4, [15, 0, 9], bytes([0x0F, 0x09])),
        (TensorProto.INT2, [-2, 1, -1], bytes([0b110110])),
        (TensorProto.UINT2, [3, 0, 2, 1, 1], bytes([0b01100011, 0b01])),
    ],
)
def test_small_integers_are_unpacked_from_raw_bytes(kind: int, values: list[int], raw: bytes) -> None:
    model = parse(RELU)
    model.graph.initializer.add(name="w", data_type=kind, dims=[len(values)], raw_data=raw)
    array = read_network(model).initializers["w"].array
    assert array.astype(np.int32).tolist() == values
    assert array.nbytes == len(values)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint64", "bool", "float16", "bfloat16", "complex64"])
def test_typed_fields_give_the_same_array_as_raw_bytes(dtype: str) -> None:
    import ml_dtypes

    values = np.array([1, 0, 1], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    model = parse(RELU)
    model.graph.initializer.append(helper.make_tensor("typed", kind, [3], values))
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "raw"))
    constants = read_network(model).initializers
    assert constants["typed"].array.dtype == constants["raw"].array.dtype == values.dtype
    assert constants["typed"].array.tobytes() == constants["raw"].array.tobytes() == values.tobytes()


def test_strings_keep_trailing_zeros_and_bytes_that_are_no_text() -> None:
    model = parse(RELU)
    model.graph.initializer.add(name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"a\0", b"\xff"])
    assert read_network(model).initializers["w"].array.tolist() == ["a\0", b"\xff"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"data_type": TensorProto.FLOAT, "dims": [3], "raw_data": b"1234"},
            "initializer 'w' takes 12 bytes by its type and shape, but holds 4",
        ),
        (
            {"data_type": TensorProto.FLOAT, "dims": [-1], "raw_data": b""},
            r"initializer 'w' has the shape \[-1\]; expected sizes of 0 or more",
        ),
        (
            {"data_type": 99, "dims": [1]},
            "initializer 'w' has the ONNX element type number 99, which is not known; known are bfloat16,",
        ),
        ({"data_type": TensorProto.FLOAT, "dims": [2], "float_data": [1]}, "initializer 'w' cannot be read: .*as its shape"),
        ({"data_type": TensorProto.STRING, "dims": [2], "string_data": [b"a"]}, "initializer 'w' takes 2 strings .* but holds 1"),
        ({"data_type": TensorProto.FLOAT, "dims": [2**40, 2**40], "raw_data": b""}, "takes 4835703278458516698824704 bytes"),
    ],
)
def test_initializer_whose_parts_do_not_fit_is_refused(fields: dict[str, object], message: str) -> None:
    model = parse(RELU)
    model.graph.initializer.add(name="w", **fields)
    with pytest.raises(NetworkReadError, match=message):
        read_network(model)


def test_metadata_of_the_model_is_kept() -> None:
    model = parse(RELU)
    helper.set_model_props(model, {"author": "me"})
    assert read_network(model).metadata == {"author": "me"}


def pin(model: onnx.ModelProto, index: int, device: str) -> None:
    model.graph.node[index].metadata_props.add(key="hetero.affinity", value=device)


def test_pin_in_the_file_becomes_affinity() -> None:
    model = parse("g (float[2] x) => (y) { [a] a = Relu(x) [b] y = Neg(a) }")
    pin(model, 1, "GPU.1")
    assert read_network(model).affinity == {"b": "GPU.1"}


def test_empty_pin_is_refused() -> None:
    model = parse(RELU)
    pin(model, 0, " ")
    with pytest.raises(AffinityError, match=r"node 'n' \(Relu\) has an empty 'hetero.affinity'; expected a device name"):
        read_network(model)


def test_pin_inside_a_body_that_differs_from_its_node_is_refused() -> None:
    model = parse("""g (bool c, float[2] x) => (y) {
        [if] y = If(c) <then_branch = t () => (p) { [p] p = Relu(x) }, else_branch = e () => (q) { q = Neg(x) }>
    }""")
    model.graph.node[0].attribute[0].g.node[0].metadata_props.add(key="hetero.affinity", value="GPU")
    with pytest.raises(AffinityError, match=r"node 'p' in a body of node 'if' \(If\) is pinned to GPU; .* Pin the node itself"):
        read_network(model)
    pin(model, 0, "GPU")
    assert read_network(model).affinity == {"if": "GPU"}


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


def test_every_truncation_of_a_model_is_refused_or_read_without_crash() -> None:
    content = parse("g (float[2] x) => (y) <float[2] w = {1, 2}> { a = Add(x, w) y = Relu(a) }").SerializeToString()
    for length in range(len(content)):
        with pytest.raises((NetworkReadError, InvalidNetworkError)):
            read_network(content[:length])


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
        ("g (float[2] x) => (y, y) { [a] y = Relu(x) }", "output 'y' of network 'g' is listed twice"),
        ("g (float[2] x) => (y) <float[2] w = {1,2}, float[2] w = {1,2}> { y = Relu(x) }", "the constant 'w' is there twice"),
        (
            "g (float[2] x) => (y) <float[2] w = {1,2}> { [a] w = Relu(x) y = Relu(w) }",
            r"value 'w' has two sources, constant 'w' and node 'a' \(Relu-14\)",
        ),
    ],
)
def test_graph_that_is_none_is_refused(body: str, message: str) -> None:
    with pytest.raises(InvalidNetworkError, match=message):
        read_network(parse(body))


def test_value_that_only_a_body_reads_and_nothing_produces_names_the_inner_node() -> None:
    model = parse("""g (bool c, float[2] x) => (y) {
        [if] y = If(c) <then_branch = t () => (p) { [inner] p = Relu(zz) }, else_branch = e () => (q) { q = Neg(x) }>
    }""")
    message = r"node 'inner' \(Relu-14\), in body 'then_branch' of node 'if' \(If-21\), reads value 'zz', which nothing produces"
    with pytest.raises(InvalidNetworkError, match=message):
        read_network(model)


def test_sparse_input_is_refused() -> None:
    model = parse(RELU)
    model.graph.input[0].type.sparse_tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(InvalidNetworkError, match="input 'x' has the ONNX type 'sparse_tensor_type'; supported are tensors"):
        read_network(model)


def test_initializer_that_contradicts_its_declared_input_is_refused() -> None:
    model = parse("g (float[2] x, int64[3] w) => (y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    with pytest.raises(InvalidNetworkError, match=r"constant 'w' is declared as int64\[3\], but holds float32\[2\]"):
        read_network(model)


def test_bodies_nested_too_deep_for_protobuf_are_refused() -> None:
    # Written by hand, length by length: protobuf itself cannot make such a message.
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


def test_reference_to_a_function_attribute_outside_of_functions_is_refused() -> None:
    node = helper.make_node("Elu", ["x"], ["y"], name="n")
    node.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    with pytest.raises(
        InvalidNetworkError, match=r"attribute 'alpha' of node 'n' \(Elu\) refers to the function attribute 'slope'"
    ):
        read_network(model_of(node))
