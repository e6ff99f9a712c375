"""A cluster of three nodes on this machine, which ends with the tests, also where one fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hetero_core import Core

ray = pytest.importorskip("ray")

_STORE = 96 << 20
"""Bytes of each node's object store: Ray takes no less than 75 MiB."""


def add_node(cluster: Any, name: str) -> Any:
    return cluster.add_node(num_cpus=1, node_name=name, object_store_memory=_STORE, include_dashboard=False)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    # Workers import what is installed editable where they look first.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # An exit that has not been told of by a heartbeat for so long is the end of a node.
    system = {"health_check_period_ms": 500, "health_check_failure_threshold": 4, "health_check_initial_delay_ms": 2000}
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=1, node_name="a", object_store_memory=_STORE, include_dashboard=False, _system_config=system)
        for name in ("b", "c"):
            add_node(cluster, name)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def add(cluster: Any) -> Callable[[str], Any]:
    """A function that adds a node of this name."""
    return lambda name: add_node(cluster, name)


@pytest.fixture
def core(cluster: Any) -> Iterator[Core]:
    with Core() as opened:
        yield opened
