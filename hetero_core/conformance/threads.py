"""Runs a function in several threads that begin together, and raises the first error."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hetero_core.conformance.check import CheckFailed

THREADS = 8
JOIN_SECONDS = 240.0


def run_in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Runs `work(index)` in `count` threads that begin together.

    Raises: the error of the thread with the lowest index; CheckFailed if a thread does not end.
    """
    gate = threading.Barrier(count)
    errors: dict[int, BaseException] = {}

    def run(index: int) -> None:
        try:
            gate.wait(JOIN_SECONDS)
            work(index)
        except BaseException as error:  # noqa: BLE001  # raised below, in the thread of the check
            errors[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    if errors:
        raise errors[min(errors)]
    if any(thread.is_alive() for thread in threads):
        raise CheckFailed(f"one of {count} threads did not end within {JOIN_SECONDS:g} seconds")
