from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper

from hetero_core.errors import InvalidNetworkError, NetworkReadError
from hetero_core.network.graph import Graph, Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.reader import read_network
from hetero_core.network.types import TensorType, ValueSpec
from hetero_core.network.writer import (
    GraphWriter,
    network_to_bytes,
    network_to_proto,
    network_to_skeleton,
    pack_network,
    unpack_network,
    write_network,
)
from hetero_core.testing.backend_cases import KINDS, iterate_backend_cases


def parse(text: str, *, ir_version: int = 8, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}, "com.acme": 1]> {text}')


def with_weights(*, count: int = 1000) -> Network:
    model = parse("g (float[1] x) => (y) { [a] m = Add(x, w) [b] y = Mul(m, v) }")
    for index, name in enumerate("wv"):
        values = np.arange(count, dtype=np.float32) + index
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return read_network(model)


def assert_same_network(actual: Graph, expected: Graph, *, opsets: bool) -> None:
    """Compares networks, bodies included; with `opsets` also the opsets and origins, which only a packed network keeps."""
    fields = ("name", "op_type", "domain", "since_version", "inputs", "outputs", "captures")
    fields += ("opset", "origins", "original_name") if opsets else ()
    assert actual.inputs == expected.inputs
    assert actual.outputs == expected.outputs
    assert actual.types == expected.types
    assert list(actual.initializers) == list(expected.initializers)
    for name, initializer in expected.initializers.items():
        assert actual.initializers[name].digest == initializer.digest, name
    assert len(actual.nodes) == len(expected.nodes)
    for node, original in zip(actual.nodes, expected.nodes, strict=True):
        assert [getattr(node, each) for each in fields] == [getattr(original, each) for each in fields]
        assert list(node.attributes) == list(original.attributes)
        for key, body in original.bodies.items():
            assert_same_network(node.bodies[key], body, opsets=opsets)
    if isinstance(expected, Network) and isinstance(actual, Network):
        assert actual.affinity == expected.affinity
        assert actual.metadata == expected.metadata
        # The digest covers the attributes.
        assert actual.fingerprint == expected.fingerprint


def list_models_of_all_operators() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields the first case of each pair of operator and number of inputs, or every case if WHOLE_KIT is set."""
    seen: set[tuple[str, int]] = set()
    for case in iterate_backend_cases(kinds=KINDS if os.environ.get("WHOLE_KIT") else ("node", "simple")):
        operators = {(node.op_type, len(node.input)) for node in case.model.graph.node}
        if os.environ.get("WHOLE_KIT") or not operators <= seen:
            seen |= operators
            yield case.name, case.model


def test_backend_models_are_the_same_after_writing_and_packing() -> None:
    failures = []
    for name, model in list_models_of_all_operators():
        network = read_network(model)
        try:
            proto = network_to_proto(network)
            onnx.checker.check_model(proto)
            assert_same_network(read_network(proto), network, opsets=False)
            assert_same_network(unpack_network(pack_network(network)), network, opsets=True)
        except Exception as error:  # noqa: BLE001  # every failing model is named, not just the first
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, "\n".join(failures)


RICH = """g (bool c, float[N,2] x) => (y, z) <float[2] w = {1, 2}> {
    [a] a = Add(x, w)
    b = Softmax<axis = 0>(a)
    b2 = com.acme.Twist<alpha = 0.5, mode = "fast", sizes = [1, 2]>(b)
    [if] y = If(c) <then_branch = t () => (p) <float[2] k = {3, 4}> { p = Mul(a, k) }, else_branch = e () => (q) { q = Neg(x) }>
    [same] d = Clip(a, , w0)
    [same] z = Identity(d)
}"""


def rich_network() -> Network:
    model = parse(RICH.replace("<float[2] w", "<float w0 = {9}, float[2] w"))
    helper.set_model_props(model, {"author": "me"})
    return read_network(model).with_affinity({"if": "GPU", "op:Add": "CPU.1"})


def test_written_network_keeps_names_types_affinity_and_metadata(tmp_path: Path) -> None:
    network = rich_network()
    write_network(network, tmp_path / "m.onnx")
    assert_same_network(read_network(tmp_path / "m.onnx"), network, opsets=False)
    assert list(tmp_path.iterdir()) == [tmp_path / "m.onnx"]


def test_packed_network_keeps_origins_names_and_versions() -> None:
    network = rich_network()
    fused = replace(network.nodes[0], origins=("a", "line\nbreak"))
    network = replace(network, nodes=(fused, *network.nodes[1:]), ir_version=7)
    again = unpack_network(pack_network(network))
    assert_same_network(again, network, opsets=True)
    assert again.ir_version == 7
    assert [node.original_name for node in again.nodes] == [None, "", "", None, None, "same"]


def test_unpacked_weights_are_aligned_views_of_the_section() -> None:
    sections = pack_network(with_weights())
    again = unpack_network(sections)
    buffer = np.frombuffer(sections["weights"], np.uint8)
    for offset, name in ((0, "w"), (4032, "v")):
        array = again.initializers[name].array
        assert np.shares_memory(array, buffer)
        assert array.ctypes.data - buffer.ctypes.data == offset
        assert not array.flags.writeable
    assert len(sections["model"]) < 1000


def test_constant_shared_by_two_names_is_packed_once() -> None:
    network = with_weights()
    shared = network.initializers["w"]
    network = replace(network, initializers=MappingProxyType({"w": shared, "v": shared}))
    sections = pack_network(network)
    assert len(sections["weights"]) == 4000
    assert unpack_network(sections).initializers["v"].digest == shared.digest


@pytest.mark.parametrize("length", [0, 3999, 4031, 8031])
def test_weights_section_that_is_cut_short_is_refused(length: int) -> None:
    sections = pack_network(with_weights())
    damaged = {"model": sections["model"], "weights": bytes(sections["weights"])[:length]}
    with pytest.raises(
        NetworkReadError, match=rf"initializer '[wv]' takes bytes \d+ to \d+ of the weights section, which has only {length}"
    ):
        unpack_network(damaged)


def test_missing_section_is_refused() -> None:
    with pytest.raises(NetworkReadError, match="a packed network has the sections model; expected model, weights"):
        unpack_network({"model": b""})


def test_model_that_was_not_packed_is_refused() -> None:
    with pytest.raises(NetworkReadError, match="a packed network does not state its IR version"):
        unpack_network({"model": network_to_bytes(with_weights()), "weights": b""})


def test_large_weights_go_to_a_file_beside_the_model(tmp_path: Path) -> None:
    network = with_weights()
    write_network(network, tmp_path / "m.onnx", inline_limit=0)
    assert (tmp_path / "m.onnx").stat().st_size < 1000
    assert (tmp_path / "m.onnx.data").stat().st_size == 4032 + 4000
    assert_same_network(read_network(tmp_path / "m.onnx"), network, opsets=False)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    [y] = session.run(None, {"x": np.array([2], np.float32)})
    index = np.arange(1000)
    assert y.tolist() == ((index + 2) * (index + 1)).tolist()


def test_network_can_be_written_over_its_own_files(tmp_path: Path) -> None:
    write_network(with_weights(), tmp_path / "m.onnx", inline_limit=0)
    network = read_network(tmp_path / "m.onnx")
    write_network(network, tmp_path / "m.onnx", inline_limit=0)
    assert network.initializers["v"].array.tolist() == list(range(1, 1001))
    assert_same_network(read_network(tmp_path / "m.onnx"), network, opsets=False)


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    network = with_weights()
    broken = replace(network.nodes[0], attributes=MappingProxyType({"axis": object()}))
    with pytest.raises(
        InvalidNetworkError, match=r"attribute 'axis' of node 'a' \(Add-14\) holds object; expected int, float, str"
    ):
        write_network(replace(network, nodes=(broken,)), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_network_above_two_gib_is_refused_as_bytes() -> None:
    huge = Initializer("float32", (2**30,), lambda: np.zeros(0, np.float32))
    network = replace(with_weights(), initializers=MappingProxyType({"w": huge}))
    with pytest.raises(InvalidNetworkError, match="network 'g' has 4294967296 bytes of weights; one ONNX model holds 2147483647"):
        network_to_bytes(network)


def test_skeleton_leaves_large_weights_to_the_caller() -> None:
    network = with_weights()
    proto, weights = network_to_skeleton(network)
    assert list(weights) == ["w", "v"]
    assert weights["w"] is network.initializers["w"]
    options = onnxruntime.SessionOptions()
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(each.array) for each in weights.values()]
    options.add_external_initializers(list(weights), values)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.array([2], np.float32)})[0][:3].tolist() == [2, 6, 12]


@pytest.mark.parametrize(
    ("network_version", "opset", "pinned", "written"), [(3, 9, False, 4), (3, 17, False, 8), (3, 9, True, 10), (12, 9, False, 12)]
)
def test_ir_version_is_raised_to_the_need_of_the_model(network_version: int, opset: int, pinned: bool, written: int) -> None:
    network = read_network(parse("g (float[2] x) => (y) { y = Relu(x) }", ir_version=network_version, opset=opset))
    network = network.with_affinity({"*": "CPU"}) if pinned else network
    assert network_to_proto(network).ir_version == written


def test_values_of_unknown_type_are_left_out() -> None:
    network = read_network(parse("g (float[2] x) => (y) { a = com.acme.Twist(x) b = Relu(a) y = Cast<to = 1>(b) }"))
    proto = network_to_proto(network)
    assert [info.name for info in proto.graph.value_info] == []
    assert proto.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (Node("n", "Squeeze", ("x",), ("y",), opset=9, since_version=1, attributes={"axes": ()}), "INTS"),
        (Node("n", "Twist", ("x",), ("y",), domain="com.acme", attributes={"any": ()}), "INTS"),
        (Node("n", "Upsample", ("x",), ("y",), opset=8, since_version=7, attributes={"scales": ()}), "FLOATS"),
        (
            Node("n", "LabelEncoder", ("x",), ("y",), "ai.onnx.ml", 2, 2, attributes={"keys_strings": ()}),
            "STRINGS",
        ),
    ],
)
def test_empty_list_gets_the_kind_of_the_schema(node: Node, kind: str) -> None:
    proto = onnx.NodeProto()
    GraphWriter().write_node(node, proto, {node.domain: node.opset})
    [attribute] = proto.attribute
    assert attribute.type == onnx.AttributeProto.AttributeType.Value(kind)


@pytest.mark.parametrize(
    "value",
    [3, 0.5, "text", b"\xff", (1, 2), (0.5, 1.0), ("a", b"\xff"), TensorType("int8", (2, "N", None)), (TensorType("bool"),), True],
)
def test_attribute_is_the_same_after_writing_and_reading(value: Any) -> None:
    network = read_network(parse("g (float[2] x) => (y) { y = com.acme.Twist(x) }"))
    node = replace(network.nodes[0], attributes=MappingProxyType({"value": value}))
    assert read_network(network_to_proto(replace(network, nodes=(node,)))).nodes[0].attributes["value"] == value


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "int4", "uint4", "float4_e2m1fn", "int2", "uint2", "complex64"]
)
def test_constant_of_any_type_survives_writing_and_packing(dtype: str) -> None:
    import ml_dtypes

    values = np.array([0, 1, 1, 0, 1] * 500).astype(getattr(ml_dtypes, dtype, dtype))
    network = replace(with_weights(), initializers=MappingProxyType({"w": Initializer.of_array(values)}), nodes=(), outputs=())
    for again in (read_network(network_to_proto(network)), unpack_network(pack_network(network))):
        assert again.initializers["w"].array.dtype == values.dtype
        assert again.initializers["w"].array.tolist() == values.tolist()


def test_constant_of_strings_is_the_same_after_packing() -> None:
    values = np.array([["a\0", "ü"], [b"\xff", ""]], dtype=object)
    network = replace(with_weights(), initializers=MappingProxyType({"w": Initializer.of_array(values)}), nodes=(), outputs=())
    assert unpack_network(pack_network(network)).initializers["w"].array.tolist() == values.tolist()


def test_onnxruntime_computes_the_same_from_the_written_model() -> None:
    model = parse(
        RICH.replace("<float[2] w", "<float w0 = {9}, float[2] w")
        .replace("com.acme.Twist", "Identity")
        .replace('<alpha = 0.5, mode = "fast", sizes = [1, 2]>', "")
        # ONNX Runtime refuses nodes with equal names; the reader renames them.
        .replace("[same] d", "d")
    )
    feeds = {"c": np.array(True), "x": np.array([[1, 2], [3, 40]], np.float32)}
    content = [model.SerializeToString(), network_to_bytes(read_network(model))]
    first, second = (onnxruntime.InferenceSession(each, providers=["CPUExecutionProvider"]).run(None, feeds) for each in content)
    assert [each.tolist() for each in first] == [each.tolist() for each in second]


def test_untyped_output_is_written_untyped() -> None:
    network = read_network(parse("g (float[2] x) => (y) { y = com.acme.Twist(x) }"))
    assert network.outputs == (ValueSpec("y", TensorType(None)),)
    assert not network_to_proto(network).graph.output[0].HasField("type")


@pytest.mark.parametrize("version", ["", "99999999999999999999", "ten", "-1"])
def test_packed_network_with_a_wrong_ir_version_is_refused(version: str) -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Abs(x) }')
    packed = pack_network(read_network(model))
    changed = onnx.ModelProto.FromString(bytes(packed["model"]))
    (entry,) = [entry for entry in changed.metadata_props if entry.key == "hetero.ir_version"]
    entry.value = version
    with pytest.raises(NetworkReadError, match="a packed network does not state its IR version"):
        unpack_network({**packed, "model": changed.SerializeToString()})
