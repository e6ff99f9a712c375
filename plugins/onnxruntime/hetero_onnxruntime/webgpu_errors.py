"""Nodes that the execution provider of WebGPU computes wrongly or fails at in a run; they are refused, so nobody gets a wrong answer.

Found with onnxruntime-ep-webgpu 0.4.0 on SwiftShader, by cases of ONNX's own backend suite, which the entries name.
"""

from __future__ import annotations

from hetero_core.engines.inspection import find_shape
from hetero_core.engines.known_errors import Check, refuse, refuse_unless
from hetero_core.network.graph import Graph, Node


def check_webgpu(node: Node, graph: Graph) -> str | None:
    """Returns what the provider gets wrong about a node, in words, or None."""
    check = None if node.domain else _CHECKS.get(node.op_type)
    return None if check is None else check(node, graph)


def _check_convolution(node: Node, graph: Graph) -> str | None:
    # No case: 24 channels of input, 136 of output, 4 groups. Four channels are computed at once, also where they belong to two groups.
    groups, shape = node.attributes.get("group", 1), find_shape(node, graph, 1)
    if groups == 1:
        return None
    channels = None if shape is None else shape[0]
    if isinstance(channels, int) and (channels % 4 or channels // groups < 4 or channels // groups % 4 == 0):
        return None
    return "WebGPU's provider mixes the groups of a Conv that has no multiple of four channels of output in each"


def _check_extreme(node: Node, graph: Graph) -> str | None:
    shape = find_shape(node, graph)
    is_full = shape is not None and all(isinstance(size, int) and size > 0 for size in shape)
    return None if is_full else f"WebGPU's provider fails in a run at the {node.op_type} of nothing, and an axis may be empty here"


_LOGARITHM = "WebGPU's provider has -88 for the logarithm of 0"

_CHECKS: dict[str, Check] = {
    # batchnorm_example_training_mode
    "BatchNormalization": refuse_unless("training_mode", 0, "WebGPU's provider fails in a run at a BatchNormalization that trains"),
    "Conv": _check_convolution,
    # reduce_log_sum_empty_set_expanded
    "Log": refuse(_LOGARITHM),
    # reduce_log_sum_empty_set
    "ReduceLogSum": refuse(_LOGARITHM),
    # reduce_max_empty_set
    "ReduceMax": _check_extreme,
    # reduce_min_empty_set
    "ReduceMin": _check_extreme,
    # resize_downsample_scales_cubic_antialias
    "Resize": refuse_unless("antialias", 0, "WebGPU's provider fails in a run at a Resize with antialias"),
}
