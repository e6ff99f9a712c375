"""Attention without keys or without queries: an empty sum is 0; an empty result has the right shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core import Core

CONFIGS: dict[str, dict[str, Any]] = {"TEMPLATE": {}, "CPU": {"CPU_KERNELS": "NUMPY"}, "CPU ": {"CPU_KERNELS": "AUTO"}}


def run(device: str, text: str, opset: int, **feeds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["": {opset}, "com.microsoft": 1]> g {text}')
    with Core() as core:
        loaded = core.load_network(model, device.strip(), CONFIGS[device])
        outputs = [loaded.infer(feeds)["y"] for _ in range(3)]
    np.testing.assert_array_equal(outputs[0], outputs[-1])
    return outputs[0]


@pytest.mark.parametrize("device", CONFIGS)
@pytest.mark.parametrize(("queries", "keys", "batch"), [(3, 0, 1), (0, 3, 1), (0, 0, 2), (3, 2, 0)])
def test_attention_without_keys_is_zeros_of_the_output_shape(device: str, queries: int, keys: int, batch: int) -> None:
    q, k = np.ones((batch, 2, queries, 4), np.float32), np.ones((batch, 2, keys, 4), np.float32)
    y = run(device, "(float[b,2,s,4] q, float[b,2,t,4] k) => (y) { y = Attention(q, k, k) }", 23, q=q, k=k)
    np.testing.assert_array_equal(y, np.zeros((batch, 2, queries, 4)))


@pytest.mark.parametrize("device", CONFIGS)
@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 3, 8), (0, 0, 8)])
def test_multi_head_attention_of_nothing_is_empty(device: str, shape: tuple[int, ...]) -> None:
    text = "(float[b,s,8] q) => (y) { y = com.microsoft.MultiHeadAttention<num_heads=2>(q, q, q) }"
    assert run(device, text, 17, q=np.zeros(shape, np.float32)).shape == shape


@pytest.mark.parametrize("device", CONFIGS)
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_softmax_along_an_empty_axis_is_empty(device: str, operator: str, shape: tuple[int, ...]) -> None:
    assert run(device, f"(float[n,m] x) => (y) {{ y = {operator}(x) }}", 17, x=np.zeros(shape, np.float32)).shape == shape


@pytest.mark.parametrize("device", CONFIGS)
def test_attention_of_products_without_keys_is_zeros(device: str) -> None:
    text = "(float[b,s,4] q, float[b,t,4] k) => (y) { t = Transpose<perm=[0,2,1]>(k) m = MatMul(q, t) s = Softmax(m) y = MatMul(s, k) }"
    y = run(device, text, 17, q=np.ones((2, 3, 4), np.float32), k=np.ones((2, 0, 4), np.float32))
    np.testing.assert_array_equal(y, np.zeros((2, 3, 4)))
