"""The threads of NumPy's BLAS while a network runs that has fewer of them than BLAS would take.

BLAS has one number for the whole process. So the number belongs to the runs that ask for one: while any of them is under way BLAS has
the smallest that they ask for, after the last of them it has what it had before. A network that asks for none never comes here.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from hetero_core.devices.processors import count_affinity

logger = logging.getLogger(__name__)


class _Blas:
    """The libraries, found on first use, the numbers that they had then, and what the runs under way ask for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.libraries: list[Any] | None = None
        self.before: list[int] = []
        self.asked: list[int] = []

    def find_libraries(self) -> list[Any]:
        if self.libraries is None:
            # Looks at every loaded library, about 1 ms.
            from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # threadpoolctl 3 ships none

            self.libraries = list(ThreadpoolController().select(user_api="blas").lib_controllers)
            if not self.libraries:
                logger.warning(
                    "the threads of NumPy's BLAS cannot be limited here: threadpoolctl knows no BLAS among the libraries"
                )
        return self.libraries

    def enter(self, threads: int) -> None:
        with self.lock:
            libraries = self.find_libraries()
            if not self.asked:
                self.before = [library.num_threads for library in libraries]
            if not self.asked or threads < min(self.asked):
                self._set([min(threads, most) for most in self.before])
            self.asked.append(threads)

    def leave(self, threads: int) -> None:
        with self.lock:
            lowest = min(self.asked)
            self.asked.remove(threads)
            if not self.asked:
                self._set(self.before)
            elif min(self.asked) > lowest:
                self._set([min(min(self.asked), most) for most in self.before])

    def _set(self, numbers: list[int]) -> None:
        for library, number in zip(self.find_libraries(), numbers, strict=True):
            library.set_num_threads(number)

    def restart(self) -> None:
        """Forgets the runs of the parent, in a forked child: none of their threads is there to end one."""
        self.lock = threading.Lock()
        if self.asked:
            self.asked = []
            self._set(self.before)


_blas = _Blas()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_blas.restart)


def needs_limit(threads: int) -> bool:
    """Says whether BLAS, left alone, might take more than this many threads: it takes one for each processor of the affinity mask."""
    return threads < count_affinity()


def begin_limit(threads: int) -> None:
    """Keeps BLAS at this many threads or fewer until the matching `end_limit`; never raises its number.

    The two take 3 us alone, and make a run 8 us longer.
    """
    _blas.enter(threads)


def end_limit(threads: int) -> None:
    """Ends what `begin_limit` began with the same number."""
    _blas.leave(threads)
