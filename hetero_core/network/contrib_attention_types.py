"""Types of what ONNX Runtime's own attention operators make: results and caches. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_core.network.contrib_shapes import (
    InputTypes,
    Rule,
    Size,
    add,
    divide,
    dtype_at,
    integer_of,
    integers_at,
    is_there,
    multiply,
    shape_at,
    size_at,
)
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType


def _attend(weight: int, past: int, dtype: int) -> Rule:
    """Returns the rule of an attention that projects its input itself."""

    def rule(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
        x, element = shape_at(types, 0), dtype_at(types, dtype)
        batch, steps = size_at(x, 0), size_at(x, 1)
        heads, sizes = integer_of(node, "num_heads", 1), integers_at(node, "qkv_hidden_sizes")
        columns = size_at(shape_at(types, weight), 1)
        width: Size = sizes[2] if sizes is not None and len(sizes) == 3 else divide(columns, 3)
        total = add(steps, size_at(shape_at(types, past), 3) if is_there(node, past) else 0)
        total = None if integer_of(node, "past_present_share_buffer") else total
        present = TensorType(element, (2, batch, heads, total, divide(width, heads)))
        return TensorType(element, (batch, steps, width)), present

    return rule


def _attend_heads(past: int) -> Rule:
    """Returns the rule of an attention whose query, key and value are projected already."""

    def rule(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
        query, key, value = (shape_at(types, index) for index in range(3))
        element, heads = dtype_at(types, 0), integer_of(node, "num_heads", 1)
        batch, steps = size_at(query, 0), size_at(query, 1)
        width: Size
        if query is not None and len(query) == 5:
            width, lengths = multiply(query[2], query[4]), steps
        elif key is not None and len(key) == 5:
            width, lengths = multiply(key[2], key[4]), size_at(key, 1)
        elif value is not None and len(value) == 4:
            width, lengths = multiply(value[1], value[3]), value[2]
        elif is_there(node, 2):
            width, lengths = size_at(value, 2), size_at(value, 1)
        else:
            width, lengths = divide(size_at(query, 2), 3), steps
        before = size_at(shape_at(types, past), 2) if is_there(node, past) else 0
        total = add(lengths, before)
        key_width = size_at(query, 2) if query is not None and len(query) == 3 and is_there(node, 1) else width
        scores = TensorType("float32", (batch, heads, steps, total))
        caches = (TensorType(element, (batch, heads, total, divide(size, heads))) for size in (key_width, width))
        return TensorType(element, (batch, steps, width)), *caches, scores

    return rule


def _attend_decoding(node: Node, types: InputTypes) -> Sequence[ValueType | None]:
    outputs = _attend_heads(5)(node, types)
    if not integer_of(node, "past_present_share_buffer"):
        return outputs
    return outputs[0], types[5] if len(types) > 5 else None, types[6] if len(types) > 6 else None, TensorType("float32")


def _attend_groups(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    query, element = shape_at(types, 0), dtype_at(types, 0)
    heads, groups = integer_of(node, "num_heads", 1), integer_of(node, "kv_num_heads", 1)
    batch, steps, width = (size_at(query, axis) for axis in range(3))
    is_packed = not is_there(node, 1)
    head = divide(width, heads + 2 * groups) if is_packed else divide(width, heads)
    output = TensorType(element, (batch, steps, multiply(head, heads) if is_packed else width))
    cached = dtype_at(types, 3) if is_there(node, 3) else element
    stored = size_at(shape_at(types, 3), 3) if is_there(node, 3) else head
    # How long the caches become is written in values: the total length, or that of the buffer.
    length = size_at(shape_at(types, 3), 2) if integer_of(node, "sliding_window_cache") and is_there(node, 3) else None
    present = TensorType(cached, (batch, groups, length, stored))
    return output, present, present, TensorType(element, (batch, heads, steps, None))


def _attend_blocks(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    return _attend_groups(node, types)[0], types[3] if len(types) > 3 else None, types[4] if len(types) > 4 else None


ATTENTION_RULES: dict[str, Rule] = {
    "Attention": _attend(1, 4, 0),
    "QAttention": _attend(1, 8, 3),
    "MultiHeadAttention": _attend_heads(6),
    "DecoderMaskedMultiHeadAttention": _attend_decoding,
    "GroupQueryAttention": _attend_groups,
    "SparseAttention": _attend_blocks,
}
