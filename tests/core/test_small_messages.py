"""Models decoded without protobuf beside those that protobuf decodes: the same network, or the same refusal, also when damaged."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest
from google.protobuf.message import DecodeError

from hetero_core.errors import HeteroError
from hetero_core.network.reader import assemble_network
from hetero_core.network.small_messages import LARGEST_SMALL_MODEL, parse_small_model
from hetero_core.network.weights import WeightFiles

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.acme": 1], doc_string: "text", metadata_props: ["key": "value"]>'
TEXTS = {
    "chain": "g (float[2,N] x) => (float[2,N] y) { [a] a = Relu (x) y = Neg (a) }",
    "typed fields": "g (float[2] x) => (y) <float[2] w = {1, -2.5}, int64[3] s = {1, -1, 9223372036854775807}, int32[2] i = {-7, 8},"
    " double[1] d = {0.1}> { y = Add (x, w) }",
    "attributes": "g (float[1,1,4,4] x) => (y) { y = com.acme.Twist <a: int = -3, f: float = 0.5, s: string = \"text\","
    " is: ints = [1, -2], fs: floats = [0.5, -1.5], ss: strings = [\"a\", \"b\"], t: tensor = float[2] {1, 2}> (x, , x) }",
    "body": "g (bool c, float[2] x) => (y) { y = If (c) <then_branch = t () => (a) { a = Relu (x) },"
    " else_branch = e () => (b) { b = Neg (x) }> }",
    "scalar": "g (float x, float[] z) => (y) { y = Add (x, z) }",
}  # fmt: skip
MUTATIONS = 400


def make_contents() -> dict[str, bytes]:
    contents = {title: onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString() for title, text in TEXTS.items()}
    raw = onnx.numpy_helper.from_array(np.arange(6, dtype=np.float16).reshape(2, 3), "w")
    texts = onnx.helper.make_tensor("t", onnx.TensorProto.STRING, [2], [b"a", b"\xff"])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["w"], ["y"]), onnx.helper.make_node("Identity", ["t"], ["z"])],
        "raw",
        [],
        [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="z")],
        [raw, texts],
    )
    contents["raw"] = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()
    return contents


CONTENTS = make_contents()


def assemble(model: Any) -> str:
    """Returns what identifies the network of a model, or its refusal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = assemble_network(model, WeightFiles(None), "the model")
        names = [(node.name, node.original_name, node.domain) for node in network.nodes]
        return f"{network.fingerprint} {names} {sorted(network.types.items())} {dict(network.metadata)} {network.ir_version}"
    except HeteroError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("title", CONTENTS)
def test_small_model_is_the_network_that_protobuf_reads(title: str) -> None:
    small = parse_small_model(CONTENTS[title])
    assert small is not None
    proto = onnx.ModelProto.FromString(CONTENTS[title])
    assert assemble(small) == assemble(proto)
    assert small.ByteSize() == proto.ByteSize()


@pytest.mark.parametrize("title", CONTENTS)
def test_damaged_model_is_left_to_protobuf_or_read_as_it_reads_it(title: str) -> None:
    draw = random.Random(title)
    decoded = 0
    for _ in range(MUTATIONS):
        content = bytearray(CONTENTS[title])
        for _ in range(draw.choice((1, 1, 2))):
            place = draw.randrange(len(content))
            content[place : place + draw.choice((0, 1, 1, 1, 2))] = bytes(
                draw.choice((draw.randrange(256), 0, 1, 255)) for _ in range(draw.choice((0, 1, 1, 1, 2)))
            )
        small = parse_small_model(bytes(content))
        if small is None:
            continue
        decoded += 1
        try:
            proto = onnx.ModelProto.FromString(bytes(content))
        except DecodeError:
            pytest.fail(f"protobuf refuses {bytes(content)!r}")
        assert assemble(small) == assemble(proto), bytes(content)
    assert decoded > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.graph.node[0].ClearField("op_type") or model.functions.add(name="F"),
        lambda model: model.graph.sparse_initializer.add(),
        lambda model: model.graph.input[0].type.sequence_type.elem_type.tensor_type.SetInParent(),
        lambda model: (
            model.graph.node[0].attribute.add(name="x", type=onnx.AttributeProto.SPARSE_TENSOR).sparse_tensor.SetInParent()
        ),
        lambda model: model.graph.initializer.add(name="b", data_type=onnx.TensorProto.BOOL, dims=[1], int32_data=[1]),
        lambda model: model.graph.initializer.add(name="f", data_type=onnx.TensorProto.FLOAT, dims=[2], float_data=[1]),
        lambda model: setattr(model, "doc_string", "x" * LARGEST_SMALL_MODEL),
    ],
    ids=["function", "sparse", "sequence", "sparse attribute", "bool", "too few", "large"],
)
def test_anything_else_is_left_to_protobuf(change: Any) -> None:
    model = onnx.ModelProto.FromString(CONTENTS["chain"])
    change(model)
    assert parse_small_model(model.SerializeToString()) is None


@pytest.mark.parametrize("content", [b"", b"\x08", b"\x3a\x05", b"\x08" + b"\xff" * 11, b"\x0b\x0c", CONTENTS["chain"] * 2])
def test_content_that_is_cut_short_or_there_twice_is_left_to_protobuf(content: bytes) -> None:
    small = parse_small_model(content)
    assert small is None or (not content and not small.HasField("graph"))
