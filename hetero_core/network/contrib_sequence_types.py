"""Types of what ONNX Runtime's own recurrent and linear attention operators make, and its n-grams. Imports nothing heavy."""

from __future__ import annotations

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.network.contrib_shapes import Rule, Size, TypedNode, Types, divide, multiply, size_at
from hetero_core.network.types import TensorType


def _recur(hidden_of: int) -> Rule:
    """Returns the rule of an LSTM; its recurrent weights have the hidden size as one of their last axes."""

    def rule(node: TypedNode) -> Types:
        x = node.shape(0)
        directions = 2 if node.node.attributes.get("direction") == "bidirectional" else 1
        hidden: Size = node.integer("hidden_size") or node.size(2, hidden_of)
        state = TensorType(node.dtype(0), (directions, size_at(x, 1), hidden))
        return TensorType(node.dtype(0), (size_at(x, 0), directions, size_at(x, 1), hidden)), state, state

    return rule


def _attend_linearly(node: TypedNode) -> Types:
    query, value = node.shape(0), node.shape(2)
    queries, groups = node.integer("q_num_heads", 1), node.integer("kv_num_heads", 1)
    size = divide(size_at(value, 2), groups)
    output = TensorType(node.dtype(0), (size_at(query, 0), size_at(query, 1), multiply(size, max(queries, groups))))
    window = node.integer("state_window")
    state = (size_at(query, 0), groups, divide(size_at(query, 2), queries), size)
    past = node.dtype(3) if node.has(3) else node.dtype(0)
    return output, TensorType(past, (window, *state) if window else state)


def _attend_packed(node: TypedNode) -> Types:
    query, value, state = node.shape(0), node.shape(2), node.shape(6)
    requests = node.size(3, 0)
    batch = requests - 1 if isinstance(requests, int) else size_at(state, 0)
    heads = size_at(value, -2) if node.has(2) else size_at(state, 1)
    size = size_at(value, -1) if node.has(2) else size_at(state, 2)
    key_size = size_at(query, -1) if node.has(1) else size_at(state, 3)
    lead = () if query is None else query[:-2] if node.has(1) else query[:-1]
    output = TensorType(node.dtype(0), None if query is None else (*lead, heads, size))
    return output, TensorType("float32", (batch, heads, size, key_size)), TensorType("float32", (batch, None))


def _convolve_with_state(node: TypedNode) -> Types:
    x, weight, element = node.shape(0), node.shape(1), node.dtype(0)
    taps = size_at(weight, -1)
    length = (taps - 1) * node.integer("dilation", 1) if isinstance(taps, int) else None
    if x is None:
        return TensorType(element), TensorType(element)
    slot = (x[0], length, *x[2:]) if node.integer("channels_last") else (*x[:-1], length)
    window = node.integer("state_window")
    return node.type(0), TensorType(element, (window, *slot) if window else slot)


def _convolve_packed(node: TypedNode) -> Types:
    update = (node.size(4, 0), node.integer("state_update_capacity"), node.size(0, 1))
    return node.type(0), node.type(4), TensorType(node.dtype(0), update)


def _hash_grams(node: TypedNode) -> Types:
    element, orders = node.dtype(0), node.integer("max_ngram_size") - 1
    hashes = TensorType(element, node.shape_with_more(0, orders * node.integer("n_head_per_ngram")))
    return hashes, TensorType(element, (node.size(0, 0), orders))


def _hash_packed(node: TypedNode) -> Types:
    element, orders = node.dtype(0), node.integer("max_ngram_size") - 1
    bounds = node.size(3, 0)
    batch = bounds - 1 if isinstance(bounds, int) else None
    present = (batch, orders)
    update = (batch, node.integer("state_update_capacity"), orders)
    hashes = _hash_grams(node)[0]
    return hashes, TensorType(element, present), TensorType("int32", present), TensorType(element, update)


def _route(node: TypedNode) -> Types:
    logits, experts = node.shape(0), node.size(1, 0)
    tokens: Size = 1
    for size in () if logits is None else logits[:-1]:
        tokens = multiply(tokens, size)
    shape = (None if logits is None else tokens, experts)
    return TensorType(node.dtype(0), shape), TensorType("float32", shape), TensorType("float32", shape)


def _gather_packed(node: TypedNode) -> TensorType:
    return TensorType(dtype_of_onnx(node.integer("output_dtype", 16)), node.shape_with_more(1, node.integer("K")))


def _mix(node: TypedNode) -> TensorType:
    streams, branches = node.shape(0), node.integer("num_branches")
    if streams is None:
        return TensorType(node.dtype(0))
    sizes = (*streams[:-1], divide(streams[-1], branches)) if branches else (*streams[:-2], streams[-1])
    return TensorType(node.dtype(0), sizes)


SEQUENCE_RULES: dict[str, Rule] = {
    "DynamicQuantizeLSTM": _recur(1),
    "AttnLSTM": _recur(2),
    "LinearAttention": _attend_linearly,
    "GatedDeltaNet": _attend_packed,
    "CausalConvWithState": _convolve_with_state,
    "VarlenCausalConvWithState": _convolve_packed,
    "LinearAttentionGate": lambda node: (node.type(0), node.type(3)),
    "EngramGate": lambda node: (node.type(0), node.type(0)),
    "NGramHashMapping": _hash_grams,
    "VarlenNGramHashMapping": _hash_packed,
    "MoEGroupRouter": _route,
    "GatherPacked": _gather_packed,
    "HyperConnectionPreMix": _mix,
}
