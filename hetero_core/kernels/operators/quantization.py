"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: per tensor, per axis, and by blocks along one axis.

y = saturate(round(x / scale) + zero_point), ties to even; x = (y - zero_point) * scale.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.operators.casts import convert
from hetero_core.kernels.precision import Array, Namespace, is_small_integer, narrow, normalize_axis, widen
from hetero_core.kernels.registry import FLOAT8, FLOAT32, SMALL_FLOATS, kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType

_NARROW = frozenset({"int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", "float4e2m1"}) | FLOAT8


def _refuse_power_of_two(node: Node, input_types: tuple[ValueType | None, ...], *, attribute: str) -> str | None:
    """Refuses a scale that is a power of two, float8e8m0, where nothing names the type to compute in."""
    scale = input_types[1]
    if isinstance(scale, TensorType) and scale.dtype == "float8e8m0" and not node.attributes.get(attribute, 0):
        return f"{node.operator} has a scale of float8e8m0 and no {attribute} that names a wider type"
    return None


@kernel("QuantizeLinear", since=(10,), dtypes=(SMALL_FLOATS | {"int32"}, SMALL_FLOATS, _NARROW))
def quantize_linear_tensor(xp: Namespace, x: Array, y_scale: Array, y_zero_point: Array | None = None) -> Array:
    """Returns x quantized by one scale. Source: ONNX QuantizeLinear-10."""
    return quantize_linear(xp, x, y_scale, y_zero_point)


@kernel(
    "QuantizeLinear",
    since=(13, 19, 21, 23),
    dtypes=(SMALL_FLOATS | {"int32"}, SMALL_FLOATS, _NARROW),
    choices={"saturate": (0, 1), "precision": (0, 1, 10, 16)},
)
@kernel(
    "QuantizeLinear",
    since=(24, 25, 28),
    dtypes=(SMALL_FLOATS | {"int32"}, SMALL_FLOATS | {"float8e8m0"}, _NARROW),
    choices={"saturate": (0, 1), "precision": (0, 1, 10, 16)},
    refuse=partial(_refuse_power_of_two, attribute="precision"),
)
def quantize_linear(
    xp: Namespace,
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Array:
    """Returns x quantized; the division has the scale's precision unless `precision` names another.

    Source: ONNX QuantizeLinear-28.
    """
    name = dtype_of_onnx(output_dtype) or "uint8"
    target = numpy_dtype(name) if y_zero_point is None else y_zero_point.dtype
    computed = numpy_dtype(dtype_of_onnx(precision) or "float32") if precision else y_scale.dtype
    scale = widen(y_scale.astype(computed))
    quotient = widen(narrow(widen(x.astype(computed)) / spread(xp, scale, x.shape, axis, block_size), computed))
    zero = None if y_zero_point is None else spread(xp, _to_wide(y_zero_point), x.shape, axis, block_size)
    if target.kind in "iu" or is_small_integer(target):
        return saturate_integers(xp, quotient, zero, target)
    shifted = quotient if zero is None else quotient + zero
    return convert(xp, shifted, target, saturate=bool(saturate))


def _to_wide(x: Array) -> Array:
    """Returns a quantized type's values as float32, which holds each of them exactly up to 16 bits."""
    return (x.astype(np.int8) if is_small_integer(x.dtype) else x).astype(np.float32)


def saturate_integers(xp: Namespace, quotient: Array, zero: Array | None, target: Any) -> Array:
    """Returns round(quotient) + zero limited to an integer type, ties to even; NaN becomes the lowest number, as in ONNX Runtime.

    NaN is met in masks: the scale of a range with an infinity is infinite, and so is the mask.
    """
    limits = ml_dtypes.iinfo(target)
    rounded = xp.rint(quotient)
    limited = xp.fmin(xp.fmax(rounded if zero is None else rounded + zero, int(limits.min)), int(limits.max))
    return limited.astype(np.int32).astype(target)


def spread(xp: Namespace, values: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Returns scales or zero points shaped to broadcast over x: one value, one per index of the axis, or one per block of it."""
    if values.size == 1 and not block_size:
        return values.reshape(())
    place = normalize_axis(axis, len(shape))
    if block_size:
        repeated = xp.repeat(values, block_size, axis=place)
        return repeated[(*(slice(None),) * place, slice(0, shape[place]))]
    return values.reshape((-1, *(1,) * (len(shape) - place - 1)))


@kernel("DequantizeLinear", since=(10,), dtypes=(_NARROW | {"int32"}, SMALL_FLOATS, _NARROW | {"int32"}))
def dequantize_linear_tensor(xp: Namespace, x: Array, x_scale: Array, x_zero_point: Array | None = None) -> Array:
    """Returns the values that one scale gives. Source: ONNX DequantizeLinear-10."""
    return dequantize_linear(xp, x, x_scale, x_zero_point)


@kernel(
    "DequantizeLinear",
    since=(13, 19, 21, 23),
    dtypes=(_NARROW | {"int32"}, SMALL_FLOATS, _NARROW | {"int32"}),
    choices={"output_dtype": (0, 1, 10, 16)},
)
@kernel(
    "DequantizeLinear",
    since=(24, 25, 28),
    dtypes=(_NARROW | {"int32"}, SMALL_FLOATS | {"float8e8m0"}, _NARROW | {"int32"}),
    choices={"output_dtype": (0, 1, 10, 16)},
    refuse=partial(_refuse_power_of_two, attribute="output_dtype"),
)
def dequantize_linear(
    xp: Namespace,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    """Returns (x - zero point) * scale in the scale's type or the one asked for. Source: ONNX DequantizeLinear-28."""
    target = numpy_dtype(dtype_of_onnx(output_dtype) or "float32") if output_dtype else x_scale.dtype
    steps = _to_steps(x)
    if x_zero_point is not None:
        steps = steps - spread(xp, _to_steps(x_zero_point), x.shape, axis, block_size)
    return narrow(steps.astype(np.float32) * spread(xp, widen(x_scale), x.shape, axis, block_size), target)


def _to_steps(x: Array) -> Array:
    """Returns quantized integers as int32, so that a difference is exact; quantized floats as float32."""
    if is_small_integer(x.dtype):
        return x.astype(np.int8).astype(np.int32)
    return x.astype(np.int32) if x.dtype.kind in "iu" else widen(x)


@kernel("DynamicQuantizeLinear", since=(11,), dtypes=FLOAT32, outputs=3)
def dynamic_quantize_linear(xp: Namespace, x: Array) -> tuple[Array, Array, Array]:
    """Returns x as uint8 with the scale and zero point of its own range, which includes 0.

    Of nothing but zeros the range is empty: the scale is then 1, as ONNX Runtime has it, so that what is divided by it stays finite.

    Source: ONNX DynamicQuantizeLinear-11.
    """
    zero = np.float32(0)
    low, high = (xp.minimum(xp.min(x), zero), xp.maximum(xp.max(x), zero)) if x.size else (xp.asarray(zero), xp.asarray(zero))
    scale = xp.where(low == high, np.float32(1), (high - low) / np.float32(255))
    zero_point = xp.rint(xp.clip(zero - low / scale, 0, 255)).astype(np.float32)
    y = saturate_integers(xp, x / scale, zero_point, np.dtype(np.uint8))
    return y, xp.asarray(scale), xp.asarray(zero_point).astype(np.uint8)
