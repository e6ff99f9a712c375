"""Attention between its two products: scale, mask and softmax of the scores become one kernel.

Exporters write them as Div or Mul by a number, Add, and Softmax over the last axis. Imports no array library.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isfinite
from types import MappingProxyType

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType, ValueType
from hetero_core.transforms.rewrite import fuse_pairs
from hetero_cupy.conversions import STORAGE
from hetero_cupy.operators import DOMAIN
from hetero_cupy.value_types import find_type

_RANK = 4
_ARITHMETIC = 7
"""Since this version Add, Mul and Div broadcast as NumPy does."""


def fuse_scores(network: Network) -> Network:
    """Returns the network with a mask that is added to scores, and then a number that scales them, in their Softmax."""

    type_of = partial(find_type, network)

    def fuse_mask(first: Node, second: Node) -> Node | None:
        if not _is_plain(first, "Add") or not _is_softmax(second) or len(second.inputs) != 1:
            return None
        for scores, mask in (first.inputs, first.inputs[::-1]):
            scores_type, sum_type, added = (type_of(value) for value in (scores, first.outputs[0], mask))
            if scores_type == sum_type and _is_mask(added, scores_type):
                return replace(second, inputs=(scores, mask))
        return None

    def fuse_scale(first: Node, second: Node) -> Node | None:
        if not _is_plain(first, "Mul", "Div") or not _is_softmax(second) or first.outputs[0] != second.inputs[0]:
            return None
        if "scale" in second.attributes or type_of(first.inputs[0]) != type_of(first.outputs[0]):
            return None
        constant = network.initializers.get(first.inputs[1])
        number = None if constant is None or constant.array.size != 1 else float(constant.array.reshape(()))
        if number is None or not isfinite(number) or number == 0:
            return None
        scale = number if first.op_type == "Mul" else 1 / number
        attributes = MappingProxyType({**second.attributes, "scale": scale})
        return replace(second, inputs=(first.inputs[0], *second.inputs[1:]), attributes=attributes)

    return fuse_pairs(fuse_pairs(network, fuse_mask), fuse_scale)


def _is_plain(node: Node, *op_types: str) -> bool:
    return not node.domain and node.op_type in op_types and node.since_version >= _ARITHMETIC and len(node.inputs) == 2


def _is_softmax(node: Node) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, "Softmax")


def _is_mask(mask: ValueType | None, scores: ValueType | None) -> bool:
    """Says whether a value is spread over scores of (batch, heads, queries, keys), the keys all its own."""
    if not isinstance(mask, TensorType) or not isinstance(scores, TensorType) or mask.shape is None or scores.shape is None:
        return False
    if len(scores.shape) != _RANK or len(mask.shape) != _RANK or mask.dtype not in STORAGE:
        return False
    return mask.shape[3] == scores.shape[3] and all(own in (1, size) for own, size in zip(mask.shape, scores.shape, strict=True))
