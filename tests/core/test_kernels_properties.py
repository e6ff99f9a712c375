"""Kernels against plain Python or NumPy: random values, bounds of Clip, long sums, and casts to small types."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx.helper
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hetero_core import Core
from hetero_core.kernels.operators import (
    elementwise,
    layout,
    quantization,
    random_numbers,
)
from hetero_core.kernels.operators.casts import convert
from hetero_core.kernels.operators.elementwise import clip, clip_by_attributes
from hetero_core.kernels.operators.reductions import reduce_mean
from hetero_core.kernels.registry import read_table

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
        # In a backward slice, Python counts a negative end from the back again; ONNX clamps it to "before the first".
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


@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_of_a_long_formula_cover_the_array(order: Any) -> None:
    x = np.linspace(-7, 7, 3 * elementwise._BLOCK + 3, dtype=np.float32).reshape(3, -1).astype(np.float32, order=order)
    expected = np.vectorize(math.erf)(x.astype(np.float64))
    np.testing.assert_allclose(elementwise.erf(np, x), expected, rtol=4e-7)
    halves = elementwise.gelu(np, x.astype(np.float16))
    wide = x.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(halves, wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))) / 2, rtol=1e-3, atol=1e-4)
    assert halves.dtype == np.float16


EXTREMES = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-45, 2.5, -2.5, 3e38, -3e38]


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_rectifiers_of_extreme_numbers(alpha: float, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        x = np.array(EXTREMES).astype(dtype)
        numbers = [float(number) for number in x]
        leaky, thresholded = (
            read_table()["", *key].function(np, x, alpha=alpha) for key in (("LeakyRelu", 16), ("ThresholdedRelu", 22))
        )
        expected = np.array([n * alpha if n < 0 else n for n in numbers]).astype(dtype)
    np.testing.assert_array_equal(leaky.astype(np.float64), expected.astype(np.float64))
    np.testing.assert_array_equal(thresholded.astype(np.float64), [n if n > alpha else 0.0 for n in numbers])
    assert (leaky.dtype, thresholded.dtype) == (x.dtype, x.dtype)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (4,)])
def test_cube_of_floats(shape: tuple[int, ...]) -> None:
    x = np.array([[-2.5, -0.0, 1e-20, 3.7]], np.float32)
    result = elementwise.power(np, x, np.full(shape, 3, np.int64))
    expected = np.broadcast_to(x.astype(np.float64) ** 3, np.broadcast_shapes(x.shape, shape))
    np.testing.assert_allclose(result, expected, rtol=3e-7, atol=1e-45)
    assert result.shape == expected.shape
    assert (result.dtype, bool(np.signbit(result.flat[1]))) == (np.float32, True)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("key", [("Erf", 13), ("Reciprocal", 13), ("GlobalAveragePool", 22)])
def test_half_types_stay_half_types(dtype: Any, key: tuple[str, int]) -> None:
    x = np.linspace(0.5, 2, 24).reshape(2, 3, 4).astype(dtype)
    assert read_table()["", *key].function(np, x).dtype == np.dtype(dtype)


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
    # Means of 40,000 draws; each tolerance is six standard errors.
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


FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
# Source: IEEE 754; bfloat16 has the exponents of float32 and 8 bits of significand.
LARGEST = {
    np.float16: 65504.0,
    ml_dtypes.bfloat16: (2 - 2.0**-7) * 2.0**127,
    np.float32: (2 - 2.0**-23) * 2.0**127,
    np.float64: (2 - 2.0**-52) * 2.0**1023,
}


def clip_infinities(function: Any, dtype: Any, *bounds: Any, **attributes: float) -> list[float]:
    x = np.array([-np.inf, -2, np.nan, 3, np.inf], dtype)
    y = function(np, x, *bounds, **attributes)
    assert y.dtype == x.dtype
    return [float(value) for value in y]


@pytest.mark.parametrize("dtype", FLOATS)
def test_absent_bounds_are_the_limits_of_the_type(dtype: Any) -> None:
    most, bound = LARGEST[dtype], np.array(1, dtype)
    np.testing.assert_array_equal(clip_infinities(clip, dtype), [-most, -2, np.nan, 3, most])
    np.testing.assert_array_equal(clip_infinities(clip, dtype, bound), [1, 1, np.nan, 3, most])
    np.testing.assert_array_equal(clip_infinities(clip, dtype, None, bound), [-most, -2, np.nan, 1, 1])
    np.testing.assert_array_equal(clip_infinities(clip_by_attributes, dtype, min=1.0), [1, 1, np.nan, 3, most])
    np.testing.assert_array_equal(clip_infinities(clip_by_attributes, dtype, max=1.0), [-most, -2, np.nan, 1, 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_version_6_has_the_bounds_of_at_most_float32(dtype: Any) -> None:
    most = min(LARGEST[dtype], LARGEST[np.float32])
    np.testing.assert_array_equal(clip_infinities(read_table()["", "Clip", 6].function, dtype), [-most, -2, np.nan, 3, most])


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinite_bounds_let_infinities_pass(dtype: Any) -> None:
    infinities = [-np.inf, -2, np.nan, 3, np.inf]
    bounds = (np.array(bound, dtype) for bound in (-np.inf, np.inf))
    np.testing.assert_array_equal(clip_infinities(clip, dtype, *bounds), infinities)
    np.testing.assert_array_equal(clip_infinities(clip_by_attributes, dtype, min=-np.inf, max=np.inf), infinities)


# More than 2**24 elements of 1: a sequential float32 sum stops at 2**24. The shapes differ in the axes that NumPy sums pairwise.
COUNT = 2**24 + 2**20


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("others", [[], [0], [0, 0], [5, -5, 0]])
def test_mean_of_integers_is_cut_off_toward_zero(dtype: Any, others: list[int]) -> None:
    least = int(np.iinfo(dtype).min)
    for first in (least, least + 1, -7, 7):
        mean = reduce_mean(np, np.array([first, *others], dtype), (0,), keepdims=False)
        assert int(mean) == int(Fraction(first, 1 + len(others)))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((COUNT, 2), (0,)), ((COUNT,), (0,)), ((COUNT // 4, 2, 4), (0, 2)), ((2, COUNT), (1,)), ((1, COUNT, 1), (1,))],
)
def test_mean_of_more_ones_than_float32_counts(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert np.unique(reduce_mean(np, np.ones(shape, np.float32), axes, keepdims=True)).tolist() == [1]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceProd", "ReduceSumSquare"])
def test_integers_wrap_around(operator: str, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    x = np.array([[limits.max, 5, 7], [limits.min, limits.max, 3]], dtype)
    name = np.dtype(dtype).name
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g ({name}[2,3] x) => (y) <int64[1] a = {{1}}> {{ y = {operator}<keepdims = 0>(x, a) }}'
    )
    rows = [[int(value) for value in row] for row in x]
    formulas = {
        "ReduceSum": sum,
        "ReduceProd": lambda row: row[0] * row[1] * row[2],
        "ReduceSumSquare": lambda row: sum(value * value for value in row),
    }
    span = int(limits.max) - int(limits.min) + 1
    expected = [(formulas[operator](row) - int(limits.min)) % span + int(limits.min) for row in rows]
    with Core() as core:
        for device in ("TEMPLATE", "CPU"):
            assert core.load_network(model, device).infer({"x": x})["y"].tolist() == expected


SMALL_INTEGERS = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
SOURCES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def cast(x: Any, name: str, *, saturate: bool = True) -> Any:
    with np.errstate(all="ignore"):
        return convert(np, x, np.dtype(getattr(ml_dtypes, name)), saturate=saturate)


def list_values(name: str) -> list[Fraction]:
    """Returns the sorted finite values of a type from 0 on."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    with np.errstate(all="ignore"):
        numbers = np.arange(256**dtype.itemsize).astype(f"uint{8 * dtype.itemsize}").view(dtype).astype(np.float64)
    return sorted({Fraction(float(number)) for number in numbers[np.isfinite(numbers) & (numbers >= 0)]})


@pytest.mark.parametrize("name", SMALL_INTEGERS)
@pytest.mark.parametrize("dtype", SOURCES)
def test_small_integer_is_the_nearest_ties_to_even(name: str, dtype: Any) -> None:
    """Source: ONNX's pages on int4 and int2."""
    least, most = SMALL_INTEGERS[name]
    x = np.arange(least * 8 - 4, most * 8 + 5).astype(np.float64) / 8
    expected = [round(Fraction(float(value))) for value in x]  # Python rounds halves to even
    within = [least <= value <= most for value in expected]
    y = cast(x.astype(dtype), name).astype(np.int64)
    assert y[within].tolist() == [value for value in expected if least <= value <= most]


@pytest.mark.parametrize("name", SMALL_INTEGERS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_small_integer_of_an_integer_drops_high_bits(name: str, dtype: Any) -> None:
    least, most = SMALL_INTEGERS[name]
    span = most - least + 1
    x = np.arange(0, 100, dtype=dtype) if dtype == np.uint8 else np.arange(-100, 100, dtype=dtype)
    assert cast(x, name).astype(np.int64).tolist() == [(int(value) - least) % span + least for value in x]


@pytest.mark.parametrize("opset", [21, 23, 24, 25])
@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
def test_cast_of_a_model_rounds(operator: str, opset: int) -> None:
    call = "Cast<to=22>(x)" if operator == "Cast" else "CastLike(x, like)"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g (float[6] x) => (int4[6] y) {{ y = {call} }}')
    model.graph.initializer.append(onnx.helper.make_tensor("like", onnx.TensorProto.INT4, [1], [0]))
    x = np.array([1.7, 2.5, 3.5, -1.7, -2.5, 6.51], np.float32)
    with Core() as core:
        for device in ("TEMPLATE", "CPU"):
            y = core.load_network(model, device).infer({"x": x})["y"]
            assert y.astype(np.int64).tolist() == [2, 2, 4, -2, -2, 7]


@pytest.mark.parametrize("name", ["bfloat16", *FLOAT8, "float4_e2m1fn"])
def test_small_float_is_the_nearest_of_a_longer_number(name: str) -> None:
    values = list_values(name)
    # Every 13th of the 32,640 values of bfloat16, which covers every exponent.
    pairs = list(pairwise(values))[:: 13 if len(values) > 1000 else 1]
    ties = [(below + above) / 2 for below, above in pairs]
    for share, expected in (
        (1 - Fraction(1, 2**40), [below for below, _ in pairs]),
        (1 + Fraction(1, 2**40), [above for _, above in pairs]),
    ):
        y = cast(np.array([float(tie * share) for tie in ties]), name).astype(np.float64)
        assert [Fraction(float(number)) for number in y] == expected
        y = cast(np.array([float(-tie * share) for tie in ties]), name).astype(np.float64)
        assert [Fraction(float(number)) for number in y] == [-number for number in expected]


def test_bfloat16_is_the_nearest_of_a_long_integer() -> None:
    # 257 * 2**k is a tie of bfloat16: the next integer is rounded up, the integer before it is rounded down.
    for exponent in (20, 40, 54):
        x = np.array([257 * 2**exponent - 1, 257 * 2**exponent, 257 * 2**exponent + 1], np.int64)
        expected = [float(256 * 2**exponent), float(256 * 2**exponent), float(258 * 2**exponent)]
        assert cast(x, "bfloat16").astype(np.float64).tolist() == expected
        assert cast(-x, "bfloat16").astype(np.float64).tolist() == [-number for number in expected]


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("dtype", [*SOURCES, np.int32, np.int64])
def test_float8_saturates_for_floats_and_integers(name: str, dtype: Any) -> None:
    largest = float(ml_dtypes.finfo(getattr(ml_dtypes, name)).max)
    x = np.array([2**16 - 64, -(2**16) + 64, 1], np.float64 if dtype == np.float16 else dtype).astype(dtype)
    assert cast(x, name).astype(np.float64).tolist() == [largest, -largest, 1]
    beyond = cast(x, name, saturate=False).astype(np.float64)
    assert not np.isfinite(beyond[:2]).any()
    assert beyond[2] == 1


def test_power_of_two_rounds_up_from_the_exact_number() -> None:
    from hetero_core.kernels.operators.casts import cast

    x = np.array([1.0, 1 + 2.0**-40, 1.5 - 2.0**-40, 1.5])
    powers = {mode: cast(np, x, round_mode=mode, to=24).astype(np.float64).tolist() for mode in ("up", "down", "nearest")}
    assert powers == {"up": [1, 2, 2, 2], "down": [1, 1, 1, 1], "nearest": [1, 1, 1, 2]}
