"""Passes for decoders of a token at a time: `Attention` appends to the caches of keys and values, and reads shared ones unrepeated."""

from __future__ import annotations

from dataclasses import replace

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType, fixed_sizes
from hetero_core.transforms.matching import read_shape
from hetero_cpu.transforms.writer import Writer, rewrite_operators

_FIRST_WITH_CACHES = 23
_KEYS_AXIS, _RANK = 2, 4
_MOST_QUERIES = 16
"""Queries of a head beyond which kernels compute them in several blocks, so that no block can append keys for all."""


def fuse_caches(network: Network) -> Network:
    """Returns the network with `Concat`s of past and new keys, and of values, as inputs and outputs of the `Attention` that reads them.

    Heads are an axis of their own. All further readers of the concatenations have to come after the `Attention`. Source: ONNX
    Attention-24.
    """
    fused: dict[int, Node] = {}
    gone: set[int] = set()
    for index, node in enumerate(network.nodes):
        concats = _find_concats(network, index, node)
        if not concats or not gone.isdisjoint(concats):
            continue
        keys, values = (network.nodes[position] for position in concats)
        mask = node.inputs[3] if len(node.inputs) > 3 else ""
        inputs = (node.inputs[0], keys.inputs[1], values.inputs[1], mask, keys.inputs[0], values.inputs[0])
        origins = tuple(dict.fromkeys((*keys.origins, *values.origins, *node.origins)))
        fused[index] = replace(node, inputs=inputs, outputs=(node.outputs[0], *node.inputs[1:3]), origins=origins)
        gone.update(concats)
    if not fused:
        return network
    return replace(network, nodes=tuple(fused.get(index, node) for index, node in enumerate(network.nodes) if index not in gone))


def _find_concats(network: Network, index: int, node: Node) -> list[int]:
    """Returns the positions of the producers of keys and values, if both append to a cache and no earlier node reads them."""
    if node.op_type != "Attention" or node.domain or node.since_version < _FIRST_WITH_CACHES or len(node.writes) != 1:
        return []
    if not set(node.attributes) <= {"scale"} or any(node.inputs[4:]) or node.inputs[1] == node.inputs[2]:
        return []
    queries = _read_sizes(network, node.inputs[0])
    if len(queries) != _RANK or (type(queries[2]) is int and queries[2] > _MOST_QUERIES):
        return []
    concats = []
    for value in node.inputs[1:3]:
        position = network.index_of_producer.get(value)
        if position is None or not _appends(network, network.nodes[position]):
            return []
        if any(reader < index for reader in network.index_of_consumers.get(value, ())):
            return []
        # A comparison of an open number of queries would split the class of sizes; keys of images and texts are joined alike.
        if type(queries[2]) is not int and network.nodes[position].inputs[0] not in network.index_of_input:
            return []
        concats.append(position)
    return concats


def _appends(network: Network, node: Node) -> bool:
    """Says whether a node puts keys after others; an empty cache, as a prompt has it, is no operand that all devices take."""
    if node.op_type != "Concat" or node.domain or len(node.inputs) != 2:
        return False
    shapes = [read_shape(network, value) for value in node.inputs]
    return node.attributes.get("axis") in (_KEYS_AXIS, _KEYS_AXIS - _RANK) and all(
        shape is not None and len(shape) == _RANK and None not in shape and 0 not in shape for shape in shapes
    )


def share_heads(network: Network) -> Network:
    """Returns the network with each `Attention` of a single query reading unrepeated keys and values.

    Exporters write heads that share keys as Unsqueeze, Expand and Reshape: `groups` copies of each. With a single query the heads of a
    group are like `groups` queries of a head, so nothing is copied. The mask has to be the same for all heads.
    """
    return rewrite_operators(network, {("", "Attention"): _share})


def _share(network: Network, node: Node, writer: Writer) -> bool:
    masks = [read_shape(network, mask) or () for mask in node.inputs[3:]]
    if set(node.attributes) != {"scale"} or len(node.inputs) not in (3, 4):
        return False
    if any(len(mask) < 2 or not all(size == 1 for size in mask[-3:-1]) for mask in masks):
        return False
    sources = [_find_unrepeated(network, value) for value in node.inputs[1:3]]
    q, k, v = (_read_sizes(network, value) for value in (node.inputs[0], *sources))
    if len(q) != _RANK or len(k) != _RANK or len(v) != _RANK or q[2] != 1 or k[:3] != v[:3] or 0 in (*q, *k, *v):
        return False
    (heads, size), groups, value_size = q[1::2], k[1], v[3]
    # As constants of a Reshape they have to be plain numbers; the batch is copied.
    if any(type(number) is not int for number in (heads, size, groups, value_size)):
        return False
    if heads % groups or heads > groups * _MOST_QUERIES:
        return False
    queries = writer.add("Reshape", node.inputs[0], writer.add_integers(0, groups, heads // groups, size))
    mixed = writer.add("Attention", queries, *sources, *node.inputs[3:], scale=node.attributes["scale"])
    writer.add("Reshape", mixed, writer.add_integers(0, heads, 1, value_size))
    shapes = {queries: (q[0], groups, heads // groups, size), mixed: (q[0], groups, heads // groups, value_size)}
    writer.types.update((value, TensorType("float32", shape)) for value, shape in shapes.items())
    writer.end_with(node.outputs[0])
    return True


def _find_unrepeated(network: Network, value: str) -> str:
    """Returns the keys or values of which a value is the copies for all heads; an empty name if it is not made so."""
    values = [value]
    for op_type in ("Reshape", "Expand", "Unsqueeze"):
        node = network.find_producer(values[-1])
        if node is None or node.op_type != op_type:
            return ""
        values.append(node.inputs[0])
    joined, copied, wide, source = (_read_sizes(network, each) for each in values)
    is_repeated = len(source) == _RANK and len(copied) == _RANK + 1 and wide == (*source[:2], 1, *source[2:])
    if not is_repeated or (*copied[:2], 1, *copied[3:]) != wide or joined != (copied[0], copied[1] * copied[2], *copied[3:]):
        return ""
    return values[-1]


def _read_sizes(network: Network, value: str) -> tuple[int, ...]:
    return fixed_sizes(read_shape(network, value)) or ()
