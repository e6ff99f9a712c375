"""Nodes on which the engine ends the process, fails, or returns what it has not written: sizes or axes do not fit. OpenVINO 2026.4.1."""

from __future__ import annotations

import numpy as np

from hetero_core.engines.inspection import find_constant, find_shape, has_input
from hetero_core.engines.known_errors import Check
from hetero_core.network.graph import Graph, Node
from hetero_core.network.types import TensorType


def _check_gather_nd(node: Node, graph: Graph) -> str | None:
    # No case: uint8[5,3] at int64[5,2,2,1,0].
    shape = find_shape(node, graph, 1)
    if shape and shape[-1] != 0:
        return None
    return "OpenVINO returns what it has not written from GatherND by indices of no coordinates"


def _check_gather_elements(node: Node, graph: Graph) -> str | None:
    # No case: float[5,2] at int64[2,1]. Open sizes fail in a run, and so does each run after it.
    shape, indices, axis = find_shape(node, graph), find_shape(node, graph, 1), node.attributes.get("axis", 0)
    if shape and indices is not None and len(shape) == len(indices):
        beside = [pair for index, pair in enumerate(zip(shape, indices, strict=True)) if index != axis % len(shape)]
        if all(size is not None and size == other for size, other in beside):
            return None
    return "OpenVINO's GatherElements takes no indices with other sizes than the data beside the axis, and these may differ"


def _check_unique(node: Node, graph: Graph) -> str | None:
    # No case: an axis of 3 of uint16[2,1,2] ends the process.
    shape, axis = find_shape(node, graph), node.attributes.get("axis")
    if shape is not None and 0 in shape:
        return "OpenVINO ends the process on Unique of no elements"
    if axis is None or (shape and -len(shape) <= axis < len(shape)):
        return None
    return "OpenVINO may end the process on Unique of an axis that its input may not have"


def _check_prelu(node: Node, graph: Graph) -> str | None:
    # No case: PRelu-6 of float[2,3,4,5] with slopes of [3] fails at load, as slopes do that fit no axis.
    shape, slopes = find_shape(node, graph), find_shape(node, graph, 1)
    if shape is None or slopes is None:
        return None
    fits = len(slopes) <= len(shape) and all(
        slope in (1, size) for slope, size in zip(reversed(slopes), reversed(shape), strict=False)
    )
    return None if fits else "OpenVINO may end the process on PRelu whose slopes do not broadcast to its input"


def _check_top_k(node: Node, graph: Graph) -> str | None:
    # No case: the 4 largest of the 2 rows of a constant float16[2,1,1,2]; in the standard k is at most the size of the axis.
    shape, count = find_shape(node, graph), node.attributes.get("k")
    if len(node.inputs) > 1 and node.inputs[1] in graph.initializers:
        count = int(graph.initializers[node.inputs[1]].array.reshape(-1)[0])
    axis = node.attributes.get("axis", -1)
    if count is None or not shape or not -len(shape) <= axis < len(shape) or not isinstance(shape[axis], int):
        return None
    return f"OpenVINO may end the process on TopK of {count} elements of {shape[axis]}" if count > shape[axis] else None


def _check_division(node: Node, graph: Graph) -> str | None:
    """Refuses a division of integer constants that the engine folds, where the processor raises a signal."""
    # No case: uint32 3 modulo 0, and the least int32 divided by -1. Of values that come with the run it makes some number.
    if len(node.inputs) != 2 or node.attributes.get("fmod", 0):
        return None
    dividend, divisor = (find_constant(name, graph, graph.initializers) for name in node.inputs)
    if dividend is None or divisor is None or divisor.dtype.kind not in "iu":
        return None
    least = np.iinfo(dividend.dtype).min
    overflows = divisor.dtype.kind == "i" and bool((dividend == least).any()) and bool((divisor == -1).any())
    if not overflows and bool((divisor != 0).all()):
        return None
    return f"OpenVINO ends the process where it folds {node.op_type} of integers by 0, or of the least one by -1"


def _check_compress(node: Node, graph: Graph) -> str | None:
    # No case: SIGFPE while it compiles.
    condition = graph.type_of(node.inputs[1]) if has_input(node, 1) else None
    is_empty = isinstance(condition, TensorType) and condition.shape is not None and 0 in condition.shape
    return "OpenVINO ends the process where the condition of Compress has no elements" if is_empty else None


def _check_expand(node: Node, graph: Graph) -> str | None:
    # No case: SIGFPE while it compiles; a size of 0 in the shape is taken for 1.
    target = graph.initializers.get(node.inputs[1])
    is_empty = 0 in (find_shape(node, graph) or ()) or (target is not None and bool((target.array <= 0).any()))
    return "OpenVINO ends the process, or gives another shape, where Expand makes or reads no elements" if is_empty else None


FATAL_NODES: dict[str, Check] = {
    # No case: a block whose size comes with the run, and does not fit the input, ends the process.
    "Col2Im": lambda node, graph: (
        None
        if graph.initializers.keys() >= {*node.inputs[1:3]}
        else "OpenVINO may end the process on Col2Im whose sizes come with the run"
    ),
    "Compress": _check_compress,
    **dict.fromkeys(("Div", "Mod"), _check_division),
    "Expand": _check_expand,
    "GatherElements": _check_gather_elements,
    "GatherND": _check_gather_nd,
    # No case: float16[2,0] ends the process.
    "GlobalLpPool": lambda node, graph: (
        "OpenVINO ends the process on GlobalLpPool of no elements" if 0 in (find_shape(node, graph) or (0,)) else None
    ),
    "PRelu": _check_prelu,
    "TopK": _check_top_k,
    "Unique": _check_unique,
}
