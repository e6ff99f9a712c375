"""Windows over quantized images, channels first or last: poolings and convolutions of com.microsoft."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.operators.contrib_quantized import dequantize_bytes, map_bytes, scalar_of, zero_of
from hetero_core.kernels.operators.pooling import max_pool
from hetero_core.kernels.operators.quantization import saturate_integers
from hetero_core.kernels.operators.quantized_linear import qlinear_conv
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import BYTES, FLOAT32, microsoft_kernel
from hetero_core.kernels.windows import AUTO_PADS, POOLING, SLIDING, Windows, lay_windows
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

_AUTO = {"auto_pad": AUTO_PADS}
_LAYOUT = {"channels_last": (0, 1)}
_ALL = (slice(None), slice(None))
Sizes = tuple[int, ...]


def to_channels_first(xp: Namespace, x: Array, channels_last: int) -> Array:
    """Returns (batch, channels, *sizes)."""
    return xp.moveaxis(x, -1, 1) if channels_last else x


def to_layout(xp: Namespace, y: Array, channels_last: int) -> Array:
    """Returns the layout that the node has."""
    return xp.ascontiguousarray(xp.moveaxis(y, 1, -1)) if channels_last else y


@microsoft_kernel(
    "QLinearAveragePool",
    dtypes=(BYTES, FLOAT32, BYTES, FLOAT32, BYTES),
    choices={**_AUTO, **_LAYOUT, "ceil_mode": (0, 1)},
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
    kernel_shape: Sizes,
    **geometry: Any,
) -> Array:
    """Returns the mean of each window over its elements, or over the whole window with count_include_pad.

    Windows are summed in float32, one element after another. Source: ONNX Runtime, com.microsoft.QLinearAveragePool-1.
    """
    first = to_channels_first(xp, x, channels_last)
    windows = lay_windows(first.shape[2:], kernel_shape, **geometry)
    values = map_bytes(xp, first, lambda codes: dequantize_bytes(codes, x_scale, x_zero_point))
    padded = windows.pad(xp, values, 0)
    total = xp.zeros((*first.shape[:2], *windows.outputs), dtype=np.float32)
    for _, picked in windows.slices():
        total = total + padded[(*_ALL, *picked)]
    counts = np.float32(prod(kernel_shape)) if count_include_pad else xp.asarray(_count_elements(windows))
    # The kernel adds the zero point before it rounds.
    shifted = total / counts / scalar_of(y_scale) + zero_of(y_zero_point)
    return to_layout(xp, saturate_integers(xp, shifted, None, x.dtype), channels_last)


def _count_elements(windows: Windows) -> Array:
    """Returns how many elements each window holds, pads aside."""
    counts = np.ones((1,) * len(windows.sizes), np.float32)
    for axis, (size, taps, stride, (begin, _), outputs) in enumerate(
        zip(windows.sizes, windows.kernel, windows.strides, windows.pads, windows.outputs, strict=True)
    ):
        starts = np.arange(outputs) * stride - begin
        lengths = np.minimum(starts + taps, size) - np.maximum(starts, 0)
        shape = [1] * len(windows.sizes)
        shape[axis] = outputs
        counts = counts * lengths.astype(np.float32).reshape(shape)
    return counts


@microsoft_kernel("QLinearGlobalAveragePool", dtypes=(BYTES, FLOAT32, BYTES, FLOAT32, BYTES), choices=_LAYOUT)
def qlinear_global_average_pool(
    xp: Namespace, x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, channels_last: int = 0
) -> Array:
    """Returns the mean of each channel; the sum is exact, and rescaled once.

    Source: ONNX Runtime, com.microsoft.QLinearGlobalAveragePool-1.
    """
    first = to_channels_first(xp, x, channels_last)
    count = prod(first.shape[2:])
    total = xp.sum(first.astype(np.int64), axis=tuple(range(2, first.ndim)), keepdims=True)
    total = total - scalar_of(x_zero_point).astype(np.int64) * count
    factor = scalar_of(x_scale) / (scalar_of(y_scale) * np.float32(count))
    y = saturate_integers(xp, total.astype(np.float32) * factor, xp.asarray(zero_of(y_zero_point)), x.dtype)
    return to_layout(xp, y, channels_last)


def _refuse_same_dilated(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses what ONNX Runtime pads as if nothing were dilated."""
    is_dilated = any(step != 1 for step in node.attributes.get("dilations", ()))
    if is_dilated and str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        return f"auto_pad of {node.operator} is {node.attributes['auto_pad']} and its windows are dilated; write the pads out"
    return None


@microsoft_kernel(
    "QLinearConv",
    dtypes=(BYTES, FLOAT32, BYTES) * 2 + (FLOAT32, BYTES, frozenset({"int32"})),
    choices={**_AUTO, **_LAYOUT},
    shared={**SLIDING, "group": 1},
    unread={"kernel_shape": None},
    refuse=_refuse_same_dilated,
)
def microsoft_qlinear_conv(
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
    **geometry: Any,
) -> Array:
    """Returns ONNX's QLinearConv, on demand of and as channels last. Source: ONNX Runtime, com.microsoft.QLinearConv-1."""
    first = to_channels_first(xp, x, channels_last)
    y = qlinear_conv(xp, first, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b, **geometry)
    return to_layout(xp, y, channels_last)


@microsoft_kernel("NhwcMaxPool", dtypes=BYTES, refuse=_refuse_same_dilated, **POOLING)
def nhwc_max_pool(xp: Namespace, x: Array, *, kernel_shape: Sizes, **geometry: Any) -> Array:
    """Returns the largest element of each window; channels are last. Source: ONNX Runtime, com.microsoft.NhwcMaxPool-1."""
    return to_layout(xp, max_pool(xp, xp.moveaxis(x, -1, 1), kernel_shape=kernel_shape, **geometry), 1)
