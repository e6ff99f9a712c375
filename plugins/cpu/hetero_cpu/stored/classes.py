"""The plans of earlier processes for a network with open sizes. Imports nothing of a plan before one is read or kept."""

from __future__ import annotations

import logging
import pickle
import threading
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from hetero_core.blobs.store import STORE, name_entry
from hetero_cpu.machine.compiler import COMPILER, describe_environment
from hetero_cpu.machine.interpreter import list_interpreters
from hetero_cpu.run.plans import PlanInUse
from hetero_cpu.symbols.size_class import Signature, SizeClass

if TYPE_CHECKING:
    from hetero_core.network.graph import Network
    from hetero_cpu.operators.weights import PackedWeights
    from hetero_cpu.source import NetworkSource
    from hetero_cpu.stored.plans import WrittenPlan

logger = logging.getLogger(__name__)

KIND, _MARK_KIND = "classes", "marks"
_MOST_PLANS = 16
"""Of one network."""
_MOST_CONSTANTS = 1 << 30
"""Bytes of constants of a network whose plans are kept: to read more takes longer than to plan."""


class StoredClasses:
    """The stored plans of one network. Safe for threads."""

    def __init__(self, source: NetworkSource, weights: PackedWeights, workers: int) -> None:
        """`weights`: the owner of packed arrays."""
        self._source, self._weights, self._workers = source, weights, workers
        self._lock = threading.Lock()
        self._pending: list[WrittenPlan] | None = None

    @property
    def _network(self) -> Network:
        return self._source.open()

    @cached_property
    def _is_too_large(self) -> bool:
        return sum(constant.nbytes for constant in self._network.initializers.values()) > _MOST_CONSTANTS

    def find(self, signature: Signature) -> PlanInUse | None:
        """Returns the plan of a class that input shapes belong to; each plan is returned once.

        None if no plan is stored, or a kernel is missing.
        """
        with self._lock:
            for written in self._list_pending():
                if SizeClass(written.form).match(signature) is not None:
                    self._list_pending().remove(written)
                    return self._open(written)
        return None

    def open_all(self) -> list[PlanInUse]:
        """Returns the plans of all classes that `find` has not returned, as it does."""
        with self._lock:
            pending, self._pending = self._list_pending(), []
            opened = [self._open(written) for written in pending]
        return [in_use for in_use in opened if in_use is not None]

    def keep(self, in_use: PlanInUse, signature: Signature) -> None:
        """Keeps a plan that was made here for input shapes; the log says so if that is not possible."""
        from hetero_cpu.stored.plans import Memories, NotStorableError, write_plan

        constants = self._network.initializers
        try:
            if self._is_too_large:
                raise NotStorableError("it has more than a gigabyte of constants")
            memories = Memories(constants, self._weights)
            written = write_plan(in_use.opened, memories, self._network)
            written = replace(written, memories=memories.describe())
        except NotStorableError as error:
            logger.info("network '%s': the plan of a class is not kept: %s", self._network.name, error)
            return
        with self._lock:
            # A plan of the same class is there if its kernels were not.
            others = [other for other in self._read() if SizeClass(other.form).match(signature) is None]
            STORE.write(self._name, pickle.dumps([*others, written][-_MOST_PLANS:]))
            STORE.write(self._mark, b"")

    def _list_pending(self) -> list[WrittenPlan]:
        """Returns the plans that are not opened yet."""
        if self._pending is None:
            self._pending = [] if self._is_too_large else self._read()
        return self._pending

    def _read(self) -> list[WrittenPlan]:
        # Without a mark no process has stored plans of such a network, and no constant is read to find its name.
        content = None if STORE.read(self._mark) is None else STORE.read(self._name)
        return [] if content is None else pickle.loads(content)  # of the private store, as trusted as machine code

    @cached_property
    def _name(self) -> str:
        """The name of the entry with the plans. The fingerprint takes 33 ms for 60 MB of constants."""
        name = name_entry(KIND, *self._shaped_by, self._network.fingerprint)
        for constant in self._network.initializers.values():
            constant.drop_pages()
        return name

    @cached_property
    def _mark(self) -> str:
        """The name of an empty entry beside the plans of all networks that differ in nothing but what their constants hold."""
        types = {name: constant.type for name, constant in self._network.initializers.items()}
        return name_entry(_MARK_KIND, *self._shaped_by, repr(types))

    @cached_property
    def _shaped_by(self) -> tuple[str, ...]:
        # A plan tells of its nodes.
        return describe_environment(), f"{self._workers}", repr([node.origins for node in self._network.nodes])

    def _open(self, written: WrittenPlan) -> PlanInUse | None:
        if not COMPILER.load_stored((*written.list_kernels(), *list_interpreters(self._workers))):
            return None
        from hetero_cpu.stored.plans import open_memories, read_plan

        constants = self._network.initializers
        find_memory = open_memories(written, constants, self._weights, self._workers)
        return PlanInUse(read_plan(written, find_memory, self._network))
