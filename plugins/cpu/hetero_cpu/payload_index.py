"""The index of an export: which sections there are, the inputs and outputs, and the shapes that the plan is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError
from hetero_core.network.types import ValueSpec, type_of_json
from hetero_cpu.planning.arena import ALIGNMENT
from hetero_cpu.planning.instance import allocate_arena

if TYPE_CHECKING:
    from hetero_cpu.planning.signature import Signature

Array = np.ndarray[Any, Any]

INDEX, MODEL, WEIGHTS, PACKED = "index", "model", "weights", "packed"


def find_digests(payload: Payload) -> dict[str, bytes] | None:
    """Returns what binds a plan to a payload; None where that has no packed weights, or is of a format without digests."""
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


def read_specs(index: Mapping[str, Any], side: str) -> tuple[ValueSpec, ...]:
    """Returns the inputs or the outputs."""
    return tuple(ValueSpec(name, type_of_json(fields)) for name, fields in index[side])


def read_signature(index: Mapping[str, Any]) -> Signature:
    """Returns the input shapes that the packed weights and the plan are for."""
    return tuple(None if shape is None else tuple(shape) for shape in index["signature"])
