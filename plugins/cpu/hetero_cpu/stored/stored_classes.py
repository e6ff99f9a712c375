"""The plans of classes of sizes that earlier processes have made: one entry of the private store for each network.

The entry is named by a digest of all that plans depend on: the network after its passes with all of its constants, the number of threads,
the processor, LLVM, and the code that plans. The functions that plan give the same result each time, so nothing is planned for the name.
"""

from __future__ import annotations

import hashlib
import logging
import marshal
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_core.blobs.store import STORE, name_entry
from hetero_core.network.graph import Graph, Network
from hetero_core.network.initializers import Initializer
from hetero_cpu.machine.compiler import COMPILER, describe_environment
from hetero_cpu.machine.interpreter import list_interpreters
from hetero_cpu.open.size_class import SizeClass
from hetero_cpu.planning.plans_in_use import OpenPlanInUse
from hetero_cpu.planning.signature import Signature
from hetero_cpu.planning.weights import PackedWeights
from hetero_cpu.stored.plans import Memories, NotStorableError, WrittenPlan, open_memories, read_plan, write_plan

logger = logging.getLogger(__name__)

KIND = "classes"
_MOST_PLANS = 16
"""Of one network."""
_MOST_CONSTANTS = 1 << 30
"""Bytes of constants of a network whose plans are kept: to read more takes longer than to plan."""
_LARGE_BYTES = 1 << 18
"""Of a constant whose pages are given back to the system after it was digested."""


class StoredClasses:
    """The stored plans of one network. Safe for threads."""

    def __init__(self, network: Network, weights: PackedWeights, workers: int) -> None:
        """`network`: after the passes that do not ask for sizes; `weights`: where what is packed is held."""
        self._network, self._weights, self._workers = network, weights, workers
        self._lock = threading.Lock()
        self._name = ""
        self._pending: list[WrittenPlan] | None = None
        self._is_too_large = sum(constant.nbytes for constant in network.initializers.values()) > _MOST_CONSTANTS

    def find(self, signature: Signature) -> OpenPlanInUse | None:
        """Returns the plan of a class that input shapes belong to; each plan is returned once.

        None if there is none, or not all of its kernels are there.
        """
        with self._lock:
            for written in self._list_pending():
                if SizeClass(written.form).match(signature) is not None:
                    self._list_pending().remove(written)
                    return self._open(written)
        return None

    def open_all(self) -> list[OpenPlanInUse]:
        """Returns the plans of all classes that `find` has not returned, as it does."""
        with self._lock:
            pending, self._pending = self._list_pending(), []
            opened = [self._open(written) for written in pending]
        return [in_use for in_use in opened if in_use is not None]

    def keep(self, in_use: OpenPlanInUse, signature: Signature) -> None:
        """Keeps a plan that was made here for input shapes; the log says so if that is not possible."""
        constants = self._network.initializers
        try:
            if self._is_too_large:
                raise NotStorableError("it has more than a gigabyte of constants")
            memories = Memories(constants, self._weights.serve(constants))
            written = write_plan(in_use.opened, memories, self._network)
            written = replace(written, memories=memories.describe())
        except NotStorableError as error:
            logger.info("network '%s': the plan of a class is not kept: %s", self._network.name, error)
            return
        with self._lock:
            # A plan of the same class is there if its kernels were not.
            others = [other for other in self._read() if SizeClass(other.form).match(signature) is None]
            STORE.write(self._name, pickle.dumps([*others, written][-_MOST_PLANS:]))

    def _list_pending(self) -> list[WrittenPlan]:
        """Returns the plans that are not opened yet."""
        if self._pending is None:
            self._pending = [] if self._is_too_large else self._read()
        return self._pending

    def _read(self) -> list[WrittenPlan]:
        self._name = self._name or name_entry(KIND, *_describe_network(self._network, self._workers))
        content = STORE.read(self._name)
        return [] if content is None else pickle.loads(content)  # of the private store, where machine code is as well

    def _open(self, written: WrittenPlan) -> OpenPlanInUse | None:
        if not COMPILER.load_stored((*written.list_kernels(), *list_interpreters(self._workers))):
            return None
        constants = self._network.initializers
        find_memory = open_memories(written, constants, self._weights.serve(constants), self._workers)
        return OpenPlanInUse(read_plan(written, find_memory, self._network))


def _describe_network(network: Network, workers: int) -> Iterator[str | bytes]:
    """Yields what shapes the plans of a network. Cost: some microseconds for each node, 33 ms for 60 MB of constants."""
    yield f"{describe_environment()} {workers}"
    yield from _describe_graph(network)
    # A plan tells of its nodes.
    yield repr([(node.name, node.origins) for node in network.nodes])
    digest = hashlib.sha256()
    for constant in network.initializers.values():
        _add_elements(digest, constant)
    yield digest.digest()


def _describe_graph(graph: Graph) -> Iterator[bytes]:
    from hetero_cpu.planning.alike import AS_WRITTEN  # only a plan that is made here is named

    yield repr([(spec.name, str(spec.type)) for spec in (*graph.inputs, *graph.outputs)]).encode()
    yield repr([(name, constant.dtype, constant.shape) for name, constant in graph.initializers.items()]).encode()
    described = [(node.op_type, node.domain, node.since_version, node.inputs, node.outputs) for node in graph.nodes]
    yield marshal.dumps(described, AS_WRITTEN)
    for index, node in enumerate(graph.nodes):
        if node.attributes:
            yield f"{index}".encode()
            for key, value in node.attributes.items():
                yield from _describe_attribute(key, value)


def _describe_attribute(key: str, value: Any) -> Iterator[bytes]:
    if isinstance(value, Graph):
        yield key.encode()
        yield from _describe_graph(value)
        for constant in value.initializers.values():
            yield repr(constant.array.tolist()).encode()
    elif isinstance(value, np.ndarray):
        yield f"{key} {value.dtype} {value.shape}".encode() + (
            value.tobytes() if not value.dtype.hasobject else repr(value.tolist()).encode()
        )
    else:
        yield repr((key, value)).encode()


def _add_elements(digest: Any, constant: Initializer) -> None:
    array = constant.array
    if array.dtype.hasobject:
        digest.update(repr(array.tolist()).encode())
        return
    digest.update(array.reshape(-1).view(np.uint8))
    if array.nbytes > _LARGE_BYTES:
        constant.drop_pages()
