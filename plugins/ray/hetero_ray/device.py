"""The RAY device: chooses the node of the device behind the colon, and defines the memory that all nodes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hetero_core.contract import Array, ConfigKey, DeviceName, freeze_mapping
from hetero_core.hookspecs import hookimpl
from hetero_core.remote.device import RemoteDevice
from hetero_ray.actor import list_devices
from hetero_ray.arrays import RayArray, Shipments, Traffic, get_arrays, put_array
from hetero_ray.carrier import RayCarrier
from hetero_ray.nodes import Fleet, list_nodes


class RayDevice(RemoteDevice[RayCarrier]):
    """Devices on the nodes of a cluster: an actor for each node and device behind the colon."""

    title = "RAY: a device on a node of a Ray cluster"
    where = "on a node of a Ray cluster"
    own_keys: Mapping[str, ConfigKey] = freeze_mapping(
        {
            "RAY_DEVICE": ConfigKey(
                str, None, "The device that runs on the node, as behind the colon of RAY.a:CPU.", is_arguments=True
            )
        }
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._fleet = Fleet()
        self._traffic = Traffic()
        self._shipments = Shipments()

    def locate(self, device: DeviceName, config: Mapping[str, Any] | None) -> tuple[str, str]:
        """The device behind the colon, and the node, "" for any."""
        return device.arguments, device.id

    def connect(self, *place: Any) -> RayCarrier:
        """A carrier to an actor."""
        device, node = place
        return RayCarrier(device, node, self._fleet, self._shipments)

    def own_metrics(self, device: DeviceName) -> Mapping[str, Any]:
        """The nodes, their installed devices, and the bytes of arrays and networks that this program has put and got."""
        return {
            "AVAILABLE_DEVICES": tuple(node.name for node in list_nodes()),
            "DEVICES_OF_NODES": list_devices_of_nodes,
            # A node may be this machine, but its processors are counted by the cluster.
            "IS_LOCAL": False,
            "BYTES_PUT": self._traffic.put,
            "BYTES_GOT": self._traffic.got,
            "NETWORK_BYTES_PUT": self._shipments.nbytes,
        }

    @hookimpl
    def to_host(self, array: RayArray) -> Array:
        """A copy of an array, fetched from the node that has it."""
        self._traffic.count(got=array.nbytes)
        return np.array(get_arrays([array])[0])

    @hookimpl
    def from_host(self, array: Any) -> RayArray:
        """A reference to an array, which is put into the store of this program's node."""
        self._traffic.count(put=array.nbytes)
        return put_array(array)


def list_devices_of_nodes() -> dict[str, tuple[str, ...]]:
    """Returns for each living node the devices that work there; asks all nodes at once, some seconds."""
    nodes = list_nodes()
    asked = [
        ray.remote(list_devices)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False))
        .remote()
        for node in nodes
    ]
    return dict(zip([node.name for node in nodes], ray.get(asked), strict=True))
