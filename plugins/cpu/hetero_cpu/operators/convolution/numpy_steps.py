"""Conv over images with constant weights: as GEMMs over rows of windows, written channels last.

Arrays inside are (batch, height, width, channels). Which way a convolution takes follows from its shape alone: a 1x1 is one GEMM; a
depthwise one sums products of shifted images; few channels in C order become columns (im2col); else each row of the kernel is a
GEMM over rows of windows, so that the image is copied as often as the kernel is wide, and not for each of its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hetero_core.kernels.products import matmul
from hetero_cpu.operators.convolution.geometry import Convolution, Image, Parts, read_convolution
from hetero_cpu.operators.convolution.shifted_copy import bind_shifted_copy
from hetero_cpu.operators.winograd.numpy_steps import plan_winograd, wants_winograd
from hetero_cpu.planning.recipe import Array, Call, Choice, Recipe, Site, step
from hetero_cpu.planning.weights import turn_matrix

# Bytes of columns that are made at a time, so that they are still in the cache when they are multiplied.
_COLUMN_BYTES = 1 << 20
# Below this many products per kernel row a GEMM costs more than the copies that it saves.
_SHORTEST_ROW = 64
_FEW_CHANNELS = 8


@step("Conv")
def plan_convolution(site: Site) -> Choice | None:
    """Returns the recipe of a convolution of float32 images with constant weights."""
    convolution = read_convolution(site)
    if convolution is None:
        return None
    windows, channels = convolution.windows, convolution.channels
    is_even = windows.dilations[1] == 1 or windows.strides[1] == 1
    if convolution.group == channels == convolution.outputs and channels > 1 and is_even:
        return _plan_depthwise(convolution)
    if prod(windows.kernel) == 1 and not any(end for pad in windows.pads for end in pad):
        return _plan_pointwise(convolution)
    if convolution.group > 1:
        return _plan_columns(convolution)
    if channels <= _FEW_CHANNELS and not site.is_channels_last(convolution.source):
        return _plan_plain_columns(convolution)
    if wants_winograd(convolution):
        return plan_winograd(convolution)
    return _plan_rows(convolution) if windows.kernel[1] * channels >= _SHORTEST_ROW else _plan_columns(convolution)


def _plan_pointwise(convolution: Convolution) -> Recipe:
    """All pixels are one matrix: (pixels, channels) @ (channels, outputs), for each group."""
    group, channels, outputs = convolution.group, convolution.channels, convolution.outputs
    weight = convolution.pack(("pointwise", group), lambda w: _turn_groups(w.reshape(group, outputs // group, -1)))
    x = convolution.site.prototypes[convolution.source].transpose(0, 2, 3, 1)
    strides = convolution.windows.strides
    is_direct = strides == (1, 1) and _is_matrix(x)
    pixels = (convolution.batch, *convolution.windows.outputs, channels)

    def bind(x: Array, y: Array, arrays: Sequence[Array]) -> list[Call]:
        calls: list[Call] = []
        if not is_direct:
            calls.append(partial(np.copyto, arrays[0], x[:, :: strides[0], :: strides[1]]))
            x = arrays[0]
        rows, result = x.reshape(-1, channels), y.reshape(-1, outputs)
        if group == 1:
            return [*calls, partial(matmul, rows, weight[0], result)]
        split = (rows.reshape(-1, group, channels // group), result.reshape(-1, group, outputs // group))
        left, products = (array.transpose(1, 0, 2) for array in split)
        return [*calls, partial(matmul, left, weight, products)]

    return convolution.make_recipe(bind, [] if is_direct else [pixels])


def _turn_groups(matrices: Array) -> Array:
    if len(matrices) == 1:
        return turn_matrix(matrices[0])[None]
    return np.ascontiguousarray(matrices.transpose(0, 2, 1))


def _is_matrix(x: Array) -> bool:
    """Says whether the pixels of (batch, height, width, channels) are the rows of a matrix without a copy."""
    return np.may_share_memory(x.reshape(-1, x.shape[3]), x) and (x.strides[3] == x.itemsize or x.shape[3] == 1)


def _plan_depthwise(convolution: Convolution) -> Recipe:
    """Sums of products over the kernel's positions, channel by channel; einsum holds no image in between.

    Pixels of a padded row are sorted by their remainder in the stride, the phase, so that what one position of the kernel meets for
    all outputs of a row is one run of width * channels numbers, whose weights are repeated for each pixel.
    """
    windows, channels = convolution.windows, convolution.channels
    height, width = windows.outputs
    stride, dilation = windows.strides[1], windows.dilations[1]
    taps = [divmod(j * dilation, stride) for j in range(windows.kernel[1])]
    phases = sorted({phase for _, phase in taps})
    long = max(first for first, _ in taps) + width
    tall = windows.reach[0]
    # One einsum for each phase: its positions must lie at equal distances.
    columns = [[j for j, (_, own) in enumerate(taps) if own == phase] for phase in phases]

    def pack(w: Array) -> Array:
        rows = w[:, 0].transpose(1, 2, 0)[:, :, None]
        shape = (*windows.kernel, width, channels)
        return np.ascontiguousarray(np.broadcast_to(rows, shape)).reshape(*windows.kernel, width * channels)

    weight = convolution.pack(("depthwise", width), pack)

    def bind_image(x: Array, y: Array, arrays: Sequence[Array]) -> Parts:
        padded, spare = arrays[:2]
        calls: list[Call] = []
        for index, phase in enumerate(phases):
            offsets = (-windows.pads[0][0], phase - windows.pads[1][0])
            calls += bind_shifted_copy(padded[index], x, offsets, (1, stride))
        _, down, right, deep = padded.strides
        # Beside other channels in a Concat rows are no runs: they are made elsewhere and copied.
        is_dense = y.flags.c_contiguous
        product = (y if is_dense else spare[0]).reshape(height, -1)
        other = spare[1].reshape(height, -1)
        for index, own in enumerate(columns):
            firsts = [taps[j][0] for j in own]
            step = firsts[1] - firsts[0] if len(own) > 1 else 1
            view = as_strided(
                padded[index, :, firsts[0] :],
                (height, windows.kernel[0], len(own), width * channels),
                (down * windows.strides[0], down * windows.dilations[0], right * step, deep),
            )
            target = product if index == 0 else other
            calls.append(partial(np.einsum, "hkln,kln->hn", view, weight[:, own], out=target))
            if index:
                calls.append(partial(np.add, product, other, product))
        if not is_dense:
            calls.append(partial(np.copyto, y, spare[0].reshape(y.shape)))
        return [(calls, slice(None))]

    return convolution.make_image_recipe(bind_image, [(len(phases), tall, long, channels), (2, height * width, channels)])


def _plan_columns(convolution: Convolution) -> Recipe:
    """im2col: a strip of output rows at a time, (group, pixels, kernel * channels) @ (group, kernel * channels, outputs)."""
    windows, group, channels, outputs = convolution.windows, convolution.group, convolution.channels, convolution.outputs
    (down, right), own = windows.kernel, channels // group
    height, width = windows.outputs
    rows = min(max(_COLUMN_BYTES // (4 * width * down * right * channels), 1), height)

    def pack(w: Array) -> Array:
        # (group, outputs, channels, kernel) -> (group, kernel, channels, outputs)
        split = w.reshape(group, outputs // group, own, down, right).transpose(0, 3, 4, 2, 1)
        return np.ascontiguousarray(split).reshape(group, down * right * own, outputs // group)

    weight = convolution.pack(("columns", group), pack)

    def bind_image(x: Array, y: Array, arrays: Sequence[Array]) -> Parts:
        parts: Parts = []
        for begin in range(0, height, rows):
            count = min(rows, height - begin)
            columns = arrays[0].reshape(-1)[: count * width * down * right * channels]
            columns = columns.reshape(group, count, width, down, right, own)
            calls: list[Call] = []
            for i, j in np.ndindex(down, right):
                offsets = convolution.offsets(i, j, begin)
                target = columns[:, :, :, i, j].transpose(1, 2, 0, 3)
                image: Image = x.reshape(*x.shape[:2], group, own)
                calls += bind_shifted_copy(target, image, offsets, (windows.strides[0], windows.strides[1]))
            product = y[begin : begin + count].reshape(-1, group, outputs // group).transpose(1, 0, 2)
            calls.append(partial(matmul, columns.reshape(group, count * width, -1), weight, product))
            parts.append((calls, slice(begin, begin + count)))
        return parts

    return convolution.make_image_recipe(bind_image, [(rows, width, down, right, channels)])


def _plan_plain_columns(convolution: Convolution) -> Recipe:
    """im2col of an image in C order: long runs of a row are copied, (kernel * channels, pixels)^T @ (kernel * channels, outputs)."""
    windows, channels, outputs = convolution.windows, convolution.channels, convolution.outputs
    height, width = windows.outputs
    depth = prod(windows.kernel) * channels
    rows = min(max(_COLUMN_BYTES // (4 * width * depth), 1), height)
    weight = convolution.pack(("plain columns",), lambda w: np.ascontiguousarray(w.reshape(outputs, -1).T))

    def bind_image(x: Array, y: Array, arrays: Sequence[Array]) -> Parts:
        padded, buffer = arrays[:2]
        calls: list[Call] = []
        for channel in range(channels):
            calls += bind_shifted_copy(padded[channel], x[:, :, channel], (-windows.pads[0][0], -windows.pads[1][0]), (1, 1))
        deep, down, right = padded.strides
        view = as_strided(
            padded,
            (channels, *windows.kernel, height, width),
            (
                deep,
                down * windows.dilations[0],
                right * windows.dilations[1],
                down * windows.strides[0],
                right * windows.strides[1],
            ),
        )
        parts: Parts = []
        for begin in range(0, height, rows):
            count = min(rows, height - begin)
            columns = buffer.reshape(-1)[: depth * count * width].reshape(channels, *windows.kernel, count, width)
            calls.append(partial(np.copyto, columns, view[:, :, :, begin : begin + count]))
            product = y[begin : begin + count].reshape(-1, outputs)
            calls.append(partial(matmul, columns.reshape(depth, -1).T, weight, product))
            parts.append((calls, slice(begin, begin + count)))
            calls = []
        return parts

    return convolution.make_image_recipe(bind_image, [(channels, *windows.reach), (depth, rows, width)])


def _plan_rows(convolution: Convolution) -> Recipe:
    """A GEMM for each kernel row, over rows of windows (phase, row, width, kernel width * channels).

    Kernel row i of output row o reads image row o * stride + i * dilation - pad. Rows are sorted by their remainder, the phase, so that
    the rows for one i and all o lie side by side.
    """
    windows, channels, outputs = convolution.windows, convolution.channels, convolution.outputs
    (down, right), (height, width) = windows.kernel, windows.outputs
    stride = windows.strides[0]
    taps = [divmod(i * windows.dilations[0], stride) for i in range(down)]
    phases = sorted({phase for _, phase in taps})
    tall = max(first for first, _ in taps) + height

    def pack(w: Array) -> Array:
        taps = turn_matrix(w.reshape(outputs, -1)).reshape(channels, down, right, outputs)
        return np.ascontiguousarray(taps.transpose(1, 2, 0, 3)).reshape(down, right * channels, outputs)

    weight = convolution.pack(("rows",), pack)

    def bind_image(x: Array, y: Array, arrays: Sequence[Array]) -> Parts:
        buffer, spare = arrays[:2]
        calls: list[Call] = []
        for index, phase in enumerate(phases):
            for j in range(right):
                offsets = (phase - windows.pads[0][0], convolution.offsets(0, j, 0)[1])
                calls += bind_shifted_copy(buffer[index, :, :, j], x, offsets, (stride, windows.strides[1]))
        product = y.reshape(-1, outputs)
        for i, (first, phase) in enumerate(taps):
            left = buffer[phases.index(phase), first : first + height].reshape(height * width, right * channels)
            if i == 0:
                calls.append(partial(matmul, left, weight[i], product))
                continue
            calls += [partial(matmul, left, weight[i], spare), partial(np.add, product, spare, product)]
        return [(calls, slice(None))]

    return convolution.make_image_recipe(
        bind_image, [(len(phases), tall, width, right, channels), (height * width if down > 1 else 0, outputs)]
    )
