"""ConvTranspose of channels-last images and volumes with adjacent windows: each position of the kernel is a product of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators.grouped import GROUP_PARAMETERS, make_grouped_product
from hetero_cpu.operators.images import has_channel_vectors, join_planes, may_join
from hetero_cpu.operators.product_kernel import PARAMETERS, ProductShape, list_cut
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.tiling import Tiling, choose_chunks, choose_tiling, pack_columns, pad_vector
from hetero_cpu.operators.weights import allocate_floats

_ATTRIBUTES = {"auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"}


def plan_transposed_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a ConvTranspose of a single group without pads, with strides equal to its kernel.

    Source: ONNX ConvTranspose-22.

    y[h * stride + i, w * stride + j] = x[h, w] @ weight[i, j] + bias: no output is made of two inputs. Of a volume also along the depth.
    """
    node, weight, bias = site.node, site.constant(1), site.constant(2)
    source = node.inputs[0]
    if weight is None or site.group.epilogue or not is_adjacent(site, weight) or not site.is_float32(source):
        return None
    return _make_recipe(site, weight, bias) if has_channel_vectors(site.prototypes[source]) else None


def is_adjacent(site: Site, weight: Array) -> bool:
    """Says whether a ConvTranspose has a single group, constants of float32, no pads, and strides equal to its kernel."""
    node, bias, x = site.node, site.constant(2), site.prototypes[site.node.inputs[0]]
    if weight.ndim not in (4, 5) or not site.is_float32(node.inputs[1]) or not set(node.attributes) <= _ATTRIBUTES:
        return False
    if site.has_input(2) and (bias is None or bias.dtype != np.float32):
        return False
    channels, outputs, *kernel = weight.shape
    strides = tuple(node.attributes.get("strides", (1,) * len(kernel)))
    if x.ndim != weight.ndim or x.shape[1] != channels or strides != tuple(kernel) or (x.ndim == 5 and not may_join(x)):
        return False
    is_plain = node.attributes.get("group", 1) == 1 and all(dilation == 1 for dilation in node.attributes.get("dilations", ()))
    # The shape tells that pads of another spelling changed nothing.
    is_plain = is_plain and not any((*node.attributes.get("pads", ()), *node.attributes.get("output_padding", ())))
    expected = (x.shape[0], outputs, *(size * stride for size, stride in zip(x.shape[2:], strides, strict=True)))
    return is_plain and site.types[node.outputs[0]].shape == expected


def _make_recipe(site: Site, weight: Array, bias: Array | None) -> Recipe:
    source = site.node.inputs[0]
    channels, outputs, *deep, down, right = weight.shape
    images, _, height, width = join_planes(site.prototypes[source]).shape
    tiling = choose_tiling(width, outputs, find_width(), is_image=True, is_shared=site.weights.is_shared)
    chunks = choose_chunks(tiling, lines=images * height, depth=channels, pixel_bytes=channels * 4, workers=site.workers)
    packed = site.weights.pack(
        (weight,), ("transposed", tiling.vectors, tiling.width), partial(_pack_positions, tiling=tiling.packing)
    )
    padded = pad_vector(bias, outputs, tiling.padded_outputs)
    kernel = make_grouped_product(ProductShape.of_tiling(tiling, (), adds=False))
    offsets = np.zeros(1, np.int64)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        x, y = map(join_planes, (reads[0], writes[0]))
        planes = prod(deep)
        numbers = {
            **list_strides("x", x), **list_cut(tiling, chunks), "offsets": address_of(offsets), "taps": 1, "depth": channels,
            "block_bytes": channels * tiling.vectors * tiling.width * 4, "bias": address_of(padded), "rows": height,
            "y_image": y.strides[0] * planes, "y_row": y.strides[2] * down, "y_pixel": y.strides[3] * right,
            "chunks_of_group": chunks.count, "w_group": packed.strides[1], "y_group": y.strides[3],
        }  # fmt: skip
        calls = []
        for plane, i in np.ndindex(planes, down):
            # The positions of a row of the kernel are the groups.
            begin = address_of(y) + plane * y.strides[0] + i * y.strides[2]
            own = numbers | {"w": address_of(packed[plane * down + i]), "y": begin}
            row = tuple(own.get(key, 0) for key in (*PARAMETERS, *GROUP_PARAMETERS))
            calls.append(NativeCall(kernel, row, chunks.count * right, (offsets, packed, padded, x, y)))
        return calls

    return Recipe((source,), bind, is_channels_last=True, kernels=(kernel,))


def _pack_positions(weight: Array, tiling: Tiling) -> Array:
    """Returns (rows, width, columns): the packed matrix of each position of the kernel, the rows of all its planes in order.

    weight: (channels, outputs, [depth,] height, width).
    """
    channels, outputs, *_, right = weight.shape
    rows = weight.reshape(channels, outputs, -1, right)
    packed = allocate_floats(rows[0, 0].size * channels * tiling.padded_outputs).reshape(rows.shape[2], right, -1)
    for i, j in np.ndindex(packed.shape[:2]):
        packed[i, j] = pack_columns(rows[:, :, i, j], tiling)
    return packed
