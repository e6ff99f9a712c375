"""Dequantized weights, unknown types, and texts beside the nodes of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from hetero_core import Core, Network

Read = Callable[..., Network]


def test_product_with_dequantized_weights_is_computed_in_float32(core: Core) -> None:
    generator = np.random.default_rng(0)
    weights = generator.integers(-128, 127, (63, 32)).astype(np.int8)
    graph = onnx.parser.parse_graph(
        "g (float[3,40,63] x) => (float[3,40,32] y) <float s = {0.01}, int8 z = {0}> { d = DequantizeLinear(w, s, z) y = MatMul(x, d) }"
    )
    graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    network = core.read_network(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8))
    x = generator.standard_normal((3, 40, 63)).astype(np.float32)
    outputs = core.load_network(network, "OPENVINO").infer({"x": x})
    expected = (x.astype(np.float64) @ (weights * np.float64(np.float32(0.01)))).astype(np.float32)
    assert np.abs(outputs["y"] - expected).max() < 1e-3


def test_compress_before_its_first_opset_is_refused(core: Core, read: Read) -> None:
    network = read("g (float[2] x) => (y) { y = Compress (x) }", 6)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert "the type of 'y' is not known" in reason


@pytest.mark.parametrize(
    "text",
    [
        'g (float[2] x) => (float[2] y, string[2] v) { v = Constant <value_strings = ["a", "b"]> () y = Relu (x) }',
        "g (float[2] x, string[2] v) => (float[2] y) { y = Relu (x) }",
        "g (float[2] x, string[2] v) => (float[2] y, string[2] v) { y = Relu (x) }",
    ],
    ids=["constant", "unread", "through"],
)
def test_texts_that_no_node_makes_or_reads_are_refused(core: Core, read: Read, text: str) -> None:
    network = read(text)
    (reason,) = core.query_network(network, "OPENVINO").refused.values()
    assert reason == "'v' is string, which OpenVINO does not take or give as an array"
    inputs: dict[str, Any] = {"x": np.array([-1, 2], np.float32), "v": np.array(["a", "b"], object)}
    answer = core.load_network(network, "HETERO:OPENVINO,CPU").infer({spec.name: inputs[spec.name] for spec in network.inputs})
    assert answer["y"].tolist() == [0, 2]
    assert all(value.tolist() == ["a", "b"] for name, value in answer.items() if name == "v")
