"""Casts whose rounding the engine drops: it holds float16 in float32 within a network, so that a cast there and back changes nothing.

OpenVINO 2026.4 rounds a value of float16 where it leaves the network, and nowhere else. Of a result of arithmetic that is as exact as
float16 or more; a cast to float16 and back is there for its rounding, and for infinity where a number is too large.
"""

from __future__ import annotations

from hetero_core.engines.inspection import MOVING, dtype_of_input, dtype_of_value
from hetero_core.network.graph import Network, Node
from hetero_openvino.producers import walk_producers

_CASTS = ("Cast", "CastLike")
_EXACT = frozenset({"bool", "float16", "float8e4m3fn", "float8e5m2", "int4", "int8", "uint4", "uint8"})
"""Types of which every number is one of float16."""
_SELECTING = MOVING | {"Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu", "TopK"}
"""Operators whose elements are elements of their inputs, as they were rounded."""


def find_lost_rounding(node: Node, network: Network) -> str | None:
    """Returns why the engine is wrong about a cast from float16 within a network, or None where it is right."""
    if node.domain or node.op_type not in _CASTS or dtype_of_input(node, network) != "float16":
        return None
    if dtype_of_value(node.outputs[0], network) == "float16":
        return None
    for producer in walk_producers(node.inputs[0], network, lambda producer: producer.op_type in _SELECTING.union(_CASTS)):
        if producer.op_type in _CASTS and dtype_of_input(producer, network) not in _EXACT:
            return f"OpenVINO does not round what '{producer.name}' casts to float16, as it computes float16 in float32 within a network"
    return None
