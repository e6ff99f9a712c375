"""Windows (poolings that round up, padded transposed convolutions, STFT) written so that onnx infers the sizes that ONNX defines.

With `ceil_mode` a last window may hang over the padded end, but none starts there. Before opset 22 onnx's inference counts those that
start there, too. As long as no window does, rounding up is rounding down with more pads at the end: stride - 1 more, and never so many
that a window would lie in pads alone.

onnx's inference takes `onesided` of STFT for 0 where the node does not state it; ONNX says 1.

A transposed convolution with SAME makes stride times as many elements as it reads, if it reaches them. onnx's inference adds
`output_padding` to that, which only tells where it does not reach them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_core.network.attributes import INT

if TYPE_CHECKING:
    import onnx

_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_LARGEST = 1 << 31
"""Windows beyond it are left as they are: onnx refuses them, and their ends may not fit int64."""
_SAME = (b"SAME_UPPER", b"SAME_LOWER")


def write_inferable_windows(graph: onnx.GraphProto) -> None:
    """Changes nodes with windows of a graph that is written for shape inference alone, and those of its bodies."""
    for node in graph.node:
        if node.op_type in _POOLINGS and not node.domain:
            _change_pooling(node)
        if node.op_type == "ConvTranspose" and not node.domain:
            _limit_output_padding(node)
        if node.op_type == "STFT" and not node.domain and all(attribute.name != "onesided" for attribute in node.attribute):
            node.attribute.add(name="onesided", type=INT, i=1)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                write_inferable_windows(body)


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


def _limit_output_padding(node: onnx.NodeProto) -> None:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if "auto_pad" not in attributes or attributes["auto_pad"].s not in _SAME or "output_shape" in attributes:
        return
    padding, kernel, strides, dilations = (
        list(attributes[name].ints) if name in attributes else []
        for name in ("output_padding", "kernel_shape", "strides", "dilations")
    )
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    if not padding or len({len(padding), len(kernel), len(strides), len(dilations)}) > 1:
        return
    gaps = [stride - (size - 1) * dilation - 1 for size, stride, dilation in zip(kernel, strides, dilations, strict=True)]
    del attributes["output_padding"].ints[:]
    attributes["output_padding"].ints.extend(min(more, max(gap, 0)) for more, gap in zip(padding, gaps, strict=True))
