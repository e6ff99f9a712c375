"""New names for values of a network, in its bodies, too, and names that are not taken yet. Imports neither onnx nor NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from hetero_core.network.graph import EMPTY, Graph, Network, Node, iterate_graphs
from hetero_core.network.scopes import make_unique

_Kept = TypeVar("_Kept")


def rename_values(network: Network, names: Mapping[str, str]) -> Network:
    """Returns the network with values of its root graph renamed wherever nodes and bodies read or make them.

    `names` maps old to new. Inputs and outputs of the network keep their old names, for the caller to connect.
    """
    if not names:
        return network
    return replace(
        network,
        nodes=tuple(rename_node(node, names) for node in network.nodes),
        initializers=_rename_keys(network.initializers, names),
        types=_rename_keys(network.types, names),
    )


def _rename_keys(mapping: Mapping[str, _Kept], names: Mapping[str, str]) -> Mapping[str, _Kept]:
    return MappingProxyType({names.get(key, key): value for key, value in mapping.items()})


def rename_node(node: Node, names: Mapping[str, str]) -> Node:
    """Returns the node with its values, and those that its bodies read of outside, renamed; `names` maps old to new."""
    if not any(value in names for value in (*node.reads, *node.writes)):
        return node
    attributes = {
        key: _rename_in_body(value, names) if isinstance(value, Graph) else value for key, value in node.attributes.items()
    }
    return replace(
        node,
        inputs=tuple(names.get(value, value) for value in node.inputs),
        outputs=tuple(names.get(value, value) for value in node.outputs),
        captures=tuple(names.get(value, value) for value in node.captures),
        attributes=MappingProxyType(attributes) if attributes else EMPTY,
    )


def _rename_in_body(body: Graph, names: Mapping[str, str]) -> Graph:
    """Returns the body with its captured values renamed; a value that it defines itself keeps its name."""
    own = {spec.name for spec in body.inputs} | set(body.initializers) | set(body.index_of_producer)
    outer = {old: new for old, new in names.items() if old not in own}
    if not outer:
        return body
    return replace(
        body,
        nodes=tuple(rename_node(node, outer) for node in body.nodes),
        outputs=tuple(replace(spec, name=outer.get(spec.name, spec.name)) for spec in body.outputs),
        types=_rename_keys(body.types, outer),
    )


class FreshNames:
    """Names of values and nodes that no graph of a network uses; each is given once."""

    def __init__(self, network: Network) -> None:
        self._values: set[str] = set()
        self._nodes: set[str] = set()
        for graph in iterate_graphs(network):
            self._values.update(spec.name for spec in (*graph.inputs, *graph.outputs))
            self._values.update(graph.initializers, graph.types)
            for node in graph.nodes:
                self._nodes.add(node.name)
                self._values.update(node.outputs)

    def value(self, proposal: str) -> str:
        """Returns the name itself or, if it is used already, with a number."""
        return make_unique(proposal, self._values)

    def node(self, proposal: str) -> str:
        """Returns the name itself or, if it is used already, with a number."""
        return make_unique(proposal, self._nodes)
