"""OPENVINO: constants that are also inputs, fed and not fed: loaded, split with another device, and from a blob."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.errors import InputShapeError

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,2] x, float[2] factor, int64[2] column) => (float[P,Q] z) <float[2] factor = {2, 3}, int64[2] column = {-1, 1}>
{ y = Mul (x, factor) z = Reshape (y, column) }"""


@pytest.mark.parametrize(
    "pins", [{"*": "OPENVINO"}, {"op:Mul": "CPU", "op:Reshape": "OPENVINO"}, {"op:Mul": "OPENVINO", "op:Reshape": "CPU"}]
)
def test_constant_that_is_an_input_may_be_fed(tmp_path: Path, pins: dict[str, str]) -> None:
    x = np.float32([[1, 2], [3, 4], [5, 6]])
    with Core() as core:
        network = core.read_network(onnx.parser.parse_model(MODEL)).with_affinity(pins)
        loaded = core.load_network(network, "HETERO:OPENVINO,CPU")
        loaded.export_network(tmp_path / "blob")
        for each in (loaded, core.import_network(tmp_path / "blob", "HETERO", trust=True)):
            assert each.infer({"x": x})["z"].ravel().tolist() == (x * np.float32([2, 3])).ravel().tolist()
            row = each.infer({"x": x, "factor": np.float32([5, 1]), "column": np.array([1, -1])})["z"]
            assert row.tolist() == [(x * np.float32([5, 1])).ravel().tolist()]
            assert each.infer({"x": x[:1]})["z"].tolist() == [[2], [6]]


@pytest.mark.parametrize("device", ["OPENVINO", "HETERO:OPENVINO,CPU"])
def test_constant_that_the_engine_needs_as_a_constant_may_be_fed(device: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x, int64[1] axes, float[2] factor) => (float[A,B,C] z)
    <int64[1] axes = {0}, float[2] factor = {2, 3}> { y = Mul (x, factor) z = Unsqueeze (y, axes) }"""
    x, factor = np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([5, 1])
    with Core() as core:
        loaded = core.load_network(onnx.parser.parse_model(text), device)
        for axis in (1, 0, 2, 1):
            axes = np.array([axis])
            np.testing.assert_array_equal(loaded.infer({"x": x, "axes": axes})["z"], np.expand_dims(x * np.float32([2, 3]), axis))
            np.testing.assert_array_equal(
                loaded.infer({"x": x[:2], "axes": axes, "factor": factor})["z"], np.expand_dims(x[:2] * factor, axis)
            )
        np.testing.assert_array_equal(loaded.infer({"x": x})["z"], [x * np.float32([2, 3])])
        with pytest.raises(InputShapeError, match=r"expected shape \[1\], got \[2\]"):
            loaded.infer({"x": x, "axes": np.array([0, 1])})
