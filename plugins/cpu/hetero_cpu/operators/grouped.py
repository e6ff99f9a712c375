"""Conv of channels-last images in several groups of channels: a product for each, all by the same kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import Code
from hetero_cpu.machine.compiler import Kernel, find_width
from hetero_cpu.operators.convolution import choose_staging, is_even, is_pixels, lay_offsets, list_reaches
from hetero_cpu.operators.images import Convolution, bind_staging, read_convolution
from hetero_cpu.operators.product import NativeEpilogue, list_overwritten, read_native_epilogue
from hetero_cpu.operators.product_kernel import PARAMETERS, ProductShape, emit_product, list_cut, make_product
from hetero_cpu.operators.recipe import NO_HALO, Recipe, Site
from hetero_cpu.operators.tiling import Tiling, choose_chunks, choose_tiling, pack_columns
from hetero_cpu.operators.weights import allocate_floats

GROUP_PARAMETERS = ("chunks_of_group", "x_group", "w_group", "bias_group", "y_group", "added_group")
"""Numbers of a row after those of a product, which are the first group's: the chunks of each, and bytes from group to group."""

_MOVED = ("x", "w", "bias", "y", "added")


def make_grouped_product(shape: ProductShape) -> Kernel:
    """Returns the kernel of products of the same shape, side by side."""
    return Kernel(f"grouped_{make_product(shape).name}", lambda name, width: _emit(name, width, shape))


def _emit(name: str, width: int, shape: ProductShape) -> Code:
    code = Code(name, 3, width)
    row, chunk, worker = code.parameters
    product = code.inner(f"{name}_group", 3)
    emit_product(product, shape)
    p = code.load_row(row, (*PARAMETERS, *GROUP_PARAMETERS))
    group = chunk // p["chunks_of_group"]
    own = code.reserve(len(PARAMETERS))
    for position, key in enumerate(PARAMETERS):
        number = p[key] + group * p[f"{key}_group"] if key in _MOVED else p[key]
        code.store_number(own, number, 8 * position)
    code.call(product, own, chunk % p["chunks_of_group"], worker)
    return code.finish()


def plan_grouped_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a convolution of several groups with constant weights. Source: ONNX Conv-22."""
    convolution = read_convolution(site)
    if convolution is None or convolution.group == 1:
        return None
    epilogue = read_native_epilogue(site, site.constant(2), convolution.outputs, channel_axis=1)
    if epilogue is None or not is_pixels(site, epilogue.added):
        return None
    return _make_recipe(convolution, epilogue)


def _make_recipe(convolution: Convolution, epilogue: NativeEpilogue) -> Recipe:
    site, windows, group = convolution.site, convolution.windows, convolution.group
    own, group_outputs = convolution.channels // group, convolution.outputs // group
    height, width = windows.outputs
    taps = prod(windows.kernel)
    staging = choose_staging(convolution)
    added = (epilogue.added,) if epilogue.added else ()
    is_flat = windows.is_pointwise and site.output_halo == NO_HALO and staging is None
    is_flat = is_flat and all(is_even(site.prototypes[value]) for value in (convolution.source, *added))
    pixels, lines = (convolution.batch * height * width, 1) if is_flat else (width, convolution.batch * height)
    tiling = choose_tiling(pixels, group_outputs, find_width(), is_image=True, is_shared=site.weights.is_shared)
    chunks = choose_chunks(tiling, lines=lines, depth=own * taps, pixel_bytes=own * 4 * prod(windows.strides), workers=site.workers)
    weight = convolution.pack_lazily(
        ("grouped", group, tiling.vectors, tiling.width), partial(_pack_groups, group=group, tiling=tiling.packing)
    )
    bias = _pad_groups(epilogue.bias, group, group_outputs, tiling.padded_outputs)
    kernel = make_grouped_product(ProductShape.of_tiling(tiling, epilogue.activations, adds=bool(added)))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        calls, image = bind_staging(staging, reads[0], scratch)
        y = writes[0]
        assert not is_flat or is_even(y)
        _, _, row, pixel = image.strides
        (top, _), (left, _) = windows.pads
        offsets = lay_offsets(windows, row, pixel, windows.kernel[1])
        numbers = {
            "x": address_of(image) - top * row - left * pixel, "x_image": image.strides[0], "x_row": row * windows.strides[0],
            "x_pixel": pixel * windows.strides[1], "offsets": address_of(offsets), "taps": taps, "depth": own,
            "w": address_of(weight), "block_bytes": own * taps * tiling.vectors * tiling.width * 4, "bias": address_of(bias),
            "rows": 1 if is_flat else height, **list_cut(tiling, chunks),
            **list_strides("y", y), **list_strides("added", reads[1] if added else None),
            "chunks_of_group": chunks.count, "x_group": own * 4, "w_group": own * taps * tiling.padded_outputs * 4,
            "bias_group": tiling.padded_outputs * 4, "y_group": group_outputs * 4, "added_group": group_outputs * 4,
        }  # fmt: skip
        row_numbers = tuple(numbers.get(key, 0) for key in (*PARAMETERS, *GROUP_PARAMETERS))
        return [*calls, NativeCall(kernel, row_numbers, chunks.count * group, (offsets, weight, bias, image, y, *reads))]

    kernels = (kernel,) if staging is None else (staging.kernel, kernel)
    nbytes = 0 if staging is None else prod(staging.shape) * 4
    overwrites = list_overwritten(site, convolution.source, epilogue.added)
    return Recipe(
        (convolution.source, *added),
        bind,
        nbytes,
        is_channels_last=True,
        overwrites=overwrites,
        kernels=kernels,
        reaches=list_reaches(convolution, staging),
    )


def _pack_groups(weight: Array, group: int, tiling: Tiling) -> Array:
    """Returns the packed columns of each group, in order. weight: (outputs, channels of a group, height, width)."""
    split = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:]).transpose(0, 3, 4, 2, 1)
    columns = [pack_columns(part.reshape(-1, part.shape[-1]), tiling) for part in split]
    packed = allocate_floats(sum(part.size for part in columns))
    np.concatenate(columns, out=packed)
    return packed


def _pad_groups(bias: Array | None, group: int, outputs: int, size: int) -> Array:
    """Returns the bias of each group with zeros up to `size`."""
    padded = allocate_floats(group * size)
    padded[...] = 0
    if bias is not None:
        padded.reshape(group, size)[:, :outputs] = bias.reshape(group, outputs)
    return padded
