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


def has_exact_tiles(w: Array, low: float, high: float) -> bool:
    """Says whether tiles of 2 x 2 give the exact sums of whole weights and of whole elements from `low` to `high`, or of zeros.

    A sum on the way is a linear function of the elements, so its positive and its negative factors bound it. It is exact below 2^24 units,
    which are 1, or 1/2 and 1/4 of transformed weights. Sums of A^T's first terms are looked at, down a tile and then across it.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if isinf(low) or isinf(high):
        return False
    back, kernel, forth = build_matrices(2)
    taps = np.ascontiguousarray(w.reshape(-1, 9).T)
    signs = np.array([np.maximum(forth, 0).sum(axis=1), np.maximum(-forth, 0).sum(axis=1)])[..., None]
    # The longest sums come first, because they decide most refusals.
    for terms in ((0, 1, 2), (1, 2, 3), (0, 1), (1, 2), (0,), (1,), (2,), (3,)):
        row = back[min(terms[0], 1)]
        # The factors of a line's four elements by the weights of the line.
        line = np.sum([row[i] * np.outer(forth[i], kernel[i]) for i in terms], axis=0)
        units = 1 if np.array_equal(line, np.rint(line)) else 2
        down, across = (np.kron(*matrices).astype(np.float32) for matrices in ((line, kernel), (np.eye(3), line)))
        for matrix, sides, factor in ((down, signs, [[1], [2], [2], [1]]), (across, np.array([[[1.0]], [[0.0]]]), [[1]])):
            factors = (matrix @ taps).reshape(-1, len(factor), *w.shape[:2])
            total, size = factors.sum(axis=3).sum(axis=0), np.abs(factors).sum(axis=3).sum(axis=0)
            above, below = (size + total) / 2, (size - total) / 2
            most, least = sides[0] * above + sides[1] * below, sides[0] * below + sides[1] * above
            bound = np.maximum(high * most - low * least, high * least - low * most) * np.array(factor) * units
            if bound.max() >= _EXACT * (1 - 1e-4):
                return False  # bounds are rounded themselves
    return True
