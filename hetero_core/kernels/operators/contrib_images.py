"""ONNX Runtime's own operators on images: CropAndResize, GridSample, MaxpoolWithMask; and WordConvEmbedding, a convolution over letters."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.kernels.operators.vision import grid_sample_image
from hetero_core.kernels.precision import Array, Namespace, integers_of
from hetero_core.kernels.registry import FLOAT32, INT32, microsoft_kernel
from hetero_core.kernels.windows import AUTO_PADS, lay_windows
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType


@microsoft_kernel(
    "GridSample",
    dtypes=FLOAT32,
    choices={
        "padding_mode": ("zeros", "border", "reflection"),
        "align_corners": (0, 1),
        "mode": ("bilinear", "nearest", "bicubic"),
    },
)
def microsoft_grid_sample(
    xp: Namespace, x: Array, grid: Array, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Array:
    """Returns images sampled at the grid's positions. Source: ONNX Runtime, com.microsoft.GridSample-1."""
    return grid_sample_image(xp, x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


@microsoft_kernel(
    "CropAndResize", halves=(0,), dtypes=(FLOAT32, FLOAT32, INT32, INT32), host=(3,), choices={"mode": ("bilinear", "nearest")}
)
def crop_and_resize(
    xp: Namespace,
    x: Array,
    rois: Array,
    batch_indices: Array,
    crop_size: Array,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Array:
    """Returns each region (top, left, bottom, right, from 0 to 1), resized with its corners kept; a value where it lies outside.

    Source: ONNX Runtime, com.microsoft.CropAndResize-1.
    """
    sizes = x.shape[2:]
    rows, columns = (
        _lay_line(xp, rois[:, axis], rois[:, axis + 2], sizes[axis], count) for axis, count in enumerate(integers_of(crop_size))
    )
    images = xp.take(x, batch_indices, axis=0)
    inside = _is_inside(rows, sizes[0])[:, None, :, None] & _is_inside(columns, sizes[1])[:, None, None, :]
    if mode == "nearest":
        y = _read(xp, images, _round(xp, rows, sizes[0]), _round(xp, columns, sizes[1]))
        return xp.where(inside, y, np.float32(extrapolation_value))
    top, left = xp.floor(rows), xp.floor(columns)
    bottom, right = xp.ceil(rows), xp.ceil(columns)
    y_share, x_share = (rows - top)[:, None, :, None], (columns - left)[:, None, None, :]
    corners = [
        [_read(xp, images, _limit(xp, row, sizes[0]), _limit(xp, column, sizes[1])) for column in (left, right)]
        for row in (top, bottom)
    ]
    upper, lower = (pair[0] + (pair[1] - pair[0]) * x_share for pair in corners)
    return xp.where(inside, upper + (lower - upper) * y_share, np.float32(extrapolation_value))


def _lay_line(xp: Namespace, begin: Array, end: Array, size: int, count: int) -> Array:
    """Returns (regions, count) positions along an axis of the image."""
    last = np.float32(size - 1)
    if count == 1:
        return (np.float32(0.5) * (begin + end) * last)[:, None]
    step = (end - begin) * last / np.float32(count - 1)
    return (begin * last)[:, None] + xp.arange(count).astype(np.float32)[None, :] * step[:, None]


def _is_inside(places: Array, size: int) -> Array:
    return (places >= 0) & (places <= size - 1)


def _limit(xp: Namespace, places: Array, size: int) -> Array:
    return xp.clip(places, 0, size - 1).astype(np.int64)


def _round(xp: Namespace, places: Array, size: int) -> Array:
    """Returns the nearest positions; halves go away from zero."""
    return _limit(xp, xp.floor(places + np.float32(0.5)), size)


def _read(xp: Namespace, images: Array, rows: Array, columns: Array) -> Array:
    """Returns (regions, channels, rows, columns) of images (regions, channels, height, width)."""
    regions = xp.arange(images.shape[0])[:, None, None, None]
    channels = xp.arange(images.shape[1])[None, :, None, None]
    return images[regions, channels, rows[:, None, :, None], columns[:, None, None, :]]


def _refuse_masks(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses a mask for each channel: ONNX Runtime reads it at the wrong places, so no two sources agree."""
    mask = input_types[1] if len(input_types) > 1 else None
    shape = mask.shape if isinstance(mask, TensorType) else None
    if shape is None or all(size in (1, None) for size in shape[:2]):
        return None
    return f"{node.operator} has a mask of shape {list(shape)}; implemented: one mask for the whole batch and all channels"


@microsoft_kernel(
    "MaxpoolWithMask",
    dtypes=(FLOAT32, INT32),
    choices={"auto_pad": AUTO_PADS, "storage_order": (0, 1)},
    shared={"auto_pad": "NOTSET", "pads": None, "strides": None},
    unread={"storage_order": 0},
    refuse=_refuse_masks,
)
def maxpool_with_mask(xp: Namespace, x: Array, mask: Array, *, kernel_shape: tuple[int, ...], **geometry: Any) -> Array:
    """Returns the largest element of each window, each of its innermost rows read up to the first element whose mask is 0.

    mask: (1, 1, *sizes). The first element of an image of two or more axes is always read.
    Source: ONNX Runtime, com.microsoft.MaxpoolWithMask-1.
    """
    if mask.shape != (1, 1, *x.shape[2:]):
        raise ValueError(f"the mask has shape {mask.shape}; implemented: {(1, 1, *x.shape[2:])}, one mask for all channels")
    windows = lay_windows(x.shape[2:], kernel_shape, **geometry)
    lowest = float(np.finfo(np.float32).min)
    padded = windows.pad(xp, x, lowest)
    marks = (mask != 0).astype(np.int8)
    if x.ndim > 3:
        marks[(0,) * x.ndim] = 1
    # Pads are neither read nor do they end a row.
    opened = windows.pad(xp, marks, -1)
    largest = xp.full((*x.shape[:2], *windows.outputs), lowest, dtype=x.dtype)
    is_open: Array = None
    for position, picked in windows.slices():
        mark = opened[(slice(None), slice(None), *picked)]
        is_open = mark != 0 if position[-1] == 0 else is_open & (mark != 0)
        elements = padded[(slice(None), slice(None), *picked)]
        largest = xp.where(is_open & (mark > 0), xp.maximum(largest, elements), largest)
    return largest


@microsoft_kernel("WordConvEmbedding", dtypes=(INT32, FLOAT32, FLOAT32, FLOAT32))
def word_conv_embedding(
    xp: Namespace,
    words: Array,
    w: Array,
    b: Array,
    c: Array,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Array:
    """Returns for each word the largest tanh of a convolution over the embeddings of its letters; 0 ends a word.

    words: (words, letters); w: (filters, 1, window, size); c: (letters, size). Source: ONNX Runtime, com.microsoft.WordConvEmbedding-1.
    """
    filters, _, window, size = w.shape
    letters = words.reshape((-1, words.shape[-1]))
    # A word that is shorter than the window is filled up with the letter 0.
    lengths = xp.maximum(xp.sum(letters > 0, axis=1), window)
    embedded = xp.take(c, letters, axis=0)
    count = letters.shape[1] - window + 1
    columns = xp.stack([embedded[:, start : start + window].reshape((-1, window * size)) for start in range(count)], axis=1)
    scores = xp.tanh(xp.matmul(columns, w.reshape((filters, -1)).T) + b)
    is_there = xp.arange(count)[None, :] < (lengths - window + 1)[:, None]
    y = xp.max(xp.where(is_there[..., None], scores, -np.inf), axis=1)
    empty = letters[:, 0] == 0
    return xp.where(empty[:, None], np.float32(0), y).astype(np.float32).reshape((*words.shape[:-1], filters))
