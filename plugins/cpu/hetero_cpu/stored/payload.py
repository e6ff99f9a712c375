"""The content of an export: the network after its passes and, if machine code runs it, the weights as kernels read them.

Of a network without machine code: the sections `model` and `weights` of `pack_network`. Else `packed` holds arrays in order
as they lie in memory, `weights` the constants that cannot be restored from there, and `index` describes both. How the plan
calls the kernels is no part of it: that steers machine code, and stays in the private store.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.blobs.container import digest_sections
from hetero_core.blobs.store import STORE, name_entry
from hetero_core.contract import Payload
from hetero_core.errors import BlobDamagedError
from hetero_core.network.arrays import bytes_of_array
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueSpec, type_of_json, type_to_json
from hetero_core.network.weights import read_span
from hetero_core.network.writer import pack_model, pack_network, unpack_model, unpack_network
from hetero_cpu.machine.compiler import COMPILER, describe_environment
from hetero_cpu.machine.interpreter import list_interpreters
from hetero_cpu.machine.memory import ALIGNMENT, allocate_arena
from hetero_cpu.run.plans import PlanInUse
from hetero_cpu.source import NetworkSource
from hetero_cpu.stored.plans import Memories, NotStorableError, WrittenPlan, read_plan, write_plan
from hetero_cpu.symbols.size_class import read_static_signature

if TYPE_CHECKING:
    from hetero_cpu.operators.weights import LazyArray, PackedWeights
    from hetero_cpu.plan.open_plan import OpenPlan


Array = np.ndarray[Any, Any]


def _read_blob(sections: Mapping[str, Any]) -> Network:
    from hetero_cpu.plan.passes import transform_network  # an import with a plan does without

    return transform_network(read_network(sections))


INDEX, MODEL, WEIGHTS, PACKED = "index", "model", "weights", "packed"
KIND = "blob"
MOST_FORMS = 1.1
"""Bytes of weights that are held once, for each byte of them in the model: padding counts, too."""


def find_blob_network(payload: Payload, workers: int, *, is_once: bool) -> NetworkSource | None:
    """Returns the network of a blob with the plan that is kept for so many threads; None if it has to be planned.

    With `is_once` a plan is not used if weights would then be held in several forms.
    """
    written = find_written_plan(payload, workers, is_once=is_once)
    if written is None:
        return None
    sections, index = align_sections(payload.sections), read_index(payload.sections)
    views = {name: view_section(sections, name) for name in (WEIGHTS, PACKED)}

    def find_memory(place: int) -> Array:
        name, begin, nbytes = written.memories[place]
        return views[name][begin : begin + nbytes]

    return NetworkSource(
        _read_specs(index, "inputs"),
        _read_specs(index, "outputs"),
        lambda: _read_blob(sections),
        plan=PlanInUse(read_plan(written, find_memory)),
        payload=Payload(sections, payload.version),
        packed=(views[PACKED],),
        constants=(views[WEIGHTS],),
    )


def find_written_plan(payload: Payload, workers: int, *, is_once: bool) -> WrittenPlan | None:
    """Returns the stored plan of a blob, its kernels loaded; None if an import has to plan. Arguments as of `find_blob_network`."""
    digests = find_digests(payload)
    content = None if digests is None else STORE.read(name_blob_plan(digests, workers))
    if content is None or (is_once and not _has_weights_once(payload.sections, read_index(payload.sections))):
        return None
    written: WrittenPlan = pickle.loads(content)  # of the private store, as trusted as machine code
    return written if COMPILER.load_stored((*written.list_kernels(), *list_interpreters(workers))) else None


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
    """Returns the digests that bind a plan to a payload; None if it has no packed weights, or its format no digests."""
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
    """Returns sections whose weights begin at a cache line: sections of a mapped file as views, others as copies."""
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


logger = logging.getLogger(__name__)


VERSION = 2
_ALIGNMENT = 64


def export_network(source: NetworkSource, weights: PackedWeights, plan: OpenPlan | None, workers: int) -> Payload:
    """Returns the payload of a network; stores its plan of machine code, if it has one, for imports by the same user."""
    network = source.open()
    try:
        packed = None if plan is None else _pack(source, weights, plan)
        if packed is None:
            return Payload(pack_network(network), VERSION)
    finally:
        # Constants that the plan has released were read again to be written.
        for constant in network.initializers.values():
            constant.release()
    sections, written = packed
    _store_plan(written, digest_sections(sections), workers)
    return Payload(sections, VERSION)


def store_plan(source: NetworkSource, weights: PackedWeights, plan: OpenPlan, payload: Payload, workers: int) -> None:
    """Stores the plan of a network that was imported without one, for later imports of the same blob with as many threads.

    That needs weights that are packed here as they lie in the blob.
    """
    digests = find_digests(payload)
    packed = None if digests is None else _pack(source, weights, plan)
    if digests is None or packed is None:
        return
    sections, written = packed
    # Not the model: the passes have removed unread nodes, and it was made from this model.
    if {**digest_sections(sections), MODEL: digests[MODEL]} == digests:
        _store_plan(written, digests, workers)


def _store_plan(written: WrittenPlan, digests: Mapping[str, bytes], workers: int) -> None:
    STORE.write(name_blob_plan(digests, workers), pickle.dumps(written))


def _pack(source: NetworkSource, weights: PackedWeights, plan: OpenPlan) -> tuple[dict[str, memoryview], WrittenPlan] | None:
    """Returns the sections, and the plan with its memories in them; None if it cannot be written down."""
    network = source.open()
    memories = Memories(network.initializers, weights)
    try:
        written = write_plan(plan, memories)
    except NotStorableError as error:
        logger.info("network '%s' is exported without its plan: %s", network.name, error)
        return None
    model, external = pack_model(network)
    layout = _Layout([(offset, initializer) for offset, initializer in external.initializers], network.initializers)
    written = replace(written, memories=tuple(layout.place(memories.owners, weights.list_made())))
    index = {
        "inputs": [[spec.name, type_to_json(spec.type)] for spec in source.inputs],
        "outputs": [[spec.name, type_to_json(spec.type)] for spec in source.outputs],
        "signature": plan.sizes.write_signature(()),
        "size": external.size,
        "kept": layout.kept,
        "unpacked": layout.unpacked,
    }
    sections = {
        INDEX: memoryview(json.dumps(index, separators=(",", ":")).encode()),
        MODEL: memoryview(model),
        WEIGHTS: layout.weights.copy_to_memory(),
        PACKED: layout.packed.copy_to_memory(),
    }
    return sections, written


class _Layout:
    """The memories of a plan and the constants of its network in two sections.

    `kept`: [offset in the model's weights, begin, bytes] of each constant in the section `weights`; `unpacked`: the same of each that is
    only in `packed`, and how it is restored.
    """

    def __init__(self, external: list[tuple[int, Initializer]], constants: Mapping[str, Initializer]) -> None:
        """`external`: the constants that are no part of the model, by their offsets."""
        self.packed, self.weights = _Section(), _Section()
        self.kept: list[list[int]] = []
        self.unpacked: list[list[Any]] = []
        self._outside, self._constants = external, constants
        self._offset_of_constant = {id(initializer): offset for offset, initializer in external}

    def place(self, owners: list[Any], packed: list[LazyArray]) -> list[list[Any]]:
        """Lays all out; returns [section, begin, bytes] of each memory. `packed`: all that are packed, in order."""
        spans: dict[int, list[Any]] = {}
        index_of_owner = {id(owner): index for index, owner in enumerate(owners)}
        offsets = [self._find_offset(owner) if isinstance(owner, str) else None for owner in owners]
        read: set[int | None] = set(offsets)
        restored: set[int] = set()
        for lazy in packed:
            if (index := index_of_owner.get(id(lazy))) is not None:
                spans[index] = self._add(self.packed, PACKED, lazy.get())
                offset = self._offset_of_constant.get(id(lazy.constant))
                if offset is not None and offset not in read and (rule := _find_rule(lazy)):
                    read.add(offset)
                    restored.add(offset)
                    self.unpacked.append([offset, *spans[index][1:], *rule])
        begins = {}
        for offset, initializer in self._outside:
            if offset not in restored:
                stored = bytes_of_array(initializer.array)
                begins[offset] = self._add(self.weights, WEIGHTS, stored)
                self.kept.append([offset, *begins[offset][1:]])
        for index, (owner, offset) in enumerate(zip(owners, offsets, strict=True)):
            if index in spans:
                continue
            array = self._constants[owner].array if isinstance(owner, str) else owner
            is_kept = offset is not None and begins[offset][2] == array.nbytes
            spans[index] = begins[offset] if offset is not None and is_kept else self._add(self.packed, PACKED, array)
        return [spans[index] for index in range(len(owners))]

    def _find_offset(self, name: str) -> int | None:
        return self._offset_of_constant.get(id(self._constants[name]))

    def _add(self, section: _Section, name: str, array: Array) -> list[Any]:
        return [name, section.add(array), array.nbytes]


class _Section:
    """Arrays in order, each at a multiple of the alignment."""

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


def _find_rule(lazy: LazyArray) -> list[Any] | None:
    """Returns how a constant is restored from its packed form: shape, whether it is turned, columns of a block. None if it cannot."""
    from hetero_cpu.operators.tiling import ColumnPacking

    constant, make = lazy.constant, lazy.make
    if constant is None or not isinstance(make, ColumnPacking) or constant.dtype != "float32" or len(constant.shape) < 2:
        return None
    return [constant.array.shape, make.is_turned, make.columns]


def read_network(sections: Mapping[str, Any]) -> Network:
    """Returns the network of a payload, with all constants in their own form: those in the section `weights` are views of it.

    Raises: BlobDamagedError, NetworkReadError.
    """
    if INDEX not in sections:
        return unpack_network(sections)
    sections = align_sections(sections)
    weights, packed = view_section(sections, WEIGHTS), view_section(sections, PACKED)
    try:
        pieces, size = _find_pieces(read_index(sections), weights, packed)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise BlobDamagedError(
            f"the blob of CPU has an index that contradicts its sections: {type(error).__name__}: {error}"
        ) from error
    return unpack_model(sections[MODEL], _Pieces(pieces, size))


class _Pieces:
    """The constants of a model by their offsets, wherever each lies; of `size` bytes with the gaps between them."""

    def __init__(self, pieces: Mapping[int, Array], size: int) -> None:
        self._pieces, self._size = pieces, size

    def locate(self, entries: Iterable[Any], size: int, owner: str) -> Callable[[], Array]:
        """Returns a function that gives the bytes of a constant."""
        offset = read_span({entry.key: entry.value for entry in entries}, size, self._size, owner, "the weights section")
        piece = self._pieces.get(offset)
        if piece is None or piece.nbytes != size:
            raise BlobDamagedError(
                f"the blob of CPU has no constant of {size} bytes at {offset}, where {owner} is to lie; export the network again"
            )
        return lambda: piece


def _find_pieces(index: Mapping[str, Any], weights: Array, packed: Array) -> tuple[dict[int, Array], int]:
    """Returns the constants of the model by their offsets, those in `weights` as views, and the bytes up to the end of the last."""
    from hetero_cpu.operators.tiling import restore_columns

    size = int(index["size"])
    # Each constant of at least a KiB leaves less than a cache line unused, and a packed constant is never smaller.
    if not 0 <= size <= 2 * (len(weights) + len(packed)):
        raise ValueError(f"its constants take {size} bytes, of which it has {len(weights)} and {len(packed)}")
    pieces, total = {}, 0
    for offset, begin, nbytes in index["kept"]:
        _check_span(offset, nbytes, size)
        pieces[offset] = _cut(weights, begin, nbytes)
    for offset, begin, nbytes, shape, is_turned, columns in index["unpacked"]:
        own = _cut(packed, begin, nbytes).view(np.float32)
        _check_span(offset, 4 * prod(shape), size)
        total += 4 * prod(shape)
        if total > size:
            raise ValueError(f"its packed constants take {total} bytes of {size}")
        restored = np.empty(shape, np.float32)
        restored[...] = restore_columns(own, tuple(shape), is_turned=is_turned, columns=columns)
        pieces[offset] = restored.reshape(-1).view(np.uint8)
    return pieces, size


def _cut(memory: Array, begin: int, nbytes: int) -> Array:
    _check_span(begin, nbytes, len(memory))
    return memory[begin : begin + nbytes]


def _check_span(begin: int, nbytes: int, size: int) -> None:
    if not 0 <= begin <= begin + nbytes <= size:
        raise ValueError(f"bytes {begin} to {begin + nbytes} of {size}")
