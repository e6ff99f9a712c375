"""Matrix products of quantized values, as ONNX Runtime's own operators of com.microsoft have them: exact sums, then one rescaling."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.operators.contrib_quantized import scalar_of
from hetero_core.kernels.operators.quantization import dynamic_quantize_linear, saturate_integers
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import BYTES, FLOAT32, INT32, microsoft_kernel

INT16 = frozenset({"int16"})


def sum_products(xp: Namespace, a: Array, a_zero_point: Array | None, b: Array, b_zero_point: Array | None) -> Array:
    """Returns (a - a_zero_point) @ (b - b_zero_point), exact up to 2^53, wrapped to int32 as an accumulator would."""
    left, right = (
        x.astype(np.float64) if zero is None else x.astype(np.float64) - shape_columns(zero, x).astype(np.float64)
        for x, zero in ((a, a_zero_point), (b, b_zero_point))
    )
    return multiply(xp, left, right).astype(np.int64).astype(np.int32)


def shape_columns(values: Array, x: Array) -> Array:
    """Returns one value, one per column, or one per column of each matrix, ready to be broadcast over x."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape((*values.shape[:-1], 1, values.shape[-1])) if 1 < values.ndim < x.ndim else values


@microsoft_kernel("MatMulInteger16", dtypes=INT16)
def mat_mul_integer_16(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns the product of 16-bit integers as int32, which wraps. Source: ONNX Runtime, com.microsoft.MatMulInteger16-1."""
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
    """Returns the exact integer product times a_scale and b_scale, plus bias.

    Source: ONNX Runtime, com.microsoft.MatMulIntegerToFloat-1.
    """
    total = sum_products(xp, a, a_zero_point, b, b_zero_point).astype(np.float32)
    y = total * (scalar_of(a_scale) * shape_columns(b_scale, b))
    return y if bias is None else y + bias


@microsoft_kernel("DynamicQuantizeMatMul", dtypes=(FLOAT32, BYTES, FLOAT32, BYTES, FLOAT32))
def dynamic_quantize_mat_mul(
    xp: Namespace, a: Array, b: Array, b_scale: Array, b_zero_point: Array | None = None, bias: Array | None = None
) -> Array:
    """Returns a @ b with a quantized to 8 bits by its own range first.

    Source: ONNX Runtime, com.microsoft.DynamicQuantizeMatMul-1.
    """
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
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803 - ONNX's name
) -> Array:
    """Returns alpha * A @ B plus C, rescaled to y_scale and y_zero_point, or as float32 where they are absent.

    C holds whole steps of alpha * a_scale * b_scale. Source: ONNX Runtime, com.microsoft.QGemm-1.
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
    zero = xp.asarray(np.float32(0)) if y_zero_point is None else scalar_of(y_zero_point).astype(np.float32)
    return saturate_integers(xp, scaled, zero, target)
