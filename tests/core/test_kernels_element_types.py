"""Element types off the usual path: against ONNX Runtime where it has them, else against a formula."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnxruntime
import pytest

from hetero_core.errors import UnsupportedNodesError
from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import assert_same

Array = np.ndarray[Any, Any]


def parse(opset: int, text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def run_kernels(opset: int, text: str, *inputs: Array) -> tuple[Any, ...]:
    return compile_program(read_network(parse(opset, text))).run(inputs)


def run_onnxruntime(opset: int, text: str, *inputs: Array) -> list[Any]:
    session = onnxruntime.InferenceSession(parse(opset, text).SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {spec.name: value for spec, value in zip(session.get_inputs(), inputs, strict=True)}))


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


INTEGERS = np.array([[1, 4, 2], [3, 9, 27]], np.int32)
RNN = 'y, h = RNN<hidden_size = 3, direction = "bidirectional"{hint}>(x, w, r, b)'
GRU = "y, h = GRU<hidden_size = 3, linear_before_reset = 1{hint}>(x, w, r, b)"
LSTM = 'y, h, c = LSTM<hidden_size = 3, direction = "reverse"{hint}>(x, w, r, b)'


@pytest.mark.parametrize(
    ("opset", "text", "inputs"),
    [
        (18, "g (int32[2,3] x) => (y) { y = ReduceLogSum(x) }", (INTEGERS,)),
        (18, "g (int32[2,3] x) => (y) <int64[1] a = {1}> { y = ReduceLogSumExp(x, a) }", (INTEGERS,)),
        (13, "g (string[3] x, int64[2,1] i, string[2] u) => (y) { y = ScatterND(x, i, u) }",
         (np.array(["a", "b", "c"], object), np.array([[2], [0]]), np.array(["x", "y"], object))),
        (16, "g (string[3] x, int64[2] i, string[2] u) => (y) { y = ScatterElements(x, i, u) }",
         (np.array(["a", "b", "c"], object), np.array([2, 0]), np.array(["x", "y"], object))),
    ],
    ids=["log_sum", "log_sum_exp", "scatter_texts", "scatter_text_elements"],
)  # fmt: skip
def test_type_agrees_with_onnxruntime(opset: int, text: str, inputs: tuple[Array, ...]) -> None:
    (found,), (expected,) = run_kernels(opset, text, *inputs), run_onnxruntime(opset, text, *inputs)
    assert found.tolist() == expected.tolist()
    assert found.dtype == expected.dtype


def test_resize_takes_strings_from_where_it_takes_numbers() -> None:
    text = 'g ({}[1,1,2,2] x) => (y) <float[0] r = {{}}, float[4] s = {{1.0, 1.0, 2.0, 1.5}}> {{ y = Resize<mode = "nearest">(x, r, s) }}'
    words = np.array(["a", "b", "c", "d"], object)
    (places,) = run_onnxruntime(13, text.format("float"), np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2))
    (found,) = run_kernels(13, text.format("string"), words.reshape(1, 1, 2, 2))
    assert found.tolist() == words[places.astype(int)].tolist()


@pytest.mark.parametrize(
    ("opset", "body", "sizes", "outputs"),
    [(6, RNN, (6, 2, 3, 3, 6), "y, h"), (6, GRU, (6, 1, 9, 9, 18), "y, h"), (6, LSTM, (6, 1, 12, 12, 24), "y, h, c")],
    ids=["RNN-1", "GRU-3", "LSTM-1"],
)
def test_first_version_of_a_recurrent_operator_is_the_seventh_with_a_hint(
    opset: int, body: str, sizes: tuple[int, ...], outputs: str
) -> None:
    steps, directions, rows, _, biases = sizes
    rows = rows if directions == 1 else 3
    biases = biases if directions == 1 else 6
    inputs = (
        draw(steps, 2, 4),
        draw(directions, rows, 4, seed=1),
        draw(directions, rows, 3, seed=2),
        draw(directions, biases, seed=3),
    )
    head = "g (float[6,2,4] x, float[{0},{1},4] w, float[{0},{1},3] r, float[{0},{2}] b) => ({3}) {{ {4} }}"
    old = head.format(directions, rows, biases, outputs, body.format(hint=", output_sequence = 1"))
    new = head.format(directions, rows, biases, outputs, body.format(hint=""))
    for found, expected in zip(run_kernels(opset, old, *inputs), run_onnxruntime(7, new, *inputs), strict=True):
        assert_same(found, expected)


def test_float8_has_no_infinity_but_nan() -> None:
    x = np.array([np.nan, 1, -2], ml_dtypes.float8_e4m3fn)
    text = "g (float8e4m3fn[3] x) => (y, z) { y = IsNaN(x) z = IsInf(x) }"
    nan, infinite = run_kernels(20, text, x)
    assert nan.tolist() == [True, False, False]
    assert infinite.tolist() == [False, False, False]


def test_float8e5m2_has_infinities() -> None:
    x = np.array([np.inf, -np.inf, 1], ml_dtypes.float8_e5m2)
    (y,) = run_kernels(20, "g (float8e5m2[3] x) => (y) { y = IsInf<detect_negative = 0>(x) }", x)
    assert y.tolist() == [True, False, False]


def test_dropout_passes_float8() -> None:
    x = np.array([1, -2], ml_dtypes.float8_e5m2)
    y, mask = run_kernels(22, "g (float8e5m2[2] x) => (y, m) { y, m = Dropout(x) }", x)
    assert y.tolist() == x.tolist()
    assert mask.tolist() == [True, True]


def test_mask_of_integers_is_added() -> None:
    q, k, v = draw(1, 2, 3, 4), draw(1, 2, 5, 4, seed=1), draw(1, 2, 5, 4, seed=2)
    mask = np.random.default_rng(3).integers(-3, 3, (3, 5))
    head = "g (float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v, {}[3,5] m) => (y) {{ y = Attention(q, k, v, m) }}"
    (found,) = run_kernels(24, head.format("int64"), q, k, v, mask)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k).astype(np.float64) / 2 + mask
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert_same(found, np.einsum("bhqk,bhkd->bhqd", weights, v).astype(np.float32))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
def test_grid_sample_takes_the_nearest_of_any_type(dtype: str) -> None:
    x = np.arange(12).reshape(1, 1, 3, 4).astype(dtype)
    # The centers of the elements, shifted by less than a half.
    rows, columns = np.meshgrid((np.arange(3) * 2 + 1) / 3 - 1, (np.arange(4) * 2 + 1) / 4 - 1, indexing="ij")
    grid = np.stack([columns[:, ::-1] + 0.1, rows - 0.1], axis=-1)[None].astype(np.float32)
    text = f'g ({dtype}[1,1,3,4] x, float[1,3,4,2] g) => (y) {{ y = GridSample<mode = "nearest">(x, g) }}'
    (found,) = run_kernels(20, text, x, grid)
    assert found.dtype == x.dtype
    assert np.array_equal(found, x[..., ::-1])


def test_complex_columns_are_added() -> None:
    columns = (draw(1, 4, 2) + 1j * draw(1, 4, 2, seed=1)).astype(np.complex64)
    text = "g (complex64[1,4,2] x) => (y) <int64[2] i = {2, 3}, int64[2] b = {2, 2}> { y = Col2Im(x, i, b) }"
    (found,) = run_kernels(18, text, columns)
    first, second = (columns[0, :, place].reshape(2, 2) for place in (0, 1))
    expected = np.zeros((2, 3), np.complex64)
    expected[:, :2] += first
    expected[:, 1:] += second
    assert_same(found[0, 0], expected)


def test_non_zero_of_complex_numbers() -> None:
    (found,) = run_kernels(13, "g (complex64[3] x) => (y) { y = NonZero(x) }", np.array([0, 1j, 2], np.complex64))
    assert found.tolist() == [[1, 2]]


def test_erf_of_integers_is_truncated() -> None:
    (found,) = run_kernels(13, "g (int8[3] x) => (y) { y = Erf(x) }", np.array([-9, 0, 9], np.int8))
    assert found.tolist() == [-1, 0, 1]


def test_scale_of_powers_of_two() -> None:
    x = draw(2, 4)
    scale = np.array([[0.5, 2.0], [0.25, 1.0]], ml_dtypes.float8_e8m0fnu)
    text = (
        "g (float[2,4] x, float8e8m0[2,2] s) => (q, y) { q = QuantizeLinear<axis = 1, block_size = 2, output_dtype = 3, precision = 1>"
        "(x, s) y = DequantizeLinear<axis = 1, block_size = 2, output_dtype = 1>(q, s) }"
    )
    model = parse(25, text)
    quantized, back = compile_program(read_network(model)).run((x, scale))
    wide = np.repeat(scale.astype(np.float32), 2, axis=1)
    assert quantized.tolist() == np.rint(x / wide).astype(np.int8).tolist()
    assert_same(back, quantized * wide)


@pytest.mark.parametrize(
    ("opset", "text", "reason"),
    [
        (18, 'g (string[2] x, int64[1] i, string[1] u) => (y) { y = ScatterElements<reduction = "add">(x, i, u) }',
         "reduction 'add' of ScatterElements-18 is not defined for string"),
        (18, 'g (complex64[2] x, int64[1,1] i, complex64[1] u) => (y) { y = ScatterND<reduction = "max">(x, i, u) }',
         "reduction 'max' of ScatterND-18 is not defined for complex64"),
        (20, "g (int32[1,1,2,2] x, float[1,2,2,2] g) => (y) { y = GridSample(x, g) }",
         "mode 'linear' of GridSample-20 is implemented for floats, not for int32"),
        (22, "g (int32[2] x) => (y) { y = RandomNormalLike(x) }",
         "RandomNormalLike-22 draws floats and has no dtype, and its input is int32"),
        (25, "g (int8[2] x, float8e8m0 s) => (y) { y = DequantizeLinear(x, s) }",
         "DequantizeLinear-25 has a scale of float8e8m0 and no output_dtype that names a wider type"),
    ],
    ids=["sum_of_texts", "greater_complex", "interpolated_integers", "random_integers", "small_scale"],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(opset: int, text: str, reason: str) -> None:
    with pytest.raises(UnsupportedNodesError) as caught:
        compile_program(read_network(parse(opset, text)))
    assert reason in str(caught.value)


def test_random_numbers_like_integers_have_the_type_that_is_named() -> None:
    (found,) = run_kernels(22, "g (int32[500] x) => (y) { y = RandomUniformLike<dtype = 1, low = 3.0, high = 4.0>(x) }",
                           np.zeros(500, np.int32))  # fmt: skip
    assert found.dtype == np.float32
    assert found.min() >= 3
    assert found.max() <= 4
