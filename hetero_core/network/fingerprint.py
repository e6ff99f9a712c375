"""The fingerprint of a network: one digest over all that shapes its results.

It is the same in every process and after writing and reading, packing and unpacking. Left out are affinity, metadata, origins,
original names, the names of graphs, and the IR version. Imports no onnx and, but for arrays, no NumPy.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_core.network.arrays import digest_array
from hetero_core.network.border import Border

if TYPE_CHECKING:
    from hashlib import _Hash

    from hetero_core.network.graph import Graph, Network, Node

_FLOAT32_END = 3.4028235677973366e38
"""Half a step above the largest float32."""
_FORMAT = b"hetero network 1\n"


def fingerprint_network(network: Network) -> str:
    """Returns the SHA-256, in hex, over nodes in order, values, types, opsets, attributes and the contents of all constants.

    Cost: reads every constant once; each one's digest is kept, so that parts of the network are cheap after the whole.
    """
    from hashlib import sha256  # OpenSSL, which most loads do without

    digest = sha256(_FORMAT)
    _feed_graph(digest, network)
    if network.border.shapes_runs:
        _feed_border(digest, network.border)
    return digest.hexdigest()


def _feed_border(digest: _Hash, border: Border) -> None:
    for state in border.states:
        _feed_texts(digest, "state", (state.output, state.input))
        _feed(digest, "d", state.initial.digest)
    for name, constant in border.defaults.items():
        _feed_texts(digest, "default", [name])
        _feed(digest, "d", constant.digest)
    _feed_texts(digest, "bounds", (f"{name}={border.bounds[name]}" for name in sorted(border.bounds)))


def _feed(digest: _Hash, kind: str, content: bytes) -> None:
    """Feeds one item; its kind and length go first, so that no two sequences of items give the same bytes."""
    digest.update(f"{kind}{len(content)}:".encode())
    digest.update(content)


def _feed_texts(digest: _Hash, kind: str, texts: Iterable[str]) -> None:
    items = list(texts)
    _feed(digest, kind, str(len(items)).encode())
    for text in items:
        _feed(digest, "t", text.encode("utf-8", "surrogatepass"))


def _feed_graph(digest: _Hash, graph: Graph) -> None:
    _feed_texts(digest, "inputs", (spec.name for spec in graph.inputs))
    _feed_texts(digest, "outputs", (spec.name for spec in graph.outputs))
    types = {spec.name: spec.type for spec in (*graph.inputs, *graph.outputs)} | dict(graph.types)
    _feed_texts(digest, "types", (f"{value}={types[value]}" for value in sorted(types)))
    for value in sorted(graph.initializers):
        _feed_texts(digest, "constant", [value])
        _feed(digest, "d", graph.initializers[value].digest)
    _feed(digest, "nodes", str(len(graph.nodes)).encode())
    for node in graph.nodes:
        _feed_node(digest, node)


def _feed_node(digest: _Hash, node: Node) -> None:
    # The operator names the version that counts: another opset with the same operator is the same.
    _feed_texts(digest, "node", (node.name, node.operator))
    _feed_texts(digest, "reads", node.inputs)
    _feed_texts(digest, "writes", node.outputs)
    for key in sorted(node.attributes):
        _feed_texts(digest, "attribute", [key])
        _feed_value(digest, node.attributes[key])


def _feed_value(digest: _Hash, value: Any) -> None:
    if hasattr(value, "initializers"):  # a Graph, whose file stands below this one
        _feed(digest, "graph", b"")
        _feed_graph(digest, value)
    elif isinstance(value, tuple):
        _feed(digest, "list", str(len(value)).encode())
        for each in value:
            _feed_value(digest, each)
    elif isinstance(value, (str, bytes)):
        _feed(digest, "text", value if isinstance(value, bytes) else value.encode("utf-8"))
    elif isinstance(value, float):
        # ONNX stores 32 bits; what they cannot hold becomes an infinity.
        _feed(digest, "float", struct.pack("<f", value if not abs(value) >= _FLOAT32_END else math.copysign(math.inf, value)))
    elif isinstance(value, int):
        _feed(digest, "int", str(int(value)).encode())
    else:
        _feed_other(digest, value)


def _feed_other(digest: _Hash, value: Any) -> None:
    if isinstance(value, np.ndarray):
        _feed(digest, "array", digest_array(value))
    elif isinstance(value, np.generic):
        _feed_value(digest, value.item())
    else:
        _feed(digest, "type", str(value).encode())
