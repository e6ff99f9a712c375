"""The plans of classes of sizes that earlier processes have made: one entry of the private store for each network.

The entry is named by a digest of all that plans depend on: the network after its passes with all of its constants, the number of threads,
the processor, LLVM, and the code that plans. The functions that plan give the same result each time, so nothing is planned for the name.
"""

from __future__ import annotations

import logging
import pickle
import threading
from dataclasses import replace

from hetero_core.blobs.store import STORE, name_entry
from hetero_core.network.graph import Network
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
        if not self._name:
            # A plan tells of its nodes. The fingerprint takes 33 ms for 60 MB of constants.
            origins = [node.origins for node in self._network.nodes]
            shaped_by = (describe_environment(), f"{self._workers}", self._network.fingerprint, repr(origins))
            self._name = name_entry(KIND, *shaped_by)
            for constant in self._network.initializers.values():
                constant.drop_pages()
        content = STORE.read(self._name)
        return [] if content is None else pickle.loads(content)  # of the private store, where machine code is as well

    def _open(self, written: WrittenPlan) -> OpenPlanInUse | None:
        if not COMPILER.load_stored((*written.list_kernels(), *list_interpreters(self._workers))):
            return None
        constants = self._network.initializers
        find_memory = open_memories(written, constants, self._weights.serve(constants), self._workers)
        return OpenPlanInUse(read_plan(written, find_memory, self._network))
