"""3x3 convolutions by Winograd's F(4x4, 3x3), its transforms as GEMMs: 36 products where a direct convolution has 144.

y = A^T [(B^T d B) * (G g G^T)] A for each tile d of 6x6 pixels. With tiles side by side as columns, B^T d B is one GEMM with the
Kronecker product of B^T with itself (36x36), and so is the way back (16x36). Source: Lavin & Gray 2015, Fast algorithms for convolutional
neural networks; the matrices are those of `winograd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hetero_core.kernels.products import matmul
from hetero_cpu.operators.convolution.geometry import Convolution, Parts
from hetero_cpu.operators.convolution.shifted_copy import bind_shifted_copy
from hetero_cpu.operators.winograd.transforms import build_matrices, transform_kernels
from hetero_cpu.planning.recipe import Array, Call, Recipe

_TILE = 4
_WINDOW = 6
# Measured with one thread: from 14x14 pixels and 16 channels on it takes 0.5 to 0.8 of the time of the direct way.
_SMALLEST_IMAGE = 14 * 14
_FEWEST_CHANNELS = 16
_FEWEST_OUTPUTS = 32
# Bytes of transformed tiles at a time.
_STRIP_BYTES = 4 << 20


def wants_winograd(convolution: Convolution) -> bool:
    """Says whether the transforms cost less than the products that they save: large images, enough channels on both sides.

    Weights become four times as large, and take longer to transform than an interim plan is likely to save.
    """
    if convolution.site.is_interim or convolution.site.weights.is_once:
        return False
    windows = convolution.windows
    is_3x3 = windows.kernel == (3, 3) and windows.strides == windows.dilations == (1, 1) and convolution.group == 1
    is_large = windows.outputs[0] * windows.outputs[1] >= _SMALLEST_IMAGE
    return is_3x3 and is_large and convolution.channels >= _FEWEST_CHANNELS and convolution.outputs >= _FEWEST_OUTPUTS


def _pack(w: Array) -> Array:
    """Returns (36, channels, outputs): the transformed kernels, computed in float64."""
    outputs, channels = w.shape[:2]
    packed = np.empty((_WINDOW**2, channels, outputs), np.float32)
    transform_kernels(w, _TILE, packed)
    return packed


def plan_winograd(convolution: Convolution) -> Recipe:
    """Returns the recipe: strips of tile rows, so that the transformed tiles stay near the caches."""
    weight = convolution.pack(("winograd",), _pack)
    back, _, forth = (np.kron(matrix, matrix).astype(np.float32) for matrix in build_matrices(_TILE))
    windows, channels, outputs = convolution.windows, convolution.channels, convolution.outputs
    down, right = (-(-size // _TILE) for size in windows.outputs)
    rows = min(max(_STRIP_BYTES // (4 * 36 * right * max(channels, outputs)), 1), down)
    tiles = rows * right
    scratch = [
        (down * _TILE + 2, right * _TILE + 2, channels),
        (36, tiles * channels),
        (36, tiles * channels),
        (36, tiles * outputs),
        (16, tiles * outputs),
    ]

    def bind_image(x: Array, y: Array, arrays: Sequence[Array]) -> Parts:
        padded, gathered, transformed, products, results = arrays[:5]
        calls = bind_shifted_copy(padded, x, (-windows.pads[0][0], -windows.pads[1][0]), (1, 1))
        step, pixel, deep = padded.strides
        windows_of_tiles = as_strided(
            padded, (_WINDOW, _WINDOW, down, right, channels), (step, pixel, _TILE * step, _TILE * pixel, deep)
        )
        parts: Parts = []
        for begin in range(0, down, rows):
            count = min(rows, down - begin)
            here = count * right
            tile, moved = (array.reshape(-1)[: 36 * here * channels].reshape(36, -1) for array in (gathered, transformed))
            product = products.reshape(-1)[: 36 * here * outputs].reshape(36, -1)
            result = results.reshape(-1)[: 16 * here * outputs].reshape(16, -1)
            calls += [
                partial(
                    np.copyto, tile.reshape(_WINDOW, _WINDOW, count, right, channels), windows_of_tiles[:, :, begin : begin + count]
                ),
                partial(matmul, forth, tile, moved),
                partial(matmul, moved.reshape(36, here, channels), weight, product.reshape(36, here, outputs)),
                partial(matmul, back, product, result),
            ]
            calls += _bind_placement(result.reshape(_TILE, _TILE, count, right, outputs), y, begin)
            parts.append((calls, slice(begin * _TILE, min((begin + count) * _TILE, y.shape[0]))))
            calls = []
        return parts

    return convolution.make_image_recipe(bind_image, scratch)


def _bind_placement(result: Array, y: Array, begin: int) -> list[Call]:
    """Returns the calls that put results (4, 4, tile rows, tile columns, outputs) into their pixels; what hangs over is left out."""
    height, width, outputs = y.shape
    rows, columns = result.shape[2:4]
    if (begin + rows) * _TILE <= height and columns * _TILE == width:
        pixels = y[begin * _TILE : (begin + rows) * _TILE].reshape(rows, _TILE, columns, _TILE, outputs)
        return [partial(np.copyto, pixels, result.transpose(2, 0, 3, 1, 4))]
    calls: list[Call] = []
    for i, j in np.ndindex(_TILE, _TILE):
        target = y[begin * _TILE + i : min((begin + result.shape[2]) * _TILE, height) : _TILE, j:width:_TILE]
        if target.size:
            calls.append(partial(np.copyto, target, result[i, j, : target.shape[0], : target.shape[1]]))
    return calls
