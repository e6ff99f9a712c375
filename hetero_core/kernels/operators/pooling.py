"""Max, average and Lp pooling of any rank, and global pooling.

One pass over the whole output per position in the kernel; pads hold a value that does not change the result.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.operators.reductions import reduce_max, reduce_mean
from hetero_core.kernels.precision import Array, Namespace, narrow, widen
from hetero_core.kernels.registry import FLOATS, kernel
from hetero_core.kernels.windows import AUTO_PADS, POOLING, Windows, count_slid, lay_windows

_ALL = (slice(None), slice(None))


def _count_pooled(x: Array, *, kernel_shape: tuple[int, ...], **geometry: Any) -> int:
    return count_slid(x, kernel_shape, int(x.shape[1]), **geometry) * int(x.itemsize)


@kernel(
    "MaxPool",
    since=(1, 8, 10, 11, 12, 22),
    dtypes=FLOATS | {"int8", "uint8"},
    choices={"auto_pad": AUTO_PADS, "storage_order": (0, 1)},
    shared=POOLING["shared"],
    outputs=2,
    counts_outputs=True,
    count_bytes=_count_pooled,
)
def max_pool(
    xp: Namespace, x: Array, *, kernel_shape: tuple[int, ...], storage_order: int = 0, output_count: int = 1, **geometry: Any
) -> Array | tuple[Array, Array]:
    """Returns the largest element of each window, and on demand its index in the flat input. Source: ONNX MaxPool-22."""
    windows = lay_windows(x.shape[2:], kernel_shape, **geometry)
    padded = windows.pad(xp, x, np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf)
    if output_count == 1:
        return _find_largest(xp, padded, windows)
    return _find_largest_indices(xp, padded, windows, storage_order)


def _find_largest(xp: Namespace, padded: Array, windows: Windows) -> Array:
    largest = None
    for _, picked in windows.slices():
        elements = padded[(*_ALL, *picked)]
        largest = elements if largest is None else xp.maximum(largest, elements)
    return largest


def _find_largest_indices(xp: Namespace, padded: Array, windows: Windows, storage_order: int) -> tuple[Array, Array]:
    """Returns the largest elements and their flat indices; the first one wins a tie, and an element wins against padding."""
    batch, channels = padded.shape[:2]
    numbered = xp.arange(prod(windows.sizes), dtype=np.int64)
    numbered = numbered.reshape(windows.sizes[::-1]).T if storage_order else numbered.reshape(windows.sizes)
    # -1 marks the border.
    indices = windows.pad(xp, numbered[None, None], -1)
    largest: Array = None
    where: Array = None
    for _, picked in windows.slices():
        elements = padded[(*_ALL, *picked)]
        places = indices[(*_ALL, *picked)]
        if largest is None:
            largest, where = elements, xp.broadcast_to(places, elements.shape)
            continue
        better = (elements > largest) | ((where < 0) & (places >= 0))
        largest, where = xp.where(better, elements, largest), xp.where(better, places, where)
    planes = xp.arange(batch * channels, dtype=np.int64).reshape((batch, channels, *(1,) * len(windows.sizes)))
    return largest, where + planes * prod(windows.sizes)


@kernel("AveragePool", since=(1, 7, 10, 11, 19, 22), dtypes=FLOATS, count_bytes=_count_pooled, **POOLING)
def average_pool(xp: Namespace, x: Array, *, count_include_pad: int = 0, kernel_shape: tuple[int, ...], **geometry: Any) -> Array:
    """Returns the mean of each window over its elements, or with count_include_pad over elements and pads.

    Positions beyond the pads, which ceil_mode adds, never count. Source: ONNX AveragePool-22.
    """
    windows = lay_windows(x.shape[2:], kernel_shape, **geometry)
    total = _add_windows(xp, windows.pad(xp, widen(x), 0), windows)
    for axis, counts in enumerate(_count_elements(windows, count_pads=bool(count_include_pad))):
        shape = [1] * total.ndim
        shape[2 + axis] = len(counts)
        total = total / xp.asarray(counts, dtype=total.dtype).reshape(shape)
    return narrow(total, x.dtype)


def _add_windows(xp: Namespace, padded: Array, windows: Windows) -> Array:
    total = xp.zeros((*padded.shape[:2], *windows.outputs), dtype=padded.dtype)
    for _, picked in windows.slices():
        total += padded[(*_ALL, *picked)]
    return total


def _count_elements(windows: Windows, *, count_pads: bool) -> list[list[int]]:
    """Returns for each axis how many elements each window averages; the count of a window is the product over the axes."""
    counts = []
    for size, taps, stride, dilation, (begin, end), outputs in zip(
        windows.sizes, windows.kernel, windows.strides, windows.dilations, windows.pads, windows.outputs, strict=True
    ):
        low, high = (0, begin + size + end) if count_pads else (begin, begin + size)
        counts.append([sum(low <= output * stride + tap * dilation < high for tap in range(taps)) for output in range(outputs)])
    return counts


@kernel("LpPool", since=(1, 2, 11, 18, 22), dtypes=FLOATS, count_bytes=_count_pooled, **POOLING)
def lp_pool(xp: Namespace, x: Array, *, kernel_shape: tuple[int, ...], p: float = 2, **geometry: Any) -> Array:
    """Returns sum(|x|^p)^(1/p) of each window. Source: ONNX LpPool-22."""
    windows = lay_windows(x.shape[2:], kernel_shape, **geometry)
    powers = xp.abs(widen(x)) ** p
    return narrow(_add_windows(xp, windows.pad(xp, powers, 0), windows) ** (1 / p), x.dtype)


@kernel("GlobalMaxPool", since=(1, 22), dtypes=FLOATS)
def global_max_pool(xp: Namespace, x: Array) -> Array:
    """Returns the largest element of each channel, as ReduceMax does. Source: ONNX GlobalMaxPool-22."""
    return reduce_max(xp, x, tuple(range(2, x.ndim)), keepdims=True)


@kernel("GlobalAveragePool", since=(1, 22), dtypes=FLOATS)
def global_average_pool(xp: Namespace, x: Array) -> Array:
    """Returns the mean of each channel. Source: ONNX GlobalAveragePool-22."""
    return narrow(reduce_mean(xp, widen(x), tuple(range(2, x.ndim)), keepdims=True), x.dtype)


@kernel("GlobalLpPool", since=(1, 2, 22), dtypes=FLOATS)
def global_lp_pool(xp: Namespace, x: Array, *, p: float = 2) -> Array:
    """Returns sum(|x|^p)^(1/p) of each channel. Source: ONNX GlobalLpPool-22."""
    powers = xp.abs(widen(x)) ** p
    return narrow(xp.sum(powers, axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p), x.dtype)
