"""Nodes on which the engine ends the process, fails, or returns what it has not written: sizes or axes do not fit. OpenVINO 2026.4.1."""

from __future__ import annotations

import numpy as np

from hetero_core.engines.inspection import find_constant, find_shape
from hetero_core.network.graph import Graph, Node


def find_gather_nd_error(node: Node, graph: Graph) -> str | None:
    """Returns why a GatherND is refused, or None."""
    # No case: uint8[5,3] at int64[5,2,2,1,0].
    shape = find_shape(node, graph, 1)
    if shape and shape[-1] != 0:
        return None
    return "OpenVINO returns what it has not written from GatherND by indices of no coordinates"


def find_gather_elements_error(node: Node, graph: Graph) -> str | None:
    """Returns why a GatherElements is refused, or None."""
    # No case: float[5,2] at int64[2,1]. Open sizes fail in a run, and so does each run after it.
    shape, indices, axis = find_shape(node, graph), find_shape(node, graph, 1), node.attributes.get("axis", 0)
    if shape and indices is not None and len(shape) == len(indices):
        beside = [pair for index, pair in enumerate(zip(shape, indices, strict=True)) if index != axis % len(shape)]
        if all(size is not None and size == other for size, other in beside):
            return None
    return "OpenVINO's GatherElements takes no indices with other sizes than the data beside the axis, and these may differ"


def find_unique_error(node: Node, graph: Graph) -> str | None:
    """Returns why a Unique is refused, or None."""
    # No case: an axis of 3 of uint16[2,1,2] ends the process.
    shape, axis = find_shape(node, graph), node.attributes.get("axis")
    if shape is not None and 0 in shape:
        return "OpenVINO ends the process on Unique of no elements"
    if axis is None or (shape and -len(shape) <= axis < len(shape)):
        return None
    return "OpenVINO may end the process on Unique of an axis that its input may not have"


def find_global_lp_pool_error(node: Node, graph: Graph) -> str | None:
    """Returns why a GlobalLpPool is refused, or None."""
    # No case: float16[2,0] ends the process.
    shape = find_shape(node, graph)
    return "OpenVINO ends the process on GlobalLpPool of no elements" if shape is None or 0 in shape else None


def find_col2im_error(node: Node, graph: Graph) -> str | None:
    """Returns why a Col2Im is refused, or None."""
    # No case: a block whose size comes with the run, and does not fit the input, ends the process.
    is_known = all(name in graph.initializers for name in node.inputs[1:3])
    return None if is_known else "OpenVINO may end the process on Col2Im whose sizes come with the run"


def find_prelu_error(node: Node, graph: Graph) -> str | None:
    """Returns why a PRelu is refused, or None."""
    # No case: PRelu-6 of float[2,3,4,5] with slopes of [3] fails at load, as slopes do that fit no axis.
    shape, slopes = find_shape(node, graph), find_shape(node, graph, 1)
    if shape is None or slopes is None:
        return None
    fits = len(slopes) <= len(shape) and all(
        slope in (1, size) for slope, size in zip(reversed(slopes), reversed(shape), strict=False)
    )
    return None if fits else "OpenVINO may end the process on PRelu whose slopes do not broadcast to its input"


def find_top_k_error(node: Node, graph: Graph) -> str | None:
    """Returns why a TopK is refused, or None."""
    # No case: the 4 largest of the 2 rows of a constant float16[2,1,1,2]; in the standard k is at most the size of the axis.
    shape, count = find_shape(node, graph), node.attributes.get("k")
    if len(node.inputs) > 1 and node.inputs[1] in graph.initializers:
        count = int(graph.initializers[node.inputs[1]].array.reshape(-1)[0])
    axis = node.attributes.get("axis", -1)
    if count is None or not shape or not -len(shape) <= axis < len(shape) or not isinstance(shape[axis], int):
        return None
    return f"OpenVINO may end the process on TopK of {count} elements of {shape[axis]}" if count > shape[axis] else None


def find_window_error(node: Node, graph: Graph) -> str | None:
    """Returns why a pooling is refused, or None."""
    # No case: AveragePool-22 of a kernel of [2, 2] with ceil_mode and an empty list of dilations ends the process.
    if "kernel_shape" not in node.attributes:  # it may be missing in the first version of LpPool
        return f"{node.op_type} has no kernel_shape"
    shape, rank = find_shape(node, graph), len(node.attributes["kernel_shape"])
    fits = all(len(node.attributes.get(name, (1,) * rank)) == rank for name in ("strides", "dilations"))
    if fits and len(node.attributes.get("pads", (0,) * (2 * rank))) == 2 * rank and (shape is None or len(shape) == rank + 2):
        return None
    return f"strides, dilations, pads and the input of {node.op_type} have other numbers of dimensions than its kernel, {rank}"


def find_division_error(node: Node, graph: Graph) -> str | None:
    """Returns why a division of integer constants is refused, or None: the engine folds it, and the processor raises a signal."""
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
