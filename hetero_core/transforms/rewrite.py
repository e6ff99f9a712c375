"""The moves that passes are made of: take a node out, put several in its place, fuse two; with provenance.

A pass is a function Network -> Network. Each move gives the new nodes the origins of the old ones, so that a query can answer in
the names of the original network. Values at the border of the network keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.types import ValueType

Pass = Callable[[Network], Network]


def run_passes(network: Network, passes: Iterable[Pass]) -> Network:
    """Returns the network after all passes, applied in order."""
    for transform in passes:
        network = transform(network)
    return network


@dataclass(frozen=True, slots=True)
class Replacement:
    """The replacement of a node: nodes, the types of the values that they add, and the constants that they need.

    The nodes get these origins; without any, those of the node.
    """

    nodes: tuple[Node, ...]
    types: Mapping[str, ValueType] = field(default_factory=dict)
    initializers: Mapping[str, Initializer] = field(default_factory=dict)
    origins: tuple[str, ...] = ()


def replace_nodes(network: Network, find: Callable[[Node], Replacement | None]) -> Network:
    """Returns the network with each node for which `find` gives a replacement replaced; a single sweep, linear.

    The new nodes must make the same values, and their names and values must be new.
    """
    nodes: list[Node] = []
    types, initializers = dict(network.types), dict(network.initializers)
    is_changed = False
    for node in network.nodes:
        replacement = find(node)
        if replacement is None:
            nodes.append(node)
            continue
        is_changed = True
        nodes += [replace(new, origins=replacement.origins or node.origins) for new in replacement.nodes]
        types.update(replacement.types)
        initializers.update(replacement.initializers)
    if not is_changed:
        return network
    return replace(network, nodes=tuple(nodes), types=MappingProxyType(types), initializers=MappingProxyType(initializers))


def fuse_pairs(network: Network, fuse: Callable[[Node, Node], Node | None]) -> Network:
    """Returns the network with pairs of neighbours fused into a single node, repeated along chains; a single sweep, linear.

    `fuse(first, second)` is asked if `second` is the only reader of the only output of `first`; it returns the node that makes
    the outputs of `second`, or None. The new node gets the origins of both.
    """
    outer = {spec.name for spec in network.outputs}
    producers: dict[str, Node] = {}
    nodes: dict[int, Node] = {}

    def fuse_with_producer(node: Node) -> Node:
        for value in dict.fromkeys(node.inputs):
            first = producers.get(value)
            if first is None or value in outer or value in node.captures:
                continue
            if first.writes != (value,) or len(network.index_of_consumers.get(value, ())) != 1:
                continue
            fused = fuse(first, node)
            if fused is not None:
                del nodes[id(first)], producers[value]
                return replace(fused, origins=tuple(dict.fromkeys((*first.origins, *node.origins))))
        return node

    for node in map(fuse_with_producer, network.nodes):
        nodes[id(node)] = node
        producers.update(dict.fromkeys(node.writes, node))
    return network if len(nodes) == len(network.nodes) else replace(network, nodes=tuple(nodes.values()))


def eliminate_nodes(network: Network, is_copy: Callable[[Node], bool]) -> Network:
    """Returns the network without the nodes that copy their only input to their only output; readers read the input instead.

    A node stays if its output is an output of the network, or if a body reads it: names in bodies stay.
    """
    if not any(map(is_copy, network.nodes)):
        return network
    visible_values = {spec.name for spec in network.outputs} | {value for node in network.nodes for value in node.captures}
    renamed: dict[str, str] = {}
    nodes: list[Node] = []
    for node in network.nodes:
        inputs = tuple(renamed.get(value, value) for value in node.inputs)
        # Without exactly a single input it is no copy but a mistake in the model, which the device is to see.
        if is_copy(node) and len(inputs) == 1 and inputs[0] and len(node.writes) == 1 and visible_values.isdisjoint(node.writes):
            renamed[node.writes[0]] = inputs[0]
            continue
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return replace(network, nodes=tuple(nodes)) if renamed else network
