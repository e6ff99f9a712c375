"""The plans beside blobs: each in the user's private folder, by the content of its blob, with its memories in the blob's sections.

What is in such a file steers machine code, so it is kept where kernels are, and trusted as these are (`stored/stored_form.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from hetero_core.blobs.private_cache import find_private_folder
from hetero_core.errors import HeteroError
from hetero_cpu.machine.compiler import COMPILER, describe_environment
from hetero_cpu.machine.digested_files import read_digested_file, write_digested_file
from hetero_cpu.machine.interpreter import list_interpreters
from hetero_cpu.payload_index import PACKED, WEIGHTS, read_signature, read_specs, view_section
from hetero_cpu.planning.plans_in_use import OpenPlanInUse
from hetero_cpu.planning.weights import LaterArray
from hetero_cpu.stored.stored_form import FAULTS, Form, check_bounds, read_class, read_plan, read_text
from hetero_cpu.stored.stored_values import ValueReader, ValueWriter, read_count, require

Array = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

FOLDER = "cpu-plans"
MEMORIES = (WEIGHTS, PACKED)
"""The sections that memories of plans lie in."""


def make_key(digests: Mapping[str, bytes], workers: int) -> str:
    """Returns the name of a plan: a digest over the sections of its blob, the threads, LLVM, the processor and the code that plans."""
    digest = sha256(f"{describe_environment()} {workers}".encode())
    for name, content_digest in sorted(digests.items()):
        digest.update(sha256(name.encode()).digest() + content_digest)
    return digest.hexdigest()[:40]


class SectionWriter(ValueWriter):
    """Writes values of which every memory is to lie in a section; `owners` are a constant's name, packed weights or an array for each."""

    most_bytes = 1 << 62

    def __init__(self, *own: Any) -> None:
        super().__init__(*own)
        self.owners: list[str | LaterArray | Array] = []

    def describe(self, owner: Any) -> None:
        """Notes the memory; whoever lays the sections says where it is."""
        self.owners.append(owner)


class SectionReader(ValueReader):
    """Reads values whose memories are spans of sections: [section, begin, bytes]."""

    def __init__(self, memories: Sequence[Any], sections: Mapping[str, Array]) -> None:
        self._sections = sections
        super().__init__(memories)

    def open_memory(self, described: Any) -> Array:
        """Returns the bytes of a memory."""
        name, begin, nbytes = described
        section = self._sections[read_text(name)]
        require(read_count(begin) + read_count(nbytes) <= len(section), f"bytes {begin} and {nbytes} more of {len(section)}")
        return section[begin : begin + nbytes]


def write_blob_plan(key: str, form: Form) -> None:
    """Stores a plan; if that fails, a warning says so and the next import plans again."""
    content = json.dumps(form, separators=(",", ":")).encode()
    try:
        write_digested_file(f"{find_private_folder(FOLDER)}/{key}.json", content)
    except (OSError, HeteroError) as error:
        logger.warning("cannot keep a plan: %s", error)


def find_blob_plan(key: str, sections: Mapping[str, Any], index: Mapping[str, Any], workers: int) -> OpenPlanInUse | None:
    """Returns the plan of this name for a blob with an index, its kernels loaded; None where there is none, or only a damaged one.

    `sections` are aligned: the plan reads weights where they lie in them.
    """
    try:
        path = f"{find_private_folder(FOLDER)}/{key}.json"
    except (FileNotFoundError, HeteroError):
        return None
    content = read_digested_file(path, "the network is planned again")
    if content is None:
        return None
    try:
        form, names = json.loads(content), tuple(spec.name for spec in read_specs(index, "inputs"))
        sizes = read_class(form, len(names))
        products = sizes.match(read_signature(index))
        if products is None:
            raise ValueError("its inputs have other shapes")
        reader = SectionReader(form["memories"], {name: view_section(sections, name) for name in MEMORIES})
        plan = read_plan(form, sizes, reader, names)
        check_bounds(plan, products)
    except FAULTS as error:
        logger.warning("'%s' holds no plan (%s: %s); the network is planned again", path, type(error).__name__, error)
        return None
    kernels = (*(call.kernel for call in plan.calls), *plan.plan.kernels, *list_interpreters(workers))
    if not COMPILER.load_stored(tuple(dict.fromkeys(kernels))):
        return None
    return OpenPlanInUse(plan)
