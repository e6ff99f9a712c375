"""A network that was imported with its plan: it is read only for what the plan does not cover."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Payload
from hetero_cpu.payload_index import PACKED, WEIGHTS, find_digests, read_index, read_specs
from hetero_cpu.sources import NetworkSource
from hetero_cpu.stored.blob_plans import find_blob_plan, make_key

if TYPE_CHECKING:
    from hetero_core.network.graph import Network
    from hetero_cpu.planning.plans_in_use import OpenPlanInUse


class BlobNetwork(NetworkSource):
    """The network of a blob, whose index names its inputs and outputs."""

    is_read_again = True

    def __init__(self, payload: Payload, index: Mapping[str, Any], plan: OpenPlanInUse) -> None:
        sections = payload.sections
        self.name = ""  # the index has none
        self.inputs, self.outputs = read_specs(index, "inputs"), read_specs(index, "outputs")
        self.payload = Payload(sections, payload.version)
        self.packed_bytes, self.constant_bytes = sections[PACKED].nbytes, sections[WEIGHTS].nbytes
        self.plan, self._sections = plan, sections
        self._lock = threading.Lock()
        self._network: Network | None = None

    def open(self) -> Network:
        """Returns the network, read and transformed the first time."""
        from hetero_cpu.passes import transform_network  # most imports read no network
        from hetero_cpu.stored.payload import read_network

        with self._lock:
            if self._network is None:
                self._network = transform_network(read_network(self._sections))
                self.name = self._network.name
            return self._network

    def let_go(self) -> None:
        """Lets go of the network, whose constants are beside the packed ones in memory."""
        with self._lock:
            self._network = None


def find_blob_network(payload: Payload, workers: int, *, verifies: str) -> BlobNetwork | None:
    """Returns the network of a blob with the plan that is kept for so many threads; None where it has to be planned.

    Unless `verifies` is NO, a plan that is not noted as right is verified in its first run.
    """
    digests = find_digests(payload)
    if digests is None:
        return None
    index = read_index(payload.sections)
    plan = find_blob_plan(make_key(digests, workers), payload.sections, index, workers, verifies=verifies)
    return None if plan is None else BlobNetwork(payload, index, plan)
