"""Sizes, iterations, pixels and 8-bit products: what is refused, what is taken, and what is put right, each with its smallest network."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from hetero_tests.openvino_neighbours import KINDS, Worker

from hetero_core import Core, Network
from hetero_core.engines.known_errors import KnownError
from hetero_core.errors import InferenceError
from hetero_core.testing.compare import describe_mismatch

pytest.importorskip("openvino", reason="needs the engine: pip install 'hetero-openvino[test]'")

from hetero_openvino import hazards

Read = Callable[..., Network]
LOOP = "y = Loop ({}, {}, x) <body = b (int64 i, bool g, float[2] a) => (bool h, float[2] o) {{ h = Identity (g) o = Add (a, a) }}>"
SCAN = """g (float[{},2] x, float[2] z) => (y, s) { y, s = Scan <num_scan_inputs = 1,
body = b (float[2] a, float[2] c) => (float[2] d, float[2] e) { d = Add (a, c) e = Neg (d) }> (z, x) }"""
LSTM = "g (float[{},3] x, float[1,8,3] w, float[1,8,2] r) => (y) {{ y = LSTM <hidden_size = 2> (x, w, r) }}"
Q = """g (uint8[2,3] a) => (y) <float s = {{{}}}, float t = {{{}}}, uint8 z = {{0}}, int8[3,2] b = {{{}}}, int8 o = {{0}}>
{{ y = QLinearMatMul (a, s, z, b, s, o, t, z) }}"""
PAIR = """g (uint8[2,3] a) => (y) <float s = {{0.1}}, uint8 z = {{0}}, int8 o = {{0}}, int8[3,2] b = {{{}}}>
{{ d = DequantizeLinear (a, s, z) e = DequantizeLinear (b, s, o) y = MatMul (d, e) }}"""
CONV = """g (uint8[1,3,2,2] a) => (y) <float s = {{0.013}}, float t = {{0.7}}, uint8 z = {{0}}, int8[2,3,1,1] b = {{{}}}, int8 o = {{0}}>
{{ y = QLinearConv (a, s, z, b, s, o, t, z) }}"""
EXAMPLES: dict[str, tuple[str, str]] = {
    "product_of_nothing": (
        "g (float[2,0] x, float[0,3] w) => (y) { y = MatMul (x, w) }",
        "g (float[2,1] x, float[1,3] w) => (y) { y = MatMul (x, w) }",
    ),
    "empty_constant": (
        "g (float[3,1] x) => (y) <float[3,0] c = {}> { y = Concat <axis = 1> (x, c) }",
        "g (float[3,1] x) => (y) <float[3,1] c = {1,2,3}> { y = Concat <axis = 1> (x, c) }",
    ),
    "open_size_beside_0": ("g (float[0,n] x) => (y) { y = Relu (x) }", "g (float[0,2] x) => (y) { y = Relu (x) }"),
    "gather_of_nothing": (
        "g (float[3,2] x) => (y) <int64[0] i = {}> { y = Gather (x, i) }",
        "g (float[3,2] x) => (y) <int64[1] i = {0}> { y = Gather (x, i) }",
    ),
    "dft_of_nothing": (
        "g (float[1,4,1] x, int64 n) => (y) { y = DFT <axis = 1> (x, n) }",
        "g (float[1,4,1] x) => (y) <int64 n = {3}> { y = DFT <axis = 1> (x, n) }",
    ),
    "loop_without_iterations": (
        f"g (int64 n, float[2] x) => (y) {{ {LOOP.format('n', '')} }}",
        f"g (float[2] x) => (y) <int64 n = {{2}}> {{ {LOOP.format('n', '')} }}",
    ),
    "scan_of_nothing": (SCAN.replace("{}", "n"), SCAN.replace("{}", "3")),
    "unique_of_nothing": ("g (float[n] x) => (y) { y = Unique (x) }", "g (float[3] x) => (y) { y = Unique (x) }"),
    "recurrent_of_nothing": (LSTM.format("2,0"), LSTM.format("2,B")),
    "hardmax_of_open_sizes": ("g (float[n,3] x) => (y) { y = Hardmax (x) }", "g (float[2,3] x) => (y) { y = Hardmax (x) }"),
    "nearest_pixel": (
        'g (float[1,1,1,n] x) => (y) <int64[4] s = {1,1,1,7}> { y = Resize <mode = "nearest"> (x, , , s) }',
        'g (float[1,1,1,n] x) => (y) <float[4] s = {1,1,1,2}> { y = Resize <mode = "nearest"> (x, , s) }',
    ),
    "long_sum": (
        "g (float[2,2000000] x) => (y) { y = ReduceSum (x) }",
        "g (float[2000,2,1000] x) => (y) <int64[1] a = {2}> { y = ReduceSum (x, a) }",
    ),
    "saturating_qlinearconv": (CONV.format("127,127,127,127,127,127"), CONV.format("64,64,64,-64,64,64")),
    "saturating_qlinearmatmul": (
        Q.format("0.013", "0.7", "127,127,127,127,127,127"),
        Q.format("0.013", "0.7", "64,64,64,-64,64,64"),
    ),
    "product_between_codes": (Q.format("0.25", "0.5", "1,2,3,4,5,6"), Q.format("0.013", "0.7", "1,2,3,4,5,6")),
    "saturating_pairs": (PAIR.format("127,127,127,127,127,127"), PAIR.format("64,64,64,-64,64,64")),
}
ROWS = (*hazards.ROWS, *hazards.HALF_ROWS, *hazards.QUANTIZED_ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row_refuses_its_example_and_takes_its_neighbour(core: Core, read: Read, row: KnownError) -> None:
    config = {"OPENVINO_QUANTIZED": True} if row in hazards.QUANTIZED_ROWS else {}
    wrong, right = (core.query_network(read(text), "OPENVINO", config).refused for text in EXAMPLES[row.name])
    if row.probe is None or row.probe():
        words = row.reason.partition("{")[0]
        assert any(words in reason for reason in wrong.values()), wrong
    assert not right


def infer(core: Core, text: str, opset: int, feed: dict[str, Any], **constants: Any) -> Any:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    assert not core.query_network(model, "OPENVINO").refused
    return core.load_network(model, "OPENVINO").infer(feed)["y"]


ROWS_OF_SCALES = np.linspace(0.01, 0.2, 6).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "scales", "is_transposed"),
    [
        ("w = DequantizeLinear <axis = 0> (q, s) y = MatMul (x, w)", ROWS_OF_SCALES, False),
        ("c = Cast <to = 1> (q) w = Mul (c, s) y = MatMul (x, w)", ROWS_OF_SCALES[:, None], False),
        ("w = DequantizeLinear <axis = 1> (q, s) y = Gemm <transB = 1> (x, w)", ROWS_OF_SCALES, True),
        ("w = DequantizeLinear <axis = 1> (q, s) t = Transpose (w) y = MatMul (x, t)", ROWS_OF_SCALES, True),
    ],
)
@pytest.mark.parametrize("sizes", ["2,6", "B,6"])
def test_scales_along_the_summed_axis_are_not_taken_for_columns(
    core: Core, text: str, scales: Any, sizes: str, *, is_transposed: bool
) -> None:
    rng = np.random.default_rng(0)
    codes, x = rng.integers(-60, 60, (6, 5)).astype(np.int8), rng.standard_normal((2, 6)).astype(np.float32)
    expected = (x.astype(np.float64) @ (codes * ROWS_OF_SCALES[:, None].astype(np.float64))).astype(np.float32)
    stored = np.ascontiguousarray(codes.T) if is_transposed else codes
    y = infer(core, f"(float[{sizes}] x) => (y) {{ {text} }}", 19, {"x": x}, q=stored, s=scales)
    assert describe_mismatch(y, expected) is None


def test_scales_of_columns_are_not_taken_for_rows_of_a_gathered_table(core: Core) -> None:
    codes = np.arange(-20, 22).reshape(6, 7).astype(np.int8)
    scales = np.arange(1, 8).astype(np.float32)
    text = "(int64[3] x) => (y) { w = DequantizeLinear <axis = 1> (q, s) y = Gather (w, x) }"
    y = infer(core, text, 19, {"x": np.array([3, 0, 5])}, q=codes, s=scales)
    assert y.tolist() == (codes * scales)[[3, 0, 5]].tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_folded_quotient_of_integers_is_cut_off(core: Core, dtype: Any) -> None:
    name = np.dtype(dtype).name
    constants = {"a": np.array([8, -8, 7, -7], dtype), "b": np.array([-3, 3, -2, 2], dtype)}
    y = infer(core, f"({name}[4] x) => (y) {{ k = Div (a, b) y = Add (x, k) }}", 17, {"x": np.zeros(4, dtype)}, **constants)
    assert y.tolist() == [-2, -2, -3, -3]


def test_half_of_a_negative_size_is_cut_off(core: Core) -> None:
    text = "(float[3,7] x) => (y) { s = Shape (x) n = Neg (s) y = Div (n, two) }"
    assert infer(core, text, 17, {"x": np.zeros((3, 7), np.float32)}, two=np.array([2])).tolist() == [-1, -3]


@pytest.mark.parametrize("product", ["MatMul (x, w)", "Gemm (x, w)"])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
def test_constant_of_more_dimensions_behind_a_product_keeps_them(core: Core, product: str, operator: str) -> None:
    x, w, b = (np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(np.float32) for shape in ((3, 4), (4, 5), (1, 1, 5)))
    y = infer(core, f"(float[3,4] x) => (y) {{ t = {product} y = {operator} (t, b) }}", 17, {"x": x}, w=w, b=b)
    expected = {"Add": x @ w + b, "Sub": x @ w - b, "Mul": x @ w * b}[operator]
    assert y.shape == (1, 3, 5)
    assert y.tolist() == expected.tolist()


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("sizes", [(0, 2), (3, 0), (0, 0)])
def test_recurrent_layer_of_no_steps_or_rows_returns_its_states(core: Core, operator: str, sizes: tuple[int, int]) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    weights = {"w": np.ones((1, gates * 2, 3), np.float32), "r": np.ones((1, gates * 2, 2), np.float32)}
    text = f"(float[T,B,3] x, float[1,B,2] h) => (z, y) {{ z, y = {operator} <hidden_size = 2> (x, w, r, , , h) }}"
    states = np.full((1, sizes[1], 2), 0.5, np.float32)
    y = infer(core, text, 17, {"x": np.zeros((*sizes, 3), np.float32), "h": states}, **weights)
    assert y.shape == (1, sizes[1], 2)
    assert y.tolist() == states.tolist()


@pytest.mark.parametrize(("old", "new"), [(20, 12), (20, 6), (7, 18), (10, 14)])
@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel"])
def test_nearest_pixel_is_that_of_exact_fractions(core: Core, old: int, new: int, mode: str) -> None:
    attributes = f'mode = "nearest", coordinate_transformation_mode = "{mode}", nearest_mode = "floor"'
    text = f"(float[1,1,2,{old}] x) => (y) {{ y = Resize <{attributes}> (x, , , s) }}"
    x = np.tile(np.arange(old, dtype=np.float32), (1, 1, 2, 1))
    half = Fraction(1, 2) if mode == "half_pixel" else 0
    places = [(index + half) * Fraction(old, new) - half for index in range(new)]
    expected = [min(max(place.__floor__(), 0), old - 1) for place in places]
    assert infer(core, text, 18, {"x": x}, s=np.array([1, 1, 2, new]))[0, 0].tolist() == [expected, expected]


def test_sum_of_an_open_size_that_is_too_long_is_an_error_of_the_run(core: Core, read: Read) -> None:
    loaded = core.load_network(read("g (float[n] x) => (y) { y = ReduceSum (x) }"), "OPENVINO")
    assert loaded.infer({"x": np.ones(1000, np.float32)})["y"].tolist() == [1000]
    with pytest.raises(InferenceError, match="axis 0 of input 'x' has length 200000; OpenVINO loses 0.1 % and more"):
        loaded.infer({"x": np.ones(200_000, np.float32)})


def test_drawn_neighbours_of_known_faults_are_right_or_refused() -> None:
    """`python -m hetero_tests.openvino_neighbours --count 1000` draws more of them."""
    worker = Worker(120)
    try:
        verdicts = {(kind, seed): worker.judge(kind, seed) for kind in KINDS if kind != "long" for seed in range(3)}
    finally:
        worker.close()
    assert not {key: verdict for key, verdict in verdicts.items() if verdict[0] not in ("RIGHT", "REFUSED", "INVALID")}
