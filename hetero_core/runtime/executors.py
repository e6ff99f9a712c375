"""The threads of one Core: a pool for each device, made on first use, ended when the Core closes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hetero_core.errors import ClosedError


class Executors:
    """Thread pools by device name. Threads are named `hetero-<device>`. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._is_closed = False

    def submit(self, device: str, task: Callable[[], Any], *, workers: int) -> Future[Any]:
        """Returns the future of a task that a thread of the device's pool runs; the first call for a device sets its `workers`.

        Raises: ClosedError after `close`.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"cannot start a request on {device}: its Core is closed")
            pool = self._pools.get(device)
            if pool is None:
                pool = ThreadPoolExecutor(max_workers=max(workers, 1), thread_name_prefix=f"hetero-{device}")
                self._pools[device] = pool
        return pool.submit(task)

    def close(self) -> None:
        """Waits for what is running, drops what is queued, and ends the threads."""
        with self._lock:
            self._is_closed = True
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)
