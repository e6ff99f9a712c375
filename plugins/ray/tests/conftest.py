"""A cluster of three nodes on this machine, which ends with the tests, even if a test fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hetero_core import Core

# On a busy machine a node takes longer to start than Ray's default half minute.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "240")
ray = pytest.importorskip("ray")

_STORE = 96 << 20
"""Bytes of each node's object store: Ray takes no less than 75 MiB."""


_BREAKING = dedent(
    """
    import os, threading
    from hetero_core import Executable, QueryResult, hookimpl


    class Breaking(Executable):
        def __init__(self, network):
            self.inputs, self.outputs = network.inputs, network.outputs

        def run(self, inputs, context):
            if inputs[0].flat[0] == 13:
                os._exit(3)
            if inputs[0].flat[0] == 14:
                threading.Event().wait()
            return (-inputs[0],)

        def metrics(self):
            return {"PID": os.getpid()}


    class Device:
        @hookimpl
        def query_network(self, device, network, config):
            return QueryResult({node.name: str(device) for node in network.nodes})

        @hookimpl
        def load_network(self, device, network, config):
            return Breaking(network)


    @hookimpl
    def create_device(core, name):
        return Device()
    """
)


def install_breaking(folder: Path) -> None:
    """Installs the device BREAKING into a folder as pip would: it exits at 13, hangs at 14, and negates all other numbers."""
    (folder / "breaking_device.py").write_text(_BREAKING)
    installed = folder / "breaking_device-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: breaking-device\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[hetero_core.devices]\nBREAKING = breaking_device\n")


def add_node(cluster: Any, name: str, **resources: int) -> Any:
    return cluster.add_node(num_cpus=1, node_name=name, object_store_memory=_STORE, include_dashboard=False, **resources)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("site")
    install_breaking(folder)
    # Workers import this program's packages, and a device that this program does not have.
    os.environ["PYTHONPATH"] = os.pathsep.join((str(folder), *(path for path in sys.path if path)))
    # A node without a heartbeat for this long counts as ended.
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
def add(cluster: Any) -> Callable[..., Any]:
    """A function that adds a node of this name and with these resources."""
    return lambda name, **resources: add_node(cluster, name, **resources)


@pytest.fixture
def core(cluster: Any) -> Iterator[Core]:
    with Core() as opened:
        yield opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests without a cluster come first, since Ray finds any cluster that runs on the machine."""
    items.sort(key=lambda item: item.path.name != "test_connection.py")
