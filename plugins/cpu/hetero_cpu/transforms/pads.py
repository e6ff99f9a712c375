"""A pass that lets convolutions and poolings pad for themselves in place of a Pad before them.

Only constant pads at the spatial axes count, and only if the next operator's own pads mean the same: a convolution's are zeros; an
average's are zeros that count; a maximum's are minus infinity, for which zeros may stand before a value that is never negative.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import rank_of, sizes_of
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.matching import read_integers
from hetero_core.transforms.rewrite import fuse_pairs

_NEVER_NEGATIVE = frozenset({"Abs", "Relu", "Sigmoid", "HardSigmoid", "Softplus", "Exp", "Softmax"})


def fold_pads(network: Network) -> Network:
    """Returns the network with each Pad in the pads of the Conv, AveragePool or MaxPool that alone reads it, if that is the
    same."""

    def fuse(pad: Node, window: Node) -> Node | None:
        return _fuse_pad(network, pad, window)

    fused = fuse_pairs(network, fuse)
    return network if fused is network else drop_unread(fused)


def _fuse_pad(network: Network, pad: Node, window: Node) -> Node | None:
    if pad.op_type != "Pad" or pad.domain or window.domain or window.inputs[0] != pad.outputs[0]:
        return None
    pad_widths = _read_pads(network, pad)
    kernel = _read_kernel(network, window)
    if pad_widths is None or kernel is None or window.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    added, number = pad_widths
    count = len(kernel)
    # Batch and channels stay; all pads before stand in front of all pads behind, as in ONNX.
    if len(added) != 2 * (count + 2) or any(added[:2]) or any(added[count + 2 : count + 4]) or min(added) < 0:
        return None
    spatial = (*added[2 : count + 2], *added[count + 4 :])
    old = tuple(window.attributes.get("pads", (0,) * 2 * count))
    attributes: dict[str, Any] = {key: value for key, value in window.attributes.items() if key != "auto_pad"}
    attributes["pads"] = tuple(amount + other for amount, other in zip(old, spatial, strict=True))
    if window.op_type == "AveragePool":
        # Windows that reach beyond the pads divide by the number of elements within them, so that the pads would matter.
        counts = bool(attributes.get("count_include_pad", 0)) or not any(old)
        if number != 0 or not counts or attributes.get("ceil_mode", 0) or window.since_version < 7:
            return None
        attributes["count_include_pad"] = 1
    elif window.op_type == "MaxPool":
        if any(window.outputs[1:]) or not _is_neutral_for_maximum(network, pad.inputs[0], number) or attributes.get("ceil_mode", 0):
            return None
    elif number != 0:
        return None
    if window.op_type != "Conv" and any(
        amount >= size for amount, size in zip(attributes["pads"], (*kernel, *kernel), strict=True)
    ):
        return None
    return replace(window, inputs=(pad.inputs[0], *window.inputs[1:]), attributes=attributes)


def _read_kernel(network: Network, window: Node) -> tuple[int, ...] | None:
    if window.op_type in ("AveragePool", "MaxPool"):
        return tuple(window.attributes.get("kernel_shape", ())) or None
    if window.op_type != "Conv" or len(window.inputs) < 2:
        return None
    sizes = sizes_of(network.type_of(window.inputs[1]))
    return sizes[2:] if sizes is not None and len(sizes) > 2 else None


def _read_pads(network: Network, pad: Node) -> tuple[tuple[int, ...], float] | None:
    """Returns how much is added to each axis, before and behind, and the number. Source: ONNX Pad-2 and Pad-11, -18 with axes."""
    if pad.attributes.get("mode", "constant") != "constant" or pad.since_version < 2:
        return None
    if pad.since_version < 11:
        return tuple(pad.attributes.get("pads", ())), float(pad.attributes.get("value", 0.0))
    pads = read_integers(network, pad.inputs[1]) if len(pad.inputs) > 1 else None
    number = 0.0
    if len(pad.inputs) > 2 and pad.inputs[2]:
        constant = network.initializers.get(pad.inputs[2])
        if constant is None or constant.array.size != 1:
            return None
        number = float(constant.array.reshape(-1)[0])
    if pads is None:
        return None
    if len(pad.inputs) < 4 or not pad.inputs[3]:
        return pads, number
    axes = read_integers(network, pad.inputs[3])
    rank = rank_of(network.type_of(pad.inputs[0]))
    if axes is None or rank is None or len(pads) != 2 * len(axes):
        return None
    whole = [0] * 2 * rank
    for position, axis in enumerate(axes):
        whole[axis % rank], whole[axis % rank + rank] = pads[position], pads[position + len(axes)]
    return tuple(whole), number


def _is_neutral_for_maximum(network: Network, value: str, number: float) -> bool:
    if number == float("-inf"):
        return True
    node = network.find_producer(value)
    return number == 0 and node is not None and not node.domain and node.op_type in _NEVER_NEGATIVE
