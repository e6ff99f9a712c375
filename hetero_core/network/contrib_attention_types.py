"""Types of what ONNX Runtime's own attention operators make: results and caches. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable

from hetero_core.network.contrib_shapes import Rule, Size, TypedNode, Types, add, divide, multiply, size_at
from hetero_core.network.types import TensorType


def _attend(weight: int, past: int, dtype: int) -> Rule:
    """Returns the rule of an attention that projects its input itself."""

    def rule(node: TypedNode) -> Types:
        x, element = node.shape(0), node.dtype(dtype)
        batch, steps = size_at(x, 0), size_at(x, 1)
        heads, sizes = node.integer("num_heads", 1), node.integers("qkv_hidden_sizes")
        columns = node.size(weight, 1)
        width: Size = sizes[2] if sizes is not None and len(sizes) == 3 else divide(columns, 3)
        total = add(steps, node.size(past, 3) if node.has(past) else 0)
        total = None if node.integer("past_present_share_buffer") else total
        present = TensorType(element, (2, batch, heads, total, divide(width, heads)))
        return TensorType(element, (batch, steps, width)), present

    return rule


def _attend_heads(past: int) -> Callable[[TypedNode], Types]:
    """Returns the rule of an attention whose query, key and value are projected already."""

    def rule(node: TypedNode) -> Types:
        query, key, value = (node.shape(index) for index in range(3))
        element, heads = node.dtype(0), node.integer("num_heads", 1)
        batch, steps = size_at(query, 0), size_at(query, 1)
        width: Size
        if query is not None and len(query) == 5:
            width, lengths = multiply(query[2], query[4]), steps
        elif key is not None and len(key) == 5:
            width, lengths = multiply(key[2], key[4]), size_at(key, 1)
        elif value is not None and len(value) == 4:
            width, lengths = multiply(value[1], value[3]), value[2]
        elif node.has(2):
            width, lengths = size_at(value, 2), size_at(value, 1)
        else:
            width, lengths = divide(size_at(query, 2), 3), steps
        before = node.size(past, 2) if node.has(past) else 0
        total = add(lengths, before)
        key_width = size_at(query, 2) if query is not None and len(query) == 3 and node.has(1) else width
        scores = TensorType("float32", (batch, heads, steps, total))
        caches = (TensorType(element, (batch, heads, total, divide(size, heads))) for size in (key_width, width))
        return TensorType(element, (batch, steps, width)), *caches, scores

    return rule


def _attend_decoding(node: TypedNode) -> Types:
    outputs = _attend_heads(5)(node)
    if not node.integer("past_present_share_buffer"):
        return outputs
    return outputs[0], node.type(5), node.type(6), TensorType("float32")


def _attend_groups(node: TypedNode) -> Types:
    query, element = node.shape(0), node.dtype(0)
    heads, groups = node.integer("num_heads", 1), node.integer("kv_num_heads", 1)
    batch, steps, width = (size_at(query, axis) for axis in range(3))
    is_packed = not node.has(1)
    head = divide(width, heads + 2 * groups) if is_packed else divide(width, heads)
    output = TensorType(element, (batch, steps, multiply(head, heads) if is_packed else width))
    cached = node.dtype(3) if node.has(3) else element
    stored = node.size(3, 3) if node.has(3) else head
    # How long the caches become is written in values: the total length, or that of the buffer.
    length = node.size(3, 2) if node.integer("sliding_window_cache") and node.has(3) else None
    present = TensorType(cached, (batch, groups, length, stored))
    return output, present, present, TensorType(element, (batch, heads, steps, None))


def _attend_blocks(node: TypedNode) -> Types:
    return _attend_groups(node)[0], node.type(3), node.type(4)


ATTENTION_RULES: dict[str, Rule] = {
    "Attention": _attend(1, 4, 0),
    "QAttention": _attend(1, 8, 3),
    "MultiHeadAttention": _attend_heads(6),
    "DecoderMaskedMultiHeadAttention": _attend_decoding,
    "GroupQueryAttention": _attend_groups,
    "SparseAttention": _attend_blocks,
}
