"""Refused or corrected faults of the engine, and similar models that run; expected values are exact integers and formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from hetero_core import Core
from hetero_core.network.graph import Network

LEAST = np.iinfo(np.int32).min
LSTM = "y, h = LSTM<hidden_size=2>(x, w, r)"
GATES = {"w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)}

LARGE = np.iinfo(np.int32).max
DRAWN: dict[str, tuple[str, dict[str, Any], dict[str, Any], Any]] = {
    "division": (
        "(int32[2] x, int32[2] z) => (int32[2] y) { y = Div(x, z) }",
        {},
        {"x": np.array([LEAST, 7], np.int32), "z": np.array([-1, -2], np.int32)},
        np.array([LEAST, -3]),
    ),
    "division-in-body": (
        "(bool c, int32[2] x, int32[2] z) => (int32[2] y) { y = If (c) <then_branch = t () => (int32[2] a) { a = Div(x, z) }, "
        "else_branch = e () => (int32[2] b) { b = Identity(x) }> }",
        {},
        {"c": np.array(True), "x": np.array([LEAST, 7], np.int32), "z": np.array([-1, -2], np.int32)},
        np.array([LEAST, -3]),
    ),
    "sum": (
        "(int32[3] x) => (int32[1] y) { y = ReduceSum(x) }",
        {},
        {"x": np.array([LARGE, 5, 6], np.int32)},
        np.array([LARGE + 11 - 2**32]),
    ),
    "no steps": (
        "(float[0,2,3] x) => (float[0,1,2,2] y) { " + LSTM + " }",
        GATES,
        {"x": np.zeros((0, 2, 3), np.float32)},
        np.zeros((0, 1, 2, 2)),
    ),
}
TAKEN: dict[str, tuple[str, dict[str, Any], dict[str, Any], Any]] = {
    "division-by-2": (
        "(int32[2] x) => (int32[2] y) { y = Div(x, two) }",
        {"two": np.int32(2)},
        {"x": np.array([LEAST, 7], np.int32)},
        [LEAST // 2, 3],
    ),
    "division-of-sizes": (
        "(float[N,4] x, int64[1] z) => (int64[1] y) { s = Shape<end=1>(x) y = Div(s, z) }",
        {},
        {"x": np.ones((6, 4), np.float32), "z": np.array([-1])},
        [-6],
    ),
    "quotient-times": (
        "(int32[3] x, int32[3] z) => (int32[3] y) { d = Div(one, x) y = Mul(d, z) }",
        {"one": np.int32(1)},
        {"x": np.array([2, 1, -3], np.int32), "z": np.array([7, 9, 8], np.int32)},
        [0, 9, 0],
    ),
    "sum-of-flags": (
        "(bool[4] x) => (int64[1] y) { i = Cast<to=7>(x) y = ReduceSum(i) }",
        {},
        {"x": np.array([True, False, True, True])},
        [3],
    ),
    "folded-one": (
        "(float[2] x) => (float[2] y) { m = Identity(x) k = Div(o, o) y = Mul(m, k) }",
        {"o": np.float32(1)},
        {"x": np.float32([3, 4])},
        [3, 4],
    ),
}


def read(core: Core, text: str, constants: dict[str, Any]) -> Network:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    return core.read_network(model)


@pytest.mark.parametrize("name", DRAWN)
def test_fault_of_the_engine_is_refused_or_put_right(core: Core, name: str) -> None:
    text, constants, inputs, expected = DRAWN[name]
    network = read(core, text, constants)
    refused = core.query_network(network, "ORT").refused
    if refused:
        assert all(reason.startswith("ONNX Runtime ") for reason in refused.values())
        return
    (outputs,) = core.load_network(network, "ORT").infer(inputs).values()
    np.testing.assert_array_equal(outputs, expected)


@pytest.mark.parametrize("name", TAKEN)
def test_neighbour_of_a_row_runs(core: Core, name: str) -> None:
    text, constants, inputs, expected = TAKEN[name]
    (outputs,) = core.load_network(read(core, text, constants), "ORT").infer(inputs).values()
    assert outputs.tolist() == expected


BYTES = np.full((2, 64), 255, np.uint8)
WEIGHTS = np.full((64, 3), 127, np.int8)
SCALES = {"s": np.float32(0.01), "t": np.float32(2), "z": np.uint8(0), "zs": np.int8(0)}
EXACT = BYTES.astype(np.int64) @ WEIGHTS.astype(np.int64)
PRODUCTS: dict[str, tuple[str, Any]] = {
    "MatMulInteger": ("y = MatMulInteger(x, w)", EXACT),
    "QLinearMatMul": ("y = QLinearMatMul(x, s, z, w, s, zs, t, z)", np.rint(EXACT * 1e-4 / 2)),
    "MatMulIntegerToFloat": ("y = com.microsoft.MatMulIntegerToFloat(x, w, s, s)", EXACT * 1e-4),
    "QGemm": ("y = com.microsoft.QGemm<transB=0>(x, s, z, w, s, zs, , t, z)", np.rint(EXACT * 1e-4 / 2)),
    "QDQ": (
        "a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, s, zs) m = MatMul(a, b) q = QuantizeLinear(m, t, z) "
        "y = DequantizeLinear(q, t, z)",
        np.rint(EXACT * 1e-4 / 2) * 2,
    ),
}


@pytest.mark.parametrize("level", ["ALL", "BASIC", "NONE"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_product_of_bytes_is_exact(core: Core, name: str, level: str) -> None:
    body, expected = PRODUCTS[name]
    config = {"ORT_GRAPH_OPTIMIZATION": level}
    network = read(core, f"(uint8[2,64] x) => (y) {{ {body} }}", {**SCALES, "w": WEIGHTS})
    (outputs,) = core.load_network(network, "ORT", config).infer({"x": BYTES}).values()
    np.testing.assert_allclose(outputs.astype(np.float64), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_of_computed_weights_is_exact(core: Core, name: str) -> None:
    body, expected = PRODUCTS[name]
    network = read(core, f"(uint8[2,64] x, int8[64,3] w) => (y) {{ {body} }}", SCALES)
    (outputs,) = core.load_network(network, "ORT").infer({"x": BYTES, "w": WEIGHTS}).values()
    np.testing.assert_allclose(outputs.astype(np.float64), expected, rtol=1e-5, atol=0)


def test_product_in_a_body_is_exact(core: Core) -> None:
    text = (
        "(bool c, uint8[2,64] x) => (int32[2,3] y) { y = If (c) <then_branch = t () => (int32[2,3] a) { a = MatMulInteger(x, w) }, "
        "else_branch = e () => (int32[2,3] b) { n = Neg(k) b = Cast<to=6>(n) }> }"
    )
    network = read(core, text, {"w": WEIGHTS, "k": np.zeros((2, 3), np.float32)})
    outputs = core.load_network(network, "ORT").infer({"c": np.array(True), "x": BYTES})["y"]
    np.testing.assert_array_equal(outputs, EXACT)


SIGNED = np.full((2, 64), -128, np.int8)
SIGNED_EXACT = SIGNED.astype(np.int64) @ WEIGHTS.astype(np.int64)
SIGNED_PRODUCTS: dict[str, tuple[str, Any]] = {
    "MatMulInteger": ("y = MatMulInteger(x, w)", SIGNED_EXACT),
    "MatMulIntegerToFloat": ("y = com.microsoft.MatMulIntegerToFloat(x, w, s, s)", SIGNED_EXACT * 1e-4),
    "QLinearMatMul": ("y = QLinearMatMul(x, s, zs, w, s, zs, t, zs)", np.rint(SIGNED_EXACT * 1e-4 / 2)),
    "QGemm": ("y = com.microsoft.QGemm<transB=0>(x, s, zs, w, s, zs, , t, zs)", np.rint(SIGNED_EXACT * 1e-4 / 2)),
    "QDQ": (
        "a = DequantizeLinear(x, s, zs) b = DequantizeLinear(w, s, zs) m = MatMul(a, b) q = QuantizeLinear(m, t, zs) "
        "y = DequantizeLinear(q, t, zs)",
        np.rint(SIGNED_EXACT * 1e-4 / 2) * 2,
    ),
}


@pytest.mark.parametrize("name", SIGNED_PRODUCTS)
def test_product_of_signed_bytes_is_exact(core: Core, name: str) -> None:
    body, expected = SIGNED_PRODUCTS[name]
    network = read(core, f"(int8[2,64] x) => (y) {{ {body} }}", {**SCALES, "w": WEIGHTS})
    (outputs,) = core.load_network(network, "ORT").infer({"x": SIGNED}).values()
    np.testing.assert_allclose(outputs.astype(np.float64), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_convolution_of_bytes_is_exact(core: Core, domain: str, is_constant: bool) -> None:
    x, w = np.full((1, 16, 4, 4), 255, np.uint8), np.full((3, 16, 3, 3), 127, np.int8)
    inputs = "uint8[1,16,4,4] x" if is_constant else "uint8[1,16,4,4] x, int8[3,16,3,3] w"
    operator = f"{domain}.QLinearConv" if domain else "QLinearConv"
    text = f"({inputs}) => (uint8[1,3,2,2] y) {{ y = {operator}(x, s, z, w, s, zs, t, z) }}"
    network = read(core, text, {**SCALES, "t": np.float32(4), **({"w": w} if is_constant else {})})
    (outputs,) = core.load_network(network, "ORT").infer({"x": x} if is_constant else {"x": x, "w": w}).values()
    np.testing.assert_array_equal(outputs, np.full((1, 3, 2, 2), np.rint(255 * 127 * 144 * 1e-4 / 4)))
