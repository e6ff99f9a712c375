"""The plans of classes of sizes that earlier processes have made: files of JSON behind their digest in the user's private folder.

A file is named by what the plan depends on beside constants: the network after its passes, the number of threads, the processor,
LLVM, and the code that plans. It holds a digest of all constants, too. What is in it steers machine code, so it is kept where kernels are,
and trusted as these are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hetero_core.blobs.private_cache import open_private_folder
from hetero_core.errors import HeteroError
from hetero_core.network.graph import Network
from hetero_core.network.initializers import Initializer
from hetero_cpu.machine.compiler import COMPILER
from hetero_cpu.machine.digested_files import read_digested_file, write_digested_file
from hetero_cpu.machine.interpreter import list_interpreters
from hetero_cpu.open.size_class import SizeClass
from hetero_cpu.planning.plans_in_use import OpenPlanInUse
from hetero_cpu.planning.signature import Signature
from hetero_cpu.planning.weights import PackedWeights
from hetero_cpu.stored.plan_names import name_plan
from hetero_cpu.stored.stored_form import FAULTS, Form, check_bounds, open_kernel, read_class, read_plan
from hetero_cpu.stored.stored_values import NetworkReader, NotStorableError, ValueWriter

logger = logging.getLogger(__name__)

FOLDER = "cpu-classes"
_MOST_PLANS = 16
"""Of one network."""
_MOST_FILES = 1000
_MOST_CONSTANTS = 1 << 30
"""Bytes of constants of a network whose plans are kept: to read more takes longer than to plan."""


class StoredClasses:
    """The stored plans of one network. Safe for threads."""

    def __init__(self, network: Network, weights: PackedWeights, workers: int) -> None:
        """`network`: after the passes that do not ask for sizes; `weights`: where what is packed is held."""
        self._network, self._weights, self._workers = network, weights, workers
        self._lock = threading.Lock()
        self._pending: list[tuple[Path, Form, SizeClass]] | None = None
        self._content = ""

    def find(self, signature: Signature) -> OpenPlanInUse | None:
        """Returns the plan of a class that input shapes belong to; each plan is returned once.

        None if there is none, or not all of its kernels are there.
        """
        with self._lock:
            pending = self._list_pending()
            for index, own in enumerate(pending):
                if own[2].match(signature) is not None:
                    del pending[index]
                    return self._open(*own, signature)
        return None

    def open_all(self) -> list[OpenPlanInUse]:
        """Returns the plans of all classes that `find` has not returned, as it does."""
        with self._lock:
            pending, self._pending = self._list_pending(), []
            opened = [self._open(*own, None) for own in pending]
        return [in_use for in_use in opened if in_use is not None]

    def keep(self, in_use: OpenPlanInUse, signature: Signature) -> None:
        """Keeps a plan that was made here for input shapes; the log says so where that is not possible."""
        from hetero_cpu.stored.form_writing import write_form  # most loads write no plan

        try:
            if sum(constant.nbytes for constant in self._network.initializers.values()) > _MOST_CONSTANTS:
                raise NotStorableError("it has more than a gigabyte of constants")
            constants = self._network.initializers
            form = write_form(in_use.opened, ValueWriter(constants, self._weights.serve(constants)), self._network)
            with self._lock:
                form |= {"content": self._digest_content(), "example": signature}
                paths = self._list_paths()
                path = next((path for path in paths if not path.exists()), None) or next(filter(self._is_foreign, paths), None)
                if path is not None:
                    write_digested_file(path, json.dumps(form, separators=(",", ":")).encode())
                    _remove_oldest(path.parent)
        except (NotStorableError, *FAULTS) as error:
            logger.info("network '%s': the plan of a class is not kept: %s", self._network.name, error)
        except (OSError, HeteroError) as error:
            logger.warning("cannot keep a plan: %s", error)

    def _list_pending(self) -> list[tuple[Path, Form, SizeClass]]:
        """Returns the plans that are not opened yet."""
        if self._pending is not None:
            return self._pending
        self._pending = pending = []
        for path in self._list_paths():
            content = read_digested_file(path, "the network is planned again")
            if content is None:
                continue
            try:
                form = json.loads(content)
                if form["content"] == self._digest_content():
                    pending.append((path, form, read_class(form, len(self._network.inputs))))
            except FAULTS as error:
                _drop(path, error)
        return pending

    def _open(self, path: Path, form: Form, sizes: SizeClass, signature: Signature | None) -> OpenPlanInUse | None:
        """Returns a plan after it was checked for input shapes, where they are None those that it was made for."""
        try:
            kernels = [open_kernel(name) for name in dict.fromkeys(name for name, _ in form["calls"])]
            if not COMPILER.load_stored((*kernels, *list_interpreters(self._workers))):
                path.unlink(missing_ok=True)
                return None
            constants = self._network.initializers
            reader = NetworkReader(form["memories"], constants, self._weights.serve(constants))
            if self._workers > 1:
                # Reading packs one weight after the other.
                self._weights.pack_all(self._workers)
            plan = read_plan(form, sizes, reader, tuple(spec.name for spec in self._network.inputs), self._network)
            products = sizes.match(tuple(map(tuple, form["example"])) if signature is None else signature)
            if products is None:
                raise ValueError("it was made for sizes that are not of its class")
            check_bounds(plan, products)
            if not COMPILER.load_stored(plan.plan.kernels):
                return None
            return OpenPlanInUse(plan)
        except FAULTS as error:
            _drop(path, error)
            return None

    def _list_paths(self) -> list[Path]:
        try:
            folder = open_private_folder(FOLDER)
        except (OSError, HeteroError) as error:
            logger.warning("plans are not kept: %s", error)
            return []
        name = name_plan(self._network, self._workers)
        return [folder / f"{name}-{number}.json" for number in range(_MOST_PLANS)]

    def _is_foreign(self, path: Path) -> bool:
        """Says whether a plan is damaged, or of a network with other constants."""
        content = read_digested_file(path, "it is written again")
        return content is None or json.loads(content).get("content") != self._content

    def _digest_content(self) -> str:
        """Returns a digest of all constants and of the names of nodes."""
        if not self._content:
            digest = hashlib.sha256()
            for name, constant in self._network.initializers.items():
                digest.update(f"{name} {constant.dtype} {constant.shape}".encode())
                _add_elements(digest, constant)
            for node in self._network.nodes:
                digest.update(repr((node.name, node.origins)).encode())
            self._content = digest.hexdigest()
        return self._content


def _add_elements(digest: Any, constant: Initializer) -> None:
    array = constant.array
    if array.dtype.hasobject:
        digest.update(repr(array.tolist()).encode())
        return
    # Some 33 ms for 60 MB. Sums would take 3, but a network with the same ones would get constants that were made of another's.
    digest.update(array.reshape(-1).view(np.uint8))
    if array.nbytes > ValueWriter.most_bytes:
        constant.drop_pages()


def _drop(path: Path, error: Exception) -> None:
    logger.warning("'%s' holds no plan (%s: %s); the network is planned again", path, type(error).__name__, error)
    path.unlink(missing_ok=True)


def _remove_oldest(folder: Path) -> None:
    """Removes the older half of the files where there are too many."""
    stamps = []
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):  # another process may have removed it meanwhile
            stamps.append((path.stat().st_mtime, path))
    if len(stamps) > _MOST_FILES:
        for _, path in sorted(stamps)[: len(stamps) // 2]:
            path.unlink(missing_ok=True)
