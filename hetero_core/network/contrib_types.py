"""Types of what ONNX Runtime's own operators make, which onnx knows nothing of: those of com.microsoft, and some in ONNX's own domain.

`infer_contrib` is asked for nodes without a schema. Sizes that no type tells stay unknown. Rules of attention, of windows and of
tokens stand in files of their own. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero_core.network.contrib_attention_types import ATTENTION_RULES
from hetero_core.network.contrib_sequence_types import SEQUENCE_RULES
from hetero_core.network.contrib_shapes import Rule, Shape, Size, TypedNode, Types, add, broadcast, product_shape, same_as, size_at
from hetero_core.network.contrib_window_types import WINDOW_RULES
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType, has_known_element

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
    **ATTENTION_RULES,
    **SEQUENCE_RULES,
    **WINDOW_RULES,
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
