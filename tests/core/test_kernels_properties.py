"""Kernels against plain Python or NumPy, for shapes and values that hypothesis chooses."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hetero_core.kernels.operators import (
    convolution,
    elementwise,
    layout,
    quantization,
    random_numbers,
)

Array = np.ndarray[Any, Any]
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)
INTEGERS = st.integers(-(2**31), 2**31 - 1)


@given(INTEGERS, INTEGERS.filter(bool))
def test_div_of_integers_truncates_toward_zero(a: int, b: int) -> None:
    result = elementwise.div(np, np.array([a], np.int64), np.array([b], np.int64))
    assert result[0] == int(math.copysign(1, a * b)) * (abs(a) // abs(b))


@given(INTEGERS, INTEGERS.filter(bool))
def test_mod_has_the_sign_of_the_divisor_fmod_of_the_dividend(a: int, b: int) -> None:
    x, y = np.array([a], np.int64), np.array([b], np.int64)
    assert elementwise.mod(np, x, y)[0] == a % b
    assert elementwise.mod(np, x, y, fmod=1)[0] == int(math.copysign(1, a)) * (abs(a) % abs(b))


@given(st.integers(-5, 5), st.integers(-3, 6))
def test_pow_of_integers_is_exact(base: int, exponent: int) -> None:
    if base == 0 and exponent < 0:
        return
    result = elementwise.power(np, np.array([base], np.int64), np.array([exponent], np.int64))
    assert result[0] == math.trunc(base**exponent)


@given(SHAPES, st.data())
def test_slice_agrees_with_python(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = np.arange(math.prod(shape)).reshape(shape)
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    bound = st.integers(-6, 6) | st.sampled_from([-(2**63), 2**63 - 1])
    step = st.integers(-3, 3).filter(bool)
    drawn = [(axis, data.draw(bound), data.draw(bound), data.draw(step)) for axis in axes]
    result = layout.slice_(np, x, *(np.array([row[place] for row in drawn], np.int64) for place in (1, 2, 0, 3)))
    expected = x
    for axis, start, end, stride in drawn:
        # Python reads a negative end of a backward slice as one more wrap; ONNX clamps it to "before the first".
        size = shape[axis]
        stop = end + size if end < 0 else end
        stop = None if stride < 0 and stop < 0 else max(stop, 0)
        begin = start + size if start < 0 else start
        picked = [
            position
            for position in range(size)
            if position in range(size)[slice(max(begin, 0) if begin >= 0 or stride > 0 else 0, stop, stride)]
        ]
        picked = picked[::-1] if stride < 0 else picked
        expected = np.take(expected, picked, axis=axis)
    assert np.array_equal(result, expected)


@given(hnp.arrays(np.float64, 7, elements=st.floats(-30, 30)))
def test_erf_agrees_with_the_standard_library(x: Array) -> None:
    expected = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(elementwise.erf_of(np, x), expected, rtol=4e-15, atol=1e-300)
    single = x.astype(np.float32)
    np.testing.assert_allclose(elementwise.erf_of(np, single), [math.erf(value) for value in single], rtol=4e-7, atol=1e-38)


def test_erf_keeps_infinities_zero_and_nan() -> None:
    x = np.array([np.inf, -np.inf, 0.0, -0.0, np.nan], np.float32)
    result = elementwise.erf_of(np, x)
    assert result[:2].tolist() == [1, -1]
    assert np.signbit(result[3])
    assert np.isnan(result[4])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("formula", [elementwise.erf, elementwise.reciprocal, convolution.global_average_pool])
def test_half_types_stay_half_types(dtype: Any, formula: Any) -> None:
    x = np.linspace(0.5, 2, 24).reshape(2, 3, 4).astype(dtype)
    assert formula(np, x).dtype == np.dtype(dtype)


@given(hnp.arrays(np.float32, 5, elements=st.floats(-100, 100, width=32)), st.floats(0.015625, 4, width=32))
def test_quantized_values_come_back_within_half_a_step(x: Array, scale: float) -> None:
    step, zero = np.array(scale, np.float32), np.array(3, np.int16)
    back = quantization.dequantize_linear(np, quantization.quantize_linear(np, x, step, zero), step, zero)
    assert np.all(np.abs(back - x) <= scale / 2 + 1e-4)


def test_random_numbers_repeat_with_a_seed_and_differ_without() -> None:
    first, second = (random_numbers.random_normal(np, shape=(50,), seed=0.5) for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, random_numbers.random_normal(np, shape=(50,), seed=0.25))
    assert not np.array_equal(random_numbers.random_normal(np, shape=(50,)), random_numbers.random_normal(np, shape=(50,)))


def test_random_numbers_follow_their_distribution() -> None:
    # Means of 40,000 draws; six standard errors each.
    uniform = random_numbers.random_uniform(np, shape=(40000,), low=2.0, high=4.0, seed=1.0)
    assert uniform.dtype == np.float32
    assert uniform.min() >= 2
    assert uniform.max() <= 4
    assert abs(uniform.mean() - 3) < 6 * 2 / math.sqrt(12 * 40000)
    normal = random_numbers.random_normal(np, shape=(40000,), mean=5.0, scale=2.0, seed=2.0)
    assert abs(normal.mean() - 5) < 6 * 2 / math.sqrt(40000)
    assert abs(normal.std() - 2) < 0.05
    ones = random_numbers.bernoulli(np, np.full(40000, 0.3, np.float32), seed=3.0)
    assert set(np.unique(ones)) == {0, 1}
    assert abs(ones.mean() - 0.3) < 6 * math.sqrt(0.21 / 40000)
    drawn = random_numbers.multinomial(np, np.log(np.array([[0.2, 0.5, 0.3]], np.float32)), sample_size=40000, seed=4.0)
    assert drawn.dtype == np.int32
    assert np.abs(np.bincount(drawn[0]) / 40000 - [0.2, 0.5, 0.3]).max() < 0.02
