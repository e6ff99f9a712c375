"""What real models ask of operators beyond ONNX's own cases: the answers of ONNX Runtime with nothing rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import assert_same

Feeds = Mapping[str, Any]
Rng = np.random.Generator


def _draw_zeros(_: Rng) -> Feeds:
    return {"x": np.zeros((2, 3), np.float32)}


def _draw_samples(rng: Rng) -> Feeds:
    return {"x": rng.standard_normal((2, 40)).astype(np.float32)}


def _draw_mask(_: Rng) -> Feeds:
    return {"x": np.array([[0, -np.inf, np.inf, np.nan, 3]], np.float32)}


CASES = {
    "an empty range is quantized by a scale of 1": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[a, b] x) => (uint8[a, b] y, float scale, uint8 zero)
        { y, scale, zero = DynamicQuantizeLinear (x) }""",
        _draw_zeros,
    ),
    "a signal without a last axis of 1 is real": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[a, b] x) => (float[c, d, e, f] y)
        <int64 step = {4}, float[8] window = {1, 2, 3, 4, 4, 3, 2, 1}, int64 length = {8}>
        { y = STFT <onesided = 1> (x, step, window, length) }""",
        _draw_samples,
    ),
    "a mask of infinities is quantized by an infinite scale": (
        """<ir_version: 8, opset_import: ["": 17]> g (float[a, b] x) => (int8[a, b] y, uint8[a, b] z, float[a, b] w)
        <float scale = {inf}, int8 zero = {3}, uint8 last = {255}>
        { y = QuantizeLinear (x, scale, zero) z = QuantizeLinear (x, scale, last) w = DequantizeLinear (y, scale, zero) }""",
        _draw_mask,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_answer_as_the_engine(case: str) -> None:
    text, draw = CASES[case]
    model = onnx.parser.parse_model(text)
    feeds = draw(np.random.default_rng(5))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds))
    outputs = compile_program(read_network(model)).run([feeds[spec.name] for spec in model.graph.input])
    for output, answer in zip(outputs, expected, strict=True):
        assert_same(np.asarray(output), answer)
