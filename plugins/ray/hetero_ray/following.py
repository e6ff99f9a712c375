"""A loaded network on MULTI that follows the cluster: nodes that join are used, nodes that have gone are dropped.

every `interval` seconds: living nodes ── changed? ──> MULTI_DEVICE_PRIORITIES of the network
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from hetero_core import ExecutableNetwork
from hetero_core.contract import DeviceName
from hetero_core.errors import HeteroError
from hetero_ray.nodes import list_nodes

logger = logging.getLogger(__name__)

PRIORITIES = "MULTI_DEVICE_PRIORITIES"


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
        self._network.set_config({PRIORITIES: ",".join(devices)})
        self.devices = devices

    def _follow(self) -> None:
        while not self._is_over.wait(self._interval):
            try:
                self.look()
            except HeteroError as error:
                logger.warning("network '%s' goes on with %s: %s", self._network.name, ",".join(self.devices), error)
