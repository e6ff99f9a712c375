"""The content of an export: the network after its passes and, where machine code runs it, the weights as kernels read them.

Of a network without machine code: the sections `model` and `weights` of `pack_network`. Else `packed` holds arrays one after the other
as they lie in memory, `weights` only those constants that are not to be had from there, and `index` says what is where. How the plan
calls the kernels is no part of it: that steers machine code, and stays in the user's private folder (stored/stored_plans.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from hetero_core.blobs.digests import digest_sections
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError
from hetero_core.network.graph import Network
from hetero_core.network.types import type_to_json
from hetero_core.network.writer import pack_model, pack_network, unpack_network
from hetero_cpu.executable import CpuExecutable
from hetero_cpu.payload_index import INDEX, MODEL, PACKED, WEIGHTS, find_digests, read_index
from hetero_cpu.planning.signature import Signature

Array = np.ndarray[Any, Any]

VERSION = 2
_ALIGNMENT = 64


def export_executable(executable: CpuExecutable) -> Payload:
    """Returns the payload; keeps the plan beside it, for imports by the same user."""
    native = executable.find_native_plan()
    try:
        packed = None if native is None else _pack(executable, *native)
        if packed is None:
            return Payload(pack_network(executable.transformed), VERSION)
    finally:
        # What the plan has let go was made again to be written.
        for constant in executable.transformed.initializers.values():
            constant.release()
    from hetero_cpu.stored.stored_plans import make_key, write_plan

    sections, captured = packed
    write_plan(make_key(digest_sections(sections), executable.workers), captured)
    return Payload(sections, VERSION)


def keep_plan(executable: CpuExecutable, payload: Payload) -> None:
    """Keeps the plan of a network that was imported without one, for later imports of the same blob with as many threads.

    That needs weights that are packed here as they lie in the blob.
    """
    native, digests = executable.find_native_plan(), find_digests(payload)
    if native is None or digests is None:
        return
    packed = _pack(executable, *native)
    if packed is None:
        return
    sections, captured = packed
    # Not the model: the passes have taken out what nobody reads any more, and it was made from this one.
    if {**digest_sections(sections), MODEL: digests[MODEL]} == digests:
        from hetero_cpu.stored.stored_plans import make_key, write_plan

        write_plan(make_key(digests, executable.workers), captured)


def _pack(executable: CpuExecutable, signature: Signature, plan: Any, name: str) -> tuple[dict[str, memoryview], Any] | None:
    """Returns the sections, and the plan of this name with its addresses in them; None where not all of the plan can be captured."""
    from hetero_cpu.stored.captured_plan import capture_plan
    from hetero_cpu.stored.stored_plans import move_places

    model, outside = pack_model(executable.transformed)
    later_arrays = executable.native_weights.list_made()
    constants = {offset: initializer.array for offset, initializer in outside.initializers}
    areas = {f"{PACKED}/{number}": later.get() for number, later in enumerate(later_arrays)}
    areas |= {f"{WEIGHTS}/{offset}": array for offset, array in constants.items() if _view_stored(array).nbytes == array.nbytes}
    captured = capture_plan(plan, areas)
    if captured is None:
        return None
    plan_of_sections, small_arrays = captured
    read = {place for _, calls in plan_of_sections.steps for call in calls for _, place in call.addresses}
    unread = {offset: array for offset, array in constants.items() if f"{WEIGHTS}/{offset}" not in read}
    offset_of_constant = {id(initializer): offset for offset, initializer in outside.initializers}
    packed, weights = _Section(), _Section()
    moved: dict[str, tuple[str, int]] = {}
    unpacked: dict[int, list[Any]] = {}
    for number, later in enumerate(later_arrays):
        place = f"{PACKED}/{number}"
        if place not in read:
            continue
        array = later.get()
        moved[place] = (PACKED, packed.add(array))
        offset = offset_of_constant.get(id(later.constant))
        if offset in unread:
            rule = _find_rule(unread[offset], later.purpose, array)
            if rule is not None:
                unpacked[offset] = [moved[place][1], array.nbytes, *rule]
    for place, array in small_arrays.items():
        moved[place] = (PACKED, packed.add(array))
    rows = []
    for offset, array in constants.items():
        if offset not in unpacked:
            begin = weights.add(_view_stored(array))
            moved[f"{WEIGHTS}/{offset}"] = (WEIGHTS, begin)
            rows.append([offset, begin, _view_stored(array).nbytes])
    index = {
        "inputs": [[spec.name, type_to_json(spec.type)] for spec in executable.inputs],
        "outputs": [[spec.name, type_to_json(spec.type)] for spec in executable.outputs],
        "signature": signature,
        "size": outside.size,
        "kept": rows,
        "unpacked": [[offset, *row] for offset, row in unpacked.items()],
    }
    sections = {
        INDEX: memoryview(json.dumps(index, separators=(",", ":")).encode()),
        MODEL: memoryview(model),
        WEIGHTS: weights.copy_to_memory(),
        PACKED: packed.copy_to_memory(),
    }
    return sections, replace(move_places(plan_of_sections, moved), name=name)


def _view_stored(array: Array) -> Array:
    from hetero_core.network.arrays import bytes_of_array

    return bytes_of_array(array)


class _Section:
    """Arrays one after the other, each at a multiple of the alignment."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, Array]] = []
        self._size = 0

    def add(self, array: Array) -> int:
        """Returns where the array begins."""
        begin = -(-self._size // _ALIGNMENT) * _ALIGNMENT
        self._arrays.append((begin, array))
        self._size = begin + array.nbytes
        return begin

    def copy_to_memory(self) -> memoryview:
        """Returns the bytes of the section."""
        memory = np.zeros(self._size, np.uint8)
        for begin, array in self._arrays:
            memory[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        return memory.data


def _find_rule(constant: Array, purpose: tuple[object, ...], packed: Array) -> list[Any] | None:
    """Returns how a constant comes out of its packed form: shape, whether it is turned, columns of a block. None where it does not."""
    match purpose:
        case ["product", bool() as is_turned, int() as vectors, int() as width] if constant.ndim == 2:
            rule = [constant.shape, is_turned, vectors * width]
        case ["product", int() as vectors, int() as width] if constant.ndim == 4:
            rule = [constant.shape, False, vectors * width]
        case _:
            return None
    # Bytes, since what is no number equals nothing.
    return rule if _unpack(packed.reshape(-1), *rule).tobytes() == constant.tobytes() else None


def _unpack(packed: Array, shape: tuple[int, ...], is_turned: bool, columns: int) -> Array:  # a column of the index
    from hetero_cpu.operators.product.tiling import unpack_columns

    if len(shape) == 4:
        outputs, channels, height, width = shape
        matrix = unpack_columns(packed, height * width * channels, outputs, columns)
        return matrix.reshape(height, width, channels, outputs).transpose(3, 2, 0, 1)
    depth, outputs = shape[::-1] if is_turned else shape
    matrix = unpack_columns(packed, depth, outputs, columns)
    return matrix.T if is_turned else matrix


def read_network(sections: Mapping[str, Any]) -> Network:
    """Returns the network of a payload, with all constants in their own form.

    Raises: BlobDamagedError, NetworkReadError.
    """
    if INDEX not in sections:
        return unpack_network(sections)
    weights, packed = (np.frombuffer(sections[name], np.uint8) for name in (WEIGHTS, PACKED))
    try:
        memory = _restore_weights(read_index(sections), weights, packed)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise BlobDamagedError(
            f"the blob of CPU has an index that contradicts its sections: {type(error).__name__}: {error}"
        ) from error
    return unpack_network({MODEL: sections[MODEL], WEIGHTS: memory.data})


def _restore_weights(index: Mapping[str, Any], weights: Array, packed: Array) -> Array:
    size = int(index["size"])
    # Each constant of at least a KiB leaves less than a cache line unused, and a packed one is never smaller.
    if not 0 <= size <= 2 * (len(weights) + len(packed)):
        raise ValueError(f"its constants take {size} bytes, of which it has {len(weights)} and {len(packed)}")
    memory = np.zeros(size, np.uint8)
    for offset, begin, nbytes in index["kept"]:
        _cut(memory, offset, nbytes)[...] = _cut(weights, begin, nbytes)
    for offset, begin, nbytes, shape, is_turned, columns in index["unpacked"]:
        constant = _unpack(_cut(packed, begin, nbytes).view(np.float32), tuple(shape), is_turned, columns)
        _cut(memory, offset, 4 * prod(shape)).view(np.float32).reshape(shape)[...] = constant
    return memory


def _cut(memory: Array, begin: int, nbytes: int) -> Array:
    if not 0 <= begin <= begin + nbytes <= len(memory):
        raise ValueError(f"bytes {begin} to {begin + nbytes} of {len(memory)}")
    return memory[begin : begin + nbytes]
