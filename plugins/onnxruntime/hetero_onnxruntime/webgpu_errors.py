"""Nodes that the execution provider of WebGPU computes wrongly or fails at in a run; they are refused, so nobody gets a wrong answer.

Found with onnxruntime-ep-webgpu 0.4.0 on SwiftShader, by cases of ONNX's own backend suite, which the entries name, and by drawn cases of
ONNX Runtime's own operators.
"""

from __future__ import annotations

from hetero_core.engines.inspection import find_shape, has_input
from hetero_core.engines.known_errors import Check, refuse, refuse_unless
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Graph, Node


def check_webgpu(node: Node, graph: Graph) -> str | None:
    """Returns the text of the provider's error in a node, or None."""
    if node.domain == MICROSOFT:
        effect = _EFFECTS.get(node.op_type)
        return None if effect is None else f"WebGPU's provider {effect} {node.op_type} of {MICROSOFT}"
    check = None if node.domain else _CHECKS.get(node.op_type)
    return None if check is None else check(node, graph)


def _check_convolution(node: Node, graph: Graph) -> str | None:
    # Conv3d_groups
    shape = find_shape(node, graph)
    is_grouped = node.attributes.get("group", 1) != 1 and (shape is None or len(shape) > 4)
    return "WebGPU's provider fails in a run of a Conv in groups over three axes" if is_grouped else None


def _check_slice(node: Node, graph: Graph) -> str | None:
    # No case: float[8] from 1 to -9 in steps of -1.
    if not has_input(node, 4):
        return None
    steps = graph.initializers.get(node.inputs[4])
    is_forward = steps is not None and bool((steps.array > 0).all())
    reason = "WebGPU's provider takes the wrong elements where a step of a Slice is negative, as one may be here"
    return None if is_forward else reason


def _check_extreme(node: Node, graph: Graph) -> str | None:
    shape = find_shape(node, graph)
    is_full = shape is not None and all(isinstance(size, int) and size > 0 for size in shape)
    return None if is_full else f"WebGPU's provider fails in a run at the {node.op_type} of nothing, and an axis may be empty here"


_WRONG, _FAILS, _ENDS = "computes a wrong", "fails in a run of", "ends the process on"
_EFFECTS = {
    "Attention": _ENDS,
    "CausalConvWithState": _ENDS,
    "EngramGate": _FAILS,
    "FusedConv": _ENDS,
    "GatedRMSNorm": _WRONG,
    "GatherBlockQuantized": _FAILS,
    "GroupQueryAttention": _WRONG,
    "LinearAttention": _WRONG,
    "MultiHeadAttention": _FAILS,
    "NGramHashMapping": _WRONG,
    "QMoE": _FAILS,
}
"""The outcome of some drawn cases of operators of com.microsoft."""

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
    "SimplifiedLayerNormalization": lambda node, graph: (
        "WebGPU's provider returns other deviations of a SimplifiedLayerNormalization" if any(node.outputs[1:2]) else None
    ),
    "Slice": _check_slice,
}
