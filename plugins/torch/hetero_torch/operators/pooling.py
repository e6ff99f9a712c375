"""Pooling with windows and over whole channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hetero_core.kernels.windows import Windows, lay_windows
from hetero_torch.operators.linear import flatten_pads, refuse_rank
from hetero_torch.table import FLOATS, operator

Sizes = tuple[int, ...]
_LARGEST = {3: functional.max_pool1d, 4: functional.max_pool2d, 5: functional.max_pool3d}


def _surround(x: Tensor, windows: Windows, value: float) -> Tensor:
    """Returns x with its pads, and with pads for the last windows that hang over; nothing is cut."""
    widths = tuple(
        (begin, max(reach - begin - size, 0))
        for size, (begin, _), reach in zip(windows.sizes, windows.pads, windows.reach, strict=True)
    )
    return functional.pad(x, flatten_pads(widths), value=value) if any(map(any, widths)) else x


@operator("MaxPool", dtypes=FLOATS, widens=True, refuse=refuse_rank, outputs=1)
def max_pool(x: Tensor, *, kernel_shape: Sizes, storage_order: int = 0, output_count: int = 1, **geometry: Any) -> Tensor:
    """Returns the largest element of each window; NaN wins. Source: ONNX MaxPool-22."""
    windows = lay_windows(tuple(x.shape[2:]), kernel_shape, **geometry)
    padding = tuple(begin for begin, _ in windows.pads)
    is_plain = all(
        begin == end >= 0 and 2 * begin <= taps and reach <= size + 2 * begin
        for size, taps, (begin, end), reach in zip(windows.sizes, windows.kernel, windows.pads, windows.reach, strict=True)
    )
    if not is_plain:
        x, padding = _surround(x, windows, -torch.inf), (0,) * len(padding)
    return _LARGEST[x.ndim](x, windows.kernel, windows.strides, padding, windows.dilations)


def _add_windows(x: Tensor, windows: Windows) -> Tensor:
    """Returns the sum of each window of a tensor that has its pads."""
    if x.ndim == 3:
        return functional.avg_pool2d(x.unsqueeze(2), (1, *windows.kernel), (1, *windows.strides), divisor_override=1).squeeze(2)
    return (functional.avg_pool2d if x.ndim == 4 else functional.avg_pool3d)(x, windows.kernel, windows.strides, divisor_override=1)


_UNDILATED = {"dilations": ((1,), (1, 1), (1, 1, 1))}


@operator("AveragePool", dtypes=FLOATS, widens=True, refuse=refuse_rank, choices=_UNDILATED)
def average_pool(x: Tensor, *, count_include_pad: int = 0, kernel_shape: Sizes, **geometry: Any) -> Tensor:
    """Returns the mean of each window over its elements, or with count_include_pad over elements and pads.

    Positions beyond the pads, which ceil_mode adds, never count. Source: ONNX AveragePool-22.
    """
    windows = lay_windows(tuple(x.shape[2:]), kernel_shape, **geometry)
    total = _add_windows(_surround(x, windows, 0.0), windows)
    # The count of a window is the product of its counts along the axes.
    for axis, (size, taps, stride, (begin, end), outputs) in enumerate(
        zip(windows.sizes, windows.kernel, windows.strides, windows.pads, windows.outputs, strict=True)
    ):
        low, high = (0, begin + size + end) if count_include_pad else (begin, begin + size)
        counts = [min(first + taps, high) - max(first, low) for first in range(0, outputs * stride, stride)]
        shape = (-1, *(1,) * (len(windows.sizes) - axis - 1))
        total = total / (
            counts[0] if len(set(counts)) == 1 else torch.tensor(counts, dtype=x.dtype, device=x.device).reshape(shape)
        )
    return total


@operator("GlobalMaxPool", dtypes=FLOATS, widens=True)
def global_max_pool(x: Tensor) -> Tensor:
    """Returns the largest element of each channel. Source: ONNX GlobalMaxPool-22."""
    return torch.amax(x, tuple(range(2, x.ndim)), keepdim=True)


@operator("GlobalAveragePool", dtypes=FLOATS, widens=True)
def global_average_pool(x: Tensor) -> Tensor:
    """Returns the mean of each channel. Source: ONNX GlobalAveragePool-22."""
    return torch.mean(x, tuple(range(2, x.ndim)), keepdim=True)
