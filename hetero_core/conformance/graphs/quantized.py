"""Operators of quantized networks: QuantizeLinear and its inverse, integer products and convolutions, QDQ groups."""

from __future__ import annotations

import math

import numpy as np

from hetero_core.conformance.graphs.builder import LARGEST_WORK, DrawnValue, GraphBuilder, NotApplicable

_SCALES = (0.01, 0.02, 0.05, 0.037)


def _draw_scale(b: GraphBuilder, dtype: str) -> tuple[str, str]:
    """Returns a scale and a zero point of this type."""
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    zero = b.choose(0, 0, b.integer(low + 90, high - 90), low + 128)
    return b.scalar(b.choose(*_SCALES), "float32"), b.constant(np.array(zero, dtype))


def _weights(b: GraphBuilder, *shape: int, dtype: str = "int8") -> str:
    low, high = (0, 256) if dtype == "uint8" else (-127, 128)
    return b.constant(b.random.integers(low, high, shape).astype(dtype))


def _dequantized(b: GraphBuilder, *shape: int, scale: str, zero: str) -> DrawnValue:
    """Adds weights in the QDQ form, for a single reader."""
    weight = b.add("DequantizeLinear", [_weights(b, *shape), scale, zero], shape, dtype="float32")
    b.values.remove(weight)
    return weight


def _is_byte(value: DrawnValue, rank: int) -> bool:
    return value.dtype in ("uint8", "int8") and value.rank == rank and value.is_closed_from(1)


def grow_quantize(b: GraphBuilder) -> None:
    """Adds QuantizeLinear, at times followed by DequantizeLinear."""
    x = b.pick(lambda value: value.dtype == "float32" and value.bound < 300)
    dtype = b.choose("uint8", "uint8", "int8")
    scale, zero = _draw_scale(b, dtype)
    y = b.add("QuantizeLinear", [x, scale, zero], x.shape, dtype=dtype, bound=127)
    if b.chance(0.5):
        b.add("DequantizeLinear", [y, scale, zero], x.shape, dtype="float32", bound=6)


def grow_dequantize(b: GraphBuilder) -> None:
    """Adds DequantizeLinear of bytes or of int32 sums."""
    x = b.pick(lambda value: value.dtype in ("uint8", "int8", "int32"))
    if x.dtype == "int32":
        b.add("DequantizeLinear", [x, b.scalar(1e-4, "float32")], x.shape, dtype="float32", bound=max(1.0, x.bound * 1e-4))
        return
    scale, zero = _draw_scale(b, x.dtype)
    b.add("DequantizeLinear", [x, scale, zero], x.shape, dtype="float32", bound=6)


def grow_dynamic(b: GraphBuilder) -> None:
    """Adds DynamicQuantizeLinear, MatMulInteger and the product of both scales, as exporters write it."""
    x = b.pick(
        lambda value: value.dtype == "float32" and value.rank >= 2 and isinstance(value.shape[-1], int) and value.bound < 300
    )
    width, outputs = int(x.shape[-1]), b.choose(1, 4, 8, 15, 16, 17, 32, 33)
    if b.count(x.shape) * outputs > LARGEST_WORK:
        raise NotApplicable
    y, scale, zero = b.add_many("DynamicQuantizeLinear", [x], [x.shape, (), ()], dtypes=["uint8", "float32", "uint8"], bound=255)
    dtype = b.choose("int8", "int8", "uint8")
    shape = (*x.shape[:-1], outputs)
    weight_zero = b.constant(np.array(0 if dtype == "int8" else 128, dtype))
    total = b.add(
        "MatMulInteger", [y, _weights(b, width, outputs, dtype=dtype), zero, weight_zero], shape, dtype="int32", bound=1e6
    )
    if b.chance(0.8):
        wide = b.add("Cast", [total], shape, dtype="float32", bound=1e6, to=1)
        factor = b.add("Mul", [scale, b.scalar(0.01, "float32")], (), dtype="float32", bound=1)
        z = b.add("Mul", [wide, factor], shape, bound=x.bound * 2)
        if b.chance(0.5):
            b.add("Add", [z, b.weight(outputs)], shape, bound=x.bound * 2 + 1)


def grow_integer_product(b: GraphBuilder) -> None:
    """Adds MatMulInteger or QLinearMatMul with a constant matrix."""
    x = b.pick(lambda value: value.dtype in ("uint8", "int8") and value.rank >= 2 and isinstance(value.shape[-1], int))
    width, outputs = int(x.shape[-1]), b.choose(1, 3, 4, 8, 15, 16, 17, 32, 33, 64)
    if b.count(x.shape) * outputs > LARGEST_WORK:
        raise NotApplicable
    shape = (*x.shape[:-1], outputs)
    scale, zero = _draw_scale(b, x.dtype)
    if b.chance(0.5):
        b.add("MatMulInteger", [x, _weights(b, width, outputs), zero], shape, dtype="int32", bound=1e6)
        return
    dtype = x.dtype
    result = [b.scalar(0.02 * math.sqrt(width), "float32"), b.constant(np.array(128 if dtype == "uint8" else 0, dtype))]
    quantization = [b.scalar(0.01, "float32"), b.constant(np.array(0, "int8"))]
    read: list[DrawnValue | str] = [x, scale, zero, _weights(b, width, outputs), *quantization, *result]
    b.add("QLinearMatMul", read, shape, dtype=dtype, bound=127)


def grow_integer_conv(b: GraphBuilder) -> None:
    """Adds ConvInteger or QLinearConv, plain, grouped or depthwise."""
    x = b.pick(lambda value: _is_byte(value, 4))
    batch, channels, height, width = x.shape[0], *(int(size) for size in x.shape[1:])
    kernel, stride = b.choose(1, 3, 3, 5), b.choose(1, 1, 2)
    pad = b.choose(kernel // 2, 0)
    group = channels if b.chance(0.25) else 1
    outputs = channels if group > 1 else b.choose(1, 4, 8, 9, 16, 17, 32)
    spatial = [(size + 2 * pad - kernel) // stride + 1 for size in (height, width)]
    if min(height, width) + 2 * pad < kernel or b.count((batch, outputs, *spatial)) * channels // group * kernel**2 > LARGEST_WORK:
        raise NotApplicable
    more = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "group": group}
    scale, zero = _draw_scale(b, x.dtype)
    shape = (batch, outputs, *spatial)
    if b.chance(0.4):
        if x.dtype == "int8":
            raise NotApplicable
        dtype = b.choose("int8", "uint8")
        weight = _weights(b, outputs, channels // group, kernel, kernel, dtype=dtype)
        weight_zero = b.constant(np.array(0 if dtype == "int8" else 127, dtype))
        b.add("ConvInteger", [x, weight, zero, weight_zero], shape, dtype="int32", bound=1e6, **more)
        return
    weight = _weights(b, outputs, channels // group, kernel, kernel)
    per_channel = b.chance(0.4)
    weight_scale = (
        b.constant((b.random.random(outputs) * 0.01 + 0.005).astype("float32")) if per_channel else b.scalar(0.01, "float32")
    )
    weight_zero = b.constant(np.zeros(outputs if per_channel else (), "int8"))
    size = math.sqrt(channels // group * kernel**2)
    result = [b.scalar(0.02 * size, "float32"), b.constant(np.array(128 if x.dtype == "uint8" else 0, x.dtype))]
    read: list[DrawnValue | str] = [x, scale, zero, weight, weight_scale, weight_zero, *result]
    if b.chance(0.5):
        read.append(b.constant(b.random.integers(-500, 500, outputs).astype("int32")))
    b.add("QLinearConv", read, shape, dtype=x.dtype, bound=127, **more)


def grow_qdq_conv(b: GraphBuilder) -> None:
    """Adds a convolution or a product in the QDQ form: dequantized bytes and weights in, quantized result out."""
    x = b.pick(lambda value: any(_is_byte(value, rank) for rank in (2, 3, 4)))
    scale, zero = _draw_scale(b, x.dtype)
    wide = b.add("DequantizeLinear", [x, scale, zero], x.shape, dtype="float32", bound=6)
    outputs = b.choose(1, 4, 8, 9, 16, 17, 32)
    weight_scale = b.scalar(0.01, "float32")
    weight_zero = b.constant(np.array(0, "int8"))
    if x.rank == 4:
        batch, channels, height, width = x.shape[0], *(int(size) for size in x.shape[1:])
        kernel = b.choose(1, 3)
        if b.count((batch, outputs, height, width)) * channels * kernel**2 > LARGEST_WORK:
            raise NotApplicable
        weight = _dequantized(b, outputs, channels, kernel, kernel, scale=weight_scale, zero=weight_zero)
        shape = (batch, outputs, height, width)
        y = b.add("Conv", [wide, weight], shape, bound=20, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)
        if b.chance(0.5):
            y = b.add("Relu", [y], shape, bound=20)
    else:
        depth = int(x.shape[-1])
        weight = _dequantized(b, depth, outputs, scale=weight_scale, zero=weight_zero)
        y = b.add("MatMul", [wide, weight], (*x.shape[:-1], outputs), bound=20)
    if b.chance(0.8):
        dtype = b.choose("uint8", "int8")
        result_scale, result_zero = _draw_scale(b, dtype)
        b.add("QuantizeLinear", [y, result_scale, result_zero], y.shape, dtype=dtype, bound=127)


def grow_bytes(b: GraphBuilder) -> None:
    """Adds an operator that moves bytes: Concat, MaxPool, Reshape, Transpose, Clip."""
    x = b.pick(lambda value: value.dtype in ("uint8", "int8") and value.rank >= 2)
    match b.choose("concat", "pool", "transpose"):
        case "concat" if isinstance(x.shape[1], int):
            b.add("Concat", [x, x], (x.shape[0], 2 * x.shape[1], *x.shape[2:]), bound=127, axis=1)
        case "pool" if _is_byte(x, 4) and min(int(size) for size in x.shape[2:]) >= 2:
            sides = [(int(size) - 2) // 2 + 1 for size in x.shape[2:]]
            b.add("MaxPool", [x], (*x.shape[:2], *sides), bound=127, kernel_shape=[2, 2], strides=[2, 2])
        case "transpose":
            order = [int(axis) for axis in b.random.permutation(x.rank)]
            b.add("Transpose", [x], [x.shape[axis] for axis in order], bound=127, perm=order)
        case _:
            raise NotApplicable


OPERATORS = (
    (3, grow_quantize), (2, grow_dequantize), (1.5, grow_dynamic), (2, grow_integer_product), (2, grow_integer_conv), (2, grow_qdq_conv),
    (1, grow_bytes),
)  # fmt: skip
"""Each operator with its weight."""
