"""Passes that fuse the written-out form of attention (products, scale, mask, softmax, products), and the transposes of its heads.

**Meaning of the node** (for authors of a kernel for it). `Attention`-24 of ONNX with the inputs q, k, v and, with a
mask, attn_mask; a single output; the attributes `scale` and, for inputs of rank 3, `q_num_heads` = `kv_num_heads`. All is float32:

    y = softmax(scale * q k^T + mask) v        the softmax over the keys

q: (batch, heads, queries, size), k: (batch, heads, keys, size), v: (batch, heads, keys, value size); or packed, of rank 3, each
(batch, steps, heads * size), and y then (batch, queries, heads * value size). The mask broadcasts to (batch, heads, queries, keys), its
last axis is `keys` long. `scale` is positive, and always said. The passes make no other form; nodes that a model brings may have
all that the operator has.

A query whose whole row of the mask is minus infinity gets zeros from `Attention`, but NaN from the operators that it stands for. So a mask
counts only if it can hold no minus infinity: see `_is_finite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hetero_core.dtypes import INTEGER_DTYPES
from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType, fixed_sizes
from hetero_core.transforms.matching import (
    Accepts,
    AnyValue,
    ConstantNumber,
    Found,
    Op,
    Pattern,
    Rule,
    fuse_patterns,
    has_perm,
    one_of,
    op,
    read_shape,
)
from hetero_core.transforms.rewrite import Replacement

ATTENTION = 24
_OPSET = 21
_SCALED = ("q", "k", "scores")


def _is_over_last_axis(network: Network, node: Node) -> bool:
    shape = read_shape(network, node.inputs[0])
    axis = node.attributes.get("axis", -1)
    return node.since_version >= 13 and shape is not None and axis in (-1, len(shape) - 1)


def _scale(pattern: Pattern, name: str) -> tuple[Pattern, Pattern, Pattern]:
    return (
        op("Mul", pattern, ConstantNumber(name=f"times_{name}")),
        op("Div", pattern, ConstantNumber(name=f"over_{name}")),
        pattern,
    )


_Q = one_of(*_scale(AnyValue("q"), "q"))
_K = one_of(
    *(Op("Transpose", (scaled,), has_perm((0, 1, 3, 2), (0, 2, 1))) for scaled in _scale(AnyValue("k"), "k")),
    *_scale(Op("Transpose", (AnyValue("k"),), has_perm((0, 1, 3, 2), (0, 2, 1))), "k")[:2],
    *_scale(AnyValue("turned_k"), "k"),
)
_SCORES = one_of(*_scale(op("MatMul", _Q, _K), "scores"))
_PATTERN = op("MatMul", Op("Softmax", (one_of(_SCORES, op("Add", _SCORES, AnyValue("mask"))),), _is_over_last_axis), AnyValue("v"))


def fuse_attention(network: Network) -> Network:
    """Returns the network with softmax(scale q k^T + mask) v as an `Attention`, as the head of this file describes it.

    The shapes have to be known: batches and heads must be the same for q, k and v. The scale may stand at q, k or their product.
    """
    return fuse_patterns(network, [Rule(_PATTERN, _build_attention)])


def _build_attention(network: Network, match: Found, node: Node) -> Replacement | None:
    values = match.values
    k_name = "k" if "k" in values else "turned_k"
    q, k, v = (_read_sizes(network, values[name]) for name in ("q", k_name, "v"))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) in (3, 4):
        return None
    k = k if k_name == "k" else (*k[:-2], k[-1], k[-2])
    if not q[:-2] == k[:-2] == v[:-2] or q[-1] != k[-1] or k[-2] != v[-2]:
        return None
    scale = prod(match.numbers.get(f"times_{name}", 1.0) for name in _SCALED)
    for name in _SCALED:
        divisor = match.numbers.get(f"over_{name}", 1.0)
        scale = scale / divisor if divisor else 0.0
    scores = (*q[:-1], k[-2])
    mask = values.get("mask")
    if not 0 < scale < float("inf") or (mask is not None and not _is_mask(network, mask, scores)):
        return None
    nodes: list[Node] = []
    types = {}
    key = values[k_name]
    if k_name == "turned_k":
        key = f"{node.outputs[0]}/keys"
        if key in network.types or key in network.index_of_producer or key in network.initializers:
            return None
        perm = (*range(len(k) - 2), len(k) - 1, len(k) - 2)
        nodes.append(Node(f"{node.name}/keys", "Transpose", (values[k_name],), (key,), "", _OPSET, _OPSET, {"perm": perm}))
        types[key] = TensorType("float32", k)
    attributes: dict[str, Any] = {"scale": scale}
    if len(q) == 3:
        # A stack of matrices is a packed input with a single head.
        attributes |= {"q_num_heads": 1, "kv_num_heads": 1}
    inputs = (values["q"], key, values["v"], *(() if mask is None else (mask,)))
    nodes.append(Node(node.name, "Attention", inputs, node.outputs, "", ATTENTION, ATTENTION, attributes))
    return Replacement(tuple(nodes), types)


def _read_sizes(network: Network, value: str) -> tuple[int, ...] | None:
    return fixed_sizes(read_shape(network, value))


def _is_mask(network: Network, mask: str, scores: Sequence[int]) -> bool:
    """Says whether a value can be the mask of such scores: it widens nothing, has all keys, and no minus infinity."""
    sizes = _read_sizes(network, mask)
    if sizes is None or not 2 <= len(sizes) <= len(scores) or sizes[-1] != scores[-1]:
        return False
    if any(size not in (1, score_size) for size, score_size in zip(sizes[::-1], scores[::-1], strict=False)):
        return False
    # With rank 3 the scores are (batch, 1 head, queries, keys): a mask with a batch would meet the heads.
    if len(scores) == 3 and len(sizes) == 3 and sizes[0] != 1:
        return False
    return _is_finite(network, mask)


_MOVES = frozenset({"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"})
_ARITHMETIC = frozenset({"Add", "Max", "Min", "Mul", "Neg", "Sub"})


def _is_finite(network: Network, value: str, depth: int = 16) -> bool:
    """Says whether a value is made of finite constants and of integers alone; products that overflow are not thought of."""
    constant = network.initializers.get(value)
    if constant is not None:
        return bool(np.isfinite(constant.array).all()) if constant.dtype == "float32" else True
    value_type = network.type_of(value)
    dtype = value_type.dtype if isinstance(value_type, TensorType) else None
    if dtype == "bool" or dtype in INTEGER_DTYPES:
        return True
    node = network.find_producer(value)
    if node is None or node.domain or depth == 0:
        return False
    if node.op_type in _MOVES or node.op_type == "Cast":
        read: Sequence[str] = node.inputs[:1]
    elif node.op_type == "Where":
        read = node.inputs[1:]
    elif node.op_type in _ARITHMETIC or node.op_type == "Concat":
        read = node.inputs
    else:
        return False
    return all(_is_finite(network, name, depth - 1) for name in read)


def _changes_heads(*, packed: int) -> Accepts:
    """Returns the test for a Reshape between (batch, steps, heads, size) and the packed (batch, steps, heads * size).

    `packed` is 0 if the input is packed, 1 if the output is."""

    def accepts(network: Network, node: Node) -> bool:
        shapes = [read_shape(network, value) for value in (node.inputs[0], node.outputs[0])]
        joined, split = shapes[packed], shapes[1 - packed]
        if joined is None or split is None or len(joined) != 3 or len(split) != 4 or joined[:2] != split[:2] or None in joined:
            return False
        heads, size = split[2:]
        is_split = isinstance(heads, int) and isinstance(size, int) and joined[2] == heads * size
        return is_split and len(node.inputs) == 2 and node.inputs[1] in network.initializers

    return accepts


def _split(name: str) -> Op:
    return Op("Transpose", (Op("Reshape", (AnyValue(name),), _changes_heads(packed=0)),), has_perm((0, 2, 1, 3)))


def _join(*inputs: Pattern) -> Op:
    attention = Op("Attention", inputs, lambda network, node: set(node.attributes) == {"scale"})
    return Op("Reshape", (Op("Transpose", (attention,), has_perm((0, 2, 1, 3))),), _changes_heads(packed=1))


def pack_heads(network: Network) -> Network:
    """Returns the network with each `Attention` whose heads are split and joined by Reshape and Transpose reading packed values instead."""
    parts = (_split("q"), _split("k"), _split("v"))
    return fuse_patterns(network, [Rule(_join(*parts, AnyValue("mask")), _build_packed), Rule(_join(*parts), _build_packed)])


def _build_packed(network: Network, match: Found, node: Node) -> Node | None:
    (attention,) = (matched_node for matched_node in match.nodes if matched_node.op_type == "Attention")
    if len(attention.inputs) != (4 if "mask" in match.values else 3):
        return None
    shape = read_shape(network, attention.inputs[0])
    heads = None if shape is None else shape[1]
    if not isinstance(heads, int):
        return None
    inputs = (match.values["q"], match.values["k"], match.values["v"], *attention.inputs[3:])
    attributes = {**attention.attributes, "q_num_heads": heads, "kv_num_heads": heads}
    return Node(node.name, "Attention", inputs, node.outputs, "", ATTENTION, ATTENTION, attributes)
