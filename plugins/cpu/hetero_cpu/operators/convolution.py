"""Conv of channels-last images with constant weights, as a product over the taps of the kernel.

No windows are copied: a tap is an offset into the image, which has a halo of zeros if the convolution has pads. If the plan gave
the image no halo, or it is in C order, it is staged into working memory with a halo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators.grouped import GROUP_PARAMETERS, make_grouped_product, pack_groups
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
    read_convolution,
)
from hetero_cpu.operators.product import NativeEpilogue, join_recipe, read_native_epilogue
from hetero_cpu.operators.product_kernel import PARAMETERS, ProductShape, list_cut, make_product
from hetero_cpu.operators.recipe import NO_HALO, NO_LIMITS, Recipe, Site
from hetero_cpu.operators.tiling import ColumnPacking, choose_chunks, choose_tiling, pad_vector
from hetero_cpu.operators.winograd import choose_winograd, plan_winograd
from hetero_cpu.transforms.tiles import has_exact_tiles


def plan_product_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a convolution of one group, or of several groups by the same kernel. Source: ONNX Conv-22."""
    convolution = read_convolution(site)
    if convolution is None:
        return None
    epilogue = read_native_epilogue(site, site.constant(2), convolution.outputs, channel_axis=1)
    if epilogue is None or (epilogue.added and not has_channel_vectors(site.prototypes[epilogue.added])):
        return None
    size = choose_winograd(
        convolution.windows,
        channels=convolution.channels,
        outputs=convolution.outputs,
        group=convolution.group,
        # Transformed weights are up to four times as large.
        width=0 if site.weights.is_once else find_width(),
    )
    if size and is_whole(convolution.weight):
        # The sums of a quantized network are exact, and stay so in small tiles of small numbers.
        limits = site.ranges.get(convolution.source, NO_LIMITS)
        size = 2 if has_exact_tiles(convolution.weight, limits.low, limits.high) else 0
    staging = choose_staging(convolution, size)
    if size:
        reaches = () if staging is not None else (find_overhang(convolution.windows, size),)
        return replace(plan_winograd(convolution, epilogue, staging, size), reaches=reaches)
    return _make_recipe(convolution, epilogue, staging)


def choose_staging(convolution: Convolution, size: int = 0) -> Staging | None:
    """Returns how the image is copied first, for Winograd's tiles of a size or, with 0, for windows; None if it is read as it lies."""
    site, source, halo = convolution.site, convolution.source, find_overhang(convolution.windows, size)
    if has_channel_vectors(site.prototypes[source]) and site.halos.get(source, NO_HALO).covers(halo):
        return None
    batch, channels, height, width = site.shape(source)
    shape = (batch, halo.top + height + halo.bottom, halo.left + width + halo.right, channels)
    return Staging(halo, shape, make_stage(site.prototypes[source]))


def _make_recipe(convolution: Convolution, epilogue: NativeEpilogue, staging: Staging | None) -> Recipe:
    site, windows, group = convolution.site, convolution.windows, convolution.group
    channels, outputs = convolution.channels // group, convolution.outputs // group
    height, width = windows.outputs
    added = (epilogue.added,) if epilogue.added else ()
    is_flat = (
        windows.is_pointwise
        and site.output_halo == NO_HALO
        and all(is_even(site.prototypes[value]) for value in (convolution.source, *added))
        and staging is None
    )
    pixels, lines = (convolution.batch * height * width, 1) if is_flat else (width, convolution.batch * height)
    tiling = choose_tiling(pixels, outputs, find_width(), is_image=True, is_shared=site.weights.is_shared)
    chunks = choose_chunks(
        tiling,
        lines=lines,
        depth=channels * prod(windows.kernel),
        pixel_bytes=channels * 4 * prod(windows.strides),
        workers=site.workers,
    )
    # Read as the kernel does, in whole vectors.
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs, group)
    if group == 1:
        weight = convolution.pack_lazily(("product", tiling.vectors, tiling.width), ColumnPacking(tiling.packing))
        units = lines * tiling.tiles
        kernel = make_product(
            ProductShape.of_tiling(
                tiling, epilogue.activations, adds=bool(added), prefetches=tiling.count_prefetches(units), streams=units == 1
            )
        )
    else:
        weight = convolution.pack_lazily(
            ("grouped", group, tiling.vectors, tiling.width), partial(pack_groups, group=group, tiling=tiling.packing)
        )
        kernel = make_grouped_product(ProductShape.of_tiling(tiling, epilogue.activations, adds=bool(added)))
    names = PARAMETERS if group == 1 else (*PARAMETERS, *GROUP_PARAMETERS)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        calls, image = bind_staging(staging, reads[0], scratch)
        y = writes[0]
        assert not is_flat or is_even(y)
        _, _, row, pixel = image.strides
        top, left = (max(pads[0], 0) for pads in windows.pads)
        # If pixels lie side by side, a row of the kernel is a single tap.
        is_merged = pixel == channels * 4 and windows.dilations[1] == 1
        steps = 1 if is_merged else windows.kernel[1]
        taps, depth = windows.kernel[0] * steps, channels * windows.kernel[1] // steps
        offsets = lay_offsets(windows, row, pixel, steps)
        numbers = {
            "x": address_of(image) - top * row - left * pixel, "x_image": image.strides[0], "x_row": row * windows.strides[0],
            "x_pixel": pixel * windows.strides[1], "offsets": address_of(offsets), "taps": taps, "depth": depth,
            "w": address_of(weight), "block_bytes": depth * taps * tiling.vectors * tiling.width * 4, "bias": address_of(bias),
            "rows": 1 if is_flat else height, **list_cut(tiling, chunks),
            **list_strides("y", y), **list_strides("added", reads[1] if added else None),
            "chunks_of_group": chunks.count, "x_group": channels * 4, "w_group": depth * taps * tiling.padded_outputs * 4,
            "bias_group": tiling.padded_outputs * 4, "y_group": outputs * 4, "added_group": outputs * 4,
        }  # fmt: skip
        keep = (offsets, weight, bias, image, y, *reads)
        return [*calls, NativeCall(kernel, tuple(numbers.get(key, 0) for key in names), chunks.count * group, keep)]

    reaches = () if staging is not None else (find_overhang(windows),)
    return join_recipe(convolution, epilogue, staging, bind, (kernel,), reaches=reaches)
