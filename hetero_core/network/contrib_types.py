"""The operators of ONNX Runtime that onnx does not know: those of com.microsoft, and some in ONNX's own domain.

Each has a rule of sizes as `operators` has them, and the sources of the element types of its outputs. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from hetero_core.network.graph import Node
from hetero_core.network.operators import (
    OPERATORS,
    STANDARD_DOMAINS,
    Operator,
    Rule,
    Shape,
    SizedNode,
    UnknownError,
    broadcast,
    define,
    gemm,
    is_unknown,
    keep,
    multiply,
    multiply_shapes,
    name_operators,
    normalize_layer,
    open_size,
    open_sizes,
    require,
    slide_window,
)

MICROSOFT = "com.microsoft"


def knows_contrib(node: Node) -> bool:
    """Says whether the node's operator is one of ONNX Runtime's own; in ONNX's domain, only an operator that the opset does not have."""
    return node.op_type in _TABLES.get(node.domain, {}) and (node.domain != "" or node.since_version == 0)


def last_opset(node: Node) -> int | None:
    """Returns the last opset of ONNX's own domain in which ONNX Runtime gives the operator this meaning; None without a limit."""
    return None if node.domain else _LAST_OPSETS.get(node.op_type)


def find_operator(node: Node) -> Operator | None:
    """Returns the rules of a node's operator, of ONNX or of ONNX Runtime; None without rules."""
    if node.since_version == 0:
        return _TABLES.get(node.domain, {}).get(node.op_type)
    operator = OPERATORS.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
    return None if operator is None or node.since_version < operator.since else operator


def infer_contrib_sizes(node: SizedNode) -> Sequence[Shape]:
    """Returns the shapes of the outputs of a node of another domain, without unknown sizes. Raises: those of `REFUSALS`."""
    operator = find_operator(node.node)
    if operator is None:
        raise UnknownError(node.node.op_type)
    shapes = operator.sizes(node)
    written = [shape for shape, value in zip(shapes, node.node.outputs, strict=False) if value]
    require(len(written) == len(node.node.writes) and not any(is_unknown(size) for shape in written for size in shape))
    return shapes


# Products, normalizations, tables.


def _multiply_transposed(node: SizedNode) -> Sequence[Shape]:
    sides = []
    for index, side in enumerate("AB"):
        shape = node.shape(index)
        if len(shape) >= 2 and node.get(f"transBatch{side}", 0):
            # The first axis comes to stand beside the last.
            shape = (*shape[1:-1], shape[0], shape[-1])
        sides.append((*shape[:-2], *shape[-2:][::-1]) if node.get(f"trans{side}", 0) else shape)
    return [multiply_shapes(*sides)]


def _concatenate(node: SizedNode) -> Sequence[Shape]:
    shapes = [node.shape(index) for index in range(2, len(node.shapes), 3)]
    axis = node.axis(0, len(shapes[0]))
    return [(*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])]


def _embed(node: SizedNode) -> Sequence[Shape]:
    batch, steps = node.shape()
    output = (batch, steps, node.shape(2)[1])
    return [output, (batch,), output]


def _gather_blocks(node: SizedNode) -> Sequence[Shape]:
    table, axis = node.shape(0), node.get("gather_axis", 0)
    sizes = (*table[:-1], _count_codes(node, table, node.get("bits", 4)))
    axis %= len(table)
    return [(*sizes[:axis], *node.shape(1), *sizes[axis + 1 :])]


def _count_codes(node: SizedNode, table: Shape, bits: int) -> Any:
    """Returns the codes along the last axis of a table, whose type is not known here: several in an element if it is of bytes."""
    scales, block, last = node.shapes[2], node.get("block_size", 128), table[-1]
    if bits == 8:
        return last
    if scales is None or any(map(is_unknown, (*scales, last))):
        return open_size()
    if node.get("quantize_axis", 1) % len(table) != len(table) - 1:
        return scales[-1]
    counts = [count for count in (last, last * (8 // bits)) if block > 0 and -(-count // block) == scales[-1]]
    return counts[0] if len(counts) == 1 else open_size()


# Attention.


def _attend(weight: int, past: int) -> Rule:
    """Returns the rule of an attention that projects its input itself."""

    def rule(node: SizedNode) -> Sequence[Shape]:
        batch, steps = node.shape()[:2]
        heads, sizes = node.get("num_heads", 1), node.get("qkv_hidden_sizes")
        width = sizes[2] if sizes else node.shape(weight)[1] // 3
        total = steps + node.shape(past)[3] if node.has(past) else steps
        total = open_size() if node.get("past_present_share_buffer", 0) else total
        return [(batch, steps, width), (2, batch, heads, total, width // heads)]

    return rule


def _attend_heads(past: int) -> Rule:
    """Returns the rule of an attention over a projected query, key and value."""

    def rule(node: SizedNode) -> Sequence[Shape]:
        query, heads = node.shape(), node.get("num_heads", 1)
        key, value = (node.shape(index) if node.has(index) else () for index in (1, 2))
        batch, steps = query[:2]
        if len(query) == 5:
            width, length = query[2] * query[4], steps
        elif len(key) == 5:
            width, length = key[2] * key[4], key[1]
        elif len(value) == 4:
            width, length = value[1] * value[3], value[2]
        elif value:
            width, length = value[2], value[1]
        else:
            width, length = query[2] // 3, steps
        total = length + node.shape(past)[2] if node.has(past) else length
        key_width = query[2] if len(query) == 3 and key else width
        caches = ((batch, heads, total, size // heads) for size in (key_width, width))
        return [(batch, steps, width), *caches, (batch, heads, steps, total)]

    return rule


def _attend_decoding(node: SizedNode) -> Sequence[Shape]:
    output, *others = _attend_heads(5)(node)
    return [output, node.shape(5), node.shape(6), open_sizes(4)] if node.get("past_present_share_buffer", 0) else [output, *others]


def _attend_groups(node: SizedNode) -> Sequence[Shape]:
    batch, steps, width = node.shape()
    heads, groups = node.get("num_heads", 1), node.get("kv_num_heads", 1)
    is_packed, has_past = not node.has(1), node.has(3)
    head = width // (heads + 2 * groups if is_packed else heads)
    # The caches are as long as the total length, which is a value, or as the past ones if these are longer.
    past, totals = node.shape(3)[2] if has_past else 0, node.read(node.node.inputs[6]) if node.has(6) else None
    total = totals[0] if totals is not None and len(totals) == 1 else open_size()
    if has_past and node.get("sliding_window_cache", 0):
        length = past
    else:
        length = open_size() if is_unknown(total) or is_unknown(past) else max(total, past)
    present = (batch, groups, length, node.shape(3)[3] if has_past else head)
    return [(batch, steps, head * heads if is_packed else width), present, present, (batch, heads, steps, open_size())]


# Recurrence and tokens.


def _recur(hidden_of: int) -> Rule:
    """Returns the rule of an LSTM; `hidden_of` is the axis of the hidden size in its recurrent weights."""

    def rule(node: SizedNode) -> Sequence[Shape]:
        steps, batch = node.shape()[:2]
        directions = 2 if node.get("direction") == "bidirectional" else 1
        hidden = node.get("hidden_size") or node.shape(2)[hidden_of]
        state = (directions, batch, hidden)
        return [(steps, *state), state, state]

    return rule


def _attend_linearly(node: SizedNode) -> Sequence[Shape]:
    batch, steps, width = node.shape()
    queries, groups = node.get("q_num_heads", 1), node.get("kv_num_heads", 1)
    size = node.shape(2)[2] // groups
    return [(batch, steps, size * max(queries, groups)), (*_window(node), batch, groups, width // queries, size)]


def _window(node: SizedNode) -> Shape:
    """Returns the first axis of a state that keeps several steps; no axis for a state of the last step alone."""
    return tuple(filter(None, [node.get("state_window", 0)]))


def _attend_packed(node: SizedNode) -> Sequence[Shape]:
    query, batch = node.shape(), node.shape(3)[0] - 1
    heads, size = node.shape(2)[-2:] if node.has(2) else node.shape(6)[1:3]
    key_size = query[-1] if node.has(1) else node.shape(6)[3]
    lead = query[:-2] if node.has(1) else query[:-1]
    return [(*lead, heads, size), (batch, heads, size, key_size), (batch, open_size())]


def _convolve_with_state(node: SizedNode) -> Sequence[Shape]:
    x = node.shape()
    length = (node.shape(1)[-1] - 1) * node.get("dilation", 1)
    return [x, (*_window(node), *((x[0], length, *x[2:]) if node.get("channels_last", 0) else (*x[:-1], length)))]


def _convolve_packed(node: SizedNode) -> Sequence[Shape]:
    update = (node.shape(4)[0], node.get("state_update_capacity", 0), node.shape()[1])
    return [node.shape(), node.shape(4), update]


def _hash_grams(node: SizedNode) -> Sequence[Shape]:
    orders = node.get("max_ngram_size", 0) - 1
    return [(*node.shape(), orders * node.get("n_head_per_ngram", 0)), (node.shape()[0], orders)]


def _hash_packed(node: SizedNode) -> Sequence[Shape]:
    batch, orders = node.shape(3)[0] - 1, node.get("max_ngram_size", 0) - 1
    present = (batch, orders)
    return [_hash_grams(node)[0], present, present, (batch, node.get("state_update_capacity", 0), orders)]


def _mix(node: SizedNode) -> Sequence[Shape]:
    streams, branches = node.shape(), node.get("num_branches", 0)
    return [(*streams[:-1], streams[-1] // branches) if branches else (*streams[:-2], streams[-1])]


# Windows and axes.


def _slide(weight: int | None, *, always_last: bool = False, is_global: bool = False) -> Rule:
    """Returns the rule of a convolution with these filters, or of a pooling; channels may be the last axis."""

    def rule(node: SizedNode) -> Sequence[Shape]:
        shape, is_last = node.shape(), always_last or bool(node.get("channels_last", 0))
        batch, channels, sizes = shape[0], shape[-1 if is_last else 1], shape[1:-1] if is_last else shape[2:]
        if is_global:
            sizes = (1,) * len(sizes)
        elif weight is None:
            sizes = slide_window(node, sizes, node.node.attributes["kernel_shape"])
        else:
            channels, sizes = node.shape(weight)[0], slide_window(node, sizes, node.shape(weight)[2:])
        return [(batch, *sizes, channels) if is_last else (batch, channels, *sizes)]

    return rule


def _unfold(node: SizedNode) -> Sequence[Shape]:
    shape, size = node.shape(), node.get("size", 0)
    axis = node.get("dim", -1) % len(shape)
    count = (shape[axis] - size) // max(node.get("step", 1), 1) + 1
    return [(*shape[:axis], count, *shape[axis + 1 :], size)]


# The tables.

_SAME = define(0, keep(), 0)

_COMMON: dict[str, Operator] = {
    "QLinearAdd QLinearMul": define(0, broadcast(0, 3), 0),
    "QLinearWhere": define(0, broadcast(0, 1, 4), 1),
    "QLinearConcat": define(0, _concatenate, 1),
    "QuantizeLinear": define(0, keep(), (2, "uint8")),
    "DequantizeLinear": define(0, keep(), 1),
    "MatMulIntegerToFloat": define(0, multiply(), 2),
    "DynamicQuantizeMatMul": define(0, multiply(), "float32"),
    "MatMulInteger16": define(0, multiply(), "int32"),
    "FusedMatMul TransposeMatMul": define(0, _multiply_transposed, 1),
    "QGemm": define(0, gemm(0, 3), (8, "float32")),
    "FusedGemm": define(0, gemm(0, 1), 0),
    "MatMulNBits MatMulBnb4": define(0, lambda node: [(*node.shape()[:-1], node.get("N" if node.get("transB", 1) else "K"))], 0),
    "MatMulFpQ4": define(0, lambda node: [(*node.shape()[:-1], open_size())], "float32"),
    "GatherBlockQuantized": define(0, _gather_blocks, 2),
    "SkipLayerNormalization SkipSimplifiedLayerNormalization": define(
        0, lambda node: [node.shape(), *[(*node.shape()[:-1], 1)] * 2, node.shape()], 0, "float32", "float32", 0
    ),
    "EmbedLayerNormalization": define(0, _embed, 2, "int32", 2),
    "QEmbedLayerNormalization": define(0, _embed, "float32", "int32", "float32"),
    "CDist": define(0, lambda node: [(node.shape()[0], node.shape(1)[0])], 0),
    "Tokenizer": define(0, lambda node: [(*node.shape(), open_size())], "string"),
    "BiasGelu FastGelu Gelu QuickGelu ScaledSiLU GatedRMSNorm BranchwiseRMSNorm GatedAdd": _SAME,
    "Inverse Trilu MoE QMoE HyperConnectionPostMix RotaryEmbedding MRotaryEmbedding": _SAME,
    "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax": _SAME,
    "Attention": define(0, _attend(1, 4), 0),
    "QAttention": define(0, _attend(1, 8), 3),
    "MultiHeadAttention": define(0, _attend_heads(6), 0, 0, 0, "float32"),
    "DecoderMaskedMultiHeadAttention": define(0, _attend_decoding, 0, (5, 0), (6, 0), "float32"),
    "GroupQueryAttention": define(0, _attend_groups, 0, (3, 0), (3, 0), 0),
    "SparseAttention": define(0, lambda node: [_attend_groups(node)[0], node.shape(3), node.shape(4)], 0, 3, 4),
    "DynamicQuantizeLSTM": define(0, _recur(1), 0),
    "AttnLSTM": define(0, _recur(2), 0),
    "LinearAttention": define(0, _attend_linearly, 0, (3, 0)),
    "GatedDeltaNet": define(0, _attend_packed, 0, "float32"),
    "CausalConvWithState": define(0, _convolve_with_state, 0),
    "VarlenCausalConvWithState": define(0, _convolve_packed, 0, 4, 0),
    "LinearAttentionGate": define(0, lambda node: [node.shape(index) for index in (0, 3) if node.has(index)], 0, 3),
    "EngramGate": define(0, keep(0, 0), 0),
    "NGramHashMapping": define(0, _hash_grams, 0),
    "VarlenNGramHashMapping": define(0, _hash_packed, 0, 0, "int32", 0),
    "MoEGroupRouter": define(0, lambda node: [(prod(node.shape()[:-1]), node.shape(1)[0])] * 3, 0, "float32"),
    "GatherPacked": define(0, lambda node: [(*node.shape(1), node.get("K", 0))], ("@output_dtype", "bfloat16")),
    "HyperConnectionPreMix": define(0, _mix, 0),
    "QLinearAveragePool MaxpoolWithMask": define(0, _slide(None), 0),
    "NhwcMaxPool": define(0, _slide(None, always_last=True), 0),
    "QLinearGlobalAveragePool": define(0, _slide(None, is_global=True), 0),
    "QLinearConv": define(0, _slide(3), 7),
    "FusedConv": define(0, _slide(1), 0),
    "ConvTransposeWithDynamicPads": define(
        0, lambda node: [(node.shape()[0], node.shape(1)[1] * node.get("group", 1), *open_sizes(len(node.shape()) - 2))], 0
    ),
    "CropAndResize": define(0, lambda node: [(node.shape(1)[0], node.shape()[1], *open_sizes(2))], 0),
    "GridSample": define(0, OPERATORS["GridSample"].sizes, 0),
    "Pad": define(0, lambda node: [open_sizes(len(node.shape()))], 0),
    "ExpandDims": define(0, lambda node: [open_sizes(len(node.shape()) + 1)], 0),
    "GatherND": define(0, OPERATORS["GatherND"].sizes, 0),
    "UnfoldTensor": define(0, _unfold, 0),
    "Range": define(0, lambda node: [open_sizes(1)], 0),
    "Unique": define(0, lambda node: [open_sizes(1), node.shape(), open_sizes(1)], 0, "int64"),
    "DynamicTimeWarping": define(0, lambda node: [(2, open_size())], "int32"),
    "WordConvEmbedding": define(0, lambda node: [(*node.shape()[:-1], node.shape(1)[0])], "float32"),
    "MurmurHash3": define(0, keep(), lambda node, dtypes: "uint32" if node.attributes.get("positive", 1) else "int32"),
    # How many tokens are appended is known at run time.
    "BifurcationDetector": define(0, lambda node: [open_sizes(1), ()], "int64"),
    "NGramRepeatBlock": define(0, keep(1), 1),
}

_WITHDRAWN = ("Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh")
"""Operators that ONNX tried in its own domain and took back; ONNX Runtime has them up to opset 9."""

_LAST_OPSETS = {**dict.fromkeys(_WITHDRAWN, 9), "MeanVarianceNormalization": 8}

_STANDARD: dict[str, Operator] = {
    **{name: OPERATORS[name] for name in ("CouplePairs", "MultiplyAdd", "SimplifiedLayerNormalization")},
    "LayerNormalization": define(0, normalize_layer, 0, "float32"),
    "Affine ImageScaler MeanVarianceNormalization MemcpyFromHost MemcpyToHost ParametricSoftplus": _SAME,
    "Scale ScaledTanh ThresholdedRelu": _SAME,
    "Crop": define(0, lambda node: [(*node.shape()[:2], *open_sizes(2))], 0),
    "DynamicSlice": define(0, lambda node: [open_sizes(len(node.shape()))], 0),
}

_TABLES: Mapping[str, Mapping[str, Operator]] = {MICROSOFT: name_operators(_COMMON), "": name_operators(_STANDARD)}
