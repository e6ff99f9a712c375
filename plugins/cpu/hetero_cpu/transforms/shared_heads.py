"""A pass for decoders whose heads share keys and values: with a single query, heads that share a key become queries of a common
head."""

from __future__ import annotations

from functools import partial

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.network.initializers import Initializer
from hetero_core.network.renaming import FreshNames
from hetero_core.network.types import TensorType, fixed_sizes
from hetero_core.transforms.matching import AnyValue, Found, Op, Pattern, Rule, fuse_patterns, read_shape
from hetero_core.transforms.rewrite import Replacement

_RESHAPE_OPSET = 21
_MOST_GROUPS = 16
"""Queries of a head beyond which kernels compute them in several blocks, so that no block can append keys for all."""
Sizes = tuple[int, ...]


def share_heads(network: Network) -> Network:
    """Returns the network with each `Attention` of a single query reading unrepeated keys and values.

    Exporters write heads that share keys as Unsqueeze, Expand and Reshape: `groups` copies of each. With a single query the heads
    of a group
    are like `groups` queries of a head, so nothing is copied. The mask has to be the same for all heads.
    """
    names = FreshNames(network)
    keys, values = _repeat("k"), _repeat("v")
    build = partial(_build, names=names)
    rules = [
        Rule(Op("Attention", (AnyValue("q"), keys, values, AnyValue("mask")), _is_masked), build),
        Rule(Op("Attention", (AnyValue("q"), keys, values), _is_plain), build),
    ]
    return fuse_patterns(network, rules)


def _repeat(name: str) -> Op:
    return Op("Reshape", (Op("Expand", (_widen(name),), _copies_groups),), _joins_groups)


def _widen(name: str) -> Pattern:
    return Op("Unsqueeze", (AnyValue(name),), _adds_groups)


def _is_masked(network: Network, node: Node) -> bool:
    return set(node.attributes) == {"scale"} and len(node.inputs) == 4


def _is_plain(network: Network, node: Node) -> bool:
    return set(node.attributes) == {"scale"} and len(node.inputs) == 3


def _read_sizes(network: Network, value: str, rank: int) -> Sizes | None:
    sizes = fixed_sizes(read_shape(network, value))
    return sizes if sizes is not None and len(sizes) == rank else None


def _adds_groups(network: Network, node: Node) -> bool:
    sizes, wide = _read_sizes(network, node.inputs[0], 4), _read_sizes(network, node.outputs[0], 5)
    return sizes is not None and wide == (*sizes[:2], 1, *sizes[2:])


def _copies_groups(network: Network, node: Node) -> bool:
    wide, copied = (_read_sizes(network, value, 5) for value in (node.inputs[0], node.outputs[0]))
    return wide is not None and copied is not None and wide[2] == 1 and copied == (*wide[:2], copied[2], *wide[3:])


def _joins_groups(network: Network, node: Node) -> bool:
    copied, joined = _read_sizes(network, node.inputs[0], 5), _read_sizes(network, node.outputs[0], 4)
    return copied is not None and joined == (copied[0], copied[1] * copied[2], *copied[3:])


def _build(network: Network, match: Found, node: Node, *, names: FreshNames) -> Replacement | None:
    read = match.values
    q, k, v = (_read_sizes(network, read[name], 4) for name in "qkv")
    if q is None or k is None or v is None or q[2] != 1 or k[:3] != v[:3] or 0 in (*q, *k, *v):
        return None
    (heads, size), shared, value_size = q[1::2], k[1], v[3]
    # As constants of a Reshape they have to be plain numbers; the batch is copied.
    if (
        any(type(number) is not int for number in (heads, size, shared, value_size))
        or heads % shared
        or heads > shared * _MOST_GROUPS
    ):
        return None
    if "mask" in read and not _is_same_for_heads(network, read["mask"]):
        return None
    groups = heads // shared
    grouped_q, grouped_y, shape, shape_of_y = (
        names.value(f"{node.outputs[0]}/{name}") for name in ("grouped_queries", "grouped", "groups", "heads")
    )
    inputs = (grouped_q, read["k"], read["v"], *((read["mask"],) if "mask" in read else ()))
    since, version = node.since_version, _RESHAPE_OPSET
    nodes = (
        Node(f"{node.name}/groups", "Reshape", (read["q"], shape), (grouped_q,), "", version, version),
        Node(node.name, "Attention", inputs, (grouped_y,), "", node.opset, since, node.attributes),
        Node(f"{node.name}/heads", "Reshape", (grouped_y, shape_of_y), node.outputs, "", version, version),
    )
    types = {
        grouped_q: TensorType("float32", (q[0], shared, groups, size)),
        grouped_y: TensorType("float32", (q[0], shared, groups, value_size)),
    }
    constants = {
        shape: Initializer.of_array(np.array([0, shared, groups, size], np.int64)),
        shape_of_y: Initializer.of_array(np.array([0, heads, 1, value_size], np.int64)),
    }
    return Replacement(nodes, types, constants)


def _is_same_for_heads(network: Network, mask: str) -> bool:
    shape = read_shape(network, mask)
    return shape is not None and len(shape) >= 2 and all(size == 1 for size in shape[-3:-1])
