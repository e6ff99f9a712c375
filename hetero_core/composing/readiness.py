"""Devices that begin with other kernels than those they go on with: whether a loaded network has them, and runs until it has."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep

from hetero_core.runtime.executable import ExecutableNetwork

READY_METRIC = "KERNELS_READY"
"""The end of the name of a metric by which a device says that it has compiled what it begins to run without."""
_POLL_SECONDS = 0.005


def is_ready(loaded: ExecutableNetwork) -> bool:
    """Says whether all devices of a loaded network run what they will go on to run."""
    stages = getattr(loaded.executable, "stages", ())
    if stages:
        return all(is_ready(stage) for stage in stages)
    names = [name for name in loaded.get_metric("SUPPORTED_METRICS") if name.endswith(READY_METRIC)]
    return all(loaded.get_metric(name) for name in names)


def warm_up(loaded: ExecutableNetwork, run: Callable[[], object], seconds: float) -> None:
    """Runs until the devices have their compiled kernels, at most for `seconds`, and once more."""
    deadline = perf_counter() + seconds
    run()
    while not is_ready(loaded) and perf_counter() < deadline:
        sleep(_POLL_SECONDS)
        run()
    run()
