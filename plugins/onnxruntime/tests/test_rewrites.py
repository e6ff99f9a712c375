"""ONNX Runtime's rewrites that change a result are switched off; the remaining rewrites stay on."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from hetero_tests.child_loads import load_in_child

from hetero_core import Core

PAIRS = """<ir_version: 8, opset_import: ["": 13]>
pairs (float[4] x) => (float[4] y) <float s1 = {0.02}, uint8 z1 = {115}, float s2 = {0.05}, uint8 z2 = {0}>
{ a = QuantizeLinear (x, s1, z1) b = DequantizeLinear (a, s1, z1) c = QuantizeLinear (b, s2, z2) y = DequantizeLinear (c, s2, z2) }"""


@pytest.mark.parametrize("opset", [19, 21])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_dequantized_numbers_are_turned(opset: int, dtype: str) -> None:
    """At opset 21 the engine fails to load this, except for uint8: it moves the pair after the Transpose and loses the pair's type."""
    if dtype == "int16" and opset < 21:
        pytest.skip("int16 is quantized from opset 21 on")
    text = f'<ir_version: 8, opset_import: ["": {opset}]> turned ({dtype}[2,3] x) => (float[3,2] y)'
    text += f" <float s = {{0.5}}, {dtype} z = {{3}}> {{ a = DequantizeLinear (x, s, z) y = Transpose (a) }}"
    x = np.arange(6, dtype=dtype).reshape(2, 3)
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": x})["y"]
    assert y.tolist() == ((x.T.astype(float) - 3) * 0.5).tolist()


@pytest.mark.parametrize("move", ["Transpose <perm = [1, 0]> (a)", "Reshape (a, turned)"])
@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_dequantized_numbers_without_a_zero_point_are_moved(opset: int, dtype: str, move: str) -> None:
    """The engine also moves this pair, and adds a QuantizeLinear to uint8 unless a zero point has another type."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> moved ({dtype}[2,3] x) => (float[3,2] y)'
    text += f" <float s = {{0.5}}, int64[2] turned = {{3, 2}}> {{ a = DequantizeLinear (x, s) y = {move} }}"
    numbers = np.array([[100, 2, 3], [4, 5, 120]]) if dtype == "uint8" else np.array([[-100, 2, -3], [4, 70000, -6]])
    x = numbers.astype(dtype)  # 70000 wraps around in int8
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(text), "ORT").infer({"x": x})["y"]
    moved = x.T if move.startswith("Transpose") else x.reshape(3, 2)
    assert y.tolist() == (moved.astype(float) * 0.5).tolist()


def test_dequantized_int32_is_refused_beside_a_transpose() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (int32[2,3] x) => (float[3,2] y)'
    text += " <float s = {0.5}, int32 z = {0}> { a = DequantizeLinear (x, s, z) y = Transpose (a) }"
    with Core() as core:
        (reason,) = core.query_network(core.read_network(onnx.parser.parse_model(text)), "ORT").refused.values()
    assert "fails to load a DequantizeLinear of int32 with a zero point" in reason


@pytest.mark.parametrize("order", ["1, 2, 0", "1, 0, 2"])
def test_float16_product_of_a_turned_batch_runs(order: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[3,3,3] x) => (float[3,3,2] y) <float16[3,2] w = {{0,0,0,0,0,0}}> {{
        h = Cast <to = 10> (x) t = Transpose <perm = [{order}]> (h) m = MatMul (t, w) y = Cast <to = 1> (m) }}"""
    load = load_in_child(onnx.parser.parse_model(text).SerializeToString(), "ORT")
    assert load.outputs["y"] == np.zeros((3, 3, 2)).tolist()


def test_two_pairs_of_other_scales_round_twice() -> None:
    x = np.array([0.615, 1.3, -0.2, 0.07], np.float32)
    once = (np.clip(np.round(x.astype(float) / 0.02) + 115, 0, 255) - 115) * 0.02
    twice = np.clip(np.round(once / 0.05), 0, 255) * 0.05
    with Core() as core:
        y = core.load_network(onnx.parser.parse_model(PAIRS), "ORT").infer({"x": x})["y"]
    np.testing.assert_allclose(y, twice, atol=1e-6)


@pytest.mark.parametrize("product", ["m = MatMul (d, w) p = Add (m, b)", "p = Gemm (d, w, b)"])
def test_float_weights_are_not_quantized(product: str) -> None:
    generator = np.random.default_rng(0)
    weights, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ((12, 17), (17,)))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (uint8[24,12] x) => (uint8[24,17] y) '
        "<float s = {0.037}, float t = {0.05}, uint8 z = {0}> "
        f"{{ d = DequantizeLinear (x, s, z) {product} y = QuantizeLinear (p, t, z) }}"
    )
    model.graph.initializer.extend([onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(bias, "b")])
    x = generator.integers(0, 255, (24, 12)).astype(np.uint8)
    with Core() as core:
        y = core.load_network(model, "ORT").infer({"x": x})["y"]
    products = (x * np.float64(np.float32(0.037))) @ weights.astype(float) + bias
    assert y.tolist() == np.clip(np.round(products / np.float64(np.float32(0.05))), 0, 255).tolist()


@pytest.mark.parametrize("sizes", [("0", "3"), ("n", "3"), ("2", "0"), ("n", "m")])
@pytest.mark.parametrize("opset", [18, 21])
def test_groups_of_no_elements_are_no_elements(sizes: tuple[str, str], opset: int) -> None:
    text = (
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[{sizes[0]},4,{sizes[1]}] x) => (y) <float[{{}}] s = {{{{{{}}}}}}>'
    )
    count = 4 if opset == 21 else 2
    model = onnx.parser.parse_model(
        text.format(count, ", ".join("1" * count)) + " { y = GroupNormalization <num_groups = 2> (x, s, s) }"
    )
    x = np.zeros((2, 4, 0) if sizes[0] == "2" else (0, 4, 3), np.float32)
    with Core() as core:
        assert core.load_network(model, "ORT").infer({"x": x})["y"].shape == x.shape
