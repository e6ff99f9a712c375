"""The threads of NumPy's BLAS while a network runs that has fewer of them than BLAS would take.

BLAS has one number for the whole process. So the number belongs to the runs that ask for one: while any of them is under way BLAS has
the smallest that they ask for, after the last of them it has what it had before. A network that asks for none never comes here.
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
    """The libraries, found on first use, the numbers that they had then and have now, and what the runs under way ask for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.libraries: list[Library] | None = None
        self.before: list[int] = []
        self.now: list[int] = []
        self.asked: list[int] = []

    def find_libraries(self) -> list[Library]:
        # Looks at every loaded library, about 1 ms.
        controllers = import_threadpoolctl().ThreadpoolController()
        libraries = [_open_library(controller) for controller in controllers.select(user_api="blas").lib_controllers]
        if not libraries:
            logger.warning("the threads of NumPy's BLAS cannot be limited here: threadpoolctl knows no BLAS among the libraries")
        return libraries

    def enter(self, threads: int) -> None:
        with self.lock:
            if self.libraries is None:
                self.libraries = self.find_libraries()
            if not self.asked:
                self.before = self.now = [get() for get, _ in self.libraries]
            self.asked.append(threads)
            self._set(min(self.asked))

    def leave(self, threads: int) -> None:
        with self.lock:
            self.asked.remove(threads)
            self._set(min(self.asked, default=None))

    def _set(self, most: int | None) -> None:
        """Lets BLAS have what it had before, but at most `most`; a number that we have not changed is left alone."""
        for index, (_, set_number) in enumerate(self.libraries or ()):
            number = self.before[index] if most is None else min(most, self.before[index])
            if number != self.now[index]:
                set_number(number)
                self.now = [*self.now[:index], number, *self.now[index + 1 :]]

    def restart(self) -> None:
        """Forgets the runs of the parent, in a forked child: none of their threads is there to end one."""
        self.lock = threading.Lock()
        self.asked = []
        self._set(None)


_blas = _Blas()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_blas.restart)


def needs_limit(threads: int) -> bool:
    """Says whether BLAS, left alone, might take more than this many threads: it takes one for each processor of the affinity mask."""
    return threads < count_affinity()


def begin_limit(threads: int) -> None:
    """Keeps BLAS at this many threads or fewer until the matching `end_limit`; never raises its number.

    The two take 2.4 us, and 1.6 where BLAS has no more threads anyway.
    """
    _blas.enter(threads)


def end_limit(threads: int) -> None:
    """Ends what `begin_limit` began with the same number."""
    _blas.leave(threads)


@contextmanager
def limit_blas(threads: int | None) -> Iterator[None]:
    """Keeps BLAS at this many threads or fewer meanwhile; None leaves it alone."""
    if threads is None:
        yield
        return
    begin_limit(threads)
    try:
        yield
    finally:
        end_limit(threads)
