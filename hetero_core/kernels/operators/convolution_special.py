"""DeformConv, Col2Im and MaxUnpool: windows whose elements are read or written at positions of their own."""

from __future__ import annotations

from math import prod
from typing import Any

from hetero_core.kernels.precision import Array, Namespace, integers_of, narrow, widen
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import COMPLEX, FLOATS, INT64, NUMBERS, kernel
from hetero_core.kernels.sampling import count_inside, interpolate, weigh_linear
from hetero_core.kernels.sizes import product
from hetero_core.kernels.windows import Windows, lay_windows

Sizes = tuple[int, ...]
_STEPS = {"dilations": None, "pads": None, "strides": None}


@kernel("DeformConv", since=(19, 22), dtypes=FLOATS, shared=_STEPS, unread={"kernel_shape": None})
def deform_conv(
    xp: Namespace,
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    **geometry: Any,
) -> Array:
    """Returns the convolution whose elements are read `offset` away from their place and weighed by `mask`.

    offset: (batch, offset_group * kernel * axes, *outputs); mask without the axes. Source: ONNX DeformConv-22.
    """
    sizes, taps = x.shape[2:], w.shape[2:]
    windows = lay_windows(sizes, taps, **geometry)
    batch, channels = x.shape[:2]
    rank, depth, points = len(sizes), prod(taps), prod(windows.outputs)
    offsets = widen(offset).reshape((batch * offset_group, depth, rank, points))
    places = _lay_places(xp, windows)
    coordinates = tuple(
        (places[axis][None] + offsets[:, :, axis]).reshape((batch * offset_group, depth * points)) for axis in range(rank)
    )
    grouped = widen(x).reshape((batch * offset_group, channels // offset_group, *sizes))
    columns = interpolate(xp, grouped, coordinates, count_inside(xp, sizes), weigh_linear)
    columns = columns.reshape((batch, offset_group, channels // offset_group, depth, points))
    if mask is not None:
        columns = columns * widen(mask).reshape((batch, offset_group, 1, depth, points))
    outputs = w.shape[0]
    y = multiply(
        xp,
        widen(w).reshape((group, outputs // group, prod(w.shape[1:]))),
        columns.reshape((batch, group, channels // group * depth, points)),
    )
    y = y.reshape((batch, outputs, *windows.outputs))
    if b is not None:
        y = y + widen(b).reshape((-1, *(1,) * rank))
    return narrow(y, x.dtype)


def _lay_places(xp: Namespace, windows: Windows) -> list[Array]:
    """Returns for each axis where a plain convolution reads: (kernel positions, outputs)."""
    rank = len(windows.sizes)
    places = []
    for axis in range(rank):
        shape = [1] * (2 * rank)
        shape[axis] = -1
        of_tap = (xp.arange(windows.kernel[axis]) * windows.dilations[axis]).reshape(shape)
        shape[axis], shape[rank + axis] = 1, -1
        of_output = (xp.arange(windows.outputs[axis]) * windows.strides[axis] - windows.pads[axis][0]).reshape(shape)
        both = xp.broadcast_to(of_tap + of_output, (*windows.kernel, *windows.outputs))
        places.append(both.reshape((prod(windows.kernel), prod(windows.outputs))))
    return places


def _count_image(x: Array, image_shape: Array, block_shape: Array, *, pads: Sizes | None = None, **_: Any) -> int:
    image, block = integers_of(image_shape), integers_of(block_shape)
    widths = pads or (0,) * (2 * len(image))
    padded = product(size + widths[axis] + widths[axis + len(image)] for axis, size in enumerate(image))
    return int(x.shape[0]) * (int(x.shape[1]) // max(product(block), 1)) * padded * int(x.itemsize)


def _count_unpooled(x: Array, indices: Array, output_shape: Array | None = None, **geometry: Any) -> int:
    requested = 0 if output_shape is None else product(integers_of(output_shape))
    return max(product(_find_pooled_shape(x, **geometry)), requested) * int(x.itemsize)


def _find_pooled_shape(
    x: Array, *, kernel_shape: Sizes, pads: Sizes | None = None, strides: Sizes | None = None
) -> tuple[int, ...]:
    """Returns the shape of what a MaxPool with these attributes made x of."""
    rank = x.ndim - 2
    steps, flat = strides or (1,) * rank, pads or (0,) * (2 * rank)
    sizes = ((x.shape[2 + axis] - 1) * steps[axis] + kernel_shape[axis] - flat[axis] - flat[axis + rank] for axis in range(rank))
    return (*x.shape[:2], *sizes)


@kernel("Col2Im", since=(18,), dtypes=(NUMBERS | COMPLEX, INT64, INT64), host=(1, 2), count_bytes=_count_image, shared=_STEPS)
def col_to_im(xp: Namespace, x: Array, image_shape: Array, block_shape: Array, **geometry: Any) -> Array:
    """Returns images in which each column is added at its window. x: (batch, channels * block, windows). Source: ONNX Col2Im-18."""
    image, block = integers_of(image_shape), integers_of(block_shape)
    windows = lay_windows(image, block, **geometry)
    batch, channels = x.shape[0], x.shape[1] // prod(block)
    columns = widen(x).reshape((batch, channels, *block, *windows.outputs))
    padded = tuple(size + begin + end for size, (begin, end) in zip(image, windows.pads, strict=True))
    y = xp.zeros((batch, channels, *padded), dtype=columns.dtype)
    for position, picked in windows.slices():
        y[(slice(None), slice(None), *picked)] += columns[(slice(None), slice(None), *position)]
    inner = tuple(slice(begin, begin + size) for size, (begin, _) in zip(image, windows.pads, strict=True))
    return narrow(y[(slice(None), slice(None), *inner)], x.dtype)


@kernel("MaxUnpool", since=(9, 11, 22), dtypes=(FLOATS, INT64, INT64), host=(2,), count_bytes=_count_unpooled)
def max_unpool(
    xp: Namespace,
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    *,
    kernel_shape: Sizes,
    pads: Sizes | None = None,
    strides: Sizes | None = None,
) -> Array:
    """Returns zeros with the elements of x where MaxPool found them.

    The indices count in the shape that the attributes give; a larger output_shape adds zeros behind it. Source: ONNX MaxUnpool-22.
    """
    shape = _find_pooled_shape(x, kernel_shape=kernel_shape, pads=pads, strides=strides)
    y = xp.zeros(prod(shape), dtype=x.dtype)
    y[indices.reshape(-1)] = x.reshape(-1)
    y = y.reshape(shape)
    target_shape = integers_of(output_shape) or shape
    if target_shape == shape:
        return y
    larger = xp.zeros(target_shape, dtype=x.dtype)
    larger[tuple(slice(0, size) for size in shape)] = y
    return larger
