"""The name of a plan of machine code: a digest of what it is made from.

That is the network, the number of threads, the processor, LLVM and this package's code. The functions that plan give the same result each
time, so nothing has to be planned for the name.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np

from hetero_core.network.graph import Graph, Network
from hetero_core.network.initializers import Initializer
from hetero_cpu.machine.compiler import describe_environment
from hetero_cpu.machine.sources import list_sources

_LITTLE_BYTES = 256
"""Of a constant: up to so many its elements may decide what is planned; of a larger one only its type does."""


def name_plan(network: Network, workers: int) -> str:
    """Returns the name. Cost: some microseconds for each node."""
    digest = sha256(f"{describe_environment()} {_stamp_sources()} {workers}".encode())
    for part in _describe_graph(network):
        digest.update(part)
    return digest.hexdigest()[:40]


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
