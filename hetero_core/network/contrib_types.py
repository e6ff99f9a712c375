"""The table of ONNX Runtime's own operators, which onnx knows nothing of: those of com.microsoft, and some in ONNX's own domain.

For each one there is a rule of the types that it makes. `infer_contrib` is asked for nodes without a schema. Sizes that no type tells
stay unknown. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType, has_known_element, shape_of

MICROSOFT = "com.microsoft"


def knows_contrib(node: Node) -> bool:
    """Says whether the node's operator is one of ONNX Runtime's own; in ONNX's domain, one that the opset does not have."""
    return node.op_type in _RULES.get(node.domain, {}) and (node.domain != "" or node.since_version == 0)


def last_opset(node: Node) -> int | None:
    """Returns the last opset of ONNX's own domain in which ONNX Runtime gives the operator this meaning; None without a limit."""
    return None if node.domain else _LAST_OPSETS.get(node.op_type)


def infer_contrib(node: Node, input_types: Sequence[ValueType | None]) -> dict[str, ValueType]:
    """Returns output -> type, of the outputs of which something is known."""
    rule = _RULES.get(node.domain, {}).get(node.op_type)
    if rule is None:
        return {}
    types = rule(TypedNode(node, input_types))
    outputs = zip(node.outputs, types if isinstance(types, tuple) else (types,), strict=False)
    return {value: value_type for value, value_type in outputs if value and value_type is not None and _tells(value_type)}


def _tells(value_type: ValueType) -> bool:
    return has_known_element(value_type) or (isinstance(value_type, TensorType) and value_type.shape is not None)


# Sizes that may be unknown or names.

Size = int | str | None
Shape = tuple[Size, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class TypedNode:
    """A node with what is known of the types of its inputs, None for an absent or unknown one, as rules of types ask for it."""

    node: Node
    input_types: Sequence[ValueType | None]

    def type(self, index: int) -> ValueType | None:
        """Returns the type of an input."""
        return self.input_types[index] if index < len(self.input_types) else None

    def dtype(self, index: int) -> str | None:
        """Returns the element type of an input."""
        value_type = self.type(index)
        return value_type.dtype if isinstance(value_type, TensorType) else None

    def shape(self, index: int) -> Shape:
        """Returns the shape of an input; None if its rank is not known."""
        return shape_of(self.type(index))

    def size(self, index: int, axis: int) -> Size:
        """Returns one size of an input; None if it is not known."""
        return size_at(self.shape(index), axis)

    def shape_with_last(self, index: int, *sizes: Size) -> Shape:
        """Returns the shape of an input with these sizes in place of its last one."""
        shape = self.shape(index)
        return None if shape is None else (*shape[:-1], *sizes)

    def shape_with_more(self, index: int, *sizes: Size) -> Shape:
        """Returns the shape of an input with these sizes behind its own."""
        shape = self.shape(index)
        return None if shape is None else (*shape, *sizes)

    def open_shape(self, index: int, more: int = 0) -> Shape:
        """Returns the rank of an input, and so many axes more, as open sizes."""
        shape = self.shape(index)
        return None if shape is None else (None,) * (len(shape) + more)

    def has(self, index: int) -> bool:
        """Says whether an optional input is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an attribute that holds an integer."""
        value = self.node.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Returns an attribute that holds integers, None if it is absent."""
        value: Any = self.node.attributes.get(name)
        return value if isinstance(value, tuple) else None


Types = tuple[ValueType | None, ...]
Rule = Callable[[TypedNode], ValueType | Types | None]
"""Returns the type of the only output, or one for each; None if nothing is known."""


def size_at(shape: Shape, axis: int) -> Size:
    """Returns one size of a shape, None if it is unknown."""
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def add(left: Size, right: Size) -> Size:
    """Returns the sum of two sizes; a name plus 0 is the name."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return left if right == 0 else right if left == 0 else None


def multiply(left: Size, right: Size) -> Size:
    """Returns the product of two sizes; a name times 1 is the name."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    return left if right == 1 else right if left == 1 else None


def divide(size: Size, divisor: int) -> Size:
    """Returns a size divided by a number that divides it."""
    return size // divisor if isinstance(size, int) and divisor > 0 else size if divisor == 1 else None


def broadcast(*shapes: Shape) -> Shape:
    """Returns the common shape of tensors that are computed element by element."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(_meet(sizes) for sizes in zip(*padded, strict=True))


def _meet(sizes: Sequence[Size]) -> Size:
    larger = [size for size in sizes if size != 1]
    if not larger:
        return 1
    fixed = [size for size in larger if isinstance(size, int)]
    return fixed[0] if fixed else larger[0] if all(size == larger[0] for size in larger) else None


def product_shape(left: Shape, right: Shape) -> Shape:
    """Returns the shape of a matrix product with NumPy's rules."""
    if left is None or right is None or not left or not right:
        return None
    outer = broadcast(left[:-2], right[:-2])
    if outer is None:
        return None
    rows = () if len(left) == 1 else (left[-2],)
    columns = () if len(right) == 1 else (right[-1],)
    return (*outer, *rows, *columns)


def same_as(index: int) -> Rule:
    """Returns the rule of an operator whose first output has the type of an input."""
    return lambda node: node.type(index)


# Products, normalizations, tables.


def _combine(dtype: int, *operands: int) -> Rule:
    """Returns the rule of an operator that broadcasts some of its inputs and has the element type of one."""
    return lambda node: TensorType(node.dtype(dtype), broadcast(*(node.shape(index) for index in operands)))


def _multiply(node: TypedNode, dtype: str | None) -> TensorType:
    return TensorType(dtype, product_shape(node.shape(0), node.shape(1)))


def _multiply_transposed(node: TypedNode) -> TensorType:
    sides = [
        _turn(node.shape(index), bool(node.integer(f"trans{side}")), bool(node.integer(f"transBatch{side}")))
        for index, side in enumerate("AB")
    ]
    return TensorType(node.dtype(1), product_shape(*sides))


def _turn(shape: Shape, swaps: bool, moves: bool) -> Shape:
    """Returns the shape of an operand as the product sees it."""
    if shape is None or len(shape) < 2:
        return shape
    # The first axis comes to stand beside the last.
    turned = (*shape[1:-1], shape[0], shape[-1]) if moves else shape
    return (*turned[:-2], turned[-1], turned[-2]) if swaps else turned


def _gemm(left: int, right: int) -> Rule:
    def rule(node: TypedNode) -> TensorType:
        rows = node.size(left, 1 if node.integer("transA") else 0)
        columns = node.size(right, 0 if node.integer("transB") else 1)
        dtype = node.dtype(left) if left == right - 1 else ("float32" if not node.has(7) else node.dtype(left))
        return TensorType(dtype, (rows, columns))

    return rule


def _blocks(node: TypedNode) -> TensorType:
    return TensorType(node.dtype(0), node.shape_with_last(0, node.integer("N" if node.integer("transB", 1) else "K")))


def _concatenate(node: TypedNode) -> TensorType:
    shapes = [node.shape(index) for index in range(2, len(node.node.inputs), 3)]
    dtype, axis = node.dtype(1), node.integer("axis")
    first = shapes[0] if shapes else None
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        return TensorType(dtype)
    axis = axis + len(first) if axis < 0 else axis
    total: Size = 0
    for shape in shapes:
        total = add(total, size_at(shape, axis))
    return TensorType(dtype, tuple(total if place == axis else size for place, size in enumerate(first)))


def _statistics(*, sum_at: int) -> Rule:
    """Returns the rule of a normalization: the result, mean and deviation of float32, and the sum of what is normalized."""

    def rule(node: TypedNode) -> Types:
        row = TensorType("float32", node.shape_with_last(0, 1))
        outputs = [node.type(0), row, row, row]
        outputs[sum_at] = node.type(0)
        return tuple(outputs)

    return rule


def _statistic_over_last(node: TypedNode) -> TensorType:
    shape, axis = node.shape(0), node.integer("axis", -1)
    if shape is None:
        return TensorType("float32")
    axis = axis + len(shape) if axis < 0 else axis
    return TensorType("float32", (*shape[:axis], *(1,) * (len(shape) - axis)))


def _embed(dtype: str | None) -> Rule:
    def rule(node: TypedNode) -> Types:
        batch, steps = node.size(0, 0), node.size(0, 1)
        output = TensorType(dtype or node.dtype(2), (batch, steps, node.size(2, 1)))
        return output, TensorType("int32", (batch,)), output

    return rule


def _gather_blocks(node: TypedNode) -> TensorType:
    table, indices, dtype = node.shape(0), node.shape(1), node.dtype(2)
    if table is None or indices is None:
        return TensorType(dtype)
    axis = node.integer("gather_axis")
    axis = axis + len(table) if axis < 0 else axis
    bits = node.integer("bits", 4)
    last = table[-1]
    if node.dtype(0) == "uint8" and bits < 8:
        last = last * (8 // bits) if isinstance(last, int) else None
    sizes = (*table[:-1], last)
    return TensorType(dtype, (*sizes[:axis], *indices, *sizes[axis + 1 :]))


# Attention.


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


# Recurrence and tokens.


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


# Windows and axes.


def _slide(node: TypedNode, sizes: tuple[Size, ...], kernel: tuple[Size, ...]) -> tuple[Size, ...]:
    """Returns the sizes of what windows make."""
    rank = len(sizes)
    ones = (1,) * rank
    strides, dilations = node.integers("strides") or ones, node.integers("dilations") or ones
    pads = node.integers("pads") or (0,) * (2 * rank)
    auto = node.node.attributes.get("auto_pad", "NOTSET")
    if not len(strides) == len(dilations) == len(kernel) == rank or len(pads) != 2 * rank:
        return (None,) * rank
    counts: list[Size] = []
    for axis, (size, taps, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if not isinstance(size, int) or not isinstance(taps, int) or stride < 1:
            counts.append(None)
        elif str(auto).startswith("SAME"):
            counts.append(-(-size // stride))
        else:
            begin, end = (pads[axis], pads[axis + rank]) if auto == "NOTSET" else (0, 0)
            room = size + begin + end - (taps - 1) * dilation - 1
            count = (-(-room // stride) if node.integer("ceil_mode") else room // stride) + 1
            hangs = bool(node.integer("ceil_mode")) and (count - 1) * stride >= size + begin
            counts.append(count - hangs)
    return tuple(counts)


def _arrange(shape: Shape, last: bool) -> Shape:
    """Returns (batch, channels, *sizes) of a shape that has its channels last."""
    return shape if shape is None or not last else (shape[0], shape[-1], *shape[1:-1])


def _restore(batch: Size, channels: Size, sizes: tuple[Size, ...], last: bool) -> tuple[Size, ...]:
    return (batch, *sizes, channels) if last else (batch, channels, *sizes)


def _pool(*, always_last: bool) -> Rule:
    def rule(node: TypedNode) -> TensorType:
        last = always_last or bool(node.integer("channels_last"))
        shape, kernel = _arrange(node.shape(0), last), node.integers("kernel_shape")
        if shape is None or kernel is None:
            return TensorType(node.dtype(0))
        return TensorType(node.dtype(0), _restore(shape[0], shape[1], _slide(node, shape[2:], kernel), last))

    return rule


def _pool_globally(node: TypedNode) -> TensorType:
    last = bool(node.integer("channels_last"))
    shape = _arrange(node.shape(0), last)
    if shape is None:
        return TensorType(node.dtype(0))
    return TensorType(node.dtype(0), _restore(shape[0], shape[1], (1,) * (len(shape) - 2), last))


def _convolve(weight: int, dtype: int) -> Rule:
    def rule(node: TypedNode) -> TensorType:
        last = bool(node.integer("channels_last"))
        shape, weights = _arrange(node.shape(0), last), node.shape(weight)
        if shape is None or weights is None:
            return TensorType(node.dtype(dtype))
        sizes = _slide(node, shape[2:], weights[2:])
        return TensorType(node.dtype(dtype), _restore(shape[0], weights[0], sizes, last))

    return rule


def _transpose_convolve(node: TypedNode) -> TensorType:
    shape, channels = node.shape(0), node.size(1, 1)
    if shape is None:
        return TensorType(node.dtype(0))
    outputs = channels * node.integer("group", 1) if isinstance(channels, int) else None
    return TensorType(node.dtype(0), (shape[0], outputs, *(None,) * (len(shape) - 2)))


def _sample_grid(node: TypedNode) -> TensorType:
    x, grid = node.shape(0), node.shape(1)
    sizes = (None, None) if grid is None else grid[1:-1]
    return TensorType(node.dtype(0), (size_at(x, 0), size_at(x, 1), *sizes))


def _gather_nd(node: TypedNode) -> TensorType:
    shape, indices = node.shape(0), node.shape(1)
    depth = size_at(indices, -1)
    if shape is None or indices is None or not isinstance(depth, int):
        return TensorType(node.dtype(0))
    return TensorType(node.dtype(0), (*indices[:-1], *shape[depth:]))


def _unfold(node: TypedNode) -> TensorType:
    shape, axis = node.shape(0), node.integer("dim", -1)
    if shape is None:
        return TensorType(node.dtype(0))
    axis, size = axis % max(len(shape), 1), node.integer("size")
    length = shape[axis]
    count = (length - size) // max(node.integer("step", 1), 1) + 1 if isinstance(length, int) else None
    sizes = tuple(count if place == axis else each for place, each in enumerate(shape))
    return TensorType(node.dtype(0), (*sizes, size))


def _unique(node: TypedNode) -> Types:
    return TensorType(node.dtype(0), (None,)), TensorType("int64", node.shape(0)), TensorType("int64", (None,))


# The tables.

_COMMON: dict[str, Rule] = {
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _combine(0, 0, 3)),
    "QLinearWhere": _combine(1, 0, 1, 4),
    "QLinearConcat": _concatenate,
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), same_as(0)),
    "QuantizeLinear": lambda node: TensorType(node.dtype(2) if node.has(2) else "uint8", node.shape(0)),
    "DequantizeLinear": lambda node: TensorType(node.dtype(1), node.shape(0)),
    "MatMulIntegerToFloat": lambda node: _multiply(node, node.dtype(2)),
    "DynamicQuantizeMatMul": lambda node: _multiply(node, "float32"),
    "MatMulInteger16": lambda node: _multiply(node, "int32"),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _multiply_transposed),
    "QGemm": _gemm(0, 3),
    "FusedGemm": _gemm(0, 1),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _blocks),
    "MatMulFpQ4": lambda node: TensorType("float32", node.shape_with_last(0, None)),
    "GatherBlockQuantized": _gather_blocks,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _statistics(sum_at=3)),
    "EmbedLayerNormalization": _embed(None),
    "QEmbedLayerNormalization": _embed("float32"),
    "CDist": lambda node: TensorType(node.dtype(0), (node.size(0, 0), node.size(1, 0))),
    "Tokenizer": lambda node: TensorType("string", node.shape_with_more(0, None)),
    **dict.fromkeys(
        (
            *("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "ScaledSiLU", "GatedRMSNorm", "BranchwiseRMSNorm", "GatedAdd"),
            *("Inverse", "Trilu", "MoE", "QMoE", "HyperConnectionPostMix", "RotaryEmbedding", "MRotaryEmbedding"),
        ),
        same_as(0),
    ),
    "Attention": _attend(1, 4, 0),
    "QAttention": _attend(1, 8, 3),
    "MultiHeadAttention": _attend_heads(6),
    "DecoderMaskedMultiHeadAttention": _attend_decoding,
    "GroupQueryAttention": _attend_groups,
    "SparseAttention": _attend_blocks,
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
    "QLinearAveragePool": _pool(always_last=False),
    "NhwcMaxPool": _pool(always_last=True),
    "MaxpoolWithMask": _pool(always_last=False),
    "QLinearGlobalAveragePool": _pool_globally,
    "QLinearConv": _convolve(3, 7),
    "FusedConv": _convolve(1, 0),
    "ConvTransposeWithDynamicPads": _transpose_convolve,
    "CropAndResize": lambda node: TensorType(node.dtype(0), (node.size(1, 0), node.size(0, 1), None, None)),
    "GridSample": _sample_grid,
    "Pad": lambda node: TensorType(node.dtype(0), node.open_shape(0)),
    "ExpandDims": lambda node: TensorType(node.dtype(0), node.open_shape(0, 1)),
    "GatherND": _gather_nd,
    "UnfoldTensor": _unfold,
    "Range": lambda node: TensorType(node.dtype(0), (None,)),
    "Unique": _unique,
    "DynamicTimeWarping": lambda node: TensorType("int32", (2, None)),
    "WordConvEmbedding": lambda node: TensorType("float32", node.shape_with_last(0, node.size(1, 0))),
    "MurmurHash3": lambda node: TensorType("uint32" if node.integer("positive", 1) else "int32", node.shape(0)),
    # How many tokens are appended is known at run time.
    "BifurcationDetector": lambda node: (TensorType("int64", (None,)), TensorType("int64", ())),
    "NGramRepeatBlock": same_as(1),
}

_WITHDRAWN = ("Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh")
"""Operators that ONNX tried in its own domain and took back; ONNX Runtime has them up to opset 9."""

_LAST_OPSETS = {**dict.fromkeys(_WITHDRAWN, 9), "MeanVarianceNormalization": 8}

_STANDARD: dict[str, Rule] = {
    "SimplifiedLayerNormalization": lambda node: (TensorType(node.dtype(1), node.shape(0)), _statistic_over_last(node)),
    "LayerNormalization": lambda node: (TensorType(node.dtype(0), node.shape(0)), *[_statistic_over_last(node)] * 2),
    **dict.fromkeys(
        (
            *("Affine", "ImageScaler", "MeanVarianceNormalization", "MemcpyFromHost", "MemcpyToHost", "ParametricSoftplus"),
            *("Scale", "ScaledTanh", "ThresholdedRelu"),
        ),
        same_as(0),
    ),
    "Crop": lambda node: TensorType(node.dtype(0), (*(node.shape(0) or ())[:2], None, None)),
    "DynamicSlice": lambda node: TensorType(node.dtype(0), node.open_shape(0)),
}

_RULES: Mapping[str, Mapping[str, Rule]] = {MICROSOFT: _COMMON, "": _STANDARD}
