"""What the engine computes wrongly, or fails at when it runs; refused, so that nobody gets a wrong answer or a late error.

Each entry was found by a case of ONNX's own backend suite on OpenVINO 2026.4; it goes when a newer engine passes that case. The
frontend of the engine ignores attributes that it does not know, so what came into an operator later is refused here by name.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import TensorType

Check = Callable[[Node, Network], str | None]


def find_known_error(node: Node, network: Network) -> str | None:
    """Returns what the engine gets wrong about a node, in words, or None."""
    check = _CHECKS.get((node.domain, node.op_type))
    return None if check is None else check(node, network)


def _always(reason: str) -> Check:
    return lambda node, network: reason


def _dtype_of_input(node: Node, network: Network, index: int = 0) -> str | None:
    found = network.type_of(node.inputs[index]) if len(node.inputs) > index and node.inputs[index] else None
    return found.dtype if isinstance(found, TensorType) else None


def _has_input(node: Node, index: int) -> bool:
    return len(node.inputs) > index and bool(node.inputs[index])


def _check_attention(node: Node, network: Network) -> str | None:
    # attention_local_window and the like, attention_4d_causal_bf16, ..._qk_matmul_bias_4d_mask_causal
    unknown = sorted(set(node.attributes) & {"left_window_size", "right_window_size", "sliding_window", "qk_matmul_output_mode"})
    if unknown:
        return f"OpenVINO ignores the attribute {unknown[0]} of Attention"
    if _dtype_of_input(node, network) == "bfloat16":
        return "OpenVINO rounds Attention in bfloat16 more coarsely than the standard"
    if len(node.outputs) > 3 and node.outputs[3]:
        return "OpenVINO is wrong about the scores that Attention returns"
    return None


def _check_dft(node: Node, network: Network) -> str | None:
    # dft_axis, dft_irfft, dft_rfft
    return "OpenVINO takes the transform of another axis, and shapes one-sided transforms wrongly"


def _check_recurrent(node: Node, network: Network) -> str | None:
    # gru_batchwise, lstm_batchwise, simple_rnn_batchwise, lstm_with_peepholes
    if node.attributes.get("layout", 0) != 0:
        return f"OpenVINO ignores the layout of {node.op_type}"
    return "OpenVINO ignores the peepholes of LSTM" if node.op_type == "LSTM" and _has_input(node, 7) else None


def _check_pooling(node: Node, network: Network) -> str | None:
    # maxpool_2d_ceil_output_size_reduce_by_one
    return "OpenVINO rounds the size up further than the standard under ceil_mode" if node.attributes.get("ceil_mode", 0) else None


def _check_extreme(node: Node, network: Network) -> str | None:
    # reduce_max_empty_set; attention's rows that are masked as a whole
    dtype = _dtype_of_input(node, network) or ""
    return (
        f"OpenVINO's {node.op_type} of infinities or of nothing is the lowest float, not the infinity" if "float" in dtype else None
    )


def _check_resize(node: Node, network: Network) -> str | None:
    # resize_*_antialias, _exclude_outside, _align_corners, _not_larger, _not_smaller
    if node.attributes.get("antialias", 0) or node.attributes.get("exclude_outside", 0):
        return "OpenVINO ignores antialias and exclude_outside of Resize"
    if node.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "OpenVINO ignores keep_aspect_ratio_policy of Resize"
    if node.attributes.get("coordinate_transformation_mode") == "align_corners" and _has_input(node, 2):
        return "OpenVINO scales by the rounded size under align_corners, the standard by the scales that are given"
    return None


def _check_roi_align(node: Node, network: Network) -> str | None:
    # roialign_mode_max
    return (
        "OpenVINO's RoiAlign of mode max interpolates after it takes the maximum" if node.attributes.get("mode") == "max" else None
    )


def _check_top_k(node: Node, network: Network) -> str | None:
    # top_k_same_values
    return "OpenVINO's TopK does not return the lower index first among equal values"


def _check_tile(node: Node, network: Network) -> str | None:
    # tile
    return (
        None if node.inputs[1] in network.initializers else "OpenVINO returns what it has not written where repeats are no constant"
    )


def _check_softmax(node: Node, network: Network) -> str | None:
    # squeezenet: 1,000 channels of size 1 behind a pooling; its blocks of 16 channels are summed to their end.
    found = network.type_of(node.inputs[0])
    shape = found.shape if isinstance(found, TensorType) else None
    if shape is None or len(shape) < 4:
        return None
    axis = node.attributes.get("axis", -1 if node.since_version >= 13 else 1)
    channels = shape[1]
    is_over_channels = axis in (1, 1 - len(shape)) or node.since_version < 13
    if is_over_channels and (not isinstance(channels, int) or channels % 16):
        return "OpenVINO sums over the padding of channels that are no multiple of 16"
    return None


_CHECKS: dict[tuple[str, str], Check] = {
    ("", "Attention"): _check_attention,
    ("", "DFT"): _check_dft,
    ("", "DynamicQuantizeLinear"): _always("OpenVINO rounds halves another way than the standard"),
    ("", "GRU"): _check_recurrent,
    ("", "LSTM"): _check_recurrent,
    ("", "LogSoftmax"): _check_softmax,
    ("", "MaxPool"): _check_pooling,
    ("", "NonMaxSuppression"): _always("OpenVINO drops boxes whose overlap equals the threshold"),
    ("", "QuantizeLinear"): _always("OpenVINO rounds halves another way than the standard"),
    ("", "RNN"): _check_recurrent,
    ("", "ReduceMax"): _check_extreme,
    ("", "ReduceMin"): _check_extreme,
    ("", "Resize"): _check_resize,
    ("", "RoiAlign"): _check_roi_align,
    ("", "Softmax"): _check_softmax,
    ("", "Tile"): _check_tile,
    ("", "TopK"): _check_top_k,
}
