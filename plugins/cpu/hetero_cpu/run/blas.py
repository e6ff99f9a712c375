"""One thread for NumPy's BLAS while a network runs, which shares its products among threads of its own.

BLAS has a number of threads for the whole process: it is 1 while a run may call BLAS, and after the last such run the number that
it was before.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.devices.processors import count_affinity
from hetero_core.runtime.executors import call_in_child

if TYPE_CHECKING:
    from concurrent.futures import Executor


logger = logging.getLogger(__name__)


_PERMISSION = "KMP_DUPLICATE_LIB_OK"


def import_threadpoolctl() -> Any:
    """Returns threadpoolctl. Its first import sets a variable of the environment that permits a second OpenMP; that is taken back."""
    is_first, permission = "threadpoolctl" not in sys.modules, os.environ.get(_PERMISSION)
    import threadpoolctl  # type: ignore[import-untyped]  # late: only limits of BLAS need it; threadpoolctl 3 ships no types

    if is_first and permission is None:
        os.environ.pop(_PERMISSION, None)
    return threadpoolctl


Library = tuple[Callable[[], int], Callable[[int], object]]
"""The functions that get and set the number of threads of a BLAS."""


def _open_library(controller: Any) -> Library:
    """Returns the two functions of a library that threadpoolctl has found.

    The functions of OpenBLAS itself, if it has threads of its own. threadpoolctl 3.8 lets only the first thread set their number, as
    long as that thread lives, and ignores all later threads; and its way to the functions takes 1.5 us.
    """
    if controller.internal_api == "openblas" and getattr(controller, "threading_layer", "") != "openmp":
        for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
            names = [f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            if all(hasattr(controller.dynlib, name) for name in names):
                get, set_ = (getattr(controller.dynlib, name) for name in names)
                return get, set_
    return controller.get_num_threads, controller.set_num_threads


class _Blas:
    """The libraries, found on first use, the numbers of threads that they had then, and how many runs are under way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.libraries: list[Library] | None = None
        self.before: list[int] = []
        self.runs = 0

    def enter(self) -> None:
        with self.lock:
            if self.libraries is None:
                # Looks at every loaded library, about 1 ms.
                controllers = import_threadpoolctl().ThreadpoolController()
                self.libraries = [_open_library(own) for own in controllers.select(user_api="blas").lib_controllers]
                if not self.libraries:
                    logger.warning(
                        "the threads of NumPy's BLAS cannot be limited here: threadpoolctl knows no BLAS among the libraries"
                    )
            if not self.runs:
                self.before = [get() for get, _ in self.libraries]
                self._set([1] * len(self.before))
            self.runs += 1

    def leave(self) -> None:
        with self.lock:
            self.runs -= 1
            if not self.runs:
                self._set(self.before)

    def _set(self, numbers: list[int]) -> None:
        for (_, set_number), before, number in zip(self.libraries or (), self.before, numbers, strict=True):
            # A number that was 1 before is left alone.
            if before != 1:
                set_number(number)

    def restart(self) -> None:
        """Forgets the runs of the parent, in a forked child: their threads do not exist here."""
        self.lock = threading.Lock()
        if self.runs:
            self.runs = 0
            self._set(self.before)


_blas = _Blas()
call_in_child(_blas.restart)


def needs_limit() -> bool:
    """Says whether BLAS may have several threads: it takes a thread for each processor of the affinity mask."""
    return count_affinity() > 1


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
            # NumPy copies an operand that a product would overwrite; a piece would overwrite it for later pieces.
            return np.matmul(a, b, out)
        self._share(deque(_cut_product(a, b, out, count)))
        return out

    def compute_all(self, calls: Sequence[Callable[[], object]]) -> None:
        """Calls functions that write different memory; each has a single thread, whichever thread takes it."""
        from hetero_core.kernels.precision import share_with  # the toolkit

        with share_with(None):
            self._share(deque(calls))

    def cut(self, length: int, most: int, shares: int) -> int:
        """Returns the length of equal parts of at most `most`; each thread, of at most `shares`, has as many parts."""
        threads = max(min(self._threads, shares), 1)
        parts = -(-length // (most * threads)) * threads
        return -(-length // parts)

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
                except IndexError:  # another thread has the last piece
                    return
                compute()

        helps = []
        # After the end of the network or of the interpreter, or if the system has no more threads, the existing threads compute all.
        with suppress(RuntimeError):
            for _ in range(min(self._threads, len(pieces)) - 1):
                helps.append(self._open_helpers().submit(compute_pieces))  # noqa: PERF401  # an error must not lose the started helps
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


@contextmanager
def share_products(team: ProductTeam | None) -> Iterator[None]:
    """Keeps BLAS at one thread meanwhile, and has a team compute the toolkit's products; 2.4 us, and 1.6 if BLAS has one thread anyway."""
    from hetero_core.kernels.precision import share_with  # the toolkit

    _blas.enter()
    try:
        with share_with(team):
            yield
    finally:
        _blas.leave()
