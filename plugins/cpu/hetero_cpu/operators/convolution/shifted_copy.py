"""Copies of shifted, strided images with zeros around them: what columns of windows and padded images are made of."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hetero_cpu.planning.recipe import Array, Call


def clip_outputs(offset: int, stride: int, size: int, outputs: int) -> tuple[int, int]:
    """Returns the first and one past the last output o with 0 <= o * stride + offset < size; equal where there is none."""
    first = min(max(-(offset // stride), 0), outputs)
    end = (size - 1 - offset) // stride + 1
    return first, max(min(end, outputs), first)


def bind_shifted_copy(target: Array, x: Array, offsets: tuple[int, int], strides: tuple[int, int]) -> list[Call]:
    """Returns the calls for target[o, p] = x[o * strides[0] + offsets[0], p * strides[1] + offsets[1]], 0 outside of x.

    target: (rows, columns, ...), x: (height, width, ...) with equal last axes.
    """
    picked, read = [], []
    for axis in (0, 1):
        first, end = clip_outputs(offsets[axis], strides[axis], x.shape[axis], target.shape[axis])
        start = first * strides[axis] + offsets[axis]
        picked.append(slice(first, end))
        read.append(slice(start, start + (end - first - 1) * strides[axis] + 1, strides[axis]))
    rows, columns = picked
    zero: Any = np.array(0, target.dtype)
    if rows.start == rows.stop or columns.start == columns.stop:
        return [partial(np.copyto, target, zero)]
    calls: list[Call] = [partial(np.copyto, target[rows, columns], x[read[0], read[1]])]
    borders = (target[: rows.start], target[rows.stop :], target[rows, : columns.start], target[rows, columns.stop :])
    return calls + [partial(np.copyto, border, zero) for border in borders if border.size]
