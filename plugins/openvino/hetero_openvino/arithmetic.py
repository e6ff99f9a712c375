"""What the engine computes wrongly with integers, where NumPy and ONNX's reference are exact.

OpenVINO 2026.4 on processors computes integers of 64 bits in 32, saturates those of 8 bits where the standard's reference wraps around,
and gives some operators of the wider ones to kernels of float32, which is exact up to 2^24. What becomes too large by itself, as
a product, is refused. What is only as large as what comes in, as a label that is compared, is taken, and looked at in each run:
`find_limits` says how large the integers of a network's inputs may be. What a network adds up on the way nobody looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hetero_core.network.graph import Graph, Network, Node, iterate_graphs
from hetero_openvino.inspection import dtype_of_input

EXACT_FLOAT = 2**24
_LARGEST = 2**31 - 1
_LONG = frozenset({"int64", "uint64"})
_WIDE = _LONG | {"int32", "uint32"}
_GROWING = frozenset({"Einsum", "Gemm", "MatMul", "Pow", "ReduceProd", "ReduceSumSquare"})
_IN_FLOAT = frozenset(
    {
        *("Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod", "ReduceL1", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceSum", "Relu", "Resize", "ReverseSequence", "TopK", "Trilu", "Upsample"),
    }
)
_SATURATING = _GROWING | {"Add", "Mul", "ReduceMean", "Sub", "Sum"}


def find_arithmetic_error(node: Node, graph: Graph) -> str | None:
    """Returns what the engine gets wrong about a node of integers, whatever they are, in words, or None."""
    dtype = dtype_of_input(node, graph) or ""
    is_in_float = node.op_type in _IN_FLOAT and dtype in _WIDE
    for position, value in enumerate(node.inputs):
        # The frontend saturates constants, and an end beyond the end is the end.
        if node.op_type == "Slice" and position > 0:
            break
        if _exceeds(value, graph, EXACT_FLOAT if is_in_float else _LARGEST):
            limit = "float32, which is exact up to 2^24" if is_in_float else "32 bits"
            return f"OpenVINO computes {node.op_type} of {dtype} in {limit}; the constant '{value}' has larger values"
    if "int" not in dtype:
        return None
    if node.op_type == "BitShift":
        # bitshift_right_int8_negative_input; a shift by the width or more, or out of a byte
        return "OpenVINO shifts signed integers, and beyond their width, another way than the standard"
    if dtype in ("int8", "uint8"):
        if node.op_type == "Div":
            # div_int8, since the engine's fusion is off
            return f"OpenVINO rounds quotients of {dtype}; the standard cuts them off"
        is_saturating = node.op_type in _SATURATING
        return f"OpenVINO saturates {dtype}; the standard's reference wraps around" if is_saturating else None
    return f"OpenVINO computes {node.op_type} of {dtype} in float32" if node.op_type in _GROWING else None


def find_limits(network: Network) -> Mapping[str, int]:
    """Returns how large the absolute integers of inputs may be; inputs that are not in it may be anything."""
    limits = {spec.name: _LARGEST for spec in network.inputs if spec.dtype in _LONG}
    for value in _list_values_in_float(network):
        for name in _list_origins(value, network):
            if network.inputs[network.index_of_input[name]].dtype in _WIDE:
                limits[name] = EXACT_FLOAT
    return limits


def _list_values_in_float(network: Network) -> Iterable[str]:
    """Yields the values that some node, or some node of its bodies, computes in float32 though they are integers."""
    for node in network.nodes:
        if node.op_type in _IN_FLOAT and dtype_of_input(node, network) in _WIDE:
            yield from node.inputs
        bodies = [body for outer in node.bodies.values() for body in iterate_graphs(outer)]
        if any(inner.op_type in _IN_FLOAT and dtype_of_input(inner, body) in _WIDE for body in bodies for inner in body.nodes):
            yield from node.reads


def _list_origins(value: str, network: Network) -> set[str]:
    """Returns the inputs that a value is made of; a size is below the limit whatever it is the size of."""
    waiting, seen = [value], {value}
    while waiting:
        index = network.index_of_producer.get(waiting.pop())
        if index is not None and network.nodes[index].op_type not in ("Shape", "Size"):
            fresh = [name for name in network.nodes[index].reads if name not in seen]
            seen.update(fresh)
            waiting += fresh
    return seen & network.index_of_input.keys()


def _exceeds(value: str, graph: Graph, limit: int) -> bool:
    constant = graph.initializers.get(value)
    if constant is None or constant.dtype not in _WIDE or not constant.array.size:
        return False
    if limit == _LARGEST and constant.dtype not in _LONG:
        return False
    return bool(constant.array.max() > limit or constant.array.min() < np.int64(-limit) - 1)
