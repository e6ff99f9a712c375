"""Integers that stay far from the ends of their type, and 8-bit products that saturate on some processors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from hetero_core.engines.inspection import dtype_of_input, has_input
from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType

_SOURCES = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size"})
_MOVES = frozenset(
    {
        *(
            "Add",
            "Cast",
            "Concat",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
            "Max",
            "Min",
            "Mul",
            "Neg",
        ),
        *(
            "Pad",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceSum",
            "Reshape",
            "ScatterElements",
            "Slice",
            "Split",
            "Squeeze",
            "Sub",
        ),
        *("Tile", "Transpose", "Unsqueeze", "Where"),
    }
)
_INDEX_INPUTS = {"Expand": 1, "Gather": 1, "GatherElements": 1, "GatherND": 1, "Reshape": 1, "Slice": 1, "Squeeze": 1, "Tile": 1}
"""The operators that read values of their first inputs alone; those behind them are places and sizes."""
_NARROW = frozenset({"bool", "int8", "uint8", "int16", "uint16", "int4", "uint4"})
_BOUND = 1 << 24
_MOST_STEPS = 64


def is_small(name: str, graph: Graph, steps: list[int] | None = None) -> bool:
    """Says whether an integer value surely is far from the ends of its type: a size, a count, an index, or an element of 16 bits."""
    steps = [_MOST_STEPS] if steps is None else steps
    steps[0] -= 1
    if steps[0] < 0:
        return False
    constant = graph.initializers.get(name)
    if constant is not None:
        array = constant.array
        return bool(array.dtype.kind in "biu" and (not array.size or np.abs(array.astype(np.float64)).max() < _BOUND))
    value_type = graph.type_of(name)
    if isinstance(value_type, TensorType) and value_type.dtype in _NARROW:
        return True
    producer = graph.find_producer(name)
    if producer is None or producer.domain:
        return False
    if producer.op_type in _SOURCES:
        return True
    if producer.op_type not in _MOVES:
        return False
    inputs = producer.inputs[: _INDEX_INPUTS.get(producer.op_type, len(producer.inputs))]
    inputs = inputs[1:] if producer.op_type == "Where" else inputs
    return all(is_small(each, graph, steps) for each in inputs if each)


PLACES: Mapping[str, tuple[tuple[int, int, int], ...]] = {
    "MatMulInteger": ((0, 1, 3),),
    "QLinearMatMul": ((0, 3, 5),),
    "QLinearConv": ((0, 3, 5),),
    "com.microsoft.QLinearConv": ((0, 3, 5),),
    "com.microsoft.QGemm": ((0, 3, 5),),
    "com.microsoft.MatMulIntegerToFloat": ((0, 1, 5),),
    "com.microsoft.DynamicQuantizeMatMul": ((-1, 1, 3),),
    "com.microsoft.DynamicQuantizeLSTM": ((-1, 1, 9), (-1, 2, 11)),
    "com.microsoft.QAttention": ((0, 1, 7),),
}
"""The products of 8-bit integers: the inputs that are multiplied, and the zero point of the second; -1 for an input that the operator
quantizes to uint8 itself."""
FUSED = ("MatMul", "Gemm", "Conv")
"""The operators that become such products between DequantizeLinear and QuantizeLinear."""


def may_saturate(node: Node, graph: Graph, is_mended: bool) -> bool:
    """Says whether a node multiplies uint8 by int8 that the engine does not widen to uint8; with `is_mended` it widens constants."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if operator in FUSED:
        left, right = (_find_dequantization(node, graph, index) for index in (0, 1))
        if left is None or right is None:
            return False
        return _is_mixed(left.inputs[0], right.inputs[0], _name_input(right, 2), graph, is_mended)
    return any(
        _is_mixed(node.inputs[a] if a >= 0 else None, node.inputs[b], _name_input(node, zero_point), graph, is_mended)
        for a, b, zero_point in PLACES[operator]
        if has_input(node, b)
    )


def _name_input(node: Node, index: int) -> str:
    return node.inputs[index] if has_input(node, index) else ""


def _find_dequantization(node: Node, graph: Graph, index: int) -> Node | None:
    """Returns the DequantizeLinear whose values an input has, also behind operators that move them; None if there is none."""
    producer = graph.find_producer(node.inputs[index]) if has_input(node, index) else None
    while producer is not None and producer.op_type in ("Transpose", "Reshape", "Identity") and not producer.domain:
        producer = graph.find_producer(producer.inputs[0])
    return producer if producer is not None and producer.op_type == "DequantizeLinear" else None


def _is_mixed(left: str | None, right: str, zero_point: str, graph: Graph, is_mended: bool) -> bool:
    """Says whether uint8 values (None: those that the operator makes) are multiplied by int8 weights that stay int8."""
    dtypes = ["uint8" if name is None else getattr(graph.type_of(name), "dtype", None) for name in (left, right)]
    if dtypes[0] not in ("uint8", None) or dtypes[1] not in ("int8", None):
        return False
    # The constants of the body itself, without those that it captures.
    own = getattr(graph.initializers, "maps", (graph.initializers,))[0]
    return not (is_mended and right in own and (not zero_point or zero_point in own))


@cache
def does_saturate(module: Any) -> bool:
    """Says whether products of uint8 by int8 saturate on this processor: one is computed, and compared with exact integers."""
    import onnx  # heavy, and loaded already if there is a network

    helper = onnx.helper
    values = [
        helper.make_tensor_value_info("a", onnx.TensorProto.UINT8, [1, 4]),
        helper.make_tensor_value_info("b", onnx.TensorProto.INT8, [4, 1]),
    ]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [1, 1])
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "probe", values, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = module.SessionOptions()
    options.log_severity_level = 4
    session = module.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)})
    return bool(product[0, 0] != 4 * 255 * 127)


def reads_integers(node: Node, graph: Graph) -> bool:
    """Says whether the first input of a node is, or may be, int32 or int64 that is not surely small."""
    dtype = dtype_of_input(node, graph)
    return dtype in ("int32", "int64", None) and not is_small(node.inputs[0], graph)
