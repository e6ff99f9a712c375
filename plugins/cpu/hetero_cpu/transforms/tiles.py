"""The matrices of Winograd's transforms, and whether tiles of 2 x 2 keep the sums of whole numbers exact."""

from __future__ import annotations

from functools import cache
from math import isinf
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Of the points that were tried these lose the fewest digits: for m = 4, 1.3 to 4.4e-6 of the largest result of a layer.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}
_EXACT = 1 << 24
_BLOCK = 1 << 16
"""Weights that are looked at together: their sums fit into the processor's cache."""


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
    # Zero by construction, up to rounding of the inverse.
    forth[np.abs(forth) < 1e-12] = 0
    return back, kernel * scale, forth


@cache
def _list_sums() -> list[tuple[Array, Array, Array]]:
    """Returns the sums of A^T's first terms, down a tile and then across it: the matrix of each on the taps of a weight, the signs of the
    elements that it is multiplied by, and the factors of its rows in units.
    """
    back, kernel, forth = build_matrices(2)
    signs = np.array([np.maximum(forth, 0).sum(axis=1), np.maximum(-forth, 0).sum(axis=1)])[..., None]
    sums = []
    # The longest sums come first, because they decide most refusals.
    for terms in ((0, 1, 2), (1, 2, 3), (0, 1), (1, 2), (0,), (1,), (2,), (3,)):
        row = back[min(terms[0], 1)]
        # The factors of a line's four elements by the weights of the line.
        line = np.sum([row[i] * np.outer(forth[i], kernel[i]) for i in terms], axis=0)
        units = 1 if np.array_equal(line, np.rint(line)) else 2
        down, across = (np.kron(*matrices).astype(np.float32) for matrices in ((line, kernel), (np.eye(3), line)))
        sums += [(down, signs, np.array([[1], [2], [2], [1]]) * units), (across, np.array([[[1.0]], [[0.0]]]), np.array([[units]]))]
    return sums


def has_exact_tiles(w: Array, low: float, high: float) -> bool:
    """Says whether tiles of 2 x 2 give the exact sums of whole weights and of whole elements from `low` to `high`, or of zeros.

    A sum on the way is a linear function of the elements, so its positive and its negative factors bound it. It is exact below 2^24 units,
    which are 1, or 1/2 and 1/4 of transformed weights.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if isinf(low) or isinf(high) or not w.size:
        return False
    taps = w.reshape(*w.shape[:2], 9)
    totals, sizes = (each.sum(axis=1, dtype=np.float64).T for each in (taps, np.abs(taps)))
    outputs = max(_BLOCK // max(w[:1].size, 1), 1)
    for matrix, sides, factor in _list_sums():

        def exceeds(total: Array, size: Array, sides: Array = sides, factor: Array = factor) -> Array:
            # Of an output, the rows of each factor.
            total, size = (each.reshape(-1, len(factor), each.shape[-1]).sum(axis=0) for each in (total, size))
            above, below = (size + total) / 2, (size - total) / 2
            most, least = sides[0] * above + sides[1] * below, sides[0] * below + sides[1] * above
            bound = np.maximum(high * most - low * least, high * least - low * most) * factor
            # Bounds are rounded themselves.
            exceeded: Array = (bound >= _EXACT * (1 - 1e-4)).any(axis=0)
            return exceeded

        # The sizes of the products of all channels are at most the products of the sizes, which take no time.
        (doubtful,) = np.nonzero(exceeds(matrix @ totals, np.abs(matrix) @ sizes))
        for first in range(0, len(doubtful), outputs):
            block = doubtful[first : first + outputs]
            products = matrix @ taps[block].transpose(0, 2, 1)
            if exceeds(matrix @ totals[:, block], np.abs(products, out=products).sum(axis=2).T).any():
                return False
    return True
