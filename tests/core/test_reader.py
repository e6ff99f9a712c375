from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from hetero_core.errors import AffinityError, InvalidNetworkError, NetworkReadError
from hetero_core.network.reader import read_network
from hetero_core.network.types import MapType, OptionalType, SequenceType, TensorType

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def parse(body: str, *, header: str = HEADER) -> onnx.ModelProto:
    return onnx.parser.parse_model(header + body)


def model_of(*nodes: onnx.NodeProto, inputs: str = "x", output: str = "y", opset: int = 21) -> onnx.ModelProto:
    """Returns a model of float vectors, for fields that the ONNX text format lacks."""
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


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [("value_floats = [0.5, 1.5], mark = 1", [0.5, 1.5]), ('mark = "a", value_int = 3', 3), ("value_int = 3, value_int_2 = 4", 3)],
)
def test_constant_node_may_have_notes_in_further_attributes(attributes: str, expected: object) -> None:
    # As onnxsim writes them; ONNX Runtime 1.32 runs such models.
    network = read_network(parse(f"g (float[2] x) => (y) {{ c = Constant<{attributes}>() s = Shape(c) y = Relu(x) }}"))
    assert network.initializers["c"].array.tolist() == expected


def test_sparse_constant_node_becomes_dense() -> None:
    value = sparse_tensor("", np.array([1]), np.array([5], np.float32), [2])
    model = model_of(helper.make_node("Constant", [], ["c"], sparse_value=value), helper.make_node("Add", ["x", "c"], ["y"]))
    assert read_network(model).initializers["c"].array.tolist() == [0, 5]


def test_constant_node_in_a_body_becomes_its_initializer() -> None:
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
        # LayerNormalization was added in opset 17.
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
    """Items of a sequence may have any shape, whatever an input declares."""
    vector = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N"])
    sequence = helper.make_sequence_type_proto(vector)
    mapping = onnx.TypeProto()
    mapping.map_type.key_type = TensorProto.STRING
    mapping.map_type.value_type.CopyFrom(vector)
    model = parse(RELU)
    for name, value_type in (("s", sequence), ("o", helper.make_optional_type_proto(sequence)), ("m", mapping)):
        model.graph.input.append(helper.make_value_info(name, value_type))
    assert [spec.type for spec in read_network(model).inputs[1:]] == [
        SequenceType(TensorType("float32")),
        OptionalType(SequenceType(TensorType("float32"))),
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


def pin(model: onnx.ModelProto, index: int, device: str) -> None:
    model.graph.node[index].metadata_props.add(key="hetero.affinity", value=device)


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


def test_version_of_a_domain_that_onnx_does_not_know_may_be_any() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "com.acme": 1]> g (float[2] x) => (float[2] y) { y = com.acme.Twist(x) }'
    )
    model.opset_import[1].version = 2**62
    (node,) = read_network(model).nodes
    assert (node.opset, node.since_version) == (2**62, 0)


@pytest.mark.parametrize(
    ("metadata", "pins"),
    [
        ({"affinity": "GPU"}, {"n": "GPU"}),
        ({"affinity": "GPU", "hetero.affinity": "CPU"}, {"n": "CPU"}),
        ({"priority": "GPU"}, {}),
    ],
)
def test_affinity_of_openvino_is_read_as_a_pin(metadata: dict[str, str], pins: dict[str, str]) -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [n] y = Relu (x) }')
    for key, value in metadata.items():
        model.graph.node[0].metadata_props.add(key=key, value=value)
    assert dict(read_network(model).affinity) == pins


def test_types_survive_an_index_error_of_onnx_inference() -> None:
    # onnx 1.22 reads the empty constant as a number, and raises IndexError.
    text = """g (double[4,3,2,4,0] x, double[4,3,2,4,0] w, float[3] z) => (s, n) <int64[4,3,2,4,0] step = {}>
    { s = STFT(x, step, w) n = Neg(z) }"""
    assert read_network(parse(text, header='<ir_version: 10, opset_import: ["": 17]>')).types["n"] == TensorType("float32", (3,))


@pytest.mark.parametrize("name", ["value", "sparse_value"])
def test_constant_with_a_value_of_another_kind_is_refused(name: str) -> None:
    model = parse("g () => (float y) { c = Constant <value = float {2}> () y = Neg(c) }")
    model.graph.node[0].attribute[0].type = onnx.AttributeProto.INT  # the tensor is still there
    model.graph.node[0].attribute[0].name = name
    with pytest.raises(InvalidNetworkError, match=f"has the attribute '{name}' of another kind than its name says"):
        read_network(model)
