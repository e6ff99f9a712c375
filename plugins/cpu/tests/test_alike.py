"""What is planned and bound once for groups that are alike: it is what each of them would have got alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")


from hetero_core import Core

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(4)
WEIGHTS = {"w": RNG.standard_normal((8, 8), np.float32), "k": RNG.standard_normal((16, 16, 3, 3), np.float32) / 12}


def read(body: str, inputs: str, version: int = 17) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {version}]> g ({inputs}) => (float[?] y) {{ {body} }}')
    outputs = model.graph.output[0].type.tensor_type
    outputs.ClearField("shape")
    read_values = {value for node in model.graph.node for value in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if name in read_values
    )
    return model


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def leak(x: Array, alpha: float) -> Array:
    return np.where(x < 0, x * np.float32(alpha), x)


def test_groups_that_differ_in_an_attribute_are_told_apart() -> None:
    body = "a = LeakyRelu<alpha=0.5>(x) b = MatMul(a, w) c = LeakyRelu<alpha=0.25>(b) d = MatMul(c, w) y = LeakyRelu<alpha=0.5>(d)"
    x = RNG.standard_normal((3, 8), np.float32)
    w = WEIGHTS["w"]
    expected = leak(leak(leak(x, 0.5) @ w, 0.25) @ w, 0.5)
    for kernels in ("NUMPY", "JIT"):
        with Core() as core:
            network = core.load_network(read(body, "float[3,8] x"), "CPU", {"CPU_KERNELS": kernels})
            np.testing.assert_allclose(network.infer({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


def test_zeros_of_either_sign_are_other_attributes() -> None:
    # Bounds of Clip were attributes up to version 6.
    model = read("a = Clip<max=0.0>(x) b = Clip<max=-0.0>(x) y = Concat<axis=0>(a, b)", "float[2] x", 10)
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        signs = np.signbit(network.infer({"x": np.array([3, 4], np.float32)})["y"])
    assert signs.tolist() == [False, False, True, True]


def test_names_that_repeat_otherwise_are_another_group() -> None:
    body = "a = MatMul(x, w) b = Mul(a, x) c = MatMul(b, w) d = Mul(c, c) e = MatMul(d, w) y = Mul(e, d)"
    x = RNG.standard_normal((3, 8), np.float32) / 4
    w = WEIGHTS["w"]
    b = (x @ w) * x
    d = (b @ w) ** 2
    with Core() as core:
        network = core.load_network(read(body, "float[3,8] x"), "CPU", {"CPU_KERNELS": "JIT"})
        np.testing.assert_allclose(network.infer({"x": x})["y"], (d @ w) * d, rtol=1e-4, atol=1e-5)
