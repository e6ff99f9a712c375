"""The figures of a server in the format of Prometheus. Several workers write them to files of a common folder; each can add them up."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from hetero_core.serving.protocol import describe_error

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of prometheus_client that names the common folder; it is read when that package is imported."""


class Metrics:
    """Counts and times the requests of each model version."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ("model", "version", "protocol")
        self._requests = Counter(
            "hetero_requests", "Requests by the status of their answer.", (*labels, "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "hetero_request_seconds", "Seconds from the admission of a request to its answer.", labels, registry=self._registry
        )
        self._active = Gauge(
            "hetero_active_requests",
            "Requests that are admitted and unanswered.",
            labels,
            registry=self._registry,
            multiprocess_mode="livesum",
        )

    @contextlib.contextmanager
    def measure(self, model: str, version: str, protocol: str) -> Iterator[None]:
        """Counts a request with the status of the error that leaves the block, 200 without one, 499 if its client left."""
        active, start, status = self._active.labels(model, version, protocol), perf_counter(), 499
        active.inc()
        try:
            yield
            status = 200
        except Exception as error:
            status = describe_error(error)[0]
            raise
        finally:
            active.dec()
            self._requests.labels(model, version, protocol, str(status)).inc()
            self._seconds.labels(model, version, protocol).observe(perf_counter() - start)

    def format(self) -> bytes:
        """Returns all figures as text; with several workers their sums."""
        registry = self._registry
        if FOLDER_VARIABLE in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the package has types, this class has none
        return bytes(generate_latest(registry))
