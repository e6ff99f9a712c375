"""A network that was imported with its plan: it is read only for what the plan does not cover."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_core.contract import Payload
from hetero_cpu.payload_index import PACKED, WEIGHTS, align_sections, find_digests, read_index, read_specs, view_section
from hetero_cpu.planning.signature import read_static_signature
from hetero_cpu.sources import NetworkSource
from hetero_cpu.stored.blob_plans import find_blob_plan, make_key

if TYPE_CHECKING:
    from hetero_core.network.graph import Network
    from hetero_cpu.planning.plans_in_use import OpenPlanInUse

MOST_FORMS = 1.1
"""Bytes of weights that are held once, for each byte of them in the model: what is padded counts, too."""


class BlobNetwork(NetworkSource):
    """The network of a blob, whose index names its inputs and outputs."""

    def __init__(self, payload: Payload, index: Mapping[str, Any], plan: OpenPlanInUse) -> None:
        sections = payload.sections
        self.name = ""  # the index has none
        self.inputs, self.outputs = read_specs(index, "inputs"), read_specs(index, "outputs")
        self.payload = payload
        self.packed, self.constants = (view_section(sections, PACKED),), (view_section(sections, WEIGHTS),)
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


def find_blob_network(payload: Payload, workers: int, *, is_once: bool) -> BlobNetwork | None:
    """Returns the network of a blob with the plan that is kept for so many threads; None where it has to be planned.

    With `is_once` a plan is not used if weights would then be held in several forms.
    """
    digests = find_digests(payload)
    if digests is None:
        return None
    sections, index = align_sections(payload.sections), read_index(payload.sections)
    plan = find_blob_plan(make_key(digests, workers), sections, index, workers)
    if plan is None or (is_once and not _has_weights_once(sections, index)):
        return None
    return BlobNetwork(Payload(sections, payload.version), index, plan)


def _has_weights_once(sections: Mapping[str, Any], index: Mapping[str, Any]) -> bool:
    """Says whether weights are held in one form beside the plan of a blob: plans of other sizes share its constants, but nothing packed."""
    weights, packed = sections[WEIGHTS].nbytes, sections[PACKED].nbytes
    has_one_plan = read_static_signature(read_specs(index, "inputs")) is not None
    return packed == 0 or (has_one_plan and weights + packed <= MOST_FORMS * index["size"])
