"""Copies with CuPy's streams and events. Has not run on a card."""

from __future__ import annotations

from typing import Any

import numpy as np


class CupyCopyEngine:
    """The copy engine of one card; called with the card as the thread's own."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda

    def allocate(self, nbytes: int) -> tuple[Any, np.ndarray[Any, Any], int]:
        """Returns page-locked memory of CuPy's pool."""
        memory = self._cuda.alloc_pinned_memory(nbytes)
        return memory, np.frombuffer(memory, np.uint8, nbytes), int(memory.ptr)

    def create_stream(self) -> Any:
        """Returns a stream that does not wait for the default one."""
        return self._cuda.Stream(non_blocking=True)

    def write(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Sends cudaMemcpyAsync."""
        self._cuda.runtime.memcpyAsync(target, source, nbytes, self._cuda.runtime.memcpyHostToDevice, stream.ptr)

    def read(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Sends cudaMemcpyAsync."""
        self._cuda.runtime.memcpyAsync(target, source, nbytes, self._cuda.runtime.memcpyDeviceToHost, stream.ptr)

    def record(self, stream: Any) -> Any:
        """Returns an event without a time."""
        event = self._cuda.Event(disable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """Sends cudaStreamWaitEvent."""
        stream.wait_event(event)

    def synchronize(self, event: Any) -> None:
        """Waits without holding up other threads."""
        event.synchronize()
