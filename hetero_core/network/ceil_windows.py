"""Poolings that round their sizes up, written so that onnx infers the sizes that ONNX defines.

With `ceil_mode` a last window may hang over the padded end, but none starts there. Before opset 22 onnx's inference counts those that
start there, too. As long as no window does, rounding up is rounding down with more pads at the end: stride - 1 more, and never so many
that a window would lie in pads alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_LARGEST = 1 << 31
"""Windows beyond it are left as they are: onnx refuses them, and their ends may not fit int64."""
_SAME = (b"SAME_UPPER", b"SAME_LOWER")


def write_ceil_as_pads(graph: onnx.GraphProto) -> None:
    """Changes the poolings of a graph that is written for shape inference alone, and those of its bodies."""
    for node in graph.node:
        if node.op_type in _POOLINGS and not node.domain:
            _change_pooling(node)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                write_ceil_as_pads(body)


def _change_pooling(node: onnx.NodeProto) -> None:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    auto_pad = attributes.get("auto_pad")
    if "ceil_mode" not in attributes or attributes["ceil_mode"].i == 0 or (auto_pad is not None and auto_pad.s in _SAME):
        return
    kernel, strides, dilations, pads = (
        list(attributes[name].ints) if name in attributes else [] for name in ("kernel_shape", "strides", "dilations", "pads")
    )
    rank = len(kernel)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads if pads and (auto_pad is None or auto_pad.s != b"VALID") else [0] * (2 * rank)
    if (
        rank == 0
        or min(kernel) < 1
        or max(map(abs, (*kernel, *strides, *dilations, *pads))) >= _LARGEST
        or (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank)
    ):
        return
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    ends = [min(end + stride - 1, extent - 1) for end, stride, extent in zip(pads[rank:], strides, extents, strict=True)]
    for name in ("ceil_mode", "auto_pad", "pads"):
        if name in attributes:
            node.attribute.remove(attributes[name])
    changed = node.attribute.add(name="pads", type=attributes["kernel_shape"].INTS)
    changed.ints.extend([*pads[:rank], *ends])
