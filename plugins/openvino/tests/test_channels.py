"""Numbers by channel behind a product of matrices: refused where the engine takes them along the wrong axis, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hetero_core import Core, Network

openvino = pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

Read = Callable[..., Network]
HEAD = "g (float[2,3,5,4] x, float[4,3] w) => (float[2,3,5,3] y) <float[3,1,1] c = {1, 20, 300}, float[3] l = {1, 20, 300}, float s = {2}>"
X, W = np.ones((2, 3, 5, 4), np.float32), np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    "body",
    [
        "v = MatMul (x, w)  y = Add (v, c)",
        "v = MatMul (x, w)  u = Sigmoid (v)  y = Mul (u, c)",
        "v = MatMul (x, w)  u = Relu (v)  t = Neg (u)  y = Sub (c, t)",
        "v = MatMul (x, w)  u = Tanh (v)  y = BatchNormalization (u, l, l, l, l)",
    ],
)
def test_number_for_each_channel_behind_a_product_is_refused(core: Core, read: Read, body: str) -> None:
    refused = core.query_network(read(f"{HEAD} {{ {body} }}"), "OPENVINO").refused
    assert [reason for reason in refused.values() if "into the product before it, along its last axis" in reason]


@pytest.mark.parametrize(
    "body",
    [
        "v = MatMul (x, w)  y = Add (v, l)",
        "v = MatMul (x, w)  u = Sigmoid (v)  y = Mul (u, s)",
        "v = MatMul (x, w)  t = Transpose <perm = [0, 1, 2, 3]> (v)  y = Add (t, c)",
    ],
)
def test_other_numbers_behind_a_product_are_taken_and_right(core: Core, read: Read, body: str) -> None:
    network = read(f"{HEAD} {{ {body} }}")
    result = core.load_network(network, "OPENVINO").infer({"x": X, "w": W})["y"]
    expected = core.load_network(network, "CPU", {"CPU_KERNELS": "NUMPY"}).infer({"x": X, "w": W})["y"]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_engine_still_takes_the_last_axis() -> None:
    """The refusal goes when this fails."""
    opset = openvino.opset13
    x = opset.parameter([2, 3, 5, 4], np.float32)
    channels: Any = np.array([1, 20, 300], np.float32).reshape(3, 1, 1)
    y = opset.add(opset.matmul(x, opset.constant(W), False, False), opset.constant(channels))
    compiled = openvino.Core().compile_model(
        openvino.Model([y], [x], "g"), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}
    )
    assert not np.allclose(compiled({0: X})[0], X @ W + channels)
