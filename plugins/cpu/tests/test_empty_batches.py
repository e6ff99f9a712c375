"""Batches without an image."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

from hetero_core import Core


def parse(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]> {text}')
    random = np.random.default_rng(3)
    for name, shape in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name))
    return model


def infer(model: onnx.ModelProto, x: Any, kernels: str, threads: int) -> Any:
    with Core() as core:
        return core.load_network(model, "CPU", {"CPU_KERNELS": kernels, "INFERENCE_NUM_THREADS": threads}).infer({"x": x})["y"]


@pytest.mark.parametrize(
    ("shape", "node", "weights"),
    [
        ((0, 8, 6, 6), "ConvTranspose(x, w)", {"w": (8, 8, 3, 3)}),
        ((0, 8, 6, 6), "ConvTranspose<strides=[3,3]>(x, w, b)", {"w": (8, 8, 3, 3), "b": (8,)}),
        ((0, 8, 6, 6), "ConvTranspose<group=4>(x, w)", {"w": (8, 2, 3, 3)}),
        ((0, 8, 6), "ConvTranspose(x, w)", {"w": (8, 8, 3)}),
        ((0, 8, 6, 6), "Conv(x, w)", {"w": (8, 8, 1, 1)}),
        ((0, 8, 6, 6), "Conv(x, w, b)", {"w": (8, 8, 3, 3), "b": (8,)}),
        ((0, 8, 6, 6), "DeformConv(x, w, o)", {"w": (8, 8, 3, 3), "o": (0, 18, 4, 4)}),
        ((0, 8, 6, 6), "GridSample(x, o)", {"o": (0, 3, 3, 2)}),
        ((0, 5, 6), "LSTM<hidden_size=4>(x, w, r)", {"w": (1, 16, 6), "r": (1, 16, 4)}),
    ],
)
def test_empty_batch_equals_onnx_runtime(kernels: str, shape: tuple[int, ...], node: str, weights: Any) -> None:
    model = parse(f"g (float[{','.join(map(str, shape))}] x) => (float y) {{ y = {node} }}", **weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = np.zeros(shape, np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    assert expected.size == 0
    result = infer(model, x, kernels, 1)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize(
    ("shape", "node", "weights", "expected"),
    [
        ((0, 8, 6, 6), "GroupNormalization<num_groups=2>(x, s, b)", {"s": (8,), "b": (8,)}, (0, 8, 6, 6)),
        ((5, 0, 6), "LSTM<hidden_size=4>(x, w, r)", {"w": (1, 16, 6), "r": (1, 16, 4)}, (5, 1, 0, 4)),
    ],
)
def test_empty_batch_that_onnx_runtime_fails_on_is_empty(
    kernels: str, shape: tuple[int, ...], node: str, weights: Any, expected: tuple[int, ...]
) -> None:
    """Source: the shapes of ONNX GroupNormalization-21 and LSTM-22."""
    model = parse(f"g (float[{','.join(map(str, shape))}] x) => (float y) {{ y = {node} }}", **weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert infer(model, np.zeros(shape, np.float32), kernels, 1).shape == expected
