"""Conv, ConvTranspose and pooling of any rank.

Conv copies windows into columns (im2col, one slice per kernel position) and multiplies them with the weights (GEMM), a block of groups
and output rows at a time, so that the columns stay near the caches. If outputs are few, each row of the image is copied only for the
positions within a row of the kernel: each row of the kernel is a product with the columns that begin further down, and the products are
added. If outputs are at most half of the channels, nothing is copied: the image is multiplied with the weights of all kernel positions,
and these products are added. Threads share the blocks.

Pooling passes once over the output per kernel position; pads hold a value that does not change the result.
"""

from __future__ import annotations

import itertools
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hetero_core.kernels.arrays import add_at, assign, lay_out
from hetero_core.kernels.operators.reductions import reduce_max, reduce_mean
from hetero_core.kernels.precision import Array, Integers, Namespace, compute_all, cut_length, multiply, narrow, widen
from hetero_core.kernels.registry import FLOATS, kernel
from hetero_core.kernels.windows import AUTO_PADS, CONVOLVING, POOLING, Windows, lay_windows, spread_bias

# Measured on two cores with vgg19: 4 to 16 MiB are equal, whole images take 1.3 times as long.
_COLUMN_BYTES = 8 << 20
# Few outputs read the columns a few times, so that making them is what takes the time: 2 MiB, which stay nearer, take 0.8 of it.
_FEW_OUTPUTS, _NEAR_COLUMN_BYTES = 128, 2 << 20
_LEAST_SHARE = 1 << 21
"""Multiplications that are worth another thread: 0.1 ms."""
_FILTERS_PER_COLUMN = 16
"""A thread reads all weights for its columns: 1,024 filters for 24 columns each take 1.3 times as long as a product shared by filters."""
_ALL = (slice(None), slice(None))
_LEAST_ROOM = 8
"""Elements of the result for each output channel, below which splitting the weights takes longer than copies of rows."""


@kernel("Conv", since=(1, 11, 22), dtypes=FLOATS, **CONVOLVING)
def conv(xp: Namespace, x: Array, w: Array, b: Array | None = None, *, group: int = 1, **geometry: Any) -> Array:
    """Returns the cross-correlation of x with w, plus b for each output channel.

    x: (batch, channels, *sizes); w: (outputs, channels / group, *kernel); b: (outputs,). Sums in float32 or wider.
    """
    windows = lay_windows(x.shape[2:], w.shape[2:], **geometry)
    y = convolve(xp, widen(x), widen(w), windows, group)
    if b is not None:
        y += spread_bias(widen(b), y)
    return narrow(y, x.dtype)


def convolve(xp: Namespace, x: Array, w: Array, windows: Windows, group: int) -> Array:
    """Returns a fresh array (batch, outputs, *windows.outputs): the sums of products, without bias, in the type of x and w."""
    batch, channels = x.shape[:2]
    outputs = w.shape[0]
    grouped = w.reshape(group, outputs // group, prod(w.shape[1:]))
    if windows.is_pointwise:
        y = multiply(xp, grouped, x.reshape(batch, group, channels // group, prod(windows.sizes)))
        return y.reshape((batch, outputs, *windows.outputs))
    # With 128 to 64 channels both ways take the same time, with 128 to 32 the sum takes 0.9.
    if 4 * outputs <= channels and max(windows.strides) == 1:
        return _add_products(xp, x, grouped, windows)
    return _convolve_blocks(xp, x, grouped, windows)


def _add_products(xp: Namespace, x: Array, w: Array, windows: Windows) -> Array:
    """Returns the convolution as a sum: the products of the weights of each kernel position with the image, each in its place.

    w: (group, outputs / group, channels / group * kernel).
    """
    batch, channels, first, *rest = x.shape
    group, outputs, depth = w.shape
    own, row = channels // group, prod(rest)
    taps = depth // own
    filters = lay_out(xp, xp.moveaxis(w.reshape(group, outputs, own, taps), 3, 1)).reshape(group, taps * outputs, own)
    y = xp.zeros((batch, group, outputs, *windows.outputs), dtype=x.dtype)
    most = max(_COLUMN_BYTES // max(group * taps * outputs * row * x.dtype.itemsize, 1), 1)
    rows = cut_length(xp, windows.outputs[0], most, y.size * depth // _LEAST_SHARE if batch == 1 else 1)
    shifts = list(windows.shifts())
    spans = [(0, count, 0, size) for count, size in zip(windows.outputs[1:], rest, strict=True)]

    def compute_rows(item: int, begin: int) -> None:
        nonlocal y
        end = min(begin + rows, windows.outputs[0])
        low = max(begin + shifts[0][0], 0)
        high = max(min(end + shifts[-1][0], first), low)
        image = x[item].reshape(group, own, first, row)[:, :, low:high].reshape(group, own, (high - low) * row)
        products = multiply(xp, filters, image).reshape((group, taps, outputs, high - low, *rest))
        for index, shift in enumerate(shifts):
            overlaps = [_overlap(*span, step) for span, step in zip([(begin, end, low, high), *spans], shift, strict=True)]
            places, picked = zip(*overlaps, strict=True)
            y = add_at(xp, y, (item, *_ALL, *places), products[(slice(None), index, slice(None), *picked)])

    compute_all(xp, [partial(compute_rows, *part) for part in itertools.product(range(batch), range(0, windows.outputs[0], rows))])
    return y.reshape((batch, group * outputs, *windows.outputs))


def _overlap(begin: int, end: int, low: int, high: int, shift: int) -> tuple[slice, slice]:
    """Returns the outputs from `begin` to `end` that read a sum from `low` to `high`, `shift` further on, and the places of these sums."""
    first = max(begin, low - shift)
    last = max(min(end, high - shift), first)
    return slice(first, last), slice(first + shift - low, last + shift - low)


def _convolve_blocks(xp: Namespace, x: Array, w: Array, windows: Windows) -> Array:
    """Returns the convolution by im2col and GEMM. w: (group, outputs / group, channels / group * kernel)."""
    batch, channels = x.shape[:2]
    group, outputs, depth = w.shape
    own, first, rest = channels // group, windows.outputs[0], windows.outputs[1:]
    row, stride = prod(rest), windows.strides[0]
    slots = [picked for _, picked in windows.slices()]
    shifts = windows.kernel[0] if _pays_to_shift(w.shape, windows) else 1
    taps = len(slots) // shifts
    weights = w[None] if shifts == 1 else _split_shifts(xp, w, own, shifts)
    # Rows of a block beyond those of its results.
    more = (shifts - 1) * windows.dilations[0]
    row_bytes = max(own * taps * row * x.dtype.itemsize, 1)
    most = _COLUMN_BYTES if outputs >= _FEW_OUTPUTS else _NEAR_COLUMN_BYTES
    y = xp.empty((batch, group, outputs, first, row), dtype=x.dtype)
    # Several images are shared as they are.
    shares = min(y.size * depth // _LEAST_SHARE, _FILTERS_PER_COLUMN * first * row // max(outputs, 1)) if batch == 1 else 1
    rows = cut_length(xp, first, max(most // row_bytes - more, 1), shares)
    groups = max(min(group, most // (row_bytes * (rows + more))), 1)

    def compute_groups(item: int, start: int) -> None:
        image = windows.pad(xp, x[item : item + 1, start * own : (start + groups) * own], 0)[0]
        compute_all(xp, [partial(compute_rows, image, item, start, begin) for begin in range(0, first, rows)])

    def compute_rows(image: Array, item: int, start: int, begin: int) -> None:
        nonlocal y
        part = weights[:, start : start + groups]
        count = min(rows, first - begin)
        columns = xp.empty((image.shape[0], taps, count + more, *rest), dtype=x.dtype)
        for index, picked in enumerate(slots[:taps]):
            top = picked[0].start + begin * stride
            rows_of_tap = (slice(None), slice(top, top + (count + more - 1) * stride + 1, stride), *picked[1:])
            columns = assign(columns, (slice(None), index), image[rows_of_tap])
        flat = columns.reshape(part.shape[1], depth // shifts, (count + more) * row)
        total = multiply(xp, part[0], flat[..., : count * row])
        for shift in range(1, shifts):
            place = shift * windows.dilations[0] * row
            total += multiply(xp, part[shift], flat[..., place : place + count * row])
        block = (item, slice(start, start + groups), slice(None), slice(begin, begin + count))
        y = assign(y, block, total.reshape(part.shape[1], outputs, count, row))

    compute_all(xp, [partial(compute_groups, *part) for part in itertools.product(range(batch), range(0, group, groups))])
    return y.reshape((batch, group * outputs, *windows.outputs))


def _pays_to_shift(weights: Integers, windows: Windows) -> bool:
    """Says whether adding products for each row of the kernel takes less time than copying each row of the image as often.

    Depthwise 5x5 takes 0.6 of the time, 96 to 24 channels 0.9. weights: (group, outputs / group, channels / group * kernel).
    """
    _, outputs, depth = weights
    is_few = 2 * outputs * windows.kernel[0] <= depth and _LEAST_ROOM * outputs <= prod(windows.outputs)
    return is_few and windows.kernel[0] > 1 and windows.strides[0] == 1


def _split_shifts(xp: Namespace, w: Array, own: int, shifts: int) -> Array:
    """Returns the weights of each row of the kernel, (shifts, group, outputs / group, channels / group * rest of the kernel)."""
    group, outputs, depth = w.shape
    split = xp.moveaxis(w.reshape(group, outputs, own, shifts, depth // (own * shifts)), 3, 0)
    return lay_out(xp, split).reshape(shifts, group, outputs, depth // shifts)


@kernel("ConvTranspose", since=(1, 11, 22), dtypes=FLOATS, choices={"auto_pad": AUTO_PADS}, unread={"kernel_shape": None})
def conv_transpose(
    xp: Namespace,
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Integers | None = None,
    group: int = 1,
    output_padding: Integers | None = None,
    output_shape: Integers | None = None,
    pads: Integers | None = None,
    strides: Integers | None = None,
) -> Array:
    """Returns the transposed convolution: each element of x adds its scaled filter to the output, then the pads are cut off.

    x: (batch, channels, *sizes); w: (channels, outputs / group, *kernel).
    """
    rank = x.ndim - 2
    taps = w.shape[2:]
    strides = strides or (1,) * rank
    dilations = dilations or (1,) * rank
    extra = output_padding or (0,) * rank
    full = tuple(
        stride * (size - 1) + more + (tap - 1) * dilation + 1
        for stride, size, more, tap, dilation in zip(strides, x.shape[2:], extra, taps, dilations, strict=True)
    )
    target_sizes = output_shape[-rank:] if output_shape else None
    if auto_pad.startswith("SAME") and target_sizes is None:
        # Filters shorter than their stride do not reach size * stride; nothing is added to them then, as in ONNX's own inference.
        target_sizes = tuple(min(size * stride, reached) for size, stride, reached in zip(x.shape[2:], strides, full, strict=True))
    # An output_shape beyond the reach of the filters ends in zeros.
    full = full if target_sizes is None else tuple(map(max, full, target_sizes))
    cuts = _find_cuts(full, target_sizes, auto_pad, pads)
    if any(begin + end > size for size, (begin, end) in zip(full, cuts, strict=True)):
        raise ValueError(f"pads {cuts} cut off more than the {list(full)} elements that the filters reach")
    y = _spread_filters(xp, widen(x), widen(w), full, group, strides, dilations)
    y = y[(slice(None), slice(None), *(slice(begin, size - end) for size, (begin, end) in zip(full, cuts, strict=True)))]
    if b is not None:
        y = y + spread_bias(widen(b), y)
    return narrow(y, x.dtype)


def _find_cuts(full: Integers, output_shape: Integers | None, auto_pad: str, pads: Integers | None) -> list[tuple[int, int]]:
    """Returns the elements to cut off at the begin and the end of each axis."""
    rank = len(full)
    if output_shape is None:
        flat = pads if pads and auto_pad == "NOTSET" else (0,) * (2 * rank)
        return [(flat[axis], flat[axis + rank]) for axis in range(rank)]
    totals = [size - target for size, target in zip(full, output_shape, strict=True)]
    begins = [total // 2 if auto_pad == "SAME_UPPER" else total - total // 2 for total in totals]
    return [(begin, total - begin) for begin, total in zip(begins, totals, strict=True)]


_MOST_PRODUCTS = 1 << 24
"""Elements of products that are held at once, 64 MiB of float32."""


def _spread_filters(xp: Namespace, x: Array, w: Array, full: Integers, group: int, strides: Integers, dilations: Integers) -> Array:
    """Returns (batch, outputs, *full): a strided addition of the GEMM's result for each kernel position."""
    batch, channels = x.shape[:2]
    outputs, taps = w.shape[1], w.shape[2:]
    columns = x.reshape(batch, group, channels // group, prod(x.shape[2:]))
    filters = w.reshape(group, channels // group, outputs, prod(taps))
    y = xp.zeros((batch, group * outputs, *full), dtype=x.dtype)
    spread = list(Windows(full, taps, strides, dilations, ((0, 0),) * len(taps), x.shape[2:]).slices())
    # Few kernel positions at a time: all of them may take a million times the memory of the result.
    count = max(_MOST_PRODUCTS // max(batch * group * outputs * prod(x.shape[2:]), 1), 1)
    for first in range(0, len(spread), count):
        part = spread[first : first + count]
        chosen = filters[..., first : first + count].reshape(group, channels // group, outputs * len(part))
        products = multiply(xp, xp.swapaxes(chosen, 1, 2), columns)
        products = products.reshape((batch, group * outputs, len(part), *x.shape[2:]))
        for index, (_, picked) in enumerate(part):
            place = (slice(None), slice(None), *picked)
            y = add_at(xp, y, place, products[:, :, index])
    return y


_ORDERED_POOLING = {**POOLING, "choices": {"auto_pad": AUTO_PADS, "storage_order": (0, 1)}}


@kernel("MaxPool", since=(1, 8, 10, 11, 12, 22), dtypes=FLOATS | {"int8", "uint8"}, outputs=2, **_ORDERED_POOLING)
def max_pool(
    xp: Namespace, x: Array, *, kernel_shape: Integers, storage_order: int = 0, output_count: int = 1, **geometry: Any
) -> Array | tuple[Array, Array]:
    """Returns the largest element of each window, and on demand its index in the flat input."""
    windows = lay_windows(x.shape[2:], kernel_shape, **geometry)
    padded = windows.pad(xp, x, np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf)
    if output_count == 1:
        return _find_largest(xp, padded, windows)
    return _find_largest_indices(xp, padded, windows, storage_order)


def _find_largest(xp: Namespace, padded: Array, windows: Windows) -> Array:
    """Returns the largest element of each window, along one axis after another: a window of 60 x 80 takes 140 steps, not 4,800."""
    geometry = zip(windows.kernel, windows.strides, windows.dilations, windows.outputs, strict=True)
    for axis, (kernel_size, stride, dilation, output) in enumerate(geometry):
        before = (slice(None),) * (axis + 2)
        largest = None
        for first in range(0, kernel_size * dilation, dilation):
            elements = padded[(*before, slice(first, first + output * stride, stride))]
            largest = elements if largest is None else xp.maximum(largest, elements)
        padded = largest
    return padded


def _find_largest_indices(xp: Namespace, padded: Array, windows: Windows, storage_order: int) -> tuple[Array, Array]:
    """Returns the largest elements and their flat indices; the first element wins a tie, and an element wins against padding."""
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


@kernel("AveragePool", since=(1, 7, 10, 11, 19, 22), dtypes=FLOATS, **POOLING)
def average_pool(xp: Namespace, x: Array, *, count_include_pad: int = 0, kernel_shape: Integers, **geometry: Any) -> Array:
    """Returns the mean of each window over its elements, or with count_include_pad over elements and pads.

    Positions beyond the pads, which ceil_mode adds, never count.
    """
    windows = lay_windows(x.shape[2:], kernel_shape, **geometry)
    total = add_windows(xp, windows.pad(xp, widen(x), 0), windows)
    for axis, counts in enumerate(count_elements(windows, count_pads=bool(count_include_pad))):
        total = total / xp.asarray(counts, dtype=total.dtype).reshape((-1, *(1,) * (total.ndim - axis - 3)))
    return narrow(total, x.dtype)


def add_windows(xp: Namespace, padded: Array, windows: Windows) -> Array:
    """Returns the sum of each window of a padded tensor, element by element, in its type."""
    total = xp.zeros((*padded.shape[:2], *windows.outputs), dtype=padded.dtype)
    for _, picked in windows.slices():
        total += padded[(*_ALL, *picked)]
    return total


def count_elements(windows: Windows, *, count_pads: bool) -> list[list[int]]:
    """Returns for each axis how many elements each window averages; the count of a window is the product over the axes."""
    counts = []
    for size, taps, stride, dilation, (begin, end), outputs in zip(
        windows.sizes, windows.kernel, windows.strides, windows.dilations, windows.pads, windows.outputs, strict=True
    ):
        low, high = (0, begin + size + end) if count_pads else (begin, begin + size)
        counts.append([sum(low <= output * stride + tap * dilation < high for tap in range(taps)) for output in range(outputs)])
    return counts


@kernel("LpPool", since=(1, 2, 11, 18, 22), dtypes=FLOATS, **POOLING)
def lp_pool(xp: Namespace, x: Array, *, kernel_shape: Integers, p: float = 2, **geometry: Any) -> Array:
    """Returns sum(|x|^p)^(1/p) of each window."""
    windows = lay_windows(x.shape[2:], kernel_shape, **geometry)
    powers = xp.abs(widen(x)) ** p
    return narrow(add_windows(xp, windows.pad(xp, powers, 0), windows) ** (1 / p), x.dtype)


@kernel("GlobalMaxPool", since=(1, 22), dtypes=FLOATS)
def global_max_pool(xp: Namespace, x: Array) -> Array:
    """Returns the largest element of each channel, as ReduceMax does."""
    return reduce_max(xp, x, tuple(range(2, x.ndim)), keepdims=True)


@kernel("GlobalAveragePool", since=(1, 22), dtypes=FLOATS)
def global_average_pool(xp: Namespace, x: Array) -> Array:
    """Returns the mean of each channel."""
    return narrow(reduce_mean(xp, widen(x), tuple(range(2, x.ndim)), keepdims=True), x.dtype)


@kernel("GlobalLpPool", since=(1, 2, 22), dtypes=FLOATS)
def global_lp_pool(xp: Namespace, x: Array, *, p: float = 2) -> Array:
    """Returns sum(|x|^p)^(1/p) of each channel."""
    powers = xp.abs(widen(x)) ** p
    return narrow(xp.sum(powers, axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p), x.dtype)
