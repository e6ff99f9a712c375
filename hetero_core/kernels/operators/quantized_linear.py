"""Convolutions and products of quantized integers: exact sums, then one rescaling.

Products are summed in float64, where every sum below 2^53 is exact: the BLAS is many times faster than integer loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.kernels.operators.convolution import convolve
from hetero_core.kernels.operators.quantization import saturate_integers
from hetero_core.kernels.precision import Array, Namespace, widen
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import BYTES, INT32, SMALL_FLOATS, kernel
from hetero_core.kernels.sizes import broadcast_sizes, product
from hetero_core.kernels.windows import CONVOLVING, count_slid, lay_windows


def _center(x: Array, zero_point: Array | None) -> Array:
    """Returns x - zero_point as float64, exactly."""
    wide = x.astype(np.float64)
    return wide if zero_point is None else wide - zero_point.astype(np.float64)


def _wrap(total: Array) -> Array:
    """Returns exact sums as int32; a sum beyond 32 bits wraps, as the accumulator would."""
    return total.astype(np.int64).astype(np.int32)


def _per_output(values: Array, rank: int) -> Array:
    """Returns one value, or one per output channel shaped for (outputs, channels, *kernel)."""
    return values.reshape(()) if values.size == 1 else values.reshape((-1, *(1,) * (rank - 1)))


def _count_slid_sums(x: Array, w: Array, *_: Any, **geometry: Any) -> int:
    """The sums in float64."""
    return count_slid(x, tuple(w.shape[2:]), int(w.shape[0]), **geometry) * 8


def _count_products(a: Array, b: Array, *_: Any) -> int:
    """The products of matrices in float64."""
    left, right = (1, *a.shape)[-max(a.ndim, 2) :], (*b.shape, 1)[: max(b.ndim, 2)]
    return product(broadcast_sizes(left[:-2], right[:-2])) * int(left[-2]) * int(right[-1]) * 8


def _count_quantized_sums(x: Array, x_scale: Array, x_zero_point: Array, w: Array, *_: Any, **geometry: Any) -> int:
    return _count_slid_sums(x, w, **geometry)


def _count_quantized_products(a: Array, a_scale: Array, a_zero_point: Array, b: Array, *_: Any) -> int:
    return _count_products(a, b)


@kernel("ConvInteger", since=(10,), dtypes=BYTES, count_bytes=_count_slid_sums, **CONVOLVING)
def conv_integer(
    xp: Namespace,
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    group: int = 1,
    **geometry: Any,
) -> Array:
    """Returns the convolution of x - x_zero_point with w - w_zero_point as int32. Source: ONNX ConvInteger-10."""
    windows = lay_windows(x.shape[2:], w.shape[2:], **geometry)
    w_zero = None if w_zero_point is None else _per_output(w_zero_point, w.ndim)
    return _wrap(convolve(xp, _center(x, x_zero_point), _center(w, w_zero), windows, group))


@kernel(
    "QLinearConv",
    since=(10,),
    dtypes=(BYTES, SMALL_FLOATS, BYTES) * 2 + (SMALL_FLOATS, BYTES, INT32),
    count_bytes=_count_quantized_sums,
    **CONVOLVING,
)
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
    group: int = 1,
    **geometry: Any,
) -> Array:
    """Returns the quantized convolution, rescaled by x_scale * w_scale / y_scale in float32. Source: ONNX QLinearConv-10."""
    windows = lay_windows(x.shape[2:], w.shape[2:], **geometry)
    total = convolve(xp, _center(x, x_zero_point), _center(w, _per_output(w_zero_point, w.ndim)), windows, group)
    if b is not None:
        total += b.astype(np.float64).reshape((-1, *(1,) * (x.ndim - 2)))
    factor = widen(x_scale) * _per_output(widen(w_scale), x.ndim - 1) / widen(y_scale)
    return saturate_integers(xp, total.astype(np.float32) * factor, y_zero_point.astype(np.float32), y_zero_point.dtype)


@kernel("MatMulInteger", since=(10,), dtypes=BYTES, count_bytes=_count_products)
def mat_mul_integer(
    xp: Namespace, a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
) -> Array:
    """Returns (a - a_zero_point) @ (b - b_zero_point) as int32. Source: ONNX MatMulInteger-10."""
    a_zero = None if a_zero_point is None else _per_row(a_zero_point)
    return _wrap(multiply(xp, _center(a, a_zero), _center(b, b_zero_point)))


def _per_row(values: Array) -> Array:
    return values.reshape((-1, 1)) if values.ndim == 1 and values.size > 1 else values


@kernel(
    "QLinearMatMul",
    since=(10, 21),
    dtypes=(BYTES, SMALL_FLOATS, BYTES) * 2 + (SMALL_FLOATS, BYTES),
    count_bytes=_count_quantized_products,
)
def qlinear_mat_mul(
    xp: Namespace,
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Returns the quantized product, rescaled by a_scale * b_scale / y_scale in float32. Source: ONNX QLinearMatMul-21."""
    total = multiply(xp, _center(a, _per_row(a_zero_point)), _center(b, b_zero_point))
    factor = _per_row(widen(a_scale)) * widen(b_scale) / _per_row(widen(y_scale))
    zero = _per_row(y_zero_point).astype(np.float32)
    return saturate_integers(xp, total.astype(np.float32) * factor, zero, y_zero_point.dtype)
