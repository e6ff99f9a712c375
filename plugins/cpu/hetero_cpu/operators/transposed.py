"""ConvTranspose of channels-last images with adjacent windows: each position of the kernel is a product of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators.grouped import GROUP_PARAMETERS, make_grouped_product
from hetero_cpu.operators.images import has_channel_vectors
from hetero_cpu.operators.product_kernel import PARAMETERS, ProductShape, list_cut
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.tiling import Tiling, choose_chunks, choose_tiling, pack_columns, pad_vector
from hetero_cpu.operators.weights import allocate_floats

_ATTRIBUTES = {"auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"}


def plan_transposed_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a ConvTranspose of a single group without pads, with strides equal to its kernel.

    Source: ONNX ConvTranspose-22.

    y[h * stride + i, w * stride + j] = x[h, w] @ weight[i, j] + bias: no output is made of two inputs.
    """
    node, weight, bias = site.node, site.constant(1), site.constant(2)
    source = node.inputs[0]
    if weight is None or site.group.epilogue or not is_adjacent(site, weight) or not site.is_float32(source):
        return None
    return _make_recipe(site, weight, bias) if has_channel_vectors(site.prototypes[source]) else None


def is_adjacent(site: Site, weight: Array) -> bool:
    """Says whether a ConvTranspose of images has a single group, constants of float32, no pads, and strides equal to its kernel."""
    node, bias, x = site.node, site.constant(2), site.prototypes[site.node.inputs[0]]
    if weight.ndim != 4 or not site.is_float32(node.inputs[1]) or not set(node.attributes) <= _ATTRIBUTES:
        return False
    if site.has_input(2) and (bias is None or bias.dtype != np.float32):
        return False
    channels, outputs, *kernel = weight.shape
    strides = tuple(node.attributes.get("strides", (1, 1)))
    if x.ndim != 4 or x.shape[1] != channels or strides != tuple(kernel):
        return False
    is_plain = node.attributes.get("group", 1) == 1 and all(dilation == 1 for dilation in node.attributes.get("dilations", ()))
    # The shape tells that pads of another spelling changed nothing.
    is_plain = is_plain and not any((*node.attributes.get("pads", ()), *node.attributes.get("output_padding", ())))
    batch, _, height, width = x.shape
    expected = (batch, outputs, height * strides[0], width * strides[1])
    return is_plain and site.types[node.outputs[0]].shape == expected


def _make_recipe(site: Site, weight: Array, bias: Array | None) -> Recipe:
    source = site.node.inputs[0]
    channels, outputs, down, right = weight.shape
    batch, _, height, width = site.shape(source)
    tiling = choose_tiling(width, outputs, find_width(), is_image=True, is_shared=site.weights.is_shared)
    chunks = choose_chunks(tiling, lines=batch * height, depth=channels, pixel_bytes=channels * 4, workers=site.workers)
    packed = site.weights.pack(
        (weight,), ("transposed", tiling.vectors, tiling.width), partial(_pack_positions, tiling=tiling.packing)
    )
    padded = pad_vector(bias, outputs, tiling.padded_outputs)
    kernel = make_grouped_product(ProductShape.of_tiling(tiling, (), adds=False))
    offsets = np.zeros(1, np.int64)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = reads[0], writes[0]
        numbers = {
            **list_strides("x", x), **list_cut(tiling, chunks), "offsets": address_of(offsets), "taps": 1, "depth": channels,
            "block_bytes": channels * tiling.vectors * tiling.width * 4, "bias": address_of(padded), "rows": height,
            "y_image": y.strides[0], "y_row": y.strides[2] * down, "y_pixel": y.strides[3] * right,
            "chunks_of_group": chunks.count, "w_group": packed.strides[1], "y_group": y.strides[3],
        }  # fmt: skip
        calls = []
        for i in range(down):
            # The positions of a row of the kernel are the groups.
            own = numbers | {"w": address_of(packed[i]), "y": address_of(y) + i * y.strides[2]}
            row = tuple(own.get(key, 0) for key in (*PARAMETERS, *GROUP_PARAMETERS))
            calls.append(NativeCall(kernel, row, chunks.count * right, (offsets, packed, padded, x, y)))
        return calls

    return Recipe((source,), bind, is_channels_last=True, kernels=(kernel,))


def _pack_positions(weight: Array, tiling: Tiling) -> Array:
    """Returns (height, width, columns): the packed matrix of each position of the kernel. weight: (channels, outputs, height, width)."""
    channels, _, down, right = weight.shape
    packed = allocate_floats(down * right * channels * tiling.padded_outputs).reshape(down, right, -1)
    for i, j in np.ndindex(down, right):
        packed[i, j] = pack_columns(weight[:, :, i, j], tiling)
    return packed
