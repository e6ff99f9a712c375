"""The RAY device with the memory that all nodes share; the link to an actor on a node; and the carrier of operations over it.

A thread that waits checks now and then whether its caller has given up. An actor that does not answer within GRACE seconds from then on
is ended.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hetero_core.contract import Array, CancelToken, ConfigKey, DeviceName, RunContext, freeze_mapping
from hetero_core.errors import DeviceUnavailableError
from hetero_core.hookspecs import hookimpl
from hetero_core.remote.device import RemoteDevice
from hetero_core.remote.failures import restore_failure
from hetero_core.remote.host import restore_times
from hetero_core.remote.succession import Link, Session, Succession
from hetero_core.remote.values import dump_value, load_value
from hetero_ray.actor import THREADS, HostActor, list_devices
from hetero_ray.arrays import MEMORY, RayArray, Shipments, get_arrays, pack_values, put_array, unpack_values
from hetero_ray.nodes import Fleet, RayNode, list_nodes, needs_gpu

_POLL = 0.05
"""Seconds between two checks whether the caller has given up."""


class RayLink(Link):
    """The caller's connection to an actor."""

    def __init__(self, device: str, node: RayNode, fleet: Fleet) -> None:
        super().__init__(device)
        self.node = node
        self._fleet = fleet
        self._numbers = itertools.count(1)
        self._is_closed = False
        fleet.hosts[node.id] += 1
        fleet.gpus[node.id] += needs_gpu(device)
        # It reserves no processor of Ray's count: the device's own keys say how many threads it may have.
        self._actor = (
            ray.remote(num_cpus=0, concurrency_groups={"control": 1})(HostActor)
            .options(
                num_gpus=1 if needs_gpu(device) else 0,
                max_concurrency=THREADS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote(device)
        )

    def request(
        self,
        method: str,
        text: bytes,
        refs: Sequence[Any] = (),
        *,
        what: str,
        token: CancelToken | None = None,
        end_of_wait: float | None = None,
    ) -> tuple[Any, list[Any]]:
        """Returns the answer to a request and its references. `what` and `end_of_wait` are as for a child process.

        Raises: the device's error; DeviceCrashedError if the actor is gone; DeadlineExceededError if it had to be ended.
        """
        number = next(self._numbers)
        request = None
        try:
            request = number, getattr(self._actor, method).remote(number, text, list(refs))
            self.await_answer(request, what, token, end_of_wait)
            is_good, answer, references = ray.get(request[1])
        except ray.exceptions.RayError as error:
            self.note_end(self._describe_loss(error))
            where = f"device {self._device} on node {self.node.name} of the Ray cluster"
            raise self.convert_end(request, f"{where} {self._end} while it {what}") from error
        if not is_good:
            raise restore_failure(load_value(answer), f"by device {self._device} on node {self.node.name} of the Ray cluster")
        return load_value(answer), references

    def call(
        self, question: tuple[str, Any], bulk: Sequence[Any], token: CancelToken | None, end_of_wait: float | None
    ) -> tuple[Any, Sequence[Any]]:
        """Returns the actor's answer to an operation, and its buffers. Raises: as `request`."""
        what = f"answered '{question[0]}'"
        result, references = self.request("call", dump_value(question), bulk, what=what, token=token, end_of_wait=end_of_wait)
        return result, tuple(ray.get(references))

    def _describe_loss(self, error: Exception) -> str:
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            # Ray waits for a second for its node's report on the end of the actor. Without a report, the node is lost; the cluster
            # may notice this late.
            self._fleet.lost.add(self.node.id)
            return "cannot be reached any more"
        if "node has died" in str(error):
            self._fleet.lost.add(self.node.id)
            return "was lost with its node"
        return f"ended ({str(error).strip().splitlines()[-1]})"

    def is_answered(self, request: tuple[int, Any]) -> bool:
        """Says whether the answer is there, or the actor is gone."""
        return bool(ray.wait([request[1]], timeout=_POLL)[0])

    def cancel(self, request: tuple[int, Any]) -> None:
        """Tells the actor that a request is abandoned."""
        self._actor.cancel.remote(request[0])

    def kill(self) -> None:
        """Ends the actor at once."""
        ray.kill(self._actor)

    def close(self) -> None:
        """Ends the actor."""
        with self._lock:
            is_first, self._is_closed, self._end = not self._is_closed, True, self._end or "was closed"
        if not is_first:
            return
        self._fleet.hosts[self.node.id] -= 1
        self._fleet.gpus[self.node.id] -= needs_gpu(self._device)
        if ray.is_initialized():
            with suppress(ray.exceptions.RayError):  # the actor may have gone before
                self.kill()


logger = logging.getLogger(__name__)


class RayCarrier(Succession[RayLink]):
    """Carries operations to an actor on the node that the device's name says, or on the node with the fewest actors."""

    memory = MEMORY

    def __init__(self, device: str, node: str, fleet: Fleet, shipments: Shipments) -> None:
        """`node` is the name of a node, "" for any."""
        super().__init__(device)
        self._name = node
        self._fleet = fleet
        self._shipments = shipments

    @property
    def place(self) -> str:
        """Names the node if it is known."""
        node = self._name if self._link is None else self._link.node.name
        return f"on node {node} of the Ray cluster" if node else "in the Ray cluster"

    def start(self) -> RayLink:
        """Starts an actor; if the named node is gone, on another node, with a warning. Raises: DeviceUnavailableError."""
        node = self._fleet.find(self._name)
        if node is not None and not self._fleet.has_gpu_for(self._device, node):
            raise DeviceUnavailableError(f"node {node.name} of the Ray cluster has no free GPU for device {self._device}")
        if node is None:
            node = self._fleet.choose(self._device)
            if self._name:
                logger.warning("node %s of the Ray cluster is gone; device %s goes on node %s", self._name, self._device, node.name)
        return RayLink(self._device, node, self._fleet)

    def ship(self, buffers: Sequence[Any]) -> Sequence[Any]:
        """Returns references to buffers in the store of this program's node, which each other node fetches once."""
        return self._shipments.put(buffers)

    def open_session(self, loaded: tuple[RayLink, int], token: CancelToken) -> RaySession:
        """Returns the near end of a request; the actor makes its own with the first run."""
        return RaySession(self, loaded)


class RaySession(Session[RayLink]):
    """A request: references go to the actor, references come back."""

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, which stay valid as long as they are referenced. Raises: as `RayLink.request`."""
        profile = context.profile
        places, refs = pack_values(inputs)
        text = dump_value((self.number, self.network, self.link.take_forgotten(), profile is not None, places))
        sent = perf_counter()
        answer, references = self.link.request("run", text, refs, what="ran a network", token=context.token)
        began, times, values = answer
        self.carrier.note_success()
        if profile is not None:
            # Clocks of machines differ: the run is taken to begin when it was sent; the time of the transfer is ignored.
            restore_times(profile, times, shift=sent - began)
        return unpack_values(values, references, self.link.node.name)


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

    def __init__(self) -> None:
        super().__init__()
        self._fleet = Fleet()
        self._bytes_put = self._bytes_got = 0
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
            "BYTES_PUT": self._bytes_put,
            "BYTES_GOT": self._bytes_got,
            "NETWORK_BYTES_PUT": self._shipments.nbytes,
        }

    @hookimpl
    def to_host(self, array: RayArray) -> Array:
        """A copy of an array, fetched from the node that has it."""
        with self._lock:
            self._bytes_got += array.nbytes
        return np.array(get_arrays([array])[0])

    @hookimpl
    def from_host(self, array: Any) -> RayArray:
        """A reference to an array, which is put into the store of this program's node."""
        with self._lock:
            self._bytes_put += array.nbytes
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
