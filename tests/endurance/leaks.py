"""Leaks to plant in the framework, by name, so that it can be seen whether the soak test finds them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

from hetero_core.blobs.cache import NetworkCache
from hetero_core.devices.registry import Registry
from hetero_core.runtime.executors import ExecutorManager
from hetero_core.runtime.request import InferRequest

RARELY = 20
"""A leak that does not happen each time happens each time in so many."""


def follow(owner: type, method: str, action: Callable[[Any], object], *, every: int = 1) -> None:
    """Lets an action follow a method, each time or each so many times; it takes the object."""
    original, calls = getattr(owner, method), itertools.count()

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, *arguments, **named)
        if next(calls) % every == 0:
            action(self)
        return result

    setattr(owner, method, call)


def leak_devices() -> None:
    """Devices whose names are gone stay open."""
    Registry._close_unused = lambda self: None  # type: ignore[method-assign]  # that is the leak


def leak_threads() -> None:
    """The threads of a network that nobody holds any more go on waiting."""
    kept: list[Any] = []
    original = ExecutorManager._create

    def create(self: ExecutorManager, name: str, workers: int) -> Any:
        kept.append(original(self, name, workers))
        return kept[-1]

    ExecutorManager._create = create  # type: ignore[method-assign]  # that is the leak


def leak_files() -> None:
    """A load through the cache leaves a file open, now and then."""
    follow(NetworkCache, "load", lambda cache: os.open(os.devnull, os.O_RDONLY), every=RARELY)


def leak_requests() -> None:
    """A request in so many stays in memory, with its network and all its threads."""
    kept: list[Any] = []
    follow(InferRequest, "__init__", kept.append, every=RARELY)


def leak_records() -> None:
    """Each run of a request leaves a small object."""
    kept: list[Any] = []
    follow(InferRequest, "_begin", lambda request: kept.append([]))


def leak_bytes() -> None:
    """Each run of a request leaves a kilobyte, all in one block."""
    kept = bytearray()
    follow(InferRequest, "_begin", lambda request: kept.extend(bytes(1024)))


LEAKS: dict[str, Callable[[], None]] = {
    "bytes": leak_bytes,
    "devices": leak_devices,
    "files": leak_files,
    "records": leak_records,
    "requests": leak_requests,
    "threads": leak_threads,
}
