"""Element by element on quantized values, as ONNX Runtime's own operators of com.microsoft do it: QLinearAdd, QLinearMul and their like.

Integer results equal those of ONNX Runtime's x86 kernels bit for bit. A function of one byte is a table of 256 values. Sums and
products are rounded where those kernels round: they multiply by ratios of scales and add once (a fused multiply-add, which float64
followed by one rounding to float32 reproduces), they do not divide at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.operators.activations import sigmoid_of
from hetero_core.kernels.operators.quantization import dequantize_linear, quantize_linear, saturate_integers
from hetero_core.kernels.precision import Array, Namespace, normalize_axis
from hetero_core.kernels.registry import BOOL, BYTES, FLOAT32, microsoft_kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType

_QUANTIZED = BYTES | {"int16", "uint16", "int4", "uint4"}
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


@microsoft_kernel("QLinearAdd", dtypes=(BYTES, FLOAT32, BYTES, BYTES, FLOAT32, BYTES, FLOAT32, BYTES))
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
    """Returns (a_scale (a - a_zero) + b_scale (b - b_zero)) / c_scale + c_zero.

    Source: ONNX Runtime, com.microsoft.QLinearAdd-1.
    """
    ratio_a, ratio_b = scalar_of(a_scale) / scalar_of(c_scale), scalar_of(b_scale) / scalar_of(c_scale)
    zero_a, zero_b, zero_c = (zero_of(zero) for zero in (a_zero_point, b_zero_point, c_zero_point))
    # One constant holds all zero points.
    constant = zero_c - fuse(xp.asarray(ratio_a), xp.asarray(zero_a), xp.asarray(ratio_b * zero_b))
    partial_b = fuse(b, ratio_b, constant)
    return saturate_integers(xp, fuse(a, ratio_a, partial_b), None, a.dtype)


@microsoft_kernel("QLinearMul", dtypes=(BYTES, FLOAT32, BYTES, BYTES, FLOAT32, BYTES, FLOAT32, BYTES))
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
    """Returns a_scale (a - a_zero) b_scale (b - b_zero) / c_scale + c_zero. Source: ONNX Runtime, com.microsoft.QLinearMul-1."""
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


def quantize_bytes(xp: Namespace, x: Array, scale: Array, zero_point: Array | None, target: Any) -> Array:
    """Returns round(x / scale) + zero_point limited to the target type."""
    return saturate_integers(xp, x / scalar_of(scale), xp.asarray(zero_of(zero_point)), target)


def requantize_bytes(
    xp: Namespace, x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None
) -> Array:
    """Returns the bytes that stand for the same values under another scale and zero point."""
    return map_bytes(
        xp, x, lambda codes: quantize_bytes(xp, dequantize_bytes(codes, x_scale, x_zero_point), y_scale, y_zero_point, x.dtype)
    )


_UNARY = (BYTES, FLOAT32, BYTES, FLOAT32, BYTES)


@microsoft_kernel("QLinearLeakyRelu", dtypes=_UNARY)
def qlinear_leaky_relu(
    xp: Namespace,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    """Returns x, times alpha where it is negative. Source: ONNX Runtime, com.microsoft.QLinearLeakyRelu-1."""

    def compute(codes: Array) -> Array:
        value = dequantize_bytes(codes, x_scale, x_zero_point)
        return quantize_bytes(xp, xp.where(value >= 0, value, np.float32(alpha) * value), y_scale, y_zero_point, x.dtype)

    return map_bytes(xp, x, compute)


@microsoft_kernel("QLinearSigmoid", dtypes=_UNARY)
def qlinear_sigmoid(
    xp: Namespace, x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None
) -> Array:
    """Returns 1 / (1 + exp(-x)). Source: ONNX Runtime, com.microsoft.QLinearSigmoid-1."""

    def compute(codes: Array) -> Array:
        value = sigmoid_of(xp, dequantize_bytes(codes, x_scale, x_zero_point))
        return quantize_bytes(xp, value, y_scale, y_zero_point, x.dtype)

    return map_bytes(xp, x, compute)


@microsoft_kernel("QLinearWhere", dtypes=(BOOL, BYTES, FLOAT32, BYTES, BYTES, FLOAT32, BYTES, FLOAT32, BYTES))
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
    """Returns x where the condition holds, else y, both under the scale of the result.

    Source: ONNX Runtime, com.microsoft.QLinearWhere-1.
    """
    left = requantize_bytes(xp, x, x_scale, x_zero_point, z_scale, z_zero_point)
    right = requantize_bytes(xp, y, y_scale, y_zero_point, z_scale, z_zero_point)
    return xp.where(condition, left, right)


def _refuse_concat(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
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

    inputs: tensor, scale and zero point, for each tensor. Source: ONNX Runtime, com.microsoft.QLinearConcat-1.
    """
    parts = [
        requantize_bytes(xp, inputs[index], inputs[index + 1], inputs[index + 2], y_scale, y_zero_point)
        for index in range(0, len(inputs), 3)
    ]
    return xp.concatenate(parts, axis=normalize_axis(axis, parts[0].ndim))


@microsoft_kernel("QuantizeLinear", halves=(), dtypes=(FLOAT32, FLOAT32, _QUANTIZED))
def microsoft_quantize_linear(
    xp: Namespace, x: Array, y_scale: Array, y_zero_point: Array | None = None, *, axis: int = 1
) -> Array:
    """Returns x quantized per tensor or per axis, to 4, 8 or 16 bits. Source: ONNX Runtime, com.microsoft.QuantizeLinear-1."""
    return quantize_linear(xp, x, y_scale, y_zero_point, axis=axis)


@microsoft_kernel("DequantizeLinear", halves=(0,), dtypes=(_QUANTIZED | {"int32"}, FLOAT32, _QUANTIZED | {"int32"}))
def microsoft_dequantize_linear(
    xp: Namespace, x: Array, x_scale: Array, x_zero_point: Array | None = None, *, axis: int = 1
) -> Array:
    """Returns (x - zero point) * scale, per tensor or per axis. Source: ONNX Runtime, com.microsoft.DequantizeLinear-1."""
    return dequantize_linear(xp, x, x_scale, x_zero_point, axis=axis)


@microsoft_kernel("QLinearSoftmax", dtypes=(BYTES, FLOAT32, BYTES, FLOAT32, BYTES), host=(1,))
def qlinear_softmax(
    xp: Namespace,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array,
    *,
    axis: int | None = None,
    opset: int,
) -> Array:
    """Returns the softmax along the axis, before opset 13 over all axes from it on, by a table of 256 exponentials in float32.

    The exponentials are scaled up as far as float32 sums of a row allow. Source: ONNX Runtime, com.microsoft.QLinearSoftmax-1.
    """
    if x.size == 0:
        return x
    place = normalize_axis((1 if opset < 13 else -1) if axis is None else axis, x.ndim)
    moved = xp.moveaxis(x, place, -1) if opset >= 13 else x
    length = x.shape[place] if opset >= 13 else prod(x.shape[place:])
    table = xp.asarray(_tabulate_exponentials(float(x_scale.reshape(())), length))
    rows = moved.reshape((-1, length)).astype(np.int64)
    terms = xp.take(table, 255 + rows - xp.max(rows, axis=1, keepdims=True))
    # The kernel adds the elements sequentially.
    total = xp.cumsum(terms, axis=1, dtype=np.float32)[:, -1:]
    units = xp.floor(np.float32(1) / scalar_of(y_scale))
    # A row of one element has a term that the units could take beyond float32.
    shares = xp.where(terms == total, np.float32(1), terms) * units / xp.where(terms == total, np.float32(1), total)
    y = xp.rint(shares).astype(np.int64) + scalar_of(y_zero_point).astype(np.int64)
    limits = np.iinfo(x.dtype)
    y = xp.clip(y, int(limits.min), int(limits.max)).astype(x.dtype).reshape(moved.shape)
    return xp.ascontiguousarray(xp.moveaxis(y, -1, place)) if opset >= 13 else y


def _tabulate_exponentials(scale: float, length: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns exp(scale (i - 255 + shift)) for each i of a byte; the shift keeps a sum of so many of them finite."""
    room = float(np.log(np.finfo(np.float32).max / np.float32(length)))
    shift = max(0.0, room - 5) / scale
    exponentials: np.ndarray[Any, np.dtype[np.float32]] = np.exp((np.arange(256) - 255 + shift) * scale).astype(np.float32)
    return exponentials
