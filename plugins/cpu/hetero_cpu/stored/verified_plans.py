"""The list of plans of machine code that were verified on this machine: empty files in the user's private folder, each named by its plan.

A plan is made from the network for one set of shapes, the number of threads, the processor, LLVM and this package's code, by functions that
give the same result each time; so a digest over these names it, and nothing has to be planned or bound for it.
"""

from __future__ import annotations

import logging
import marshal
import os
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.blobs.private_cache import find_private_folder, open_private_folder
from hetero_core.errors import HeteroError
from hetero_core.hashing import sha256
from hetero_core.network.graph import Graph, Network
from hetero_core.network.initializers import Initializer
from hetero_cpu.machine.compiler import describe_environment
from hetero_cpu.machine.sources import list_sources

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER = "cpu-verified"
MOST_MARKS = 10_000
"""Files in the folder; beyond that the older half is removed. Networks of open sizes have a plan for each set of sizes."""
_LITTLE_BYTES = 256
"""Of a constant: up to so many its elements may decide what is planned; of a larger one only its type does."""


def name_plan(network: Network, workers: int) -> str:
    """Returns the name of the plan of a network whose shapes are known. Cost: some microseconds for each node."""
    digest = sha256(f"{describe_environment()} {_stamp_sources()} {workers}".encode())
    for part in _describe_graph(network):
        digest.update(part)
    return digest.hexdigest()[:40]


def is_verified(name: str) -> bool:
    """Says whether the plan of this name was noted."""
    try:
        return os.path.exists(os.path.join(find_private_folder(FOLDER), name))
    except (OSError, HeteroError):
        return False


def note_verified(name: str) -> None:
    """Notes that the plan of this name is right; where that fails, the log says so and the next process verifies it again."""
    try:
        folder = open_private_folder(FOLDER)
        (folder / name).touch()
        marks = list(folder.iterdir())
        if len(marks) > MOST_MARKS:
            for mark in sorted(marks, key=_read_time)[: len(marks) // 2]:
                mark.unlink(missing_ok=True)
    except (OSError, HeteroError) as error:
        logger.warning("cannot note that a plan was verified: %s", error)


def _read_time(mark: Path) -> tuple[float, str]:
    try:
        return mark.stat().st_mtime, mark.name
    except FileNotFoundError:  # another process removes, too
        return 0.0, mark.name


@cache
def _stamp_sources() -> str:
    """Returns sizes and times of the files that plan and transform, beside those of which `describe_environment` is a digest."""
    from hetero_core import transforms  # only a plan that is made here is named

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    stamps = ((entry.name, entry.stat()) for folder in (package, transforms.__path__[0]) for entry in list_sources(folder))
    return " ".join(f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in stamps)


def _describe_graph(graph: Graph) -> Iterator[bytes]:
    from hetero_cpu.planning.alike import AS_WRITTEN  # as above

    yield repr([(spec.name, str(spec.type)) for spec in (*graph.inputs, *graph.outputs)]).encode()
    for name, constant in graph.initializers.items():
        yield _describe_constant(name, constant)
    described = [(node.op_type, node.domain, node.since_version, node.inputs, node.outputs) for node in graph.nodes]
    yield marshal.dumps(described, AS_WRITTEN)
    for index, node in enumerate(graph.nodes):
        if node.attributes:
            yield f"{index}".encode()
            for key, value in node.attributes.items():
                yield from _describe_attribute(key, value)


def _describe_constant(name: str, constant: Initializer) -> bytes:
    description = f"{name} {constant.dtype} {constant.shape}".encode()
    is_little = constant.nbytes is not None and constant.nbytes <= _LITTLE_BYTES and constant.dtype != "string"
    return description + constant.array.tobytes() if is_little else description


def _describe_attribute(key: str, value: Any) -> Iterator[bytes]:
    if isinstance(value, Graph):
        yield key.encode()
        yield from _describe_graph(value)
    elif isinstance(value, np.ndarray):
        yield f"{key} {value.dtype} {value.shape}".encode() + (
            value.tobytes() if not value.dtype.hasobject else repr(value).encode()
        )
    else:
        yield repr((key, value)).encode()
