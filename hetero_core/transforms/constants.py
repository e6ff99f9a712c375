"""Two passes: constant folding, and removal of nodes and constants that are never read.

The pass computes nothing itself: the device gives the function, so that a folded value is the value that the device would compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero_core.limits import FOLDED_FLOOR, FOLDED_TIMES
from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import sizes_of
from hetero_core.transforms.rewrite import Replacement, replace_nodes

Constants = Mapping[str, Initializer]
Evaluate = Callable[[Node, tuple[Any, ...]], tuple[Any, ...] | None]
"""Computes a node from the arrays of its inputs, None if absent; returns arrays by position, None if it cannot."""

RANDOM_OPERATORS = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators with results that differ from run to run, so they are never folded."""

LARGEST_GROWTH = 1 << 20
"""Largest growth in bytes, results over inputs, of a node that is folded."""

_MOST_ELEMENTS = 1 << 48
"""Elements of a stand-in: no array has more."""

LARGEST_KEPT = 1 << 16
"""Bytes from which on a result is computed again rather than kept in memory between uses."""


def limit_folding(network: Network) -> int:
    """Returns how many bytes may be made of the network's constants ahead of its runs: a multiple of their size, and a floor."""
    return FOLDED_FLOOR + FOLDED_TIMES * sum(constant.nbytes for constant in network.initializers.values())


def fold_constants(
    network: Network, evaluate: Evaluate, *, is_kept: Callable[[Node, Network], bool] | None = None, room: int | None = None
) -> Network:
    """Returns the network with nodes that read nothing but constants replaced by their results, unless `is_kept`; a single sweep.

    A node stays when it is random, has a body, makes an output of the network, or makes more than 1 MiB out of less: a small
    network stays small. So does a node with which all results together would
    take more than `room` bytes, by default `limit_folding`. The shape of a value that is known counts as constant.
    """
    room = limit_folding(network) if room is None else room
    constants: dict[str, Initializer] = dict(network.initializers)

    def find(node: Node) -> Replacement | None:
        nonlocal room
        # Most nodes read elements that only a run knows: nothing else is asked about them.
        is_open = node.op_type not in ("Shape", "Size") and any(name and name not in constants for name in node.inputs)
        if is_open or (is_kept and is_kept(node, network)):
            return None
        results = fold_node(node, network, constants, evaluate, type_of=network.type_of, room=room)
        if results is None:
            return None
        room -= sum(constant.nbytes for constant in results.values())
        constants.update(results)
        return Replacement((), {value: constant.type for value, constant in results.items()}, results)

    folded = replace_nodes(network, find)
    return network if folded is network else drop_unread(folded)


def fold_node(
    node: Node, network: Network, constants: Constants, evaluate: Evaluate, *, type_of: Callable[[str], Any], room: int
) -> dict[str, Initializer] | None:
    """Returns a node's results by name, if it reads only `constants` or the shape of a value that `type_of` knows.

    None if the node stays (see `fold_constants`), or if its results would take more than `room` bytes.
    """
    is_random = node.op_type in RANDOM_OPERATORS and not node.domain
    if is_random or node.bodies or not network.names_of_outputs.isdisjoint(node.writes):
        return None
    if node.op_type in ("Shape", "Size") and not node.domain and len(node.inputs) == 1 and node.inputs[0] not in constants:
        sizes = sizes_of(type_of(node.inputs[0]))
        if sizes is None or prod(sizes) > _MOST_ELEMENTS:
            return None
        part = sizes[node.attributes.get("start", 0) : node.attributes.get("end")]
        return {node.outputs[0]: Initializer.of_array(np.array(prod(sizes) if node.op_type == "Size" else part, np.int64))}
    if any(name and name not in constants for name in node.inputs):
        return None
    inputs = tuple(constants[name].array if name else None for name in node.inputs)
    results = evaluate(node, inputs)
    arrays = {} if results is None else {name: array for name, array in zip(node.outputs, results, strict=False) if name}
    # Sequences and absent optionals are no constants; a kernel that returned less than it was asked for is for the device to report.
    if set(arrays) != set(node.writes) or any(not hasattr(array, "dtype") for array in arrays.values()):
        return None
    nbytes = sum(array.nbytes for array in arrays.values())
    if nbytes > room or nbytes > max(sum(array.nbytes for array in inputs if array is not None), LARGEST_GROWTH):
        return None
    return {value: _keep_result(node, value, array, constants, evaluate) for value, array in arrays.items()}


def _keep_result(node: Node, value: str, array: Any, constants: Constants, evaluate: Evaluate) -> Initializer:
    """Returns the constant that a node made; a large constant is recomputed on demand instead of being stored."""
    initializer = Initializer.of_array(array)
    if initializer.nbytes < LARGEST_KEPT:
        return initializer
    sources = {name: constants[name] for name in node.reads}

    def load() -> Any:
        results = evaluate(node, tuple(sources[name].array if name else None for name in node.inputs))
        for source in sources.values():
            source.release()
        assert results is not None, f"node {node.label} cannot be computed a second time"
        return results[node.outputs.index(value)]

    for source in sources.values():
        source.release()
    return Initializer(initializer.dtype, initializer.shape, load, is_renewable=True, array=array)


def drop_unread(network: Network) -> Network:
    """Returns the network without the nodes and constants that no output depends on; random nodes go, too."""
    read = set(network.names_of_outputs)
    read_nodes: list[Node] = []
    for node in reversed(network.nodes):
        if read.isdisjoint(node.writes):
            continue
        read_nodes.append(node)
        read.update(node.reads)
    initializers = {name: value for name, value in network.initializers.items() if name in read}
    if len(read_nodes) == len(network.nodes) and len(initializers) == len(network.initializers):
        return network
    return replace(network, nodes=tuple(reversed(read_nodes)), initializers=MappingProxyType(initializers))
