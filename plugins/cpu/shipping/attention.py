"""Networks of one attention of open sizes: all numbers of heads that share keys, and all sizes of a head, that are frequent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from layers import Feeds, Layers
from onnx import TensorProto

LENGTHS = (1, 3, 9, 40, 200)


def make_attention(depth: int, heads: int, mask: str) -> onnx.ModelProto:
    """Attention without caches, where all queries see all keys, those that a mask names, or those before.

    Masks of "floats" may hold infinities and "chosen" ones are put in the place of scores, so these stay products and a softmax.
    """
    width = heads * depth
    layers = Layers({"x": ["batch", "length", width], "mask": ["batch", "length"]})
    b = layers.builder
    batch, length = b.size("x", 0), b.size("x", 1)
    parts = [b.add("MatMul", "x", b.weight(width, width)) for _ in range(3)]
    query, key, value = (b.add("Transpose", b.reshape(part, batch, length, heads, depth), perm=[0, 2, 1, 3]) for part in parts)
    scores = b.add("MatMul", query, b.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = b.add("Mul", scores, b.constant(depth**-0.5, np.float32))
    if mask == "keys":
        # An input of floats may hold an infinity, which no mask of this attention does.
        finite = b.add("Cast", b.add("Cast", "mask", to=TensorProto.INT64), to=TensorProto.FLOAT)
        scores = b.add("Add", scores, b.add("Unsqueeze", finite, b.constant([1, 2])))
    elif mask == "floats":
        scores = b.add("Add", scores, b.add("Unsqueeze", "mask", b.constant([1, 2])))
    elif mask == "chosen":
        is_hidden = b.add("Unsqueeze", b.add("Cast", "mask", to=TensorProto.BOOL), b.constant([1, 2]))
        scores = b.add("Where", is_hidden, b.constant(-1e9, np.float32), scores)
    elif mask == "past":
        numbers = b.add("Range", b.constant(0), b.add("Squeeze", length, b.constant([0])), b.constant(1))
        allowed = b.add("LessOrEqual", numbers, b.add("Unsqueeze", numbers, b.constant([1])))
        scores = b.add("Add", scores, b.add("Where", allowed, b.constant(0.0, np.float32), b.constant(-1e9, np.float32)))
    mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), value)
    layers.end(b.reshape(b.add("Transpose", mixed, perm=[0, 2, 1, 3]), batch, length, width), 3)
    return layers.finish()


def make_cached_attention(depth: int, group: int, key_heads: int = 2) -> onnx.ModelProto:
    """Attention that appends to its caches; `group` heads of queries share one of keys."""
    heads = group * key_heads
    cache = ["batch", key_heads, "past", depth]
    layers = Layers({"x": ["batch", "steps", heads * depth], "past_key": list(cache), "past_value": list(cache)})
    b = layers.builder
    batch, steps, past = b.size("x", 0), b.size("x", 1), b.size("past_key", 2)
    total = b.add("Add", past, steps)
    begin, end = (b.add("Squeeze", value, b.constant([0])) for value in (past, total))
    queries, keys = b.add("Range", begin, end, b.constant(1)), b.add("Range", b.constant(0), end, b.constant(1))
    allowed = b.add("LessOrEqual", keys, b.add("Unsqueeze", queries, b.constant([1])))
    mask = b.add("Where", allowed, b.constant(0.0, np.float32), b.constant(-1e9, np.float32))
    counts = {"query": heads, "key": key_heads, "value": key_heads}
    parts = {}
    for part, count in counts.items():
        flat = b.add("MatMul", "x", b.weight(heads * depth, count * depth))
        parts[part] = b.add("Transpose", b.reshape(flat, batch, steps, count, depth), perm=[0, 2, 1, 3])
    for part in ("key", "value"):
        parts[part] = b.add("Concat", f"past_{part}", parts[part], axis=2)
        layers.end(parts[part], 4)
        if group > 1:
            shape = b.add("Concat", batch, b.constant([key_heads, group]), total, b.constant([depth]), axis=0)
            wide = b.add("Expand", b.add("Unsqueeze", parts[part], b.constant([2])), shape)
            parts[part] = b.reshape(wide, batch, heads, total, depth)
    scores = b.add("MatMul", parts["query"], b.add("Transpose", parts["key"], perm=[0, 1, 3, 2]))
    scores = b.add("Add", b.add("Div", scores, b.constant(np.sqrt(depth), np.float32)), mask)
    mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), parts["value"])
    layers.end(b.reshape(b.add("Transpose", mixed, perm=[0, 2, 1, 3]), batch, steps, heads * depth), 3)
    return layers.finish()


def draw_attention(model: onnx.ModelProto) -> Iterator[Feeds]:
    """Yields inputs of `make_attention`."""
    width = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    for batch in (1, 3):
        for length in LENGTHS:
            yield {"x": np.zeros((batch, length, width), np.float32), "mask": np.zeros((batch, length), np.float32)}


def draw_cached_attention(model: onnx.ModelProto) -> Iterator[Feeds]:
    """Yields inputs of `make_cached_attention`: a prompt, tokens behind it, and one behind more than the caches of a processor hold."""
    for past, steps in ((0, 20), (20, 1), (100, 1), (100, 4), (4000, 1)):
        feeds: Feeds = {}
        for value in model.graph.input:
            _, second, third, *rest = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
            feeds[value.name] = np.zeros((1, second, past, *rest) if rest else (1, steps, third), np.float32)
        yield feeds
