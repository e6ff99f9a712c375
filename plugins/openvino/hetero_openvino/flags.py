"""Flags whose numbers OpenVINO 2026.4 reads in another way.

ONNX Runtime takes any number but 0 for on; OpenVINO does not, in some operators.
"""

from __future__ import annotations

from hetero_core.engines.inspection import find_shape
from hetero_core.network.graph import Graph, Node

_FLAGS = (
    *("align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box", "count_include_pad"),
    *("detect_negative", "detect_positive", "exclude_outside", "exclusive", "fmod", "inverse", "is_causal"),
    *("keepdims", "largest", "linear_before_reset", "noop_with_empty_axes", "onesided", "periodic", "reverse"),
    *("select_last_index", "sorted", "training_mode", "transA", "transB", "upper"),
)


def find_flag_error(node: Node, graph: Graph) -> str | None:
    """Returns why a node is refused that has another number than 0 and 1 for a flag, or a flag that the engine ignores; or None."""
    if node.attributes.get("noop_with_empty_axes", 0) == 1 and node.op_type in ("ReduceL1", "ReduceL2", "ReduceLogSum"):
        # No case: those of the suite are a ReduceSum and a ReduceSumSquare.
        count = (find_shape(node, graph, 1) or (0,))[0]
        if not isinstance(count, int) or count == 0:
            return f"OpenVINO makes no absolute value and no logarithm of {node.op_type} without axes"
    # No case: ArgMin with select_last_index of 4 takes the first index, DFT with inverse of 16 does not divide.
    odd = next((name for name in _FLAGS if node.attributes.get(name, 0) not in (0, 1)), None)
    return None if odd is None else f"OpenVINO may read {odd} of {node.attributes[odd]} otherwise than 1; {odd} is 0 or 1"
