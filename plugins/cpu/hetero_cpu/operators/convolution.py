"""Conv, and ConvTranspose with adjacent windows, of channels-last images and volumes with constant weights, as products.

No windows are copied: a tap is an offset into the image, which has a halo of zeros if the convolution has pads. If the plan gave
the image no halo, or it is in C order, it is staged into working memory with a halo, as is a volume if windows reach beyond its planes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from hetero_core.kernels.windows import lay_windows
from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators.images import (
    Convolution,
    Staging,
    bind_staging,
    find_overhang,
    has_channel_vectors,
    is_even,
    is_whole,
    lay_offsets,
    make_stage,
    may_join,
    read_convolution,
)
from hetero_cpu.operators.product import NativeEpilogue, join_recipe, read_native_epilogue
from hetero_cpu.operators.product_kernel import PARAMETERS, ProductShape, list_cut, make_product
from hetero_cpu.operators.recipe import NO_HALO, Recipe, Site
from hetero_cpu.operators.tiling import ColumnPacking, Tiling, choose_chunks, choose_tiling, pack_columns, pad_vector
from hetero_cpu.operators.weights import allocate_floats
from hetero_cpu.operators.winograd import choose_winograd, plan_winograd


def plan_product_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a convolution, each of whose groups is a product of its own. Source: ONNX Conv-22."""
    convolution = read_convolution(site)
    if convolution is None:
        return None
    epilogue = read_native_epilogue(site, site.constant(2), convolution.outputs, channel_axis=1)
    if epilogue is None or (epilogue.added and not has_channel_vectors(site.prototypes[epilogue.added])):
        return None
    # The sums of a quantized network stay exact by the direct way. Transformed weights are up to four times as large.
    is_direct = not convolution.has_planes_alone or site.weights.is_once or is_whole(convolution.weight)
    sizes = {"channels": convolution.channels, "outputs": convolution.outputs, "group": convolution.group}
    size = 0 if is_direct else choose_winograd(convolution.windows, **sizes, width=find_width())
    staging = choose_staging(convolution, size)
    if size:
        reaches = () if staging is not None else (find_overhang(convolution.windows, size),)
        recipe = plan_winograd(convolution, epilogue, staging, size)
        return replace(recipe, reaches=reaches)
    return _make_recipe(convolution, epilogue, staging)


def choose_staging(convolution: Convolution, size: int = 0) -> Staging | None:
    """Returns how the image is copied first, for Winograd's tiles of a size or, with 0, for windows; None if it is read as it lies."""
    site, source, halo = convolution.site, convolution.source, find_overhang(convolution.windows, size)
    front, back = convolution.depth_halo
    is_covered = site.halos.get(source, NO_HALO).covers(halo) and not front and not back
    if has_channel_vectors(site.prototypes[source]) and is_covered:
        return None
    height, width = convolution.windows.sizes
    images = front + convolution.planes[0] + back
    shape = (images, halo.top + height + halo.bottom, halo.left + width + halo.right, convolution.channels)
    return Staging(halo, front, shape, make_stage(site.prototypes[source]))


def plan_transposed_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a ConvTranspose of a single group without pads, with strides equal to its kernel.

    Source: ONNX ConvTranspose-22.

    y[h * stride + i, w * stride + j] = x[h, w] @ weight[i, j] + bias: no output is made of two inputs. Of a volume also along the depth.
    """
    convolution = read_adjacent(site)
    if convolution is None or site.group.epilogue or not has_channel_vectors(site.prototypes[convolution.source]):
        return None
    return _make_recipe(convolution, NativeEpilogue(site.constant(2)), None, (1, *convolution.weight.shape[2:])[-3:])


_TRANSPOSED_ATTRIBUTES = {"auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"}


def read_adjacent(site: Site) -> Convolution | None:
    """Returns a ConvTranspose as a convolution by each position of its kernel; None unless it has a single group, constants of float32,
    no pads, and strides equal to its kernel."""
    node, weight, bias, x = site.node, site.constant(1), site.constant(2), site.prototypes[site.node.inputs[0]]
    if weight is None or weight.ndim not in (4, 5) or not site.is_float32(node.inputs[1]):
        return None
    if not set(node.attributes) <= _TRANSPOSED_ATTRIBUTES or (site.has_input(2) and (bias is None or bias.dtype != np.float32)):
        return None
    channels, outputs, *kernel = weight.shape
    strides = tuple(node.attributes.get("strides", (1,) * len(kernel)))
    if x.ndim != weight.ndim or x.shape[1] != channels or strides != tuple(kernel) or (x.ndim == 5 and not may_join(x)):
        return None
    is_plain = node.attributes.get("group", 1) == 1 and set(node.attributes.get("dilations", ())) <= {1}
    # The shape tells that pads of another spelling changed nothing.
    expected = (x.shape[0], outputs, *(size * stride for size, stride in zip(x.shape[2:], strides, strict=True)))
    has_pads = any((*node.attributes.get("pads", ()), *node.attributes.get("output_padding", ())))
    if not is_plain or has_pads or site.types[node.outputs[0]].shape != expected:
        return None
    depths = lay_windows(x.shape[2:3], (1,)) if x.ndim == 5 else None
    return Convolution(site, lay_windows(x.shape[-2:], (1, 1)), channels, outputs, 1, x.shape[0], depths, is_joined=x.ndim == 5)


def _pack_groups(weight: Array, group: int, tiling: Tiling) -> Array:
    """Returns the packed columns of each group, in order. weight: (outputs, channels of a group, [depth,] height, width)."""
    split = np.moveaxis(weight.reshape(group, weight.shape[0] // group, *weight.shape[1:]), (2, 1), (-2, -1))
    return _pack_matrices(split.reshape(group, -1, split.shape[-1]), tiling)


def _pack_positions(weight: Array, tiling: Tiling) -> Array:
    """Returns the packed columns of each position of the kernel, in order. weight: (channels, outputs, [depth,] height, width)."""
    return _pack_matrices(np.moveaxis(weight.reshape(*weight.shape[:2], -1), 2, 0), tiling)


def _pack_matrices(matrices: Array, tiling: Tiling) -> Array:
    columns = [pack_columns(matrix, tiling) for matrix in matrices]
    packed = allocate_floats(sum(part.size for part in columns))
    np.concatenate(columns, out=packed)
    return packed


def _make_recipe(
    convolution: Convolution, epilogue: NativeEpilogue, staging: Staging | None, spread: tuple[int, ...] = ()
) -> Recipe:
    """Returns the recipe of a convolution. `spread`: the planes, rows and columns of results that each window has, of own weights."""
    site, windows, group = convolution.site, convolution.windows, convolution.group
    channels, outputs = convolution.channels // group, convolution.outputs // group
    (height, width), images, depth_taps = windows.outputs, convolution.planes[1], convolution.depth_taps
    added = (epilogue.added,) if epilogue.added else ()
    is_flat = windows.is_pointwise and not spread and site.output_halo == NO_HALO and staging is None
    is_flat = is_flat and all(is_even(site.prototypes[value]) for value in (convolution.source, *added))
    deep, down, right = spread or (1, 1, 1)
    # Planes that are convolved together are lines of their own.
    is_single = is_flat and convolution.has_planes_alone
    pixels = images * height * width if is_single else height * width if is_flat else width
    tiling = choose_tiling(pixels, outputs, find_width(), is_image=True, is_shared=site.weights.is_shared)
    lines, depth = 1 if is_single else images if is_flat else images * height, channels * len(depth_taps) * prod(windows.kernel)
    pixel_bytes = channels * 4 * prod(windows.strides)
    chunks = choose_chunks(tiling, lines=lines, depth=depth, pixel_bytes=pixel_bytes, workers=site.workers)
    # Read as the kernel does, in whole vectors.
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs, group)
    purpose: tuple[object, ...] = (tiling.vectors, tiling.width)
    prefetches = tiling.count_prefetches(chunks.units)
    kernel = make_product(ProductShape.of_tiling(tiling, epilogue.activations, adds=bool(added), prefetches=prefetches))
    if spread:
        weight = convolution.pack_lazily(("transposed", *purpose), partial(_pack_positions, tiling=tiling.packing))
    elif group > 1:
        weight = convolution.pack_lazily(("grouped", group, *purpose), partial(_pack_groups, group=group, tiling=tiling.packing))
    else:
        weight = convolution.pack_lazily(("product", *purpose), ColumnPacking(tiling.packing))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        calls = []
        for laid, *others in zip(*(convolution.list_planes(array) for array in (reads[0], writes[0], *reads[1:])), strict=True):
            staged, image = bind_staging(staging, laid, scratch)
            calls += staged
            for number, (own, k, i, j) in enumerate(np.ndindex(group, deep, down, right)):
                results = slice(own * outputs, (own + 1) * outputs)
                places = (each[k::deep, results, i::down, j::right] for each in others)
                calls.append(bind_product(number, own, image[:, own * channels : (own + 1) * channels], *places))
        return calls

    def bind_product(number: int, own: int, image: Array, y: Array, addend: Array | None = None) -> NativeCall:
        plane, _, row, pixel = image.strides
        x = convolution.pick_planes(image)
        top, left = (max(pads[0], 0) for pads in windows.pads)
        # If pixels lie side by side, a row of the kernel is a single tap.
        is_merged = pixel == channels * 4 and windows.dilations[1] == 1
        steps = 1 if is_merged else windows.kernel[1]
        taps, depth = len(depth_taps) * windows.kernel[0] * steps, channels * windows.kernel[1] // steps
        dilation = 0 if convolution.depths is None else convolution.depths.dilations[0]
        offsets = lay_offsets(windows, row, pixel, steps, [tap * dilation * plane for tap in depth_taps])
        weight_bytes = taps * depth * tiling.padded_outputs * 4
        numbers = {
            "x": address_of(x) - top * row - left * pixel, "x_image": x.strides[0], "x_row": row * windows.strides[0],
            "x_pixel": pixel * windows.strides[1], "offsets": address_of(offsets), "taps": taps, "depth": depth,
            "w": address_of(weight) + number * weight_bytes, "block_bytes": taps * depth * tiling.vectors * tiling.width * 4,
            "bias": address_of(bias) + own * tiling.padded_outputs * 4, "rows": 1 if is_flat else height,
            **list_cut(tiling, chunks), **list_strides("y", y), **list_strides("added", addend),
        }  # fmt: skip
        keep = (offsets, weight, bias, x, y, addend)
        return NativeCall(kernel, tuple(numbers.get(key, 0) for key in PARAMETERS), chunks.count, keep)

    reaches = () if staging is not None else (find_overhang(windows),)
    return join_recipe(convolution, epilogue, staging, bind, (kernel,), reaches=reaches)
