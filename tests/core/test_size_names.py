"""Names of sizes: equal real names mean equal sizes, each placeholder of an exporter is an independent open size."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import InputShapeError
from hetero_core.network.reader import read_network
from hetero_core.network.types import TensorType


def name_sizes(text: str, name: str) -> onnx.ModelProto:
    """Returns the model with size S renamed to `name`, which the text parser of onnx may not accept."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    for info in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for dimension in info.type.tensor_type.shape.dim:
            if dimension.dim_param == "S":
                dimension.dim_param = name
    return model


PLACEHOLDERS = [
    "?",
    " ",
    "*",
    "-1",
    "0",
    "None",
    "null",
    "unk",
    "unk_0",
    "unk__12",
    "unknown",
    "Unknown_3",
    "DynamicDimension.0",
    "p2o.DynamicDimension.4",
    "dyn_?",
    "dyn_3",
    "dynamic",
    "dim?",
    "?_1",
]


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_placeholder_is_an_open_size(name: str) -> None:
    network = read_network(name_sizes("g (float[1,S,S] x) => (float[1,S,S] y) { y = Relu (x) }", name))
    assert network.inputs[0].type == TensorType("float32", (1, None, None))
    assert network.outputs[0].type == TensorType("float32", (1, None, None))


@pytest.mark.parametrize("name", ["N", "batch", "seq_len", "s0", "2*s0", "unkempt", "dynamo", "nonet", "dim_0", "dynamic_batch"])
def test_real_name_is_kept(name: str) -> None:
    network = read_network(name_sizes("g (float[1,S,S] x) => (y) { y = Relu (x) }", name))
    assert network.inputs[0].type == TensorType("float32", (1, name, name))


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "ORT", "HETERO:TEMPLATE,CPU"])
@pytest.mark.parametrize("name", ["?", "unk__7", "p2o.DynamicDimension.0"])
def test_sizes_of_one_placeholder_may_differ(core: Core, device: str, name: str) -> None:
    text = "g (float[S,S] x, float[S] b) => (float[S,S] y) { [add] a = Add (x, b) [relu] y = Relu (a) }"
    config = {"TEMPLATE_REFUSED_OPERATORS": "Relu"} if device.startswith("HETERO") else {}
    loaded = core.load_network(name_sizes(text, name), device, config)
    x, b = np.array([[1, -2, 3], [-4, 5, -6]], np.float32), np.array([1, 1, -4], np.float32)
    np.testing.assert_array_equal(loaded.infer({"x": x, "b": b})["y"], np.maximum(x + b, 0))


def test_sizes_of_one_real_name_have_to_be_equal(core: Core) -> None:
    loaded = core.load_network(name_sizes("g (float[S,S] x) => (y) { y = Relu (x) }", "N"), "CPU")
    with pytest.raises(InputShapeError, match=r"'N' is 3 here and 2 in input 'x'"):
        loaded.infer({"x": np.zeros((2, 3), np.float32)})
