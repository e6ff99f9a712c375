"""Products of matrices, which a device may share among threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace


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


def multiply(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns `xp.matmul(a, b)`, with NumPy as the present thread computes it."""
    return matmul(a, b) if xp is np else xp.matmul(a, b)
