"""Quantized values: conversions, products, windows, elementwise operators, and weights in blocks of a few bits.

y = saturate(round(x / scale) + zero_point), ties to even; x = (y - zero_point) * scale. Products are summed in float64, where every
sum below 2^53 is exact: the BLAS is many times faster than integer loops. Operators of com.microsoft equal ONNX Runtime's x86 kernels
bit for bit: they multiply by ratios of scales and round at the same steps. Weights in blocks are restored to float32.
"""
# ruff: noqa: N803  # ONNX's names of attributes

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.arrays import lay_out
from hetero_core.kernels.operators.casts import convert
from hetero_core.kernels.operators.convolution import add_windows, convolve, count_elements, max_pool
from hetero_core.kernels.operators.elementwise import sigmoid_of
from hetero_core.kernels.precision import Array, Namespace, is_small_integer, multiply, narrow, normalize_axis, widen
from hetero_core.kernels.registry import BYTES, FLOAT8, FLOAT32, INDEX, INT32, SMALL_FLOATS, UINT8, kernel, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.kernels.windows import AUTO_PADS, CONVOLVING, POOLING, lay_windows, spread_bias
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType

_QUANTIZED = BYTES | {"int16", "uint16", "int4", "uint4"}
_NARROW = frozenset({"int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", "float4e2m1"}) | FLOAT8
_SUMS = _NARROW | {"int32"}
_WIDE = SMALL_FLOATS | {"int32"}
_SCALES = SMALL_FLOATS | {"float8e8m0"}
_ROUNDING = {"saturate": (0, 1), "precision": (0, 1, 10, 16)}
_RESTORED = {"output_dtype": (0, 1, 10, 16)}
_LATER = ("block_size", "output_dtype", "precision", "saturate")


def _refuse_power_of_two(node: Node, input_types: InputTypes) -> str | None:
    """Refuses a scale that is a power of two, float8e8m0, if nothing names the type of the computation."""
    scale, attribute = input_types[1], "precision" if node.op_type == "QuantizeLinear" else "output_dtype"
    if isinstance(scale, TensorType) and scale.dtype == "float8e8m0" and not node.attributes.get(attribute, 0):
        return f"{node.operator} has a scale of float8e8m0 and no {attribute} that names a wider type"
    return None


@kernel("QuantizeLinear", since=(10,), dtypes=(_WIDE, SMALL_FLOATS, _NARROW), without=("axis", *_LATER))
@microsoft_kernel("QuantizeLinear", halves=(), dtypes=(FLOAT32, FLOAT32, _QUANTIZED), without=_LATER)
@kernel("QuantizeLinear", since=(13, 19, 21, 23), dtypes=(_WIDE, SMALL_FLOATS, _NARROW), choices=_ROUNDING)
@kernel("QuantizeLinear", since=(24, 25, 28), dtypes=(_WIDE, _SCALES, _NARROW), choices=_ROUNDING, refuse=_refuse_power_of_two)
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
    """Returns x quantized; the division has the scale's precision unless `precision` is set."""
    name = dtype_of_onnx(output_dtype) or "uint8"
    target = numpy_dtype(name) if y_zero_point is None else y_zero_point.dtype
    computed = numpy_dtype(dtype_of_onnx(precision) or "float32") if precision else y_scale.dtype
    scale = widen(y_scale.astype(computed))
    quotient = widen(narrow(widen(x.astype(computed)) / spread(xp, scale, x.shape, axis, block_size), computed))
    zero = None if y_zero_point is None else spread(xp, y_zero_point.astype(np.float32), x.shape, axis, block_size)
    if target.kind in "iu" or is_small_integer(target):
        return saturate_integers(xp, quotient, zero, target)
    shifted = quotient if zero is None else quotient + zero
    return convert(xp, shifted, target, saturate=bool(saturate))


def saturate_integers(xp: Namespace, quotient: Array, zero: Array | None, target: Any) -> Array:
    """Returns round(quotient) + zero limited to an integer type, ties to even; NaN becomes the lowest number, as in ONNX Runtime.

    NaN is met in masks: the scale of a range with an infinity is infinite, and so is the mask.
    """
    limits = ml_dtypes.iinfo(target)
    rounded = xp.rint(quotient)
    limited = xp.fmin(xp.fmax(rounded if zero is None else rounded + zero, int(limits.min)), int(limits.max))
    return limited.astype(np.int32).astype(target)


def spread(xp: Namespace, values: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Returns scales or zero points shaped to broadcast over x: a single value, or values per index or per block of the axis."""
    if values.size == 1 and not block_size:
        return values.reshape(())
    place = normalize_axis(axis, len(shape))
    if block_size:
        repeated = xp.repeat(values, block_size, axis=place)
        return repeated[(*(slice(None),) * place, slice(0, shape[place]))]
    return values.reshape((-1, *(1,) * (len(shape) - place - 1)))


@kernel("DequantizeLinear", since=(10,), dtypes=(_SUMS, SMALL_FLOATS, _SUMS), without=("axis", "block_size", "output_dtype"))
@microsoft_kernel("DequantizeLinear", halves=(0,), dtypes=(_QUANTIZED | INT32, FLOAT32, _QUANTIZED | INT32), without=_LATER[:2])
@kernel("DequantizeLinear", since=(13, 19, 21, 23), dtypes=(_SUMS, SMALL_FLOATS, _SUMS), choices=_RESTORED)
@kernel("DequantizeLinear", since=(24, 25, 28), dtypes=(_SUMS, _SCALES, _SUMS), choices=_RESTORED, refuse=_refuse_power_of_two)
def dequantize_linear(
    xp: Namespace, x: Array, scale: Array, zero: Array | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Array:
    """Returns (x - zero) * scale in the scale's type or in `output_dtype`."""
    target = numpy_dtype(dtype_of_onnx(output_dtype) or "float32") if output_dtype else scale.dtype
    steps = _to_steps(x)
    if zero is not None:
        steps = steps - spread(xp, _to_steps(zero), x.shape, axis, block_size)
    return narrow(steps.astype(np.float32) * spread(xp, widen(scale), x.shape, axis, block_size), target)


def _to_steps(x: Array) -> Array:
    """Returns quantized integers as int32, so that a difference is exact; quantized floats as float32."""
    return x.astype(np.int32) if x.dtype.kind in "iu" or is_small_integer(x.dtype) else widen(x)


@kernel("DynamicQuantizeLinear", since=(11,), dtypes=FLOAT32, outputs=3)
def dynamic_quantize_linear(xp: Namespace, x: Array) -> tuple[Array, Array, Array]:
    """Returns x as uint8 with the scale and zero point of its own range, which includes 0.

    The range of zeros is empty: the scale is then 1, as in ONNX Runtime, so that quotients stay finite.
    """
    zero = np.float32(0)
    low, high = (xp.minimum(xp.min(x), zero), xp.maximum(xp.max(x), zero)) if x.size else (xp.asarray(zero), xp.asarray(zero))
    scale = xp.where(low == high, np.float32(1), (high - low) / np.float32(255))
    zero_point = xp.rint(xp.clip(zero - low / scale, 0, 255)).astype(np.float32)
    y = saturate_integers(xp, x / scale, zero_point, np.dtype(np.uint8))
    return y, xp.asarray(scale), xp.asarray(zero_point).astype(np.uint8)


def center(x: Array, zero_point: Array | None) -> Array:
    """Returns x - zero_point as float64, exactly."""
    wide = x.astype(np.float64)
    return wide if zero_point is None else wide - zero_point.astype(np.float64)


def wrap_sums(total: Array) -> Array:
    """Returns exact sums as int32; a sum beyond 32 bits wraps, as the accumulator would."""
    return total.astype(np.int64).astype(np.int32)


@kernel("ConvInteger", since=(10,), dtypes=BYTES, **CONVOLVING)
def conv_integer(
    xp: Namespace, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, *, group: int = 1, **geometry: Any
) -> Array:
    """Returns the convolution of x - x_zero with w - w_zero as int32."""
    windows = lay_windows(x.shape[2:], w.shape[2:], **geometry)
    zeros = None if w_zero is None else spread(xp, w_zero, w.shape, 0, 0)
    return wrap_sums(convolve(xp, center(x, x_zero), center(w, zeros), windows, group))


def to_channels_first(xp: Namespace, x: Array, channels_last: int) -> Array:
    """Returns (batch, channels, *sizes)."""
    return xp.moveaxis(x, -1, 1) if channels_last else x


def to_layout(xp: Namespace, y: Array, channels_last: int) -> Array:
    """Returns the layout that the node has."""
    return lay_out(xp, xp.moveaxis(y, 1, -1)) if channels_last else y


def _refuse_same_dilated(node: Node, input_types: InputTypes) -> str | None:
    """Refuses dilated windows under SAME, which ONNX Runtime pads as if they were not dilated."""
    is_dilated = any(step != 1 for step in node.attributes.get("dilations", ()))
    if is_dilated and str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        return f"auto_pad of {node.operator} is {node.attributes['auto_pad']} and its windows are dilated; write the pads out"
    return None


_LAYOUT = {"auto_pad": AUTO_PADS, "channels_last": (0, 1)}
_CONVOLVED = (BYTES, SMALL_FLOATS, BYTES) * 2 + (SMALL_FLOATS, BYTES, INT32)
_CONVOLVED_32 = (BYTES, FLOAT32, BYTES) * 2 + (FLOAT32, BYTES, INT32)


@kernel("QLinearConv", since=(10,), dtypes=_CONVOLVED, without=("channels_last",), **CONVOLVING)
@microsoft_kernel("QLinearConv", dtypes=_CONVOLVED_32, refuse=_refuse_same_dilated, **{**CONVOLVING, "choices": _LAYOUT})
def qlinear_conv(
    xp: Namespace,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
    *,
    channels_last: int = 0,
    group: int = 1,
    **geometry: Any,
) -> Array:
    """Returns the quantized convolution, rescaled by x_scale * w_scale / y_scale in float32."""
    x = to_channels_first(xp, x, channels_last)
    windows = lay_windows(x.shape[2:], w.shape[2:], **geometry)
    total = convolve(xp, center(x, x_zero_point), center(w, spread(xp, w_zero_point, w.shape, 0, 0)), windows, group)
    if b is not None:
        total += spread_bias(b.astype(np.float64), total)
    factor = widen(x_scale) * spread(xp, widen(w_scale), total.shape[1:], 0, 0) / widen(y_scale)
    y = saturate_integers(xp, total.astype(np.float32) * factor, y_zero_point.astype(np.float32), y_zero_point.dtype)
    return to_layout(xp, y, channels_last)


@kernel("MatMulInteger", since=(10,), dtypes=BYTES)
def mat_mul_integer(xp: Namespace, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    """Returns (a - a_zero) @ (b - b_zero) as int32."""
    return wrap_sums(multiply(xp, center(a, None if a_zero is None else _per_row(a_zero)), center(b, b_zero)))


def _per_row(values: Array) -> Array:
    return values.reshape((-1, 1)) if values.ndim == 1 and values.size > 1 else values


@kernel("QLinearMatMul", since=(10, 21), dtypes=_CONVOLVED[:8])
def qlinear_mat_mul(
    xp: Namespace, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, y_scale: Array, y_zero: Array
) -> Array:
    """Returns the quantized product, rescaled by a_scale * b_scale / y_scale in float32."""
    total = multiply(xp, center(a, _per_row(a_zero)), center(b, b_zero))
    factor = _per_row(widen(a_scale)) * widen(b_scale) / _per_row(widen(y_scale))
    return saturate_integers(xp, total.astype(np.float32) * factor, _per_row(y_zero).astype(np.float32), y_zero.dtype)


Table = Callable[[Array], Array]


def scalar_of(x: Array) -> Array:
    """Returns the only element of an array, of rank 0, in the array's type."""
    return x.reshape(())


def zero_of(zero_point: Array | None) -> Array | float:
    """Returns a zero point as a float32 scalar; 0 if it is absent."""
    return np.float32(0) if zero_point is None else scalar_of(zero_point).astype(np.float32)


def fuse(x: Array, factor: Array, summand: Array) -> Array:
    """Returns x * factor + summand in float32, rounded once."""
    return (x.astype(np.float64) * factor.astype(np.float64) + summand.astype(np.float64)).astype(np.float32)


@kernel("MultiplyAdd", since=(0,), dtypes=FLOAT32)
def multiply_add(xp: Namespace, a: Array, b: Array, c: Array) -> Array:
    """Returns a * b + c, rounded once; no operator of ONNX, but a node that a pass makes."""
    if c.size > 1 or c.any():
        return fuse(a, b, c)
    y = a * b
    y += c.reshape(())
    return y


_BINARY = (BYTES, FLOAT32, BYTES, BYTES, FLOAT32, BYTES, FLOAT32, BYTES)


@microsoft_kernel("QLinearAdd", dtypes=_BINARY)
def qlinear_add(
    xp: Namespace,
    a: Array,
    a_scale: Array,
    a_zero_point: Array | None,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    c_scale: Array,
    c_zero_point: Array | None = None,
) -> Array:
    """Returns (a_scale (a - a_zero) + b_scale (b - b_zero)) / c_scale + c_zero."""
    ratio_a, ratio_b = scalar_of(a_scale) / scalar_of(c_scale), scalar_of(b_scale) / scalar_of(c_scale)
    zero_a, zero_b, zero_c = (zero_of(zero) for zero in (a_zero_point, b_zero_point, c_zero_point))
    # One constant holds all zero points.
    constant = zero_c - fuse(xp.asarray(ratio_a), xp.asarray(zero_a), xp.asarray(ratio_b * zero_b))
    partial_b = fuse(b, ratio_b, constant)
    return saturate_integers(xp, fuse(a, ratio_a, partial_b), None, a.dtype)


@microsoft_kernel("QLinearMul", dtypes=_BINARY)
def qlinear_mul(
    xp: Namespace,
    a: Array,
    a_scale: Array,
    a_zero_point: Array | None,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    c_scale: Array,
    c_zero_point: Array | None = None,
) -> Array:
    """Returns a_scale (a - a_zero) b_scale (b - b_zero) / c_scale + c_zero."""
    factor = scalar_of(a_scale) * scalar_of(b_scale) / scalar_of(c_scale)
    product = (a.astype(np.float32) - zero_of(a_zero_point)) * (b.astype(np.float32) - zero_of(b_zero_point))
    return saturate_integers(xp, fuse(product, factor, xp.asarray(zero_of(c_zero_point))), None, a.dtype)


def map_bytes(xp: Namespace, x: Array, function: Table) -> Array:
    """Returns the function of each element of a tensor of bytes, by a table of its 256 values."""
    codes = xp.arange(256, dtype=np.int64).astype(np.uint8).view(x.dtype)
    return xp.take(function(codes), x.view(np.uint8).astype(np.int64))


def dequantize_bytes(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """Returns scale * (x - zero_point) in float32."""
    return scalar_of(scale) * (x.astype(np.float32) - zero_of(zero_point))


def requantize_bytes(
    xp: Namespace,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None,
    function: Table = lambda values: values,
) -> Array:
    """Returns the bytes that stand for a function of the same values, by default the values, under the scale and zero point of y."""

    def requantize(codes: Array) -> Array:
        values = function(dequantize_bytes(codes, x_scale, x_zero_point))
        return saturate_integers(xp, values / scalar_of(y_scale), xp.asarray(zero_of(y_zero_point)), x.dtype)

    return map_bytes(xp, x, requantize)


_UNARY = (BYTES, FLOAT32, BYTES, FLOAT32, BYTES)


@microsoft_kernel("QLinearLeakyRelu", dtypes=_UNARY)
def qlinear_leaky_relu(
    xp: Namespace, x: Array, scale: Array, zero: Array | None, y_scale: Array, y_zero: Array | None = None, *, alpha: float = 0.01
) -> Array:
    """Returns x, negative elements times alpha."""
    factor = np.float32(alpha)
    return requantize_bytes(xp, x, scale, zero, y_scale, y_zero, lambda values: xp.where(values >= 0, values, factor * values))


@microsoft_kernel("QLinearSigmoid", dtypes=_UNARY)
def qlinear_sigmoid(
    xp: Namespace, x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None
) -> Array:
    """Returns 1 / (1 + exp(-x))."""
    return requantize_bytes(xp, x, x_scale, x_zero_point, y_scale, y_zero_point, partial(sigmoid_of, xp))


@microsoft_kernel("QLinearWhere", dtypes=(frozenset({"bool"}), *_BINARY))
def qlinear_where(
    xp: Namespace,
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
) -> Array:
    """Returns x if the condition holds, else y, both under the scale of the result."""
    left = requantize_bytes(xp, x, x_scale, x_zero_point, z_scale, z_zero_point)
    right = requantize_bytes(xp, y, y_scale, y_zero_point, z_scale, z_zero_point)
    return xp.where(condition, left, right)


def _refuse_concat(node: Node, input_types: InputTypes) -> str | None:
    """Refuses inputs that are not triples of a tensor, its scale and its zero point."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        return f"{node.operator} has {len(node.inputs)} inputs; expected a scale, a zero point, then three for each tensor"
    for index, value_type in enumerate(input_types):
        allowed = FLOAT32 if index == 0 or index % 3 == 0 else BYTES
        if isinstance(value_type, TensorType) and value_type.dtype is not None and value_type.dtype not in allowed:
            return f"input '{node.inputs[index]}' of {node.operator} has dtype {value_type.dtype}"
    return None


@microsoft_kernel("QLinearConcat", dtypes=(FLOAT32, BYTES, BYTES | FLOAT32), refuse=_refuse_concat)
def qlinear_concat(xp: Namespace, y_scale: Array, y_zero_point: Array, *inputs: Array, axis: int) -> Array:
    """Returns the tensors joined along the axis, each under the scale of the result.

    inputs: tensor, scale and zero point, for each tensor.
    """
    parts = [
        requantize_bytes(xp, inputs[index], inputs[index + 1], inputs[index + 2], y_scale, y_zero_point)
        for index in range(0, len(inputs), 3)
    ]
    return xp.concatenate(parts, axis=normalize_axis(axis, parts[0].ndim))


@microsoft_kernel("QLinearSoftmax", dtypes=_UNARY, host=(1,))
def qlinear_softmax(
    xp: Namespace, x: Array, scale: Array, zero: Array | None, y_scale: Array, y_zero: Array, *, axis: int | None = None, opset: int
) -> Array:
    """Returns the softmax along the axis, before opset 13 over all axes from it on, by a table of 256 exponentials in float32.

    The exponentials are scaled up as far as float32 sums of a row allow.
    """
    if x.size == 0:
        return x
    place = normalize_axis((1 if opset < 13 else -1) if axis is None else axis, x.ndim)
    moved = xp.moveaxis(x, place, -1) if opset >= 13 else x
    length = x.shape[place] if opset >= 13 else prod(x.shape[place:])
    table = xp.asarray(_tabulate_exponentials(float(scale.reshape(())), length))
    rows = moved.reshape((-1, length)).astype(np.int64)
    terms = xp.take(table, 255 + rows - xp.max(rows, axis=1, keepdims=True))
    # The kernel adds the elements sequentially.
    total = xp.cumsum(terms, axis=1, dtype=np.float32)[:, -1:]
    units = xp.floor(np.float32(1) / scalar_of(y_scale))
    # A row of a single element has a term that the units could take beyond float32.
    shares = xp.where(terms == total, np.float32(1), terms) * units / xp.where(terms == total, np.float32(1), total)
    y = xp.rint(shares).astype(np.int64) + scalar_of(y_zero).astype(np.int64)
    limits = np.iinfo(x.dtype)
    y = xp.clip(y, int(limits.min), int(limits.max)).astype(x.dtype).reshape(moved.shape)
    return lay_out(xp, xp.moveaxis(y, -1, place)) if opset >= 13 else y


def _tabulate_exponentials(scale: float, length: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns exp(scale (i - 255 + shift)) for each i of a byte; the shift keeps a sum of so many of them finite."""
    room = float(np.log(np.finfo(np.float32).max / np.float32(length)))
    shift = max(0.0, room - 5) / scale
    exponentials: np.ndarray[Any, np.dtype[np.float32]] = np.exp((np.arange(256) - 255 + shift) * scale).astype(np.float32)
    return exponentials


def sum_products(xp: Namespace, a: Array, a_zero_point: Array | None, b: Array, b_zero_point: Array | None) -> Array:
    """Returns (a - a_zero_point) @ (b - b_zero_point), exact up to 2^53, wrapped to int32 as an accumulator would."""
    a_zero, b_zero = (None if zero is None else shape_columns(zero, x) for x, zero in ((a, a_zero_point), (b, b_zero_point)))
    return wrap_sums(multiply(xp, center(a, a_zero), center(b, b_zero)))


def shape_columns(values: Array, x: Array) -> Array:
    """Returns a scalar, or values per column or per column of each matrix, ready to be broadcast over x."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape((*values.shape[:-1], 1, values.shape[-1])) if 1 < values.ndim < x.ndim else values


@microsoft_kernel("MatMulInteger16", dtypes=frozenset({"int16"}))
def mat_mul_integer_16(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns the product of 16-bit integers as int32, which wraps."""
    return multiply(xp, a.astype(np.int64), b.astype(np.int64)).astype(np.int32)


@microsoft_kernel("MatMulIntegerToFloat", halves=(0,), dtypes=(BYTES, BYTES, FLOAT32, FLOAT32, BYTES, BYTES, FLOAT32))
def mat_mul_integer_to_float(
    xp: Namespace,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Returns the exact integer product times a_scale and b_scale, plus bias."""
    total = sum_products(xp, a, a_zero_point, b, b_zero_point).astype(np.float32)
    y = total * (scalar_of(a_scale) * shape_columns(b_scale, b))
    return y if bias is None else y + bias


@microsoft_kernel("DynamicQuantizeMatMul", dtypes=(FLOAT32, BYTES, FLOAT32, BYTES, FLOAT32))
def dynamic_quantize_mat_mul(
    xp: Namespace, a: Array, b: Array, b_scale: Array, b_zero_point: Array | None = None, bias: Array | None = None
) -> Array:
    """Returns a @ b with a quantized to 8 bits by its own range first."""
    codes, scale, zero = dynamic_quantize_linear(xp, a)
    return mat_mul_integer_to_float(xp, codes, b, scale, b_scale, zero, b_zero_point, bias)


@microsoft_kernel("QGemm", dtypes=(BYTES, FLOAT32, BYTES) * 2 + (INT32, FLOAT32, BYTES))
def qgemm(
    xp: Namespace,
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Returns alpha * A @ B plus C, rescaled to y_scale and y_zero_point, or as float32 without them.

    C holds whole steps of alpha * a_scale * b_scale.
    """
    left, right = a.T if transA else a, b.T if transB else b
    total = sum_products(xp, left, a_zero_point, right, b_zero_point)
    if c is not None:
        total = total + c
    factor = np.float32(alpha) * scalar_of(a_scale) * (scalar_of(b_scale) if b_scale.size == 1 else b_scale.reshape(-1))
    if y_scale is None:
        return total.astype(np.float32) * factor
    scaled = total.astype(np.float32) * (factor / scalar_of(y_scale))
    target = a.dtype if y_zero_point is None else y_zero_point.dtype
    return saturate_integers(xp, scaled, xp.asarray(zero_of(y_zero_point)), target)


@microsoft_kernel(
    "QLinearAveragePool",
    dtypes=_UNARY,
    choices={**_LAYOUT, "ceil_mode": (0, 1)},
    shared={"auto_pad": "NOTSET", "ceil_mode": 0, "pads": None, "strides": None},
)
def qlinear_average_pool(
    xp: Namespace,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: tuple[int, ...],
    **geometry: Any,
) -> Array:
    """Returns the mean of each window over its elements, or over the whole window with count_include_pad.

    Windows are summed in float32, element by element.
    """
    first = to_channels_first(xp, x, channels_last)
    windows = lay_windows(first.shape[2:], kernel_shape, **geometry)
    values = map_bytes(xp, first, lambda codes: dequantize_bytes(codes, x_scale, x_zero_point))
    total = add_windows(xp, windows.pad(xp, values, 0), windows)
    counts: Any = np.float32(prod(kernel_shape))
    if not count_include_pad:
        elements: list[Any] = [np.asarray(listed, np.float32) for listed in count_elements(windows, count_pads=False)]
        counts = xp.asarray(reduce(np.multiply.outer, elements))
    # The kernel adds the zero point before it rounds.
    shifted = total / counts / scalar_of(y_scale) + zero_of(y_zero_point)
    return to_layout(xp, saturate_integers(xp, shifted, None, x.dtype), channels_last)


@microsoft_kernel("QLinearGlobalAveragePool", dtypes=_UNARY, choices={"channels_last": (0, 1)})
def qlinear_global_average_pool(
    xp: Namespace, x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, channels_last: int = 0
) -> Array:
    """Returns the mean of each channel; the sum is exact, and rescaled once."""
    first = to_channels_first(xp, x, channels_last)
    count = prod(first.shape[2:])
    total = xp.sum(first.astype(np.int64), axis=tuple(range(2, first.ndim)), keepdims=True)
    total = total - scalar_of(x_zero_point).astype(np.int64) * count
    factor = scalar_of(x_scale) / (scalar_of(y_scale) * np.float32(count))
    y = saturate_integers(xp, total.astype(np.float32) * factor, xp.asarray(zero_of(y_zero_point)), x.dtype)
    return to_layout(xp, y, channels_last)


@microsoft_kernel("NhwcMaxPool", dtypes=BYTES, refuse=_refuse_same_dilated, **POOLING)
def nhwc_max_pool(xp: Namespace, x: Array, *, kernel_shape: tuple[int, ...], **geometry: Any) -> Array:
    """Returns the largest element of each window; channels are last."""
    return to_layout(xp, max_pool(xp, xp.moveaxis(x, -1, 1), kernel_shape=kernel_shape, **geometry), 1)


_ACCURACIES = (0, 1, 2, 3, 4)


def unpack_bits(xp: Namespace, x: Array, bits: int) -> Array:
    """Returns numbers of so many bits, the low bits of a byte first, along the last axis."""
    if bits == 8:
        return x
    parts = [x >> np.uint8(shift) & np.uint8(2**bits - 1) for shift in range(0, 8, bits)]
    return xp.stack(parts, axis=-1).reshape((*x.shape[:-1], x.shape[-1] * len(parts)))


def restore_blocks(
    xp: Namespace, codes: Array, scales: Array, zero_points: Array | None, bits: int, columns: int, groups: Array | None = None
) -> Array:
    """Returns (rows, columns) of float32 from codes (rows, blocks, size), with a scale and a zero point for each block.

    scales: as many as rows and blocks; zero_points: packed like the codes along the blocks, or a float for each block.
    `groups` names the block of each column; by default, blocks follow the order of the columns.
    """
    rows, blocks, size = codes.shape
    factors = widen(scales).reshape((rows, blocks))
    if zero_points is None:
        zeros: Array = xp.full((rows, blocks), float(2 ** (bits - 1)), dtype=np.float32)
    elif zero_points.dtype == np.uint8:
        zeros = unpack_bits(xp, zero_points.reshape((rows, -1)), bits)[:, :blocks].astype(np.float32)
    else:
        zeros = widen(zero_points).reshape((rows, blocks))
    if groups is None:
        floats = (codes.astype(np.float32) - zeros[..., None]) * factors[..., None]
        return floats.reshape((rows, blocks * size))[:, :columns]
    flat, places = codes.reshape((rows, blocks * size))[:, :columns].astype(np.float32), groups[:columns].astype(np.int64)
    return (flat - xp.take(zeros, places, axis=1)) * xp.take(factors, places, axis=1)


@microsoft_kernel(
    "MatMulNBits",
    dtypes=(SMALL_FLOATS, UINT8, SMALL_FLOATS, UINT8 | SMALL_FLOATS, INT32, SMALL_FLOATS),
    choices={"bits": (2, 4, 8), "accuracy_level": _ACCURACIES, "weight_prepacked": (0,)},
    unread={"accuracy_level": 0, "weight_prepacked": 0},
)
def mat_mul_n_bits(
    xp: Namespace,
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
) -> Array:
    """Returns a @ w^T + bias with w (N, K) restored from blocks of block_size along K; an empty b is a product of zeros."""
    blocks = -(-K // block_size)
    if b.size == 0:
        y = xp.zeros((*a.shape[:-1], N), dtype=np.float32)
    else:
        codes = unpack_bits(xp, b.reshape((N, blocks, -1)), bits)
        weights = restore_blocks(xp, codes, scales, zero_points, bits, K, g_idx)
        y = multiply(xp, widen(a), weights.T)
    return narrow(y if bias is None else y + widen(bias), a.dtype)


# The sixteen values of each code, the largest magnitude of a block being 1. Source: Dettmers et al. 2023, QLoRA.
_FP4 = (0.0, 5.208333333e-03, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_CODEBOOKS = ((*_FP4, *(-value for value in _FP4)), _NF4)


@microsoft_kernel(
    "MatMulBnb4",
    halves=(0,),
    dtypes=(FLOAT32, UINT8, FLOAT32),
    choices={"quant_type": (0, 1), "transB": (0, 1), "training_mode": (0,)},
    unread={"training_mode": 0},
)
def mat_mul_bnb4(
    xp: Namespace, a: Array, b: Array, absmax: Array, *, K: int, N: int, block_size: int, quant_type: int, transB: int = 1
) -> Array:
    """Returns a @ w^T (or a @ w) with w (N, K) from codes of 4 bits, the high bits of a byte first, and each block's magnitude."""
    flat = b.reshape(-1)
    codes = xp.stack([flat >> np.uint8(4), flat & np.uint8(15)], axis=1).reshape(-1)[: N * K]
    book = xp.asarray(_CODEBOOKS[quant_type], dtype=np.float32)
    values = xp.take(book, codes.astype(np.int64)) * xp.take(absmax.reshape(-1), xp.arange(N * K) // block_size)
    weights = values.reshape((N, K))
    return multiply(xp, a, weights.T if transB else weights)


_TABLES = frozenset({"uint8", "int4", "uint4", "float4e2m1"}) | FLOAT8


@microsoft_kernel("GatherBlockQuantized", dtypes=(_TABLES, INDEX, SMALL_FLOATS, _TABLES), choices={"bits": (2, 4, 8)})
def gather_block_quantized(
    xp: Namespace,
    x: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Returns the slices of a table that the indices name, restored from blocks; zeros for an index outside.

    Bytes hold codes of `bits` along the last axis, the low bits first.
    """
    axis, place = normalize_axis(gather_axis, x.ndim), normalize_axis(quantize_axis, x.ndim)
    is_packed = x.dtype == np.uint8
    wide = indices.astype(np.int64).reshape((-1,))
    count = x.shape[axis] * (8 // bits if is_packed and axis == x.ndim - 1 else 1)
    inside = (wide >= -count) & (wide < count)
    places = xp.where(inside, wide, 0)
    is_whole = axis != place and not (is_packed and axis == x.ndim - 1)
    if is_whole:
        # Only the slices that are asked for are restored.
        x, scales = (xp.take(array, places, axis=axis) for array in (x, scales))
        zero_points = None if zero_points is None else xp.take(zero_points, places, axis=axis)
    values = (unpack_bits(xp, x, bits) if is_packed else x).astype(np.float32)
    size = block_size or values.shape[place]
    if zero_points is not None:
        zeros = unpack_bits(xp, zero_points, bits)[..., : scales.shape[-1]] if is_packed else zero_points
        values = values - spread(xp, zeros.astype(np.float32), values.shape, place, size)
    elif is_packed:
        values = values - np.float32(2 ** (bits - 1))
    values = values * spread(xp, widen(scales), values.shape, place, size)
    y = values if is_whole else xp.take(values, places, axis=axis)
    y = xp.where(inside.reshape((-1, *(1,) * (y.ndim - axis - 1))), y, np.float32(0))
    return narrow(y.reshape((*y.shape[:axis], *indices.shape, *y.shape[axis + 1 :])), scales.dtype)
