"""The mirror's partner: an actor at a time; the arrays of a request are passed by reference."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import ray

from hetero_core.contract import CancelToken, RunContext
from hetero_core.devices.watch import find_end_of_wait
from hetero_core.errors import DeviceUnavailableError
from hetero_core.network.types import ValueSpec
from hetero_core.remote.host import restore_times
from hetero_core.remote.succession import Succession
from hetero_core.remote.values import dump_value
from hetero_ray.arrays import MEMORY, Shipments, pack_values, unpack_values
from hetero_ray.link import RayLink
from hetero_ray.nodes import Fleet

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
        self._sessions = itertools.count(1)

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

    def call(
        self, operation: str, *arguments: Any, bulk: Sequence[Any] = (), token: CancelToken | None = None
    ) -> tuple[Any, Sequence[Any]]:
        """Returns the actor's answer and its buffers. Raises: as `RayLink.request`."""
        link, end_of_wait = self.find_link(), find_end_of_wait()
        text = dump_value((operation, arguments))
        result, references = link.request("call", text, bulk, what=f"answered '{operation}'", token=token, end_of_wait=end_of_wait)
        return result, tuple(ray.get(references))

    def open_session(self, number: int, outputs: tuple[ValueSpec, ...], token: CancelToken) -> RaySession:
        """Returns the near end of a request; the actor makes its own with the first run."""
        return RaySession(self, next(self._sessions), number, self.find_link())


class RaySession:
    """A request: references go to the actor, references come back."""

    copied_bytes = 0

    def __init__(self, carrier: RayCarrier, session: int, network: int, link: RayLink) -> None:
        self._carrier = carrier
        self._session = session
        self._network = network
        # If the actor is gone, the run fails, and the next run has another session.
        self._link = link

    def run(self, inputs: tuple[Any, ...], context: RunContext) -> tuple[Any, ...]:
        """Returns the outputs, which stay valid as long as they are referenced. Raises: as `RayLink.request`."""
        profile = context.profile
        places, refs = pack_values(inputs)
        forgotten = self._carrier.take_forgotten(self._link)
        text = dump_value((self._session, self._network, forgotten, profile is not None, places))
        sent = perf_counter()
        answer, references = self._link.request("run", text, refs, what="ran a network", token=context.token)
        began, times, values = answer
        self._carrier.note_success()
        if profile is not None:
            # Clocks of machines differ: the run is taken to begin when it was sent; the time of the transfer is ignored.
            restore_times(profile, times, shift=sent - began)
        return unpack_values(values, references, self._link.node.name)

    def close(self) -> None:
        """Lets the actor release the request, with a later message."""
        self._carrier.forget(self._session, self._link)
