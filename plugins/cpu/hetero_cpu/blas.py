"""One thread for NumPy's BLAS while a network runs, which shares its products among threads of its own.

BLAS has one number of threads for the whole process: it is 1 while a run is under way that may call BLAS, and after the last of them what
it was before.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from hetero_core.devices.processors import count_affinity

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

    Those of OpenBLAS itself where it has threads of its own. threadpoolctl 3.8 lets only the first thread that asks set their number, as
    long as that thread lives, and says nothing to the others; and its way to the functions takes 1.5 us.
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

    def find_libraries(self) -> list[Library]:
        # Looks at every loaded library, about 1 ms.
        controllers = import_threadpoolctl().ThreadpoolController()
        libraries = [_open_library(controller) for controller in controllers.select(user_api="blas").lib_controllers]
        if not libraries:
            logger.warning("the threads of NumPy's BLAS cannot be limited here: threadpoolctl knows no BLAS among the libraries")
        return libraries

    def enter(self) -> None:
        with self.lock:
            if self.libraries is None:
                self.libraries = self.find_libraries()
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
        """Forgets the runs of the parent, in a forked child: none of their threads is there to end one."""
        self.lock = threading.Lock()
        if self.runs:
            self.runs = 0
            self._set(self.before)


_blas = _Blas()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_blas.restart)


def needs_limit() -> bool:
    """Says whether BLAS may have several threads: it takes one for each processor of the affinity mask."""
    return count_affinity() > 1


@contextmanager
def limit_blas() -> Iterator[None]:
    """Keeps BLAS at one thread meanwhile; 2.4 us, and 1.6 where it has one anyway."""
    _blas.enter()
    try:
        yield
    finally:
        _blas.leave()
