"""Windows of poolings that the engine counts otherwise than the standard under ceil_mode, or ends the process on. OpenVINO 2026.4."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from hetero_core.engines.inspection import find_shape
from hetero_core.engines.known_errors import Check
from hetero_core.network.graph import Graph, Node


def _check_window(node: Node, graph: Graph) -> str | None:
    """Refuses numbers of dimensions that do not fit, by which the engine ends the process."""
    # No case: AveragePool-22 of a kernel of [2, 2] with ceil_mode and an empty list of dilations ends the process.
    if "kernel_shape" not in node.attributes:  # it may be missing in the first version of LpPool
        return f"{node.op_type} has no kernel_shape"
    shape, rank = find_shape(node, graph), len(node.attributes["kernel_shape"])
    fits = all(len(node.attributes.get(name, (1,) * rank)) == rank for name in ("strides", "dilations"))
    if fits and len(node.attributes.get("pads", (0,) * (2 * rank))) == 2 * rank and (shape is None or len(shape) == rank + 2):
        return None
    return f"strides, dilations, pads and the input of {node.op_type} have other numbers of dimensions than its kernel, {rank}"


def _check_average_pool(node: Node, graph: Graph) -> str | None:
    # No case: 8 elements, kernel 3, stride 2, pads of 1 on both sides.
    if not node.attributes.get("ceil_mode", 0):
        return None
    error = _check_window(node, graph)
    if error is not None or not node.attributes.get("count_include_pad", 0) or not any(node.attributes.get("pads", ())):
        return error
    is_whole = all(rest is not None and rest % stride == 0 for _, rest, stride in _list_ends(node, graph))
    return None if is_whole else "OpenVINO counts elements behind the padding, under ceil_mode and count_include_pad"


def _check_max_pool(node: Node, graph: Graph) -> str | None:
    # maxpool_2d_ceil_output_size_reduce_by_one; right by chance in the suite: maxpool_with_argmax_2d_precomputed_strides
    if node.attributes.get("storage_order", 0) and len(node.outputs) > 1:
        return "OpenVINO returns the indices of MaxPool in another order and shape where storage_order is 1"
    if not node.attributes.get("ceil_mode", 0):
        return None
    error = _check_window(node, graph)
    if error is not None:
        return error
    is_inside = all(
        end is not None and rest is not None and ceil(rest / stride) * stride < end for end, rest, stride in _list_ends(node, graph)
    )
    return None if is_inside else "OpenVINO counts a window that begins behind the end of the input, under ceil_mode"


def _list_ends(node: Node, graph: Graph) -> Iterator[tuple[int | None, int | None, int]]:
    """Yields for each axis the end of the input behind the padding before it, the elements beyond the first window, and the stride.

    The first two are None where the size is not known.
    """
    shape, kernel = find_shape(node, graph), node.attributes["kernel_shape"]
    rank = len(kernel)
    strides, dilations = (node.attributes.get(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", (0,) * (2 * rank))
    for axis in range(rank):
        size = None if shape is None else shape[axis + 2]
        end = size + pads[axis] if isinstance(size, int) else None
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        yield end, None if end is None else end + pads[axis + rank] - reach, strides[axis]


POOLING_ERRORS: dict[str, Check] = {"AveragePool": _check_average_pool, "LpPool": _check_window, "MaxPool": _check_max_pool}
