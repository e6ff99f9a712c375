"""Types of what ONNX Runtime's own operators make, which onnx knows nothing of: those of com.microsoft, and some in ONNX's own domain.

`infer_contrib` is asked for nodes without a schema. Sizes that no type tells stay unknown. Rules of attention, of windows and of
tokens stand in files of their own. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetero_core.network.contrib_attention_types import ATTENTION_RULES
from hetero_core.network.contrib_sequence_types import SEQUENCE_RULES
from hetero_core.network.contrib_shapes import (
    InputTypes,
    Rule,
    Shape,
    Size,
    add,
    broadcast,
    dtype_at,
    integer_of,
    is_there,
    product_shape,
    same_as,
    shape_at,
    size_at,
)
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


def infer_contrib(node: Node, input_types: InputTypes) -> dict[str, ValueType]:
    """Returns output -> type, of the outputs of which something is known."""
    rule = _RULES.get(node.domain, {}).get(node.op_type)
    if rule is None:
        return {}
    outputs = zip(node.outputs, rule(node, input_types), strict=False)
    return {value: value_type for value, value_type in outputs if value and value_type is not None and _tells(value_type)}


def _tells(value_type: ValueType) -> bool:
    return has_known_element(value_type) or (isinstance(value_type, TensorType) and value_type.shape is not None)


def _combine(dtype: int, *operands: int) -> Rule:
    """Returns the rule of an operator that broadcasts some of its inputs and has the element type of one."""
    return lambda node, types: (TensorType(dtype_at(types, dtype), broadcast(*(shape_at(types, index) for index in operands))),)


def _multiply(dtype: str | int) -> Rule:
    def rule(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
        element = dtype if isinstance(dtype, str) else dtype_at(types, dtype)
        return (TensorType(element, product_shape(shape_at(types, 0), shape_at(types, 1))),)

    return rule


def _multiply_transposed(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    sides = [
        _turn(shape_at(types, index), bool(integer_of(node, f"trans{side}")), bool(integer_of(node, f"transBatch{side}")))
        for index, side in enumerate("AB")
    ]
    return (TensorType(dtype_at(types, 1), product_shape(*sides)),)


def _turn(shape: Shape, swaps: bool, moves: bool) -> Shape:
    """Returns the shape of an operand as the product sees it."""
    if shape is None or len(shape) < 2:
        return shape
    # The first axis comes to stand beside the last.
    turned = (*shape[1:-1], shape[0], shape[-1]) if moves else shape
    return (*turned[:-2], turned[-1], turned[-2]) if swaps else turned


def _gemm(left: int, right: int) -> Rule:
    def rule(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
        rows = size_at(shape_at(types, left), 1 if integer_of(node, "transA") else 0)
        columns = size_at(shape_at(types, right), 0 if integer_of(node, "transB") else 1)
        dtype = dtype_at(types, left) if left == right - 1 else ("float32" if not is_there(node, 7) else dtype_at(types, left))
        return (TensorType(dtype, (rows, columns)),)

    return rule


def _blocks(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shape = shape_at(types, 0)
    last = integer_of(node, "N") if integer_of(node, "transB", 1) else integer_of(node, "K")
    return (TensorType(dtype_at(types, 0), None if shape is None else (*shape[:-1], last)),)


def _blob(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shape = shape_at(types, 0)
    return (TensorType("float32", None if shape is None else (*shape[:-1], None)),)


def _concatenate(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shapes = [shape_at(types, index) for index in range(2, len(node.inputs), 3)]
    dtype, axis = dtype_at(types, 1), integer_of(node, "axis")
    first = shapes[0] if shapes else None
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        return (TensorType(dtype),)
    axis = axis + len(first) if axis < 0 else axis
    total: Size = 0
    for shape in shapes:
        total = add(total, size_at(shape, axis))
    return (TensorType(dtype, tuple(total if place == axis else size for place, size in enumerate(first))),)


def _quantize(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    return (TensorType(dtype_at(types, 2) if is_there(node, 2) else "uint8", shape_at(types, 0)),)


def _dequantize(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    return (TensorType(dtype_at(types, 1), shape_at(types, 0)),)


def _statistics(*, sum_at: int) -> Rule:
    """Returns the rule of a normalization: the result, mean and deviation of float32, and the sum of what is normalized."""

    def rule(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
        shape = shape_at(types, 0)
        row = TensorType("float32", None if shape is None else (*shape[:-1], 1))
        outputs = [types[0], row, row, row]
        outputs[sum_at] = types[0]
        return tuple(outputs)

    return rule


def _simplified(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    return TensorType(dtype_at(types, 1), shape_at(types, 0)), _statistic_over_last(node, types)


def _layer(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
    statistic = _statistic_over_last(node, types)
    return TensorType(dtype_at(types, 0), shape_at(types, 0)), statistic, statistic


def _statistic_over_last(node: Node, types: InputTypes) -> TensorType:
    shape, axis = shape_at(types, 0), integer_of(node, "axis", -1)
    if shape is None:
        return TensorType("float32")
    axis = axis + len(shape) if axis < 0 else axis
    return TensorType("float32", (*shape[:axis], *(1,) * (len(shape) - axis)))


def _embed(ids: int, table: int, dtype: str | None) -> Rule:
    def rule(node: Node, types: InputTypes) -> tuple[ValueType | None, ...]:
        shape = shape_at(types, ids)
        element = dtype or dtype_at(types, table)
        batch, steps = size_at(shape, 0), size_at(shape, 1)
        output = TensorType(element, (batch, steps, size_at(shape_at(types, table), 1)))
        return output, TensorType("int32", (batch,)), output

    return rule


def _distance(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    return (TensorType(dtype_at(types, 0), (size_at(shape_at(types, 0), 0), size_at(shape_at(types, 1), 0))),)


def _tokenize(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    shape = shape_at(types, 0)
    return (TensorType("string", None if shape is None else (*shape, None)),)


def _gather_blocks(node: Node, types: InputTypes) -> tuple[ValueType, ...]:
    table, indices, dtype = shape_at(types, 0), shape_at(types, 1), dtype_at(types, 2)
    if table is None or indices is None:
        return (TensorType(dtype),)
    axis = integer_of(node, "gather_axis")
    axis = axis + len(table) if axis < 0 else axis
    bits = integer_of(node, "bits", 4)
    last = table[-1]
    if dtype_at(types, 0) == "uint8" and bits < 8:
        last = last * (8 // bits) if isinstance(last, int) else None
    sizes = (*table[:-1], last)
    return (TensorType(dtype, (*sizes[:axis], *indices, *sizes[axis + 1 :])),)


_COMMON: dict[str, Rule] = {
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), _combine(0, 0, 3)),
    "QLinearWhere": _combine(1, 0, 1, 4),
    "QLinearConcat": _concatenate,
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), same_as(0)),
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "MatMulIntegerToFloat": _multiply(2),
    "DynamicQuantizeMatMul": _multiply("float32"),
    "MatMulInteger16": _multiply("int32"),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _multiply_transposed),
    "QGemm": _gemm(0, 3),
    "FusedGemm": _gemm(0, 1),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _blocks),
    "MatMulFpQ4": _blob,
    "GatherBlockQuantized": _gather_blocks,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _statistics(sum_at=3)),
    "EmbedLayerNormalization": _embed(0, 2, None),
    "QEmbedLayerNormalization": _embed(0, 2, "float32"),
    "CDist": _distance,
    "Tokenizer": _tokenize,
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
    "SimplifiedLayerNormalization": _simplified,
    "LayerNormalization": _layer,
    **dict.fromkeys(
        (
            *(
                "Affine",
                "ImageScaler",
                "MeanVarianceNormalization",
                "MemcpyFromHost",
                "MemcpyToHost",
                "ParametricSoftplus",
                "Scale",
            ),
            *("ScaledTanh", "ThresholdedRelu"),
        ),
        same_as(0),
    ),
    "Crop": lambda node, types: (TensorType(dtype_at(types, 0), (*(shape_at(types, 0) or ())[:2], None, None)),),
    "DynamicSlice": lambda node, types: (
        TensorType(dtype_at(types, 0), None if shape_at(types, 0) is None else (None,) * len(shape_at(types, 0) or ())),
    ),
}

_RULES: Mapping[str, Mapping[str, Rule]] = {MICROSOFT: _COMMON, "": _STANDARD}
