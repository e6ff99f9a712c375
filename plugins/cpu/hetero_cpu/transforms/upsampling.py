"""The pass that computes a ConvTranspose whose windows overlap as a convolution: the outputs of a stride are its channels.

```text
output t, before pads, is of phase t % stride:   y[stride q + r] = sum over j of x[q - j] weight[r + stride j]
Conv (batch, stride * channels, q) ── Transpose, Reshape: views if the result lies channels last ── Slice: the pads
```
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.transforms.matching import read_shape
from hetero_core.transforms.rewrite import Replacement
from hetero_cpu.transforms.microsoft import NodeWriter, rewrite_operator

_FARTHEST = np.iinfo(np.int64).max


def convolve_upsampling(network: Network) -> Network:
    """Returns the network with each ConvTranspose of images, of a single group, as a Conv if its windows overlap or are cut.

    Along the height the sizes must be known, unless the stride is 1.
    """
    return rewrite_operator(network, "ConvTranspose", _convolve)


def _convolve(network: Network, node: Node, writer: NodeWriter) -> Replacement | None:
    weight, bias = (network.initializers.get(value) for value in (*node.inputs, "", "")[1:3])
    own, shape = node.attributes, read_shape(network, node.inputs[0])
    if weight is None or weight.dtype != "float32" or len(weight.shape) != 4 or shape is None:
        return None
    if (any(node.inputs[2:]) and bias is None) or own.get("group", 1) != 1 or own.get("output_shape"):
        return None
    if own.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or any(dilation != 1 for dilation in own.get("dilations", ())):
        return None
    outputs, *kernel = weight.shape[1:]
    strides, pads = tuple(own.get("strides", (1, 1))), tuple(own.get("pads", (0,) * 4))
    more = tuple(own.get("output_padding", (0, 0)))
    if strides == tuple(kernel) and not any((*pads, *more)):
        return None  # a step of its own
    taps = [-(-size // stride) for size, stride in zip(kernel, strides, strict=True)]
    ends = [
        tap * stride - size + pad - extra
        for tap, stride, size, pad, extra in zip(taps, strides, kernel, pads[2:], more, strict=True)
    ]
    sizes = [size + tap - 1 if isinstance(size, int) else None for size, tap in zip(shape[2:], taps, strict=True)]
    if min(ends) < 0 or (strides[0] > 1 and not all(type(size) is int for size in sizes)):
        return None
    height, width = sizes
    columns = strides[1] * outputs
    filters = writer.add_constant(_turn_filters(weight.array, strides, taps))
    biases = [] if bias is None else [writer.add_constant(np.tile(bias.array, strides[0] * strides[1]))]
    ahead = [tap - 1 for tap in taps]
    value = writer.add("Conv", node.inputs[0], filters, *biases, pads=(*ahead, *ahead), kernel_shape=tuple(taps))
    value = writer.add("Transpose", value, perm=(0, 2, 3, 1))
    target = (0, 0, -1, outputs)
    if strides[0] > 1:
        assert isinstance(height, int)
        assert isinstance(width, int)
        value = writer.add("Reshape", value, writer.add_integers(0, 0, 0, strides[0], columns))
        value = writer.add("Transpose", value, perm=(0, 1, 3, 2, 4))
        target = (0, height * strides[0], width * strides[1], outputs)
    value = writer.add("Reshape", value, writer.add_integers(*target))
    value = writer.add("Transpose", value, perm=(0, 3, 1, 2))
    bounds = [pads[:2], [-end if end else _FARTHEST for end in ends], (2, 3)]
    writer.add("Slice", value, *(writer.add_integers(*numbers) for numbers in bounds))
    return writer.finish_with(node.outputs[0])


def _turn_filters(weight: Any, strides: tuple[int, ...], taps: list[int]) -> Any:
    """Returns the filters of the convolution: (phases * outputs, channels, taps). weight: (channels, outputs, height, width)."""
    channels, outputs, *kernel = weight.shape
    whole = np.zeros((channels, outputs, *(tap * stride for tap, stride in zip(taps, strides, strict=True))), np.float32)
    whole[:, :, : kernel[0], : kernel[1]] = weight
    phases = whole.reshape(channels, outputs, taps[0], strides[0], taps[1], strides[1])[:, :, ::-1, :, ::-1]
    filters = phases.transpose(3, 5, 1, 0, 2, 4)
    return np.ascontiguousarray(filters.reshape(-1, channels, *taps))
