"""Resize and Upsample: each axis is resampled by itself, from positions and weights that the host works out.

Interpolation is separable, so an axis needs, for each output element, the input positions that it reads and their weights.
A coordinate is a rational number: sizes give the scale output / input, and a float scale or region counts with its exact value. Positions
follow from integers alone, so that no rounding moves a nearest pixel; weights are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor, lcm
from typing import Any

import numpy as np

from hetero_core.kernels.arrays import bring
from hetero_core.kernels.precision import Array, Integers, Namespace, integers_of, narrow, normalize_axes, widen
from hetero_core.kernels.registry import ANY, FLOATS, INT64, kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.graph import Node
from hetero_core.network.operators import scale_size
from hetero_core.network.types import TensorType

_TRANSFORMATIONS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
_CHOICES = {
    "mode": ("nearest", "linear", "cubic"),
    "coordinate_transformation_mode": _TRANSFORMATIONS,
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "exclude_outside": (0, 1),
}
_CHOICES_11 = {**_CHOICES, "coordinate_transformation_mode": (*_TRANSFORMATIONS, "tf_half_pixel_for_nn")}
_CHOICES_18 = {**_CHOICES, "antialias": (0, 1), "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller")}
_CHOICES_19 = {**_CHOICES_18, "coordinate_transformation_mode": (*_TRANSFORMATIONS, "half_pixel_symmetric")}
_SINCE_18 = ("antialias", "axes", "keep_aspect_ratio_policy")
_TRUNCATED = frozenset({"int8", "int32", "uint8"})
"""Integers that ONNX Runtime interpolates along lines, and cuts off; quantizers write such nodes."""
_Rows = np.ndarray[Integers, np.dtype[np.float64]]
_Positions = np.ndarray[Integers, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Interpolation between elements: the attributes of Resize that all versions share."""

    mode: str = "nearest"
    transformation: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0


def legacy_sampling(mode: str) -> Sampling:
    """Returns the sampling of Upsample and Resize-10, which leave open how the nearest pixel is rounded.

    It divides in float32 and rounds down if the axis grows, up if it shrinks. Source: ONNX Runtime, and the official case of version 10.
    """
    return Sampling(mode, "asymmetric", "legacy")


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis to be resampled. `scale` is exact, `output` may be rounded; `roi` is the part that is read."""

    axis: int
    size: int
    output: int
    scale: Fraction
    roi: tuple[Fraction, Fraction] = (Fraction(0), Fraction(1))


def _refuse_resize(node: Node, input_types: InputTypes) -> str | None:
    """Refuses cases on which sources disagree: most interpolated integers (rounding), and scales together with a region (output size)."""
    x_type = input_types[0] if input_types else None
    mode = node.attributes.get("mode", "nearest")
    types = {"nearest": ANY, "linear": FLOATS | _TRUNCATED, "bilinear": FLOATS | _TRUNCATED}.get(mode, FLOATS)
    if isinstance(x_type, TensorType) and x_type.dtype is not None and x_type.dtype not in types:
        return f"mode '{mode}' of {node.operator} is implemented for {', '.join(sorted(types))}, not for {x_type.dtype}"
    crops = node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if crops and len(node.inputs) < 4:
        return f"tf_crop_and_resize of {node.operator} is implemented for sizes, not for scales"
    if crops and isinstance(x_type, TensorType) and x_type.dtype == "string":
        return f"tf_crop_and_resize of {node.operator} has no string for what lies outside"
    return None


_RESIZE: dict[str, Any] = {"dtypes": (ANY, FLOATS, FLOATS, INT64), "host": (1, 2, 3), "refuse": _refuse_resize}


@kernel("Resize", since=(19,), choices=_CHOICES_19, **_RESIZE)
@kernel("Resize", since=(18,), choices=_CHOICES_18, **_RESIZE)
@kernel("Resize", since=(13,), choices=_CHOICES, without=_SINCE_18, **_RESIZE)
@kernel("Resize", since=(11,), choices=_CHOICES_11, without=_SINCE_18, **_RESIZE)
def resize(
    xp: Namespace,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Integers | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """Returns x resampled to the sizes, or by the scales."""
    exact = bool(exclude_outside), bool(antialias)
    sampling = Sampling(mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, *exact, extrapolation_value)
    named = tuple(range(x.ndim)) if axes is None else normalize_axes(axes, x.ndim)
    return _resample(xp, x, lay_axes(x.shape, named, roi, scales, sizes, keep_aspect_ratio_policy), sampling)


_LEGACY = {"mode": ("nearest", "linear")}


@kernel("Resize", since=(10,), dtypes=(ANY, FLOATS), host=(1,), choices=_LEGACY, refuse=_refuse_resize)
@kernel("Upsample", since=(9,), dtypes=(ANY, FLOATS), host=(1,), choices=_LEGACY, refuse=_refuse_resize)
@kernel("Upsample", since=(7,), dtypes=ANY, as_attributes=("scales",), choices=_LEGACY, refuse=_refuse_resize)
def resize_by_scales(xp: Namespace, x: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """Returns x resampled from coordinates x / scale. Source: ONNX Resize-10."""
    return _resample(xp, x, lay_axes(x.shape, tuple(range(x.ndim)), None, scales, None, "stretch"), legacy_sampling(mode))


def _count(x: Array, *, height_scale: float, width_scale: float, **_: Any) -> int:
    return int(x.nbytes * max(height_scale, 1) * max(width_scale, 1))


@kernel("Upsample", since=(1,), dtypes=ANY, choices={"mode": ("nearest", "bilinear")}, refuse=_refuse_resize, count_bytes=_count)
def upsample_image(xp: Namespace, x: Array, *, height_scale: float, mode: str = "nearest", width_scale: float) -> Array:
    """Returns images resampled along height and width."""
    return resize_by_scales(xp, x, (1.0, 1.0, height_scale, width_scale), mode="linear" if mode == "bilinear" else mode)


def lay_axes(
    shape: Integers, named: Integers, roi: Array | None, scales: Array | None, sizes: Array | None, policy: str
) -> list[Axis]:
    """Returns the axes with their output sizes: those of `scale_size` from scales, the nearest integer if the ratio is kept."""
    target_sizes = integers_of(sizes)
    if target_sizes:
        pairs = list(zip(target_sizes, (shape[axis] for axis in named), strict=True))
        # An axis of length 0 stays as it is.
        if any(size and not length for size, length in pairs):
            raise ValueError(f"sizes {list(target_sizes)} of a tensor of shape {shape}: an axis without elements cannot grow")
        factors = [Fraction(1) if size == length == 0 else Fraction(size, length) for size, length in pairs]
        outputs = list(target_sizes)
        if policy != "stretch":
            resized = [factor for factor, (_, length) in zip(factors, pairs, strict=True) if length] or [Fraction(1)]
            factor = min(resized) if policy == "not_larger" else max(resized)
            factors = [factor] * len(named)
            outputs = [floor(factor * length + Fraction(1, 2)) for _, length in pairs]
    else:
        assert scales is not None, "Resize has neither scales nor sizes"
        factors = [Fraction(float(scale)) for scale in scales]
        outputs = [scale_size(shape[axis], float(scale)) for axis, scale in zip(named, scales, strict=True)]
    bounds = [0] * len(named) + [1] * len(named) if roi is None or roi.size == 0 else [float(bound) for bound in roi]
    return [
        Axis(axis, shape[axis], outputs[index], factors[index], (Fraction(bounds[index]), Fraction(bounds[index + len(named)])))
        for index, axis in enumerate(named)
    ]


def _resample(xp: Namespace, x: Array, axes: list[Axis], sampling: Sampling) -> Array:
    y = x if sampling.mode == "nearest" else widen(x) if str(x.dtype) in FLOATS else x.astype(np.float64)
    crops = sampling.transformation == "tf_crop_and_resize"
    for axis in axes:
        if axis.scale == 1 and axis.output == axis.size and not crops:
            continue
        if axis.output == 0:
            y = xp.zeros((*y.shape[: axis.axis], 0, *y.shape[axis.axis + 1 :]), dtype=y.dtype)
            continue
        y = _resample_axis(xp, y, axis, sampling)
        if crops:
            y = _fill_outside(xp, y, axis, sampling.extrapolation_value)
    if y is not x and y.dtype != x.dtype and np.dtype(x.dtype).kind in "iu":
        # Sums whose exact value is whole may lie below it by their rounding.
        y = y + xp.sign(y) * 1e-6
    return narrow(y, x.dtype)


def _find_line(axis: Axis, transformation: str) -> tuple[Fraction, Fraction]:
    """Returns (slope, offset): output i lies at slope * i + offset in the input. Source: ONNX Resize-19, coordinate_transformation_mode."""
    last, exact, half = axis.size - 1, axis.scale * axis.size, Fraction(1, 2)
    if transformation == "align_corners":
        # The official cases divide by the exact, perhaps fractional, length.
        return (Fraction(0) if exact == 1 else last / (exact - 1)), Fraction(0)
    if transformation == "tf_crop_and_resize":
        begin, end = axis.roi
        if axis.output == 1:
            return Fraction(0), half * (begin + end) * last
        return (end - begin) * last / (axis.output - 1), begin * last
    if transformation == "pytorch_half_pixel" and axis.output == 1:
        return Fraction(0), Fraction(0)
    slope = 1 / axis.scale
    offset = Fraction(0) if transformation == "asymmetric" else slope / 2
    if transformation == "half_pixel_symmetric":
        offset += Fraction(axis.size, 2) * (1 - axis.output / exact)
    return slope, offset if transformation in ("asymmetric", "tf_half_pixel_for_nn") else offset - half


def _find_coordinates(axis: Axis, transformation: str) -> tuple[Any, int]:
    """Returns (numerators, denominator): the coordinates of all outputs as quotients of integers.

    They are int64, or Python's if four times a numerator or denominator could overflow.
    """
    slope, offset = _find_line(axis, transformation)
    denominator = lcm(slope.denominator, offset.denominator)
    step, begin = int(slope * denominator), int(offset * denominator)
    largest = abs(step) * axis.output + abs(begin) + denominator * max(axis.size, 1)
    numbers = np.arange(axis.output, dtype=np.int64 if largest < 2**61 else object)
    return numbers * step + begin, denominator


def find_taps(axis: Axis, sampling: Sampling) -> tuple[_Positions, _Rows]:
    """Returns (outputs, taps): which elements of an axis each output reads, and with which weights."""
    if (sampling.mode, sampling.nearest_mode) == ("nearest", "legacy"):
        quotients = np.arange(axis.output, dtype=np.float32) / np.float32(axis.scale)
        pixels = (np.ceil(quotients) if axis.scale < 1 else np.floor(quotients)).astype(np.int64)[:, None]
        return np.clip(pixels, 0, axis.size - 1), np.ones(pixels.shape)
    numerators, denominator = _find_coordinates(axis, sampling.transformation)
    if sampling.mode == "nearest":
        positions = _round_quotients(numerators, denominator, sampling.nearest_mode)[:, None]
        return np.clip(positions, 0, axis.size - 1).astype(np.int64), np.ones(positions.shape)
    fractions = (numerators % denominator / denominator).astype(np.float64)
    offsets, weights = _weigh(axis, fractions, sampling)
    positions = (numerators // denominator).astype(np.int64)[:, None] + offsets[None, :]
    if sampling.exclude_outside:
        weights = np.where((positions < 0) | (positions >= axis.size), 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(positions, 0, axis.size - 1), weights


def _resample_axis(xp: Namespace, x: Array, axis: Axis, sampling: Sampling) -> Array:
    positions, weights = find_taps(axis, sampling)
    shape = (-1, *(1,) * (x.ndim - axis.axis - 1))
    total = None
    for tap in range(positions.shape[1]):
        read = xp.take(x, bring(xp, positions[:, tap], np.int64), axis=axis.axis)
        if sampling.mode == "nearest":
            return read
        part = read * bring(xp, weights[:, tap], x.dtype).reshape(shape)
        total = part if total is None else total + part
    return total


def _round_quotients(numerators: Any, denominator: int, nearest_mode: str) -> Any:
    if nearest_mode == "round_prefer_floor":
        return -((denominator - 2 * numerators) // (2 * denominator))
    if nearest_mode == "round_prefer_ceil":
        return (2 * numerators + denominator) // (2 * denominator)
    return numerators // denominator if nearest_mode == "floor" else -(-numerators // denominator)


def _weigh(axis: Axis, fractions: _Rows, sampling: Sampling) -> tuple[_Positions, _Rows]:
    """Returns offsets from floor(coordinate) and their weights, which add up to 1. fractions: coordinate - floor(coordinate).

    The filter is a triangle (linear) or Keys' cubic; antialiasing stretches it by 1 / scale when the axis shrinks.
    """
    stretch = min(float(axis.scale), 1.0) if sampling.antialias else 1.0
    support = 1 if sampling.mode == "linear" else 2
    first = int(np.floor(-support / stretch)) + 1
    offsets = np.arange(first, 2 - first, dtype=np.int64)
    distances = np.abs(offsets[None, :] - fractions[:, None]) * stretch
    weights = np.clip(1 - distances, 0, 1) if sampling.mode == "linear" else _evaluate_cubic(distances, sampling.cubic_coeff_a)
    return offsets, weights / weights.sum(axis=1, keepdims=True)


def _evaluate_cubic(distances: _Rows, a: float) -> _Rows:
    """Returns Keys' cubic convolution kernel. Source: Keys 1981, equation 4."""
    near = (a + 2) * distances**3 - (a + 3) * distances**2 + 1
    far = a * distances**3 - 5 * a * distances**2 + 8 * a * distances - 4 * a
    return np.where(distances <= 1, near, np.where(distances < 2, far, 0.0))


def _fill_outside(xp: Namespace, x: Array, axis: Axis, value: float) -> Array:
    numerators, denominator = _find_coordinates(axis, "tf_crop_and_resize")
    outside = ((numerators < 0) | (numerators > (axis.size - 1) * denominator)).astype(bool)
    if not outside.any():
        return x
    mask = bring(xp, outside, bool).reshape((-1, *(1,) * (x.ndim - axis.axis - 1)))
    return xp.where(mask, x.dtype.type(value), x)
