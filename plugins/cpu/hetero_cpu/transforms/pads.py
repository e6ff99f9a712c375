"""A pass that lets convolutions pad with zeros for themselves in place of a Pad before them. Only the spatial axes count."""

from __future__ import annotations

from dataclasses import replace

from hetero_core.network.graph import Network, Node
from hetero_core.network.types import rank_of, sizes_of
from hetero_core.transforms.constants import drop_unread
from hetero_core.transforms.matching import read_integers
from hetero_core.transforms.rewrite import fuse_pairs


def fold_pads(network: Network) -> Network:
    """Returns the network with each Pad in the pads of the Conv that alone reads it, if it adds zeros to the spatial axes."""

    def fuse(pad: Node, conv: Node) -> Node | None:
        return _fuse_pad(network, pad, conv)

    fused = fuse_pairs(network, fuse)
    return network if fused is network else drop_unread(fused)


def _fuse_pad(network: Network, pad: Node, conv: Node) -> Node | None:
    if (pad.op_type, pad.domain, conv.op_type, conv.domain) != ("Pad", "", "Conv", "") or conv.inputs[0] != pad.outputs[0]:
        return None
    pad_widths, filters = _read_pads(network, pad), sizes_of(network.type_of(conv.inputs[1]))
    if pad_widths is None or filters is None or conv.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    added, number = pad_widths
    count = len(filters) - 2
    # Batch and channels stay; all pads before stand in front of all pads behind, as in ONNX.
    is_spatial = len(added) == 2 * (count + 2) and not any(added[:2]) and not any(added[count + 2 : count + 4])
    if number != 0 or not is_spatial or min(added) < 0:
        return None
    spatial = (*added[2 : count + 2], *added[count + 4 :])
    attributes = {key: value for key, value in conv.attributes.items() if key != "auto_pad"}
    old = attributes.get("pads", (0,) * 2 * count)
    attributes["pads"] = tuple(amount + other for amount, other in zip(old, spatial, strict=True))
    return replace(conv, inputs=(pad.inputs[0], *conv.inputs[1:]), attributes=attributes)


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
