"""Products of matrices whose digits do not depend on the threads of BLAS: long sums are computed in pieces, one after the other.

OpenBLAS cuts sums of more than 320 float32, or 128 float64, into pieces whose length depends on the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace

# Bytes of a row of the left side: fewer than the shortest sum that OpenBLAS cuts.
_PIECE_BYTES = 1024


class _ThreadMatmul(threading.local):
    """NumPy's `matmul`, or the function that a thread uses in its place."""

    function: Callable[..., Any] = staticmethod(np.matmul)


_of_thread = _ThreadMatmul()


@contextmanager
def multiply_with(function: Callable[..., Any]) -> Iterator[None]:
    """Has `matmul` call this function in the present thread, which shares large products among several threads, for example."""
    before = _of_thread.function
    _of_thread.function = function
    try:
        yield
    finally:
        _of_thread.function = before


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """Returns `numpy.matmul(a, b, out)`, as the present thread computes it."""
    return _of_thread.function(a, b, out)


def cut_sum(depth: int, itemsize: int) -> list[slice]:
    """Returns the slices into which a sum of `depth` products is cut, of nearly equal length; one slice if BLAS does not cut it."""
    pieces = max(1, -(-depth * itemsize // _PIECE_BYTES))
    size = -(-depth // pieces)
    return [slice(begin, min(begin + size, depth)) for begin in range(0, max(depth, 1), max(size, 1))]


def multiply(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns `xp.matmul(a, b)` as a fresh array. With NumPy, sums of floats are computed in pieces."""
    pieces = cut_sum(a.shape[-1], a.dtype.itemsize)
    if xp is not np or len(pieces) == 1 or a.dtype.kind not in "fc":
        return matmul(a, b) if xp is np else xp.matmul(a, b)
    y = matmul(a[..., pieces[0]], _pick_rows(b, pieces[0]))
    for piece in pieces[1:]:
        y += matmul(a[..., piece], _pick_rows(b, piece))
    return y


def _pick_rows(b: Array, piece: slice) -> Array:
    return b[piece] if b.ndim == 1 else b[..., piece, :]
