"""A network that was imported with its plan: it is read only for what the plan does not cover.

The plan lies in the private store, named by the digests of the blob's sections, with its memories in these sections.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.blobs.store import STORE, name_entry
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError
from hetero_core.network.types import ValueSpec, type_of_json
from hetero_cpu.machine.compiler import COMPILER, describe_environment
from hetero_cpu.machine.interpreter import list_interpreters
from hetero_cpu.planning.arena import ALIGNMENT
from hetero_cpu.planning.instance import allocate_arena
from hetero_cpu.planning.plans_in_use import OpenPlanInUse
from hetero_cpu.planning.signature import read_static_signature
from hetero_cpu.sources import NetworkSource
from hetero_cpu.stored.plans import WrittenPlan, read_plan

if TYPE_CHECKING:
    from hetero_core.network.graph import Network

Array = np.ndarray[Any, Any]

INDEX, MODEL, WEIGHTS, PACKED = "index", "model", "weights", "packed"
KIND = "blob"
MOST_FORMS = 1.1
"""Bytes of weights that are held once, for each byte of them in the model: what is padded counts, too."""


class BlobNetwork(NetworkSource):
    """The network of a blob, whose index names its inputs and outputs."""

    def __init__(self, payload: Payload, index: Mapping[str, Any], plan: OpenPlanInUse) -> None:
        sections = payload.sections
        self.name = ""  # the index has none
        self.inputs, self.outputs = _read_specs(index, "inputs"), _read_specs(index, "outputs")
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
    """Returns the network of a blob with the plan that is kept for so many threads; None if it has to be planned.

    With `is_once` a plan is not used if weights would then be held in several forms.
    """
    digests = find_digests(payload)
    content = None if digests is None else STORE.read(name_blob_plan(digests, workers))
    if content is None:
        return None
    sections, index = align_sections(payload.sections), read_index(payload.sections)
    if is_once and not _has_weights_once(sections, index):
        return None
    written: WrittenPlan = pickle.loads(content)  # of the private store, where machine code is as well
    if not COMPILER.load_stored((*written.list_kernels(), *list_interpreters(workers))):
        return None
    views = {name: view_section(sections, name) for name in (WEIGHTS, PACKED)}

    def find_memory(place: int) -> Array:
        name, begin, nbytes = written.memories[place]
        return views[name][begin : begin + nbytes]

    return BlobNetwork(Payload(sections, payload.version), index, OpenPlanInUse(read_plan(written, find_memory)))


def name_blob_plan(digests: Mapping[str, bytes], workers: int) -> str:
    """Returns the name of the plan of a blob with these sections: also of the threads, LLVM, the processor and the code that plans."""
    parts = [part for name, digest in sorted(digests.items()) for part in (name, digest)]
    return name_entry(KIND, describe_environment(), f"{workers}", *parts)


def _has_weights_once(sections: Mapping[str, Any], index: Mapping[str, Any]) -> bool:
    """Says whether weights are held in one form beside the plan of a blob: plans of other sizes share its constants, but nothing packed."""
    weights, packed = sections[WEIGHTS].nbytes, sections[PACKED].nbytes
    has_one_plan = read_static_signature(_read_specs(index, "inputs")) is not None
    return packed == 0 or (has_one_plan and weights + packed <= MOST_FORMS * index["size"])


def find_digests(payload: Payload) -> dict[str, bytes] | None:
    """Returns what binds a plan to a payload; None if that has no packed weights, or is of a format without digests."""
    names = (INDEX, MODEL, WEIGHTS, PACKED)
    return {name: payload.digests[name] for name in names} if all(name in payload.digests for name in names) else None


def read_index(sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the index of a payload. Raises: BlobDamagedError."""
    try:
        index = json.loads(bytes(sections[INDEX]))
    except (ValueError, RecursionError) as error:
        raise BlobDamagedError(f"the blob of CPU has an index that cannot be read: {error}") from error
    if not isinstance(index, dict):
        raise BlobDamagedError(f"the blob of CPU has an index that is {index!r:.60}; expected an object")
    return index


def align_sections(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns sections whose weights begin at a cache line: those of a mapped file themselves, others as a copy."""
    return {**sections, **{name: _align(sections[name]) for name in (WEIGHTS, PACKED)}}


def _align(section: Any) -> Any:
    array = np.frombuffer(section, np.uint8)
    if array.ctypes.data % ALIGNMENT == 0:
        return section
    memory = allocate_arena(array.nbytes)
    memory[...] = array
    return memory.data


def view_section(sections: Mapping[str, Any], name: str) -> Array:
    """Returns the bytes of a section, which must stay as it is."""
    return np.frombuffer(sections[name], np.uint8)


def _read_specs(index: Mapping[str, Any], side: str) -> tuple[ValueSpec, ...]:
    return tuple(ValueSpec(name, type_of_json(fields)) for name, fields in index[side])
