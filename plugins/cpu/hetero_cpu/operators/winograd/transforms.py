"""Winograd's convolutions F(m x m, 3x3): their matrices, and which convolutions of machine code are computed with them.

y = A^T [(B^T d B) * (G g G^T)] A for each tile d of (m+2) x (m+2) pixels. Source: Lavin & Gray 2015, Fast algorithms for convolutional
neural networks; the matrices by Toom and Cook's construction over the points below.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np

from hetero_core.kernels.windows import Windows
from hetero_cpu.open.choices import pays
from hetero_cpu.open.sizes import is_open

Array = np.ndarray[Any, Any]

# Of the points that were tried these lose the fewest digits: for m = 4, 1.3 to 4.4e-6 of the largest result for one layer.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}
_FEWEST_CHANNELS = 16
# Tiles that hang over the border of smaller images, and weights four times as large, cost more than the products that are saved.
_SMALLEST_SIDE, _SMALLEST_OPEN_SIDE = 10, 8
# Kernels that are transformed at a time: whole cache lines of the result, and a product so small that BLAS calls no threads for it.
_BLOCK_OUTPUTS, _BLOCK_CHANNELS = 16, 48


@cache
def build_matrices(size: int) -> tuple[Array, Array, Array]:
    """Returns A^T (m, m+2), G (m+2, 3) and B^T (m+2, m+2) in float64 for tiles of m x m results."""
    points, window = _POINTS[size], size + 2

    def powers(count: int) -> Array:
        matrix = np.array([[point**power for power in range(count)] for point in points] + [[0.0] * count])
        matrix[-1, -1] = 1
        return matrix

    scales = [1 / np.prod([point - other for other in points if other != point]) for point in points]
    scale = np.array([*scales, 1.0])[:, None]
    back, kernel, forth = powers(size).T, powers(3), np.linalg.inv(powers(window)).T
    forth = forth / scale
    # What is zero by construction, up to rounding of the inverse.
    forth[np.abs(forth) < 1e-12] = 0
    return back, kernel * scale, forth


@cache
def build_kernel_transform(size: int) -> Array:
    """Returns the Kronecker product of G with itself, ((m+2)^2, 9) in float64: times the nine taps of a kernel it is G g G^T."""
    kernel = build_matrices(size)[1]
    return np.kron(kernel, kernel)


def transform_kernels(w: Array, size: int, moved: Array) -> None:
    """Writes G g G^T of all kernels for tiles of m x m results, computed in float64 and rounded once. w: (outputs, channels, 3, 3);
    size: m; moved: float32 ((m+2)^2, channels, outputs), in any order of memory."""
    outputs, channels = w.shape[:2]
    both = build_kernel_transform(size)
    positions = len(both)
    for first, begin in product(range(0, outputs, _BLOCK_OUTPUTS), range(0, channels, _BLOCK_CHANNELS)):
        block = w[first : first + _BLOCK_OUTPUTS, begin : begin + _BLOCK_CHANNELS]
        taps = np.empty((9, *block.shape[:2]))
        taps[...] = block.reshape(*block.shape[:2], 9).transpose(2, 0, 1)
        transformed = np.matmul(both, taps.reshape(9, -1)).reshape(positions, *block.shape[:2])
        moved[:, begin : begin + _BLOCK_CHANNELS, first : first + _BLOCK_OUTPUTS] = transformed.transpose(0, 2, 1)


def choose_winograd(windows: Windows, *, channels: int, outputs: int, group: int, width: int) -> int:
    """Returns the side of the tiles, 4 or 2, with which a convolution is computed in vectors of `width`; 0 for the direct way."""
    is_3x3 = windows.kernel == (3, 3) and windows.strides == windows.dilations == (1, 1) and group == 1
    is_even = width > 0 and channels % width == 0 and outputs % width == 0 and min(channels, outputs) >= _FEWEST_CHANNELS
    if not is_3x3 or not is_even:
        return 0
    if any(is_open(side) for side in windows.outputs):
        return 4 if all(pays(side, _SMALLEST_OPEN_SIDE) for side in windows.outputs) else 0
    if min(windows.outputs) < _SMALLEST_SIDE:
        return 0
    return 4 if min(windows.outputs) >= 2 * _SMALLEST_SIDE else 2
