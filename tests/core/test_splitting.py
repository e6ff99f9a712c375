"""Reading a model without a protobuf copy of its weights gives the same networks and errors as parsing with protobuf."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_tests.samples import DRAWS
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hetero_core.errors import HeteroError, NetworkReadError
from hetero_core.network.graph import Network
from hetero_core.network.reader import parse_model, read_network
from hetero_core.network.splitting import encode_varint, split_model
from hetero_core.testing.models import residual_model


def make_model() -> onnx.ModelProto:
    """Returns a model with weights above and below the size limit of splitting, and all kinds of constants."""
    random = np.random.default_rng(7)
    arrays = {
        "large": random.standard_normal((64, 40)).astype(np.float32),
        "small": random.standard_normal((64, 1)).astype(np.float32),
        "larger": random.standard_normal((64, 64)).astype(np.float16),
    }
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    typed = helper.make_tensor("typed", TensorProto.FLOAT, (64, 40), random.standard_normal(2560).astype(np.float32).tolist())
    nodes = [
        helper.make_node("Add", ["x", "large"], ["a"]),
        helper.make_node("Add", ["a", "small"], ["b"]),
        helper.make_node("Add", ["b", "typed"], ["c"]),
        helper.make_node("Cast", ["larger"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["d", "c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (64, 40))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (64, 40))],
        [tensors[0], typed, *tensors[1:]],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CONTENT = make_model().SerializeToString()
RAW_DATA = [tensor.raw_data for tensor in make_model().graph.initializer if len(tensor.raw_data) >= 4096]
"""The weights that are split off: `large` and `larger`."""
BEGINS = [CONTENT.find(raw) for raw in RAW_DATA]
FRAME = sorted(
    set(range(len(CONTENT))).difference(*(range(begin, begin + len(raw)) for begin, raw in zip(BEGINS, RAW_DATA, strict=True)))
)
"""Positions of the bytes outside of these weights."""


def describe(read: Any) -> tuple[str, Any]:
    """Returns the content of a network, weights included, or the error of the read."""
    try:
        network: Network = read()
    except HeteroError as error:
        return type(error).__name__, str(error)
    return "network", (network.fingerprint, dict(network.types), dict(network.metadata))


def describe_whole(content: bytes) -> tuple[str, Any]:
    """Returns `describe` of a model that protobuf parses as a whole."""
    title = f"{len(content)} bytes"
    kind, actual = describe(lambda: read_network(parse_model(content, title)))
    return kind, actual.replace("the ModelProto", title) if isinstance(actual, str) else actual


def test_large_weights_are_split_off() -> None:
    split = split_model(io.BytesIO(CONTENT))
    assert split is not None
    skeleton, raw_data = split
    assert raw_data == {0: RAW_DATA[0], 3: RAW_DATA[1]}
    expected = make_model()
    for position in raw_data:
        expected.graph.initializer[position].raw_data = b""
    assert onnx.ModelProto.FromString(skeleton) == expected


@pytest.mark.parametrize("make", [make_model, residual_model])
def test_split_model_gives_the_network_of_the_whole_model(make: Any, tmp_path: Path) -> None:
    content = make().SerializeToString()
    (tmp_path / "model.onnx").write_bytes(content)
    expected = describe_whole(content)
    assert expected[0] == "network"
    assert describe(lambda: read_network(content)) == expected
    assert describe(lambda: read_network(tmp_path / "model.onnx")) == expected


@DRAWS
@given(st.lists(st.tuples(st.sampled_from(FRAME), st.integers(1, 255)), min_size=1, max_size=3))
def test_changed_bytes_read_as_in_the_whole_model(changes: list[tuple[int, int]]) -> None:
    content = bytearray(CONTENT)
    for position, mask in changes:
        content[position] ^= mask
    assert describe(lambda: read_network(bytes(content))) == describe_whole(bytes(content))


@DRAWS
@given(st.integers(0, len(CONTENT) - 1) | st.sampled_from(FRAME))
def test_cut_bytes_give_the_error_of_the_whole_model(end: int) -> None:
    actual = describe(lambda: read_network(CONTENT[:end]))
    assert actual == describe_whole(CONTENT[:end])


@DRAWS
@given(st.sampled_from(FRAME), st.binary(min_size=1, max_size=12))
@example(len(CONTENT), CONTENT)
def test_more_bytes_read_as_in_the_whole_model(position: int, more: bytes) -> None:
    content = CONTENT[:position] + more + CONTENT[position:]
    assert describe(lambda: read_network(content)) == describe_whole(content)


def make_field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(CONTENT + make_field(7, make_model().graph.SerializeToString()), id="two graphs"),
        pytest.param(CONTENT + encode_varint(7 << 3) + b"\x01", id="graph of another wire type"),
        pytest.param(CONTENT + encode_varint(99 << 3 | 3) + encode_varint(99 << 3 | 4), id="group"),
        pytest.param(CONTENT + b"\x00", id="field 0"),
        pytest.param(CONTENT + b"\xff" * 12, id="endless number"),
    ],
)
def test_unusual_frame_is_left_to_protobuf(content: bytes) -> None:
    assert split_model(io.BytesIO(content)) is None
    assert describe(lambda: read_network(content)) == describe_whole(content)


def test_weight_that_is_there_twice_is_left_to_protobuf() -> None:
    model = make_model()
    tensor = model.graph.initializer[0].SerializeToString()
    del model.graph.initializer[0]
    twice = make_field(9, RAW_DATA[0][::-1])
    content = model.SerializeToString() + make_field(7, make_field(5, tensor + twice))
    graph = model.graph.SerializeToString() + make_field(5, tensor + twice)
    model.ClearField("graph")
    content = model.SerializeToString() + make_field(7, graph)
    assert split_model(io.BytesIO(content)) is None
    expected = describe_whole(content)
    assert expected[0] == "network"
    assert describe(lambda: read_network(content)) == expected


def test_weight_of_another_size_than_its_shape_is_named() -> None:
    model = make_model()
    model.graph.initializer[0].raw_data += b"1234"
    with pytest.raises(NetworkReadError, match=r"initializer 'large' takes 10240 bytes by its type and shape, but holds 10244"):
        read_network(model.SerializeToString())


class ShrinkingFile(io.BytesIO):
    """A file that loses 100 bytes after its size was read."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(max(min(size or 0, len(CONTENT) - 100 - self.tell()), 0))


def test_file_that_becomes_shorter_while_it_is_read_is_not_split() -> None:
    assert split_model(ShrinkingFile(CONTENT)) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "model.onnx"
    os.mkfifo(pipe)
    with pytest.raises(NetworkReadError, match="is a pipe, expected a plain file"):
        read_network(pipe)


def test_constants_outlive_an_overwritten_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(CONTENT)
    network = read_network(path)
    with path.open("r+b") as file:
        file.write(bytes(len(CONTENT)))
    assert network.initializers["large"].array.tobytes() == RAW_DATA[0]
    assert network.initializers["large"].array.flags.aligned
