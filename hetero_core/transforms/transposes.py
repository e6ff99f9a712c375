"""Passes that remove transposes: they merge pairs, and turn regions that work in any order of axes if that saves transposes.

Only ranks have to be known, not sizes. `x.transpose(p).transpose(q)` is `x.transpose(p[q])`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import rank_of
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.copies import eliminate_copies
from hetero_core.transforms.regions import Region, find_regions, turn_region

Perm = tuple[int, ...]


def read_perm(network: Network, node: Node) -> Perm | None:
    """Returns the order of axes that a Transpose makes; None for another operator or an unknown rank."""
    if node.op_type != "Transpose" or node.domain or len(node.writes) != 1 or len(node.inputs) != 1:
        return None
    if "perm" in node.attributes:
        perm = tuple(int(axis) for axis in node.attributes["perm"])
        return perm if sorted(perm) == list(range(len(perm))) else None
    rank = rank_of(network.type_of(node.inputs[0]))
    return None if rank is None else tuple(reversed(range(rank)))


def compose(first: Perm, second: Perm) -> Perm:
    """Returns the composition of two orders, applied in sequence."""
    return tuple(first[axis] for axis in second)


def invert(perm: Perm) -> Perm:
    """Returns the inverse of an order."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def cancel_transposes(network: Network) -> Network:
    """Returns the network with fewer transposes: pairs merged, transposes moved into Gemm, regions turned if that saves transposes."""
    network = merge_transposes(network)
    # Each turn takes one transpose away at least, so this ends.
    while (turned := _turn_best_region(network)) is not None:
        network = merge_transposes(turned)
    return _turn_inside_gemm(network)


def merge_transposes(network: Network) -> Network:
    """Returns the network with each Transpose of a Transpose reading the source of the first.

    Transposes without effect are removed, and so are duplicates of an earlier Transpose.
    """
    nodes: list[Node] = []
    sources: dict[str, tuple[str, Perm, Node]] = {}
    names: dict[tuple[str, Perm], str] = {}
    changed = False
    for node in network.nodes:
        perm = read_perm(network, node)
        if perm is None:
            nodes.append(node)
            continue
        source, before, first = sources.get(node.inputs[0], (node.inputs[0], tuple(range(len(perm))), node))
        if len(before) != len(perm):
            nodes.append(node)
            continue
        whole = compose(before, perm)
        same = source if whole == tuple(range(len(whole))) else names.setdefault((source, whole), node.outputs[0])
        if first is not node or same != node.outputs[0]:
            changed = True
            origins = tuple(dict.fromkeys((*first.origins, *node.origins)))
            if same != node.outputs[0]:
                node = Node(node.name, "Identity", (same,), node.outputs, "", node.opset, 1, origins=origins)
            else:
                node = replace(node, inputs=(source,), attributes={"perm": whole}, origins=origins)
        sources[node.outputs[0]] = (source, whole, node)
        nodes.append(node)
    return drop_unread(eliminate_copies(replace(network, nodes=tuple(nodes)))) if changed else network


def _turn_best_region(network: Network) -> Network | None:
    """Returns the network with the first region turned that saves transposes, None if no region does."""
    if not any(node.op_type == "Transpose" and not node.domain for node in network.nodes):
        return None
    for region in find_regions(network):
        best = max(_list_perms(network, region), key=lambda perm: _count_saved(network, region, perm), default=None)
        if best is not None and _count_saved(network, region, best) > 0:
            return turn_region(network, region, best)
    return None


def _list_perms(network: Network, region: Region) -> list[Perm]:
    """Returns the orders that transposes around the region suggest: its values become the transposes of new values by these orders."""
    perms: dict[Perm, None] = {}
    for value in region.incoming:
        perm = _read_perm_of(network, value)
        if perm is not None:
            perms[perm] = None
    for value in region.made:
        for reader in _list_readers(network, value):
            perm = read_perm(network, reader)
            if perm is not None:
                perms[invert(perm)] = None
    return [perm for perm in perms if len(perm) == region.rank and perm != tuple(range(region.rank))]


def _count_saved(network: Network, region: Region, perm: Perm) -> int:
    """Returns how many transposes fewer there are when the region is turned."""
    saved = 0
    for value in region.incoming:
        is_private = value not in network.names_of_outputs and all(
            id(reader) in region.members for reader in _list_readers(network, value)
        )
        own_perm = _read_perm_of(network, value)
        if own_perm == perm:
            saved += is_private
        elif (own_perm is None or not is_private) and not _is_turned(network, region, value, invert(perm)):
            saved -= 1
    for value in region.made:
        outside = [reader for reader in _list_readers(network, value) if id(reader) not in region.members]
        perms = [read_perm(network, reader) for reader in outside]
        saved += sum(own_perm is not None and own_perm == invert(perm) for own_perm in perms)
        saved -= None in perms or value in network.names_of_outputs
    return saved


def _is_turned(network: Network, region: Region, value: str, perm: Perm) -> bool:
    """Says whether a Transpose outside of the region already makes the transposed value that the region would read."""
    outside = (reader for reader in _list_readers(network, value) if id(reader) not in region.members)
    return any(read_perm(network, reader) == perm for reader in outside)


def _read_perm_of(network: Network, value: str) -> Perm | None:
    node = network.find_producer(value)
    return None if node is None else read_perm(network, node)


def _list_readers(network: Network, value: str) -> Sequence[Node]:
    return [network.nodes[index] for index in network.index_of_consumers.get(value, ())]


def _turn_inside_gemm(network: Network) -> Network:
    """Returns the network with each Gemm reading the source of a transposed matrix, turned by its own attribute."""
    changed = False
    nodes: list[Node] = []
    for node in network.nodes:
        if node.op_type != "Gemm" or node.domain or len(node.inputs) < 2:
            nodes.append(node)
            continue
        inputs, attributes, origins = list(node.inputs), dict(node.attributes), list(node.origins)
        for position, name in ((0, "transA"), (1, "transB")):
            if _read_perm_of(network, inputs[position]) != (1, 0):
                continue
            transpose = network.nodes[network.index_of_producer[inputs[position]]]
            inputs[position] = transpose.inputs[0]
            attributes[name] = 0 if attributes.get(name, 0) else 1
            origins[:0] = transpose.origins
            changed = True
        nodes.append(replace(node, inputs=tuple(inputs), attributes=attributes, origins=tuple(dict.fromkeys(origins))))
    return drop_unread(replace(network, nodes=tuple(nodes))) if changed else network
