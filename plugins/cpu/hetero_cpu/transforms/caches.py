"""A pass that lets `Attention` append to the caches of keys and values itself, as decoders of a token at a time have them."""

from __future__ import annotations

from dataclasses import replace

from hetero_core.network.graph import Network, Node
from hetero_core.transforms.matching import read_shape

_FIRST_WITH_CACHES = 23
_KEYS_AXIS, _RANK = 2, 4


def fuse_caches(network: Network) -> Network:
    """Returns the network with `Concat`s of past and new keys, and of values, as inputs and outputs of the `Attention` that reads them.

    Heads are an axis of their own. All further readers of the concatenations have to come after the `Attention`. Source: ONNX
    Attention-24.
    """
    fused: dict[int, Node] = {}
    gone: set[int] = set()
    for index, node in enumerate(network.nodes):
        concats = _find_concats(network, index, node)
        if concats is None or not gone.isdisjoint(concats):
            continue
        keys, values = (network.nodes[position] for position in concats)
        mask = node.inputs[3] if len(node.inputs) > 3 else ""
        inputs = (node.inputs[0], keys.inputs[1], values.inputs[1], mask, keys.inputs[0], values.inputs[0])
        origins = tuple(dict.fromkeys((*keys.origins, *values.origins, *node.origins)))
        fused[index] = replace(node, inputs=inputs, outputs=(node.outputs[0], *node.inputs[1:3]), origins=origins)
        gone.update(concats)
    if not fused:
        return network
    remaining = ((index, node) for index, node in enumerate(network.nodes) if index not in gone)
    return replace(network, nodes=tuple(fused.get(index, node) for index, node in remaining))


def _find_concats(network: Network, index: int, node: Node) -> tuple[int, int] | None:
    """Returns the positions of the producers of keys and values, if both append to a cache and no earlier node reads them."""
    if node.op_type != "Attention" or node.domain or node.since_version < _FIRST_WITH_CACHES or len(node.writes) != 1:
        return None
    if not set(node.attributes) <= {"scale"} or any(node.inputs[4:]) or node.inputs[1] == node.inputs[2]:
        return None
    concats = []
    for value in node.inputs[1:3]:
        position = network.index_of_producer.get(value)
        if position is None or not _appends(network, network.nodes[position]):
            return None
        if any(reader < index for reader in network.index_of_consumers.get(value, ())):
            return None
        concats.append(position)
    return concats[0], concats[1]


def _appends(network: Network, node: Node) -> bool:
    """Says whether a node puts keys after others; an empty cache, as a prompt has it, is no operand that all devices take."""
    if (
        node.op_type != "Concat"
        or node.domain
        or len(node.inputs) != 2
        or node.attributes.get("axis") not in (_KEYS_AXIS, _KEYS_AXIS - _RANK)
    ):
        return False
    shapes = [read_shape(network, value) for value in node.inputs]
    return all(shape is not None and len(shape) == _RANK and None not in shape and 0 not in shape for shape in shapes)
