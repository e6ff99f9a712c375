"""Types of what ONNX Runtime's own recurrent and linear attention operators make, and its n-grams. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.network.contrib_shapes import (
    InputTypes,
    Rule,
    Size,
    divide,
    dtype_at,
    integer_of,
    is_there,
    multiply,
    shape_at,
    size_at,
)
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType


def _recur(hidden_of: int) -> Rule:
    """Returns the rule of an LSTM; its recurrent weights have the hidden size as one of their last axes."""

    def rule(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
        x = shape_at(types, 0)
        directions = 2 if node.attributes.get("direction") == "bidirectional" else 1
        hidden: Size = integer_of(node, "hidden_size") or size_at(shape_at(types, 2), hidden_of)
        state = TensorType(dtype_at(types, 0), (directions, size_at(x, 1), hidden))
        return TensorType(dtype_at(types, 0), (size_at(x, 0), directions, size_at(x, 1), hidden)), state, state

    return rule


def _attend_linearly(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    query, value = shape_at(types, 0), shape_at(types, 2)
    queries, groups = integer_of(node, "q_num_heads", 1), integer_of(node, "kv_num_heads", 1)
    size = divide(size_at(value, 2), groups)
    output = TensorType(dtype_at(types, 0), (size_at(query, 0), size_at(query, 1), multiply(size, max(queries, groups))))
    window = integer_of(node, "state_window")
    state = (size_at(query, 0), groups, divide(size_at(query, 2), queries), size)
    past = dtype_at(types, 3) if is_there(node, 3) else dtype_at(types, 0)
    return output, TensorType(past, (window, *state) if window else state)


def _attend_packed(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    query, value, state = shape_at(types, 0), shape_at(types, 2), shape_at(types, 6)
    requests = size_at(shape_at(types, 3), 0)
    batch = requests - 1 if isinstance(requests, int) else size_at(state, 0)
    heads = size_at(value, -2) if is_there(node, 2) else size_at(state, 1)
    size = size_at(value, -1) if is_there(node, 2) else size_at(state, 2)
    key_size = size_at(query, -1) if is_there(node, 1) else size_at(state, 3)
    lead = () if query is None else query[:-2] if is_there(node, 1) else query[:-1]
    output = TensorType(dtype_at(types, 0), None if query is None else (*lead, heads, size))
    return output, TensorType("float32", (batch, heads, size, key_size)), TensorType("float32", (batch, None))


def _convolve_with_state(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    x, weight, element = shape_at(types, 0), shape_at(types, 1), dtype_at(types, 0)
    taps = size_at(weight, -1)
    length = (taps - 1) * integer_of(node, "dilation", 1) if isinstance(taps, int) else None
    if x is None:
        return TensorType(element), TensorType(element)
    slot = (x[0], length, *x[2:]) if integer_of(node, "channels_last") else (*x[:-1], length)
    window = integer_of(node, "state_window")
    return types[0], TensorType(element, (window, *slot) if window else slot)


def _convolve_packed(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    state = types[4] if len(types) > 4 else None
    channels = size_at(shape_at(types, 0), 1)
    update = (size_at(shape_at(types, 4), 0), integer_of(node, "state_update_capacity"), channels)
    return types[0], state, TensorType(dtype_at(types, 0), update)


def _gate(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    return types[0], types[3] if len(types) > 3 else None


def _gate_engram(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    return types[0], types[0]


def _hash_grams(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    ids, element, orders = shape_at(types, 0), dtype_at(types, 0), integer_of(node, "max_ngram_size") - 1
    heads = orders * integer_of(node, "n_head_per_ngram")
    hashes = TensorType(element, None if ids is None else (*ids, heads))
    return hashes, TensorType(element, (size_at(ids, 0), orders))


def _hash_packed(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    element, orders = dtype_at(types, 0), integer_of(node, "max_ngram_size") - 1
    bounds = size_at(shape_at(types, 3), 0)
    batch = bounds - 1 if isinstance(bounds, int) else None
    present = (batch, orders)
    update = (batch, integer_of(node, "state_update_capacity"), orders)
    hashes = _hash_grams(node, types)[0]
    return hashes, TensorType(element, present), TensorType("int32", present), TensorType(element, update)


def _route(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    logits, experts = shape_at(types, 0), size_at(shape_at(types, 1), 0)
    tokens: Size = 1
    for size in () if logits is None else logits[:-1]:
        tokens = multiply(tokens, size)
    shape = (None if logits is None else tokens, experts)
    return TensorType(dtype_at(types, 0), shape), TensorType("float32", shape), TensorType("float32", shape)


def _gather_packed(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    indices, element = shape_at(types, 1), dtype_of_onnx(integer_of(node, "output_dtype", 16))
    return (TensorType(element, None if indices is None else (*indices, integer_of(node, "K"))),)


def _mix(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    streams, branches = shape_at(types, 0), integer_of(node, "num_branches")
    if streams is None:
        return (TensorType(dtype_at(types, 0)),)
    sizes = (*streams[:-1], divide(streams[-1], branches)) if branches else (*streams[:-2], streams[-1])
    return (TensorType(dtype_at(types, 0), sizes),)


SEQUENCE_RULES: dict[str, Rule] = {
    "DynamicQuantizeLSTM": _recur(1),
    "AttnLSTM": _recur(2),
    "LinearAttention": _attend_linearly,
    "GatedDeltaNet": _attend_packed,
    "CausalConvWithState": _convolve_with_state,
    "VarlenCausalConvWithState": _convolve_packed,
    "LinearAttentionGate": _gate,
    "EngramGate": _gate_engram,
    "NGramHashMapping": _hash_grams,
    "VarlenNGramHashMapping": _hash_packed,
    "MoEGroupRouter": _route,
    "GatherPacked": _gather_packed,
    "HyperConnectionPreMix": _mix,
}
