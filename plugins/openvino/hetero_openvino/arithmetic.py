"""What the engine computes wrongly with integers, where NumPy and ONNX's reference are exact.

OpenVINO 2026.4 on processors computes integers of 64 bits in 32, saturates those of 8 bits where the standard's reference wraps around,
and divides, multiplies matrices and takes powers of others in float32, which is exact up to 2^24. Sizes of tensors stay below that.
"""

from __future__ import annotations

import numpy as np

from hetero_core.network.graph import Graph, Node
from hetero_openvino.inspection import dtype_of_input

_WIDE = frozenset({"int32", "int64", "uint32", "uint64"})
_SATURATING = frozenset({"Add", "Mul", "Pow", "Sub", "Sum"})
_IN_FLOAT = frozenset({"Div", "Mod"})
_EXACT_ON_SIZES = frozenset(
    {"Add", "Cast", "Ceil", "Concat", "Div", "Floor", "Gather", "Identity", "Mod", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"}
)
"""Operators that make sizes of sizes: what they return is below 2^24 where sizes and constants are."""


def find_arithmetic_error(node: Node, graph: Graph) -> str | None:
    """Returns what the engine gets wrong about a node of integers, in words, or None."""
    wide = _find_wide_constant(node, graph)
    if wide is not None:
        return f"the constant '{wide}' has values of 64 bits; OpenVINO computes them in 32"
    dtype = dtype_of_input(node, graph) or ""
    if "int" not in dtype:
        return None
    if node.op_type == "BitShift":
        # bitshift_right_int8_negative_input; a shift by the width or more, or out of a byte
        return "OpenVINO shifts signed integers, and beyond their width, another way than the standard"
    if dtype in ("int8", "uint8"):
        is_saturating = node.op_type in _SATURATING
        return f"OpenVINO saturates {dtype}; the standard's reference wraps around" if is_saturating else None
    if node.op_type in ("Einsum", "Gemm", "MatMul", "Pow", "Relu"):
        return f"OpenVINO computes {node.op_type} of {dtype} in float32"
    if node.op_type in _IN_FLOAT and dtype in _WIDE and not all(_is_size(value, graph) for value in node.inputs):
        return f"OpenVINO computes {node.op_type} of {dtype} in float32, which is exact up to 2^24; only sizes are surely smaller"
    return None


def _is_size(value: str, graph: Graph) -> bool:
    """Says whether a value is made of shapes and small constants alone."""
    waiting, seen = [value], set()
    while waiting:
        name = waiting.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        constant = graph.initializers.get(name)
        index = graph.index_of_producer.get(name)
        if constant is not None:
            if constant.dtype not in ("int32", "int64") or (constant.array.size and np.abs(constant.array).max() >= 2**24):
                return False
        elif index is None or graph.nodes[index].op_type not in (_EXACT_ON_SIZES | {"Shape", "Size"}):
            return False
        elif graph.nodes[index].op_type in _EXACT_ON_SIZES:
            waiting += graph.nodes[index].inputs
    return True


def _find_wide_constant(node: Node, graph: Graph) -> str | None:
    for position, value in enumerate(node.inputs):
        constant = graph.initializers.get(value)
        # The frontend saturates constants, and an end beyond the end is the end.
        if constant is None or constant.dtype not in ("int64", "uint64") or (node.op_type == "Slice" and position > 0):
            continue
        if constant.array.size and (constant.array.max() > 2**31 - 1 or constant.array.min() < -(2**31)):
            return value
    return None
