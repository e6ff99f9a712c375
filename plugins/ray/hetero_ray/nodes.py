"""The nodes of the cluster: their names, the choice of a node, and a network on MULTI that follows the nodes which join and go."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hetero_core import ExecutableNetwork
from hetero_core.contract import DeviceName
from hetero_core.errors import DeviceUnavailableError, HeteroError

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 3.0
_SHORT = 8
"""Letters of a node's id that replace its name if several nodes have that name."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """A living node: its id, the name that stands in `RAY.<name>`, and the resources that Ray counts there, as GPU."""

    id: str
    name: str
    resources: dict[str, float]


def connect_cluster(device: str) -> None:
    """Connects this program to the cluster of RAY_ADDRESS or of this machine, unless it is connected already.

    Raises: DeviceUnavailableError.
    """
    try:
        import ray
    except ImportError as error:
        raise DeviceUnavailableError(
            f"device {device} needs Ray ({error}); install it with 'pip install hetero-ray[ray]'"
        ) from error
    if ray.is_initialized():
        return
    address = _read_address()
    try:
        if ":" in address and "://" not in address:
            host, _, port = address.rpartition(":")
            # Ray itself retries for a minute if an ended cluster has left its address behind.
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS).close()
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError) as error:
        where = f" at {address}" if address else ""
        raise DeviceUnavailableError(
            f"device {device} finds no Ray cluster{where}: {error}. Start one with 'ray start --head', or name one in RAY_ADDRESS"
        ) from error


def _read_address() -> str:
    """Returns the address of the cluster that Ray would connect to, from the environment or as `ray start` has written it, or ""."""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    with suppress(OSError):
        return os.environ.get("RAY_ADDRESS") or Path(folder, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip()
    return ""


def list_nodes() -> tuple[RayNode, ...]:
    """Returns the living nodes in the order of their names; a name of several nodes is replaced by the beginning of the id."""
    import ray

    nodes: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    uses = Counter(_name(node) for node in nodes)
    named = [
        RayNode(node["NodeID"], _name(node) if uses[_name(node)] == 1 else node["NodeID"][:_SHORT].upper(), node["Resources"])
        for node in nodes
    ]
    return tuple(sorted(named, key=lambda node: node.name))


def _name(node: dict[str, Any]) -> str:
    # An id of a device in capitals needs no quotes, and is found in any case.
    return str(node["NodeName"]).upper()


class Fleet:
    """The nodes as a Core uses them: its number of actors and GPUs on each, and the nodes that it found lost before Ray did."""

    def __init__(self) -> None:
        self.hosts: Counter[str] = Counter()
        self.gpus: Counter[str] = Counter()
        self.lost: set[str] = set()

    def find(self, name: str) -> RayNode | None:
        """Returns the living node with this name."""
        return next((node for node in list_nodes() if node.name == name and node.id not in self.lost), None)

    def has_gpu_for(self, device: str, node: RayNode) -> bool:
        """Says whether a node has a free GPU for a device, if it needs a GPU."""
        return not needs_gpu(device) or node.resources.get("GPU", 0) - self.gpus[node.id] >= 1

    def choose(self, device: str) -> RayNode:
        """Returns the living node with the fewest actors; for a GPU, the node needs a free GPU. Raises: DeviceUnavailableError."""
        nodes = [node for node in list_nodes() if node.id not in self.lost]
        able = [node for node in nodes if self.has_gpu_for(device, node)]
        if not able:
            reason = "has a free GPU" if nodes else "can be reached"
            raise DeviceUnavailableError(f"no living node of the Ray cluster {reason} for {device}; {len(nodes)} nodes live")
        return min(able, key=lambda node: (self.hosts[node.id], node.name))


def needs_gpu(device: str) -> bool:
    """Says whether the device behind the colon needs a GPU of Ray."""
    return "GPU" in device.upper()


class FollowedCluster:
    """Keeps the devices of a network equal to the living nodes, from `with` to its end; `network` was loaded on MULTI.

    `device` runs on each node, as behind the colon of `RAY.a:CPU`; `others` are devices that always stay, such as "CPU" here. A
    node that has just joined and cannot run the network yet is logged and tried again after `interval` seconds. At the end the
    network keeps the devices that it had last.
    """

    def __init__(
        self, network: ExecutableNetwork, device: str = "CPU", *, interval: float = 1.0, others: tuple[str, ...] = ()
    ) -> None:
        self._network = network
        self._device = device
        self._interval = interval
        self._others = others
        self.devices: tuple[str, ...] = ()
        """The devices that the network was given last."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="hetero-RAY-cluster", daemon=True)

    def __enter__(self) -> FollowedCluster:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def look(self) -> None:
        """Looks at the nodes once, and gives the network their devices if they have changed.

        Raises: errors of loading the network on a node.
        """
        nodes = tuple(str(DeviceName("RAY", node.name, self._device)) for node in list_nodes())
        devices = (*nodes, *self._others)
        if devices == self.devices or not devices:
            return
        self._network.set_config({"MULTI_DEVICE_PRIORITIES": ",".join(devices)})
        self.devices = devices

    def _follow(self) -> None:
        while not self._is_over.wait(self._interval):
            try:
                self.look()
            except HeteroError as error:
                logger.warning("network '%s' goes on with %s: %s", self._network.name, ",".join(self.devices), error)
