"""Rare versions and element types: against ONNX Runtime if it supports them, else against formulas in float64."""

from __future__ import annotations

from collections.abc import Mapping
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
from hetero_core.testing.reference_session import open_reference_session

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


X = draw(2, 3, 7, 7)
VECTORS = tuple(draw(3, seed=seed) for seed in range(1, 4))
ROIS = np.array([[0, 0, 4, 4], [1, 2, 5.5, 6]], np.float32)

# Name, opset, model, inputs of the cases that run on our kernels and on ONNX Runtime.
AGAINST_ONNXRUNTIME: list[tuple[str, int, str, tuple[Array, ...]]] = [
    (
        "lrn_more_channels_than_batch",
        9,
        "g (float[2,9,3,3] x) => (y) { y = LRN<size = 5, alpha = 0.5, bias = 2.0>(x) }",
        (draw(2, 9, 3, 3),),
    ),
    ("clip_attributes", 6, "g (float[5] x) => (float[5] y) { y = Clip<min = -0.5, max = 0.25>(x) }", (draw(5),)),
    (
        "clip_low_above_high",
        12,
        "g (float[5] x, float a, float b) => (float[5] y) { y = Clip(x, a, b) }",
        (draw(5), np.array(2, np.float32), np.array(1, np.float32)),
    ),
    (
        "slice_attributes",
        9,
        "g (float[5,6] x) => (y) { y = Slice<axes = [1, 0], starts = [-4, 1], ends = [1000, -1]>(x) }",
        (draw(5, 6),),
    ),
    (
        "resize_10_linear",
        10,
        'g (float[1,1,3,3] x) => (y) <float[4] s = {1.0, 1.0, 1.7, 2.4}> { y = Resize<mode = "linear">(x, s) }',
        (draw(1, 1, 3, 3),),
    ),
    (
        "resize_10_nearest",
        10,
        "g (float[1,1,4,4] x) => (y) <float[4] s = {1.0, 1.0, 0.6, 2.3}> { y = Resize(x, s) }",
        (draw(1, 1, 4, 4),),
    ),
    (
        "upsample_9",
        9,
        'g (float[1,1,3,3] x) => (y) <float[4] s = {1.0, 1.0, 2.0, 3.0}> { y = Upsample<mode = "linear">(x, s) }',
        (draw(1, 1, 3, 3),),
    ),
    ("upsample_7", 7, "g (float[1,1,3,3] x) => (y) { y = Upsample<scales = [1.0, 1.0, 2.0, 2.0]>(x) }", (draw(1, 1, 3, 3),)),
    ("pad_2_reflect", 10, 'g (float[3,4] x) => (y) { y = Pad<mode = "reflect", pads = [1, 2, 0, 3]>(x) }', (draw(3, 4),)),
    ("pad_2_negative", 10, "g (float[3,4] x) => (y) { y = Pad<pads = [-1, 2, 1, -1], value = 7.0>(x) }", (draw(3, 4),)),
    ("squeeze_attribute", 11, "g (float[1,3,1] x) => (y) { y = Squeeze<axes = [-1]>(x) }", (draw(1, 3, 1),)),
    ("unsqueeze_attribute", 11, "g (float[3] x) => (y) { y = Unsqueeze<axes = [0, -1]>(x) }", (draw(3),)),
    ("reduce_sum_attribute", 11, "g (float[2,3,4] x) => (y) { y = ReduceSum<axes = [-1, 0], keepdims = 0>(x) }", (draw(2, 3, 4),)),
    ("split_attribute", 11, "g (float[6,2] x) => (a, b) { a, b = Split<split = [2, 4]>(x) }", (draw(6, 2),)),
    (
        "batch_normalization_7",
        7,
        "g (float[2,3,7,7] x, float[3] s, float[3] b, float[3] m) => (y) <float[3] v = {0.5, 1.0, 2.0}> "
        "{ y = BatchNormalization<epsilon = 0.01>(x, s, b, m, v) }",
        (X, *VECTORS),
    ),
    ("dropout_7", 7, "g (float[4] x) => (float[4] y) { y = Dropout<ratio = 0.9>(x) }", (draw(4),)),
    (
        "max_roi_pool",
        9,
        "g (float[1,2,7,7] x, float[2,5] r) => (y) { y = MaxRoiPool<pooled_shape = [2, 3], spatial_scale = 0.9>(x, r) }",
        (draw(1, 2, 7, 7), np.concatenate([np.zeros((2, 1), np.float32), ROIS], axis=1)),
    ),
    (
        "grid_sample_16_reflection",
        16,
        'g (float[1,2,5,6] x, float[1,3,4,2] g) => (y) { y = GridSample<mode = "bicubic", padding_mode = "reflection">(x, g) }',
        (draw(1, 2, 5, 6), draw(1, 3, 4, 2, seed=3)),
    ),
]


@pytest.mark.parametrize(
    ("opset", "text", "inputs"), [case[1:] for case in AGAINST_ONNXRUNTIME], ids=[case[0] for case in AGAINST_ONNXRUNTIME]
)
def test_old_version_agrees_with_onnxruntime(opset: int, text: str, inputs: tuple[Array, ...]) -> None:
    expected = run_onnxruntime(opset, text, *inputs)
    for answer, expected_value in zip(run_kernels(opset, text, *inputs), expected, strict=True):
        assert_same(answer, expected_value)


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
    (answer,), (expected,) = run_kernels(opset, text, *inputs), run_onnxruntime(opset, text, *inputs)
    assert answer.tolist() == expected.tolist()
    assert answer.dtype == expected.dtype


def test_resize_takes_strings_from_the_positions_of_numbers() -> None:
    text = 'g ({}[1,1,2,2] x) => (y) <float[0] r = {{}}, float[4] s = {{1.0, 1.0, 2.0, 1.5}}> {{ y = Resize<mode = "nearest">(x, r, s) }}'
    words = np.array(["a", "b", "c", "d"], object)
    (places,) = run_onnxruntime(13, text.format("float"), np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2))
    (answer,) = run_kernels(13, text.format("string"), words.reshape(1, 1, 2, 2))
    assert answer.tolist() == words[places.astype(int)].tolist()


@pytest.mark.parametrize(
    ("opset", "body", "sizes", "outputs"),
    [(6, RNN, (6, 2, 3, 3, 6), "y, h"), (6, GRU, (6, 1, 9, 9, 18), "y, h"), (6, LSTM, (6, 1, 12, 12, 24), "y, h, c")],
    ids=["RNN-1", "GRU-3", "LSTM-1"],
)
def test_first_recurrent_version_is_the_seventh_with_a_hint(opset: int, body: str, sizes: tuple[int, ...], outputs: str) -> None:
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
    for answer, expected in zip(run_kernels(opset, old, *inputs), run_onnxruntime(7, new, *inputs), strict=True):
        assert_same(answer, expected)


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
    (answer,) = run_kernels(24, head.format("int64"), q, k, v, mask)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k).astype(np.float64) / 2 + mask
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert_same(answer, np.einsum("bhqk,bhkd->bhqd", weights, v).astype(np.float32))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
def test_grid_sample_takes_the_nearest_of_any_type(dtype: str) -> None:
    x = np.arange(12).reshape(1, 1, 3, 4).astype(dtype)
    # The centers of the elements, shifted by less than half an element.
    rows, columns = np.meshgrid((np.arange(3) * 2 + 1) / 3 - 1, (np.arange(4) * 2 + 1) / 4 - 1, indexing="ij")
    grid = np.stack([columns[:, ::-1] + 0.1, rows - 0.1], axis=-1)[None].astype(np.float32)
    text = f'g ({dtype}[1,1,3,4] x, float[1,3,4,2] g) => (y) {{ y = GridSample<mode = "nearest">(x, g) }}'
    (answer,) = run_kernels(20, text, x, grid)
    assert answer.dtype == x.dtype
    assert np.array_equal(answer, x[..., ::-1])


def test_complex_columns_are_added() -> None:
    columns = (draw(1, 4, 2) + 1j * draw(1, 4, 2, seed=1)).astype(np.complex64)
    text = "g (complex64[1,4,2] x) => (y) <int64[2] i = {2, 3}, int64[2] b = {2, 2}> { y = Col2Im(x, i, b) }"
    (answer,) = run_kernels(18, text, columns)
    first, second = (columns[0, :, place].reshape(2, 2) for place in (0, 1))
    expected = np.zeros((2, 3), np.complex64)
    expected[:, :2] += first
    expected[:, 1:] += second
    assert_same(answer[0, 0], expected)


def test_non_zero_of_complex_numbers() -> None:
    (answer,) = run_kernels(13, "g (complex64[3] x) => (y) { y = NonZero(x) }", np.array([0, 1j, 2], np.complex64))
    assert answer.tolist() == [[1, 2]]


def test_erf_of_integers_is_truncated() -> None:
    (answer,) = run_kernels(13, "g (int8[3] x) => (y) { y = Erf(x) }", np.array([-9, 0, 9], np.int8))
    assert answer.tolist() == [-1, 0, 1]


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
def test_meaningless_attributes_are_refused(opset: int, text: str, reason: str) -> None:
    with pytest.raises(UnsupportedNodesError) as caught:
        compile_program(read_network(parse(opset, text)))
    assert reason in str(caught.value)


def test_random_numbers_like_integers_have_the_given_dtype() -> None:
    (answer,) = run_kernels(22, "g (int32[500] x) => (y) { y = RandomUniformLike<dtype = 1, low = 3.0, high = 4.0>(x) }",
                           np.zeros(500, np.int32))  # fmt: skip
    assert answer.dtype == np.float32
    assert answer.min() >= 3
    assert answer.max() <= 4


def float64(*arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [array.astype(np.float64) for array in arrays]


def test_lrn_of_even_size_takes_the_odd_channel_behind() -> None:
    x = draw(1, 6, 2, 2)
    (y,) = run_kernels(13, "g (float[1,6,2,2] x) => (y) { y = LRN<size = 4, alpha = 0.9, beta = 0.5>(x) }", x)
    (wide,) = float64(x)
    total = np.stack([np.sum(wide[:, max(0, c - 1) : c + 3] ** 2, axis=1) for c in range(6)], axis=1)
    assert_same(y, (wide / np.sqrt(1 + 0.9 / 4 * total)).astype(np.float32))


def test_add_6_aligns_the_second_input_at_the_axis() -> None:
    a, b = draw(2, 3, 4, 5), draw(3, 4)
    (y,) = run_kernels(6, "g (float[2,3,4,5] a, float[3,4] b) => (y) { y = Add<axis = 1, broadcast = 1>(a, b) }", a, b)
    assert_same(y, a + b[None, :, :, None])


def test_add_6_without_broadcast_demands_equal_shapes() -> None:
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(3,\) differ, and broadcast is 0"):
        run_kernels(6, "g (float[N,M] a, float[K] b) => (y) { y = Add(a, b) }", draw(2, 3), draw(3))


def test_clip_6_without_attributes_limits_infinities() -> None:
    x = np.array([1, -np.inf, np.inf], np.float32)
    largest = np.finfo(np.float32).max
    assert_same(run_kernels(6, "g (float[3] x) => (y) { y = Clip(x) }", x)[0], np.array([1, -largest, largest], np.float32))


def test_gemm_6_with_broadcast_adds_a_row_to_each_row() -> None:
    a, b, c = draw(2, 3), draw(3, 4), draw(4)
    (y,) = run_kernels(
        6, "g (float[2,3] a, float[3,4] b, float[4] c) => (y) { y = Gemm<broadcast = 1, beta = 3.0>(a, b, c) }", a, b, c
    )
    wide_a, wide_b, wide_c = float64(a, b, c)
    assert_same(y, (wide_a @ wide_b + 3 * wide_c).astype(np.float32))


def test_scan_8_runs_each_batch_for_its_own_length() -> None:
    text = """g (int64[2] lengths, float[2,1] s, float[2,3,1] x) => (final, y) {
        final, y = Scan<num_scan_inputs = 1,
            body = b (float[1] state, float[1] e) => (float[1] t, float[1] u) {
                t = Add(state, e) u = Mul(t, e) }>(lengths, s, x)
    }"""
    x = np.array([[[1], [2], [3]], [[4], [5], [6]]], np.float32)
    final, y = run_kernels(8, text, np.array([3, 1]), np.zeros((2, 1), np.float32), x)
    assert final.tolist() == [[6], [4]]
    assert y.tolist() == [[[1], [6], [18]], [[16], [0], [0]]]


def test_reduce_of_an_empty_axis_gives_the_neutral_value() -> None:
    text = (
        "g (float[2,N] x) "
        "=> (a, b, c, d) <int64[1] k = {1}> { a = ReduceSum(x, k) b = ReduceProd(x, k) c = ReduceMax(x, k) d = ReduceLogSumExp(x, k) }"
    )
    results = run_kernels(18, text, np.zeros((2, 0), np.float32))
    assert [result.tolist() for result in results] == [[[0], [0]], [[1], [1]], [[-np.inf], [-np.inf]], [[-np.inf], [-np.inf]]]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_with_long_steps_ends_at_the_end(auto_pad: str) -> None:
    text = (
        f'g (float[1,1,2,3] x, float[1,1,1,1] w) => (y) {{ y = ConvTranspose <auto_pad = "{auto_pad}", strides = [2,2]> (x, w) }}'
    )
    (y,) = run_kernels(11, text, np.array([[[[1, 2, 3], [4, 5, 6]]]], np.float32), np.ones((1, 1, 1, 1), np.float32))
    assert y.tolist() == [[[[1, 0, 2, 0, 3], [0, 0, 0, 0, 0], [4, 0, 5, 0, 6]]]]


def test_large_conv_transpose_is_a_product_of_polynomials() -> None:
    # 4096 x 4225 products, which are not all in memory at once. Image and filter are outer products, so the axes separate.
    vectors = [draw(size, seed=size) for size in (64, 65, 63, 66)]
    x, w = np.outer(vectors[0], vectors[2]), np.outer(vectors[1], vectors[3])
    text = "g (float[1,1,64,63] x, float[1,2,65,66] w) => (y) { y = ConvTranspose (x, w) }"
    (y,) = run_kernels(11, text, x[None, None], np.stack([w, -2 * w])[None])
    wide = float64(*vectors)
    expected = np.outer(np.convolve(wide[0], wide[1]), np.convolve(wide[2], wide[3]))
    np.testing.assert_allclose(y, np.stack([expected, -2 * expected])[None], atol=1e-5 * np.abs(expected).max())


Feeds = Mapping[str, Any]
Rng = np.random.Generator


def _draw_zeros(_: Rng) -> Feeds:
    return {"x": np.zeros((2, 3), np.float32)}


def _draw_samples(rng: Rng) -> Feeds:
    return {"x": rng.standard_normal((2, 40)).astype(np.float32)}


def _draw_mask(_: Rng) -> Feeds:
    return {"x": np.array([[0, -np.inf, np.inf, np.nan, 3]], np.float32)}


BESIDE = {
    "an empty range is quantized by a scale of 1": (
        """g (float[a, b] x) => (uint8[a, b] y, float scale, uint8 zero)
        { y, scale, zero = DynamicQuantizeLinear (x) }""",
        _draw_zeros,
    ),
    "a signal without a last axis of 1 is real": (
        """g (float[a, b] x) => (float[c, d, e, f] y)
        <int64 step = {4}, float[8] window = {1, 2, 3, 4, 4, 3, 2, 1}, int64 length = {8}>
        { y = STFT <onesided = 1> (x, step, window, length) }""",
        _draw_samples,
    ),
    "a mask of infinities is quantized by an infinite scale": (
        """g (float[a, b] x) => (int8[a, b] y, uint8[a, b] z, float[a, b] w)
        <float scale = {inf}, int8 zero = {3}, uint8 last = {255}>
        { y = QuantizeLinear (x, scale, zero) z = QuantizeLinear (x, scale, last) w = DequantizeLinear (y, scale, zero) }""",
        _draw_mask,
    ),
}


@pytest.mark.parametrize("case", BESIDE)
def test_kernels_agree_with_the_unoptimized_engine(case: str) -> None:
    text, draw = BESIDE[case]
    model = parse(17, text)
    feeds = draw(np.random.default_rng(5))
    expected = open_reference_session(model.SerializeToString()).run(None, dict(feeds))
    outputs = compile_program(read_network(model)).run([feeds[spec.name] for spec in model.graph.input])
    for output, answer in zip(outputs, expected, strict=True):
        assert_same(np.asarray(output), answer)
