"""Passes over nodes that only move elements: they merge transposes and pads, and remove nodes without effect. Sizes must be known, but
for states, transposes and pads of convolutions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from hetero_core.kernels.operators.layout import find_sources
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import rank_of, sizes_of
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.copies import eliminate_copies
from hetero_core.transforms.matching import AnyValue, Found, Op, Rule, fuse_patterns, has_perm, read_integers
from hetero_core.transforms.rewrite import Replacement, fuse_pairs, replace_nodes
from hetero_cpu.transforms.writer import Writer, rewrite_operators

_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_OF_ONE_INPUT = frozenset({"Concat", "Max", "Mean", "Min", "Sum"})
_OF_CHOSEN_ELEMENTS = frozenset({"Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def eliminate_idle(network: Network) -> Network:
    """Returns the network without nodes that return their input unchanged: Cast to the same type, Slice of all, Concat of one, ..."""

    def find(node: Node) -> Replacement | None:
        if node.domain or len(node.writes) != 1 or node.outputs[1:] or not node.inputs or not _is_idle(network, node):
            return None
        return Replacement((Node(node.name, "Identity", node.inputs[:1], node.outputs, opset=node.opset, since_version=1),))

    return eliminate_copies(replace_nodes(network, find))


def _is_idle(network: Network, node: Node) -> bool:
    source, result = (getattr(network.type_of(value), "dtype", None) for value in (node.inputs[0], node.outputs[0]))
    if source is None or source != result:
        return False
    if node.op_type == "Cast" or (node.op_type in _OF_ONE_INPUT and len(node.inputs) == 1):
        return True
    sizes = _read_sizes(network, node.inputs[0])
    if sizes is None or 0 in sizes or sizes != _read_sizes(network, node.outputs[0]):
        return False
    if node.op_type in _RESHAPES or node.op_type in ("Expand", "Tile"):
        return True
    if node.op_type == "Slice":
        steps = read_integers(network, node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else (1,)
        return steps is not None and all(step > 0 for step in steps)
    if node.op_type == "Pad":
        pads = read_pads(network, node)
        return pads is not None and not any(pads)
    return False


def drop_zero_states(network: Network) -> Network:
    """Returns the network without the first states of LSTM, GRU and RNN that are zeros, as they are if absent; no sizes are asked for."""

    def find(node: Node) -> Replacement | None:
        if node.op_type not in ("GRU", "LSTM", "RNN") or node.domain:
            return None
        inputs = ["" if place in (5, 6) and _is_zero(network, value) else value for place, value in enumerate(node.inputs)]
        return None if inputs == list(node.inputs) else Replacement((replace(node, inputs=tuple(inputs)),))

    replaced = replace_nodes(network, find)
    return network if replaced is network else drop_unread(replaced)


def _is_zero(network: Network, value: str) -> bool:
    """Says whether all elements of a value are 0, for all sizes."""
    while value not in network.initializers:
        node = network.find_producer(value)
        if node is None or node.domain or node.op_type not in {*_OF_CHOSEN_ELEMENTS, "ConstantOfShape"}:
            return False
        if node.op_type == "ConstantOfShape":
            return not np.any(node.attributes.get("value", 0))
        value = node.inputs[0]
    return not network.initializers[value].array.any()


def fold_pads(network: Network) -> Network:
    """Returns the network with each Pad in the pads of the Conv that alone reads it, if it adds zeros to the spatial axes."""
    fused = fuse_pairs(network, partial(_fuse_pad, network))
    return network if fused is network else drop_unread(fused)


def _fuse_pad(network: Network, pad: Node, conv: Node) -> Node | None:
    if (pad.op_type, pad.domain, conv.op_type, conv.domain) != ("Pad", "", "Conv", "") or conv.inputs[0] != pad.outputs[0]:
        return None
    added, filters = read_pads(network, pad), sizes_of(network.type_of(conv.inputs[1]))
    if added is None or filters is None or conv.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    number = network.initializers.get(pad.inputs[2]) if any(pad.inputs[2:3]) else None
    is_zero = not any(pad.inputs[2:3]) if number is None else number.array.size == 1 and not number.array.any()
    if not is_zero or pad.attributes.get("mode", "constant") != "constant" or pad.attributes.get("value", 0.0) != 0:
        return None
    count = len(filters) - 2
    # Batch and channels stay; all pads before stand in front of all pads behind, as in ONNX.
    if len(added) != 2 * (count + 2) or any((*added[:2], *added[count + 2 : count + 4])) or min(added) < 0:
        return None
    spatial = (*added[2 : count + 2], *added[count + 4 :])
    attributes = {key: value for key, value in conv.attributes.items() if key != "auto_pad"}
    old = attributes.get("pads", (0,) * 2 * count)
    attributes["pads"] = tuple(amount + other for amount, other in zip(old, spatial, strict=True))
    return replace(conv, inputs=(pad.inputs[0], *conv.inputs[1:]), attributes=attributes)


def read_pads(network: Network, pad: Node) -> tuple[int, ...] | None:
    """Returns how much a Pad adds before each axis, then behind each. Source: ONNX Pad-2 and Pad-11, -18 with axes."""
    if pad.since_version < 11:
        return tuple(pad.attributes["pads"]) if "pads" in pad.attributes else None
    pads = read_integers(network, pad.inputs[1])
    if pads is None or not any(pad.inputs[3:4]):
        return pads
    axes, rank = read_integers(network, pad.inputs[3]), rank_of(network.type_of(pad.inputs[0]))
    if axes is None or rank is None or len(pads) != 2 * len(axes):
        return None
    whole = [0] * 2 * rank
    for place, axis in enumerate(axes):
        whole[axis % rank], whole[axis % rank + rank] = pads[place], pads[place + len(axes)]
    return tuple(whole)


def write_pads(network: Network) -> Network:
    """Returns the network with each Pad that mirrors or repeats as a Gather along each axis that grows."""
    return rewrite_operators(network, {("", "Pad"): _write_pad})


def _write_pad(network: Network, node: Node, writer: Writer) -> bool:
    mode, sizes = str(node.attributes.get("mode", "constant")), _read_sizes(network, node.inputs[0]) if node.inputs else None
    if node.since_version < 11 or mode == "constant" or sizes is None or 0 in sizes:
        return False
    pads, rank = read_pads(network, node), len(sizes)
    if pads is None or len(pads) != 2 * rank or min(pads, default=0) < 0:
        return False
    grown = [axis for axis in range(rank) if any(pads[axis::rank])]
    if any(type(sizes[axis]) is not int for axis in grown):
        return False
    value = node.inputs[0]
    for axis in grown:
        value = writer.add(
            "Gather", value, writer.add_integers(*find_sources(sizes[axis], pads[axis], pads[axis + rank], mode)), axis=axis
        )
    if grown:
        writer.end_with(node.outputs[0])
    return bool(grown)


def _read_sizes(network: Network, value: str) -> tuple[int, ...] | None:
    return sizes_of(network.type_of(value))


def merge_stacked_transposes(network: Network) -> Network:
    """Returns the network with Reshape, Transpose, Reshape fused to a single Transpose if they transpose a flattened stack of
    matrices."""
    stacked = Op("Transpose", (Op("Reshape", (AnyValue("x"),), lambda network, node: True),), has_perm((0, 2, 1)))
    return fuse_patterns(network, [Rule(Op("Reshape", (stacked,), lambda network, node: True), _build_transpose)])


def _build_transpose(network: Network, match: Found, node: Node) -> Node | None:
    (transpose,) = (own for own in match.nodes if own.op_type == "Transpose")
    whole, result = _read_sizes(network, match.values["x"]), _read_sizes(network, node.outputs[0])
    flat = _read_sizes(network, transpose.inputs[0])
    if whole is None or result is None or flat is None or len(whole) < 3 or 0 in whole:
        return None
    if flat != (prod(whole[:-2]), *whole[-2:]) or result != (*whole[:-2], whole[-1], whole[-2]):
        return None
    perm = (*range(len(whole) - 2), len(whole) - 1, len(whole) - 2)
    return Node(node.name, "Transpose", (match.values["x"],), node.outputs, "", 21, 21, {"perm": perm})


Perm = tuple[int, ...]


def read_perm(network: Network, node: Node) -> Perm | None:
    """Returns the order of axes of a Transpose; None for other operators or an unknown rank."""
    if node.op_type != "Transpose" or node.domain or len(node.writes) != 1 or len(node.inputs) != 1:
        return None
    if "perm" in node.attributes:
        perm = tuple(int(axis) for axis in node.attributes["perm"])
        return perm if sorted(perm) == list(range(len(perm))) else None
    rank = rank_of(network.type_of(node.inputs[0]))
    return None if rank is None else tuple(reversed(range(rank)))


def merge_transposes(network: Network) -> Network:
    """Returns the network with each Transpose of a Transpose reading the source of the first. Only ranks have to be known.

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
        # x.transpose(p).transpose(q) is x.transpose(p[q]).
        whole = tuple(before[axis] for axis in perm)
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
