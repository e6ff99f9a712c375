"""The pass that computes a ConvTranspose whose windows overlap as a convolution: the outputs of a stride are its channels.

```text
output t, before pads, is of phase t % stride:   y[stride q + r] = sum over j of x[q - j] weight[r + stride j]
Conv (batch, stride * channels, q) ── Transpose, Reshape: views if the result lies channels last ── Slice: the pads
```
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from hetero_core.network.graph import Network, Node
from hetero_core.transforms.matching import read_shape
from hetero_core.transforms.rewrite import Replacement
from hetero_cpu.transforms.microsoft import NodeWriter, rewrite_operators

_FARTHEST = np.iinfo(np.int64).max


def convolve_upsampling(network: Network) -> Network:
    """Returns the network with each ConvTranspose of images or volumes, of a single group, as a Conv if its windows overlap or are cut.

    The sizes of volumes must be known, and those of images, unless the stride along the height is 1.
    """
    return rewrite_operators(network, {("", "ConvTranspose"): _convolve})


def _convolve(network: Network, node: Node, writer: NodeWriter) -> Replacement | None:
    weight, bias = (network.initializers.get(value) for value in (*node.inputs, "", "")[1:3])
    own, shape = node.attributes, read_shape(network, node.inputs[0])
    if weight is None or weight.dtype != "float32" or len(weight.shape) not in (4, 5) or shape is None:
        return None
    if (any(node.inputs[2:]) and bias is None) or own.get("group", 1) != 1 or own.get("output_shape"):
        return None
    if own.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or any(dilation != 1 for dilation in own.get("dilations", ())):
        return None
    outputs, *kernel = weight.shape[1:]
    rank = len(kernel)
    strides, pads = tuple(own.get("strides", (1,) * rank)), tuple(own.get("pads", (0,) * (2 * rank)))
    more = tuple(own.get("output_padding", (0,) * rank))
    if strides == tuple(kernel) and not any((*pads, *more)):
        return None  # a step of its own
    taps = [-(-size // stride) for size, stride in zip(kernel, strides, strict=True)]
    ends = [
        tap * stride - size + pad - extra
        for tap, stride, size, pad, extra in zip(taps, strides, kernel, pads[rank:], more, strict=True)
    ]
    sizes = [size + tap - 1 if isinstance(size, int) else None for size, tap in zip(shape[2:], taps, strict=True)]
    if min(ends) < 0 or ((rank == 3 or strides[0] > 1) and not all(type(size) is int for size in sizes)):
        return None
    phases = prod(strides)
    filters = writer.add_constant(_turn_filters(weight.array, strides, taps))
    biases = [] if bias is None else [writer.add_constant(np.tile(bias.array, phases))]
    ahead = [tap - 1 for tap in taps]
    value = writer.add("Conv", node.inputs[0], filters, *biases, pads=(*ahead, *ahead), kernel_shape=tuple(taps))
    value = writer.add("Transpose", value, perm=(0, *range(2, rank + 2), 1))
    target: tuple[int, ...] = (0, 0, -1, outputs)
    if rank == 3 or strides[0] > 1:
        known = [size for size in sizes if size is not None]
        # The phases of an axis come behind its places, one axis after another; those of the last axis are there already.
        for axis in range(rank - 1):
            phases //= strides[axis]
            places = known[axis], prod(known[axis + 1 :])
            value = writer.add("Reshape", value, writer.add_integers(-1 if axis else 0, *places, strides[axis], phases * outputs))
            value = writer.add("Transpose", value, perm=(0, 1, 3, 2, 4))
        target = (-1 if rank == 3 else 0, *(size * stride for size, stride in zip(known, strides, strict=True)), outputs)
    value = writer.add("Reshape", value, writer.add_integers(*target))
    value = writer.add("Transpose", value, perm=(0, rank + 1, *range(1, rank + 1)))
    bounds = [pads[:rank], [-end if end else _FARTHEST for end in ends], range(2, rank + 2)]
    writer.add("Slice", value, *(writer.add_integers(*numbers) for numbers in bounds))
    return writer.finish_with(node.outputs[0])


def _turn_filters(weight: Any, strides: tuple[int, ...], taps: list[int]) -> Any:
    """Returns the filters of the convolution: (phases * outputs, channels, taps). weight: (channels, outputs, [depth,] height, width)."""
    channels, outputs, *kernel = weight.shape
    sizes = list(zip(taps, strides, strict=True))
    ends = [tap * stride - size for (tap, stride), size in zip(sizes, kernel, strict=True)]
    whole = np.pad(weight, ((0, 0), (0, 0), *((0, end) for end in ends)))
    phases = np.flip(
        whole.reshape(channels, outputs, *(size for pair in sizes for size in pair)), tuple(range(2, 2 + 2 * len(taps), 2))
    )
    filters = phases.transpose(*range(3, 3 + 2 * len(taps), 2), 1, 0, *range(2, 2 + 2 * len(taps), 2))
    return np.ascontiguousarray(filters.reshape(-1, channels, *taps))
