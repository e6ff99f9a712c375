"""Conv of channels-last images and volumes with constant weights, as a product over the taps of the kernel.

No windows are copied: a tap is an offset into the image, which has a halo of zeros if the convolution has pads. If the plan gave
the image no halo, or it is in C order, it is staged into working memory with a halo. Taps in planes outside of a volume are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators.grouped import GROUP_PARAMETERS, make_grouped_product, pack_groups
from hetero_cpu.operators.images import (
    Convolution,
    Run,
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
from hetero_cpu.operators.tiling import Chunks, ColumnPacking, choose_chunks, choose_tiling, pad_vector
from hetero_cpu.operators.winograd import choose_winograd, has_exact_tiles, plan_winograd
from hetero_cpu.symbols.sizes import is_same


def plan_product_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a convolution of one group, or of several groups by the same kernel. Source: ONNX Conv-22."""
    convolution = read_convolution(site)
    if convolution is None:
        return None
    epilogue = read_native_epilogue(site, site.constant(2), convolution.outputs, channel_axis=1)
    if epilogue is None or (epilogue.added and not has_channel_vectors(site.prototypes[epilogue.added])):
        return None
    size = find_tiles(convolution)
    staging = choose_staging(convolution, size)
    if size:
        reaches = () if staging is not None else (find_overhang(convolution.windows, size),)
        recipe = plan_winograd(convolution, epilogue, staging, size)
        return replace(recipe, reaches=reaches)
    return _make_recipe(convolution, epilogue, staging)


def find_tiles(convolution: Convolution) -> int:
    """Returns the side of Winograd's tiles with which a convolution of floats is computed; 0 for the direct way."""
    site = convolution.site
    size = has_planes_alone(convolution) and choose_winograd(
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
        return 2 if has_exact_tiles(convolution.weight, limits.low, limits.high) else 0
    return size


def choose_staging(convolution: Convolution, size: int = 0) -> Staging | None:
    """Returns how the image is copied first, for Winograd's tiles of a size or, with 0, for windows; None if it is read as it lies."""
    site, source, halo = convolution.site, convolution.source, find_overhang(convolution.windows, size)
    if has_channel_vectors(site.prototypes[source]) and site.halos.get(source, NO_HALO).covers(halo):
        return None
    height, width = convolution.windows.sizes
    shape = (convolution.planes[0], halo.top + height + halo.bottom, halo.left + width + halo.right, convolution.channels)
    return Staging(halo, shape, make_stage(site.prototypes[source]))


def has_planes_alone(convolution: Convolution) -> bool:
    """Says whether each result is made of a single image, or of a single plane of a volume."""
    return convolution.depths is None or convolution.depths.is_pointwise


def _pack_end(begin: int, packing: Callable[[Array], Array], weight: Array) -> Array:
    """Returns the packed filters of a volume without their first planes."""
    return packing(weight[:, :, begin:])


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
    runs = convolution.list_runs()
    # Planes that are convolved together are lines of their own.
    is_single = is_flat and len(runs) == len(runs[0].taps) == 1 and runs[0].stride == 1
    pixels = runs[0].count * height * width if is_single else height * width if is_flat else width
    tiling = choose_tiling(pixels, outputs, find_width(), is_image=True, is_shared=site.weights.is_shared)
    chunks_of_run = [
        choose_chunks(
            tiling,
            lines=1 if is_single else run.count if is_flat else run.count * height,
            depth=channels * len(run.taps) * prod(windows.kernel),
            pixel_bytes=channels * 4 * prod(windows.strides),
            workers=site.workers,
        )
        for run in runs
    ]
    # Read as the kernel does, in whole vectors.
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs, group)
    if group == 1:
        purpose: tuple[object, ...] = ("product", tiling.vectors, tiling.width)
        packing: Callable[[Array], Array] = ColumnPacking(tiling.packing)
        units = chunks_of_run[0].units
        # A question about an open number of tiles would part its class.
        streams, prefetches = is_same(units, 1), tiling.count_prefetches(units)
        kernel = make_product(
            ProductShape.of_tiling(tiling, epilogue.activations, adds=bool(added), prefetches=prefetches, streams=streams)
        )
    else:
        purpose, packing = (
            ("grouped", group, tiling.vectors, tiling.width),
            partial(pack_groups, group=group, tiling=tiling.packing),
        )
        kernel = make_grouped_product(ProductShape.of_tiling(tiling, epilogue.activations, adds=bool(added)))
    names = PARAMETERS if group == 1 else (*PARAMETERS, *GROUP_PARAMETERS)
    planes = 1 if convolution.depths is None else convolution.depths.kernel[0]
    # The taps before a run's are skipped in each block, and the last block may be narrower than the others.
    begins = {0 if tiling.last_vectors == tiling.vectors else run.taps.start for run in runs}
    weight_of_begin = {
        begin: convolution.pack_lazily(
            (*purpose, begin) if begin else purpose, partial(_pack_end, begin, packing) if begin else packing
        )
        for begin in sorted(begins)
    }

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        calls = []
        for laid, *others in zip(*(convolution.list_planes(array) for array in (reads[0], writes[0], *reads[1:])), strict=True):
            staged, image = bind_staging(staging, laid, scratch)
            calls += staged
            for run, chunks in zip(runs, chunks_of_run, strict=True):
                calls.append(bind_run(run, chunks, image, *map(run.find_target, others)))
        return calls

    def bind_run(run: Run, chunks: Chunks, image: Array, y: Array, addend: Array | None = None) -> NativeCall:
        assert not is_flat or is_even(y)
        plane, _, row, pixel = image.strides
        x = run.find_source(image)
        top, left = (max(pads[0], 0) for pads in windows.pads)
        # If pixels lie side by side, a row of the kernel is a single tap.
        is_merged = pixel == channels * 4 and windows.dilations[1] == 1
        steps = 1 if is_merged else windows.kernel[1]
        taps, depth = windows.kernel[0] * steps, channels * windows.kernel[1] // steps
        offsets = lay_offsets(windows, row, pixel, steps, [index * run.dilation * plane for index in range(len(run.taps))])
        begin = run.taps.start if run.taps.start in weight_of_begin else 0
        weight, vector_bytes = weight_of_begin[begin], tiling.width * 4
        skipped = (run.taps.start - begin) * taps * depth * tiling.vectors * vector_bytes
        tap_bytes = (planes - begin) * taps * depth * vector_bytes
        numbers = {
            "x": address_of(x) - top * row - left * pixel, "x_image": x.strides[0], "x_row": row * windows.strides[0],
            "x_pixel": pixel * windows.strides[1], "offsets": address_of(offsets), "taps": taps * len(run.taps), "depth": depth,
            "w": address_of(weight) + skipped, "block_bytes": tap_bytes * tiling.vectors, "bias": address_of(bias),
            "rows": 1 if is_flat else height, **list_cut(tiling, chunks), **list_strides("y", y), **list_strides("added", addend),
            "chunks_of_group": chunks.count, "x_group": channels * 4,
            "w_group": (planes - begin) * taps * depth * tiling.padded_outputs * 4,
            "bias_group": tiling.padded_outputs * 4, "y_group": outputs * 4, "added_group": outputs * 4,
        }  # fmt: skip
        keep = (offsets, weight, bias, x, y, addend)
        return NativeCall(kernel, tuple(numbers.get(key, 0) for key in names), chunks.count * group, keep)

    reaches = () if staging is not None else (find_overhang(windows),)
    return join_recipe(convolution, epilogue, staging, bind, (kernel,), reaches=reaches)
