"""Versions of operators that ONNX Runtime lacks or reads in its own way, against formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import assert_same

Arrays = tuple[np.ndarray[Any, Any], ...]


def draw(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run_kernels(opset: int, text: str, *inputs: np.ndarray[Any, Any]) -> Arrays:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    return compile_program(read_network(model)).run(inputs)


X = draw(2, 3, 7, 7)
VECTORS = tuple(draw(3, seed=seed) for seed in range(1, 4))


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


def test_clip_6_without_attributes_keeps_finite_values_and_limits_infinities() -> None:
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
def test_transposed_convolution_with_steps_longer_than_its_filter_ends_with_the_last_element(auto_pad: str) -> None:
    text = (
        f'g (float[1,1,2,3] x, float[1,1,1,1] w) => (y) {{ y = ConvTranspose <auto_pad = "{auto_pad}", strides = [2,2]> (x, w) }}'
    )
    (y,) = run_kernels(11, text, np.array([[[[1, 2, 3], [4, 5, 6]]]], np.float32), np.ones((1, 1, 1, 1), np.float32))
    assert y.tolist() == [[[[1, 0, 2, 0, 3], [0, 0, 0, 0, 0], [4, 0, 5, 0, 6]]]]


def test_transposed_convolution_by_a_large_filter_equals_the_product_of_two_polynomials() -> None:
    # 4096 x 4225 products, which are not all held at once; filters and images are outer products, whose axes go apart.
    vectors = [draw(size, seed=size) for size in (64, 65, 63, 66)]
    x, w = np.outer(vectors[0], vectors[2]), np.outer(vectors[1], vectors[3])
    text = "g (float[1,1,64,63] x, float[1,2,65,66] w) => (y) { y = ConvTranspose (x, w) }"
    (y,) = run_kernels(11, text, x[None, None], np.stack([w, -2 * w])[None])
    wide = float64(*vectors)
    expected = np.outer(np.convolve(wide[0], wide[1]), np.convolve(wide[2], wide[3]))
    np.testing.assert_allclose(y, np.stack([expected, -2 * expected])[None], atol=1e-5 * np.abs(expected).max())
