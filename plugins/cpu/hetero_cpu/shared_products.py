"""The toolkit's matrix products, cut into pieces that the threads of a network compute, each with one thread of BLAS.

Several threads of BLAS wait for one another in a loop that gives the processor away. On a busy machine each wait lasts a time slice of the
scheduler, and a network waits thousands of times. Here a thread sleeps while it waits, and only for a piece that another one has begun.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from concurrent.futures import Executor

Array = np.ndarray[Any, Any]

LEAST_WORK = 1 << 22
"""Multiplications of a product that is shared: some 0.2 ms, so that half of it takes longer than waking a thread."""
_PIECES = 2
"""Pieces for each thread: a thread that starts late computes fewer of them."""
_STEP = 16
"""Rows, or columns, of BLAS's tiles: a piece has a multiple of them."""


class ProductTeam:
    """The caller and `threads` - 1 helpers for each of `streams` callers. Safe for threads. Helpers start with the first large product."""

    def __init__(self, threads: int, streams: int = 1) -> None:
        self._threads, self._streams = threads, streams
        self._helpers: Executor | None = None
        self._lock, self._is_closed = threading.Lock(), False

    def multiply(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Returns `numpy.matmul(a, b, out)`. The digits depend on the number of threads, not on which thread computes a piece."""
        if self._threads == 1 or a.ndim < 2 or b.ndim < 2:
            return np.matmul(a, b, out)
        count = min(max(a.size * b.shape[-1], b.size * a.shape[-2]) // (LEAST_WORK // 2), _PIECES * self._threads)
        if count < 2 or a.dtype.hasobject or b.dtype.hasobject:
            return np.matmul(a, b, out)
        if out is None:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            out = np.empty((*batch, a.shape[-2], b.shape[-1]), np.result_type(a, b))
        elif np.may_share_memory(out, a) or np.may_share_memory(out, b):
            # NumPy copies an operand that a product would overwrite; a piece would overwrite it for the others.
            return np.matmul(a, b, out)
        self._share(deque(_cut_product(a, b, out, count)))
        return out

    def close(self) -> None:
        """Ends the helpers and waits for them; later products are computed by their callers alone."""
        with self._lock:
            self._is_closed, helpers = True, self._helpers
        if helpers is not None:
            helpers.shutdown()

    def _open_helpers(self) -> Executor:
        """Returns the helpers. Raises: RuntimeError after the end."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the network is closed")
            if self._helpers is None:
                from concurrent.futures import ThreadPoolExecutor  # only large products need it

                # NumPy's handling of floating-point errors belongs to a thread: ONNX lets infinities and NaN arise in silence.
                helpers = (self._threads - 1) * self._streams
                self._helpers = ThreadPoolExecutor(helpers, "hetero-CPU-products", initializer=np.seterr, initargs=("ignore",))
            return self._helpers

    def _share(self, pieces: deque[Callable[[], object]]) -> None:
        def compute_pieces() -> None:
            while pieces:
                try:
                    compute = pieces.pop()
                except IndexError:  # another thread has the last one
                    return
                compute()

        helps = []
        # After the end of the network or of the interpreter, or if the system has no more threads, those that there are compute all.
        with suppress(RuntimeError):
            helpers = self._open_helpers()
            for _ in range(min(self._threads, len(pieces)) - 1):
                helps.append(helpers.submit(compute_pieces))  # noqa: PERF401  # an error must not lose those that were started
        compute_pieces()
        for each in helps:
            # A helper that has not begun is not waited for.
            if not each.cancel():
                each.result()


def _cut_product(a: Array, b: Array, out: Array, count: int) -> list[Callable[[], object]]:
    """Returns calls that together compute a product: of parts of the batch if it is large, else of rows or columns of the result."""
    axis = out.ndim if out.ndim > 2 and out.shape[0] >= count else 2 if out.shape[-2] > out.shape[-1] else 1
    length, step = out.shape[-axis], 1 if axis > 2 else _STEP
    size = -(-length // (count * step)) * step
    calls: list[Callable[[], object]] = []
    for begin in range(0, length, size):
        own = slice(begin, begin + size)
        left = a if axis == 1 else _take(a, axis, own)
        right = b if axis == 2 else _take(b, axis, own)
        calls.append(partial(np.matmul, left, right, _take(out, axis, own)))
    return calls


def _take(array: Array, axis: int, own: slice) -> Array:
    """Returns a part along the axis of this number from the end; all if the array has no such axis, or repeats it."""
    if array.ndim < axis or (axis > 2 and array.shape[-axis] == 1):
        return array
    parts: tuple[Any, ...] = (..., own, *(slice(None),) * (axis - 1))
    part: Array = array[parts]
    return part
