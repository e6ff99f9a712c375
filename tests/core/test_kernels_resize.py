"""Resize and Upsample against the standard's formulas in exact fractions: positions of mode nearest, lengths of results."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import onnx.parser
import pytest

from hetero_core.kernels.operators.resize import Axis, Sampling, find_taps, resize, resize_by_scales
from hetero_core.network.reader import read_network
from hetero_core.network.types import TensorType
from hetero_core.transforms.preprocessing import find_nearest

HALF = Fraction(1, 2)
# Source: ONNX Resize-11 and Resize-19, coordinate_transformation_mode. i: output, s: scale, n and m: lengths of input and output.
COORDINATES: dict[str, Any] = {
    "half_pixel": lambda i, s, n, m: (i + HALF) / s - HALF,
    "half_pixel_symmetric": lambda i, s, n, m: Fraction(n, 2) * (1 - m / (s * n)) + (i + HALF) / s - HALF,
    "pytorch_half_pixel": lambda i, s, n, m: (i + HALF) / s - HALF if m > 1 else Fraction(0),
    "align_corners": lambda i, s, n, m: Fraction(i * (n - 1), m - 1) if m > 1 else Fraction(0),
    "asymmetric": lambda i, s, n, m: i / s,
    "tf_half_pixel_for_nn": lambda i, s, n, m: (i + HALF) / s,
}
ROUNDINGS: dict[str, Any] = {
    "round_prefer_floor": lambda x: ceil(x - HALF),
    "round_prefer_ceil": lambda x: floor(x + HALF),
    "floor": floor,
    "ceil": ceil,
}
# float32 and float64 numbers that are no small fractions, and two numbers with more bits than int64 has.
SCALES = [
    np.float32(0.7),
    np.float32(1 / 3),
    np.float32(2.6),
    np.float32(1.4),
    np.float64(0.1),
    np.float64(1e-9) + 1,
    np.float32(2),
]


def list_pixels(n: int, m: int, scale: Fraction, transformation: str, rounding: str) -> list[int]:
    return [min(max(ROUNDINGS[rounding](COORDINATES[transformation](i, scale, n, m)), 0), n - 1) for i in range(m)]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("transformation", COORDINATES)
def test_nearest_pixels_of_all_pairs_of_sizes(transformation: str, rounding: str) -> None:
    sampling = Sampling("nearest", transformation, rounding)
    for n in range(1, 25):
        for m in range(1, 25):
            positions, _ = find_taps(Axis(0, n, m, Fraction(m, n)), sampling)
            assert positions[:, 0].tolist() == list_pixels(n, m, Fraction(m, n), transformation, rounding), (n, m)


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("transformation", sorted(set(COORDINATES) - {"align_corners"}))
def test_float_scale_counts_with_its_exact_value(transformation: str, rounding: str, scale: Any) -> None:
    exact = Fraction(float(scale))
    for n in (1, 7, 10, 31, 100):
        m = floor(np.float32(n) * np.float32(scale))
        x = np.arange(n, dtype=np.float32)
        y = resize(
            np, x, None, np.array([scale]), coordinate_transformation_mode=transformation, nearest_mode=rounding, mode="nearest"
        )
        expected = list(range(n)) if scale == 1 else list_pixels(n, m, exact, transformation, rounding)
        assert y.tolist() == expected, n


@pytest.mark.parametrize("scale", [0.7, 1 / 3, 2.6, 1.4, 2.0])
def test_growing_upsample_rounds_down(scale: float) -> None:
    x = np.arange(31, dtype=np.float32)
    y = resize_by_scales(np, x, np.array([np.float32(scale)]))
    # Near enough to whole numbers that float32 and the fraction that was meant agree. Source: ONNX Runtime's division in float32.
    meant = Fraction(scale).limit_denominator(10)
    assert y.tolist() == list_pixels(31, floor(31 * meant), meant, "asymmetric", "ceil" if scale < 1 else "floor")


@pytest.mark.parametrize("target", [1, 5, 12, 25, 33, 49])
@pytest.mark.parametrize("size", [3, 9, 13, 25, 49])
def test_quotient_of_sizes_as_scale_gives_the_size_that_was_meant(size: int, target: int) -> None:
    # PyTorch exports a resize to given sizes so before version 11; a scale that was rounded down gives an exact product below the size.
    scale = np.float32(target) / np.float32(size)
    x = np.arange(size, dtype=np.float32)
    meant = Fraction(target, size)
    pixels = list_pixels(size, target, meant, "asymmetric", "ceil" if target < size else "floor")
    assert resize_by_scales(np, x, np.array([scale])).tolist() == pixels
    assert resize(np, x, None, np.array([scale]), mode="linear").shape == (target,)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float[{size}] x) => (y) '
        f'<float[1] s = {{{float(scale)!r}}}> {{ y = Resize<mode = "linear", axes = [0]>(x, , s) }}'
    )
    assert read_network(model).type_of("y") == TensorType("float32", (target,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("roi", [(0.2, 0.8), (-0.25, 1.25), (0.75, 0.25)])
def test_crop_reads_exact_positions(roi: tuple[float, float], dtype: Any) -> None:
    begin, end = (Fraction(float(dtype(bound))) for bound in roi)
    x = np.arange(10, dtype=np.float32) + 1
    for m in (1, 5, 11):
        y = resize(
            np, x, np.array(roi, dtype), None, np.array([m]), mode="nearest", coordinate_transformation_mode="tf_crop_and_resize"
        )
        places = [9 * ((begin + end) / 2 if m == 1 else begin + i * (end - begin) / (m - 1)) for i in range(m)]
        assert y.tolist() == [ROUNDINGS["round_prefer_floor"](place) + 1 if 0 <= place <= 9 else 0 for place in places]


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_kept_ratio_rounds_half_up_in_exact_fractions(policy: str) -> None:
    pick = min if policy == "not_larger" else max
    for n, k, sizes in ((10, 14, (5, 9)), (6, 49, (7, 7)), (3, 25, (5, 25)), (7, 7, (3, 5))):
        factor = pick(Fraction(sizes[0], n), Fraction(sizes[1], k))
        y = resize(np, np.zeros((n, k), np.float32), None, None, np.array(sizes), keep_aspect_ratio_policy=policy)
        assert y.shape == (floor(factor * n + HALF), floor(factor * k + HALF))


def test_preprocessing_takes_the_same_pixels() -> None:
    for n in range(1, 25):
        for m in range(1, 25):
            assert find_nearest(n, m).tolist() == list_pixels(n, m, Fraction(m, n), "half_pixel", "round_prefer_floor")


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_whole_positions_read_one_pixel(mode: str) -> None:
    # From 24 to 112 by 14/3: output 70 lies at exactly 15; a quotient of floats is 14.999999999999998.
    positions, weights = find_taps(Axis(0, 24, 112, Fraction(112, 24)), Sampling(mode, "asymmetric"))
    assert positions[70][weights[70] == 1].tolist() == [15]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_interpolated_integers_are_cut_off(dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(max(limits.min, -(10**6)), min(limits.max, 10**6), (2, 9), endpoint=True).astype(dtype)
    sampling = Sampling("linear", "half_pixel")
    positions, weights = find_taps(Axis(1, 9, 36, Fraction(4)), sampling)  # weights are multiples of an eighth
    eighths = (x.astype(np.int64)[:, positions] * np.round(8 * weights).astype(np.int64)).sum(axis=2)
    expected = np.sign(eighths) * (np.abs(eighths) // 8)
    y = resize(np, x, None, np.array([1, 4], np.float32), mode="linear")
    assert y.dtype == x.dtype
    assert y.tolist() == expected.tolist()


def test_an_axis_without_elements_cannot_grow() -> None:
    assert resize(np, np.ones((2, 0), np.float32), None, None, np.array([3, 0])).shape == (3, 0)
    with pytest.raises(ValueError, match=r"sizes \[2, 5\] of a tensor of shape \(2, 0\): an axis without elements cannot grow"):
        resize(np, np.ones((2, 0), np.float32), None, None, np.array([2, 5]))
