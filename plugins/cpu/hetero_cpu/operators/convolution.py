"""Conv, and ConvTranspose with adjacent windows, of channels-last images and volumes with constant weights, as products.

No windows are copied: a tap is an offset into the image, which has a halo of zeros if the convolution has pads. If the plan gave
the image no halo, or it is in C order, it is staged into working memory with a halo, as is a volume if windows reach beyond its planes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from hetero_core.kernels.windows import lay_windows
from hetero_cpu.machine.calls import Array, NativeCall, address_of, list_strides
from hetero_cpu.machine.code import FLOAT_BYTES
from hetero_cpu.machine.compiler import Kernel, find_width
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
from hetero_cpu.operators.product import NativeEpilogue, join_recipe, read_epilogue
from hetero_cpu.operators.product_kernel import NARROW_FIELDS, PARAMETERS, list_cut, make_product
from hetero_cpu.operators.recipe import NO_HALO, Recipe, Site
from hetero_cpu.operators.tiling import Chunks, ColumnPacking, Tiling, choose_chunks, choose_tiling, pack_columns, pad_vector
from hetero_cpu.operators.weights import LazyArray, allocate_floats
from hetero_cpu.operators.winograd import choose_winograd, plan_winograd


def plan_product_convolution(site: Site) -> Recipe | None:
    """Returns the recipe of a convolution, each of whose groups is a product of its own. Source: ONNX Conv-22."""
    convolution = read_convolution(site)
    if convolution is None:
        return None
    epilogue = read_epilogue(site, site.constant(2), convolution.outputs, channel_axis=1)
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
    is_covered = site.halos.get(source, NO_HALO).covers(halo) and not any(convolution.depth_halo)
    if has_channel_vectors(site.prototypes[source]) and is_covered:
        return None
    return convolution.stage(halo, make_stage(site.prototypes[source]), convolution.channels)


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


def _pack_parts(weight: Array, group: int, tiling: Tiling) -> Array:
    """Returns the packed columns of each group, in order, or with 0 those of each position of the kernel.

    weight: (outputs, channels of a group, [depth,] height, width), or (channels, outputs, [depth,] height, width).
    """
    if group:
        split = np.moveaxis(weight.reshape(group, weight.shape[0] // group, *weight.shape[1:]), (2, 1), (-2, -1))
        matrices = split.reshape(group, -1, split.shape[-1])
    else:
        matrices = np.moveaxis(weight.reshape(*weight.shape[:2], -1), 2, 0)
    columns = [pack_columns(matrix, tiling) for matrix in matrices]
    packed = allocate_floats(sum(part.size for part in columns))
    np.concatenate(columns, out=packed)
    return packed


@dataclass(frozen=True, slots=True)
class WindowProduct:
    """The product of all windows of a convolution and packed weights.

    A pixel has `pixel_bytes`, of which `unit_bytes` are multiplied at a time; if it `has_sums`, those of the columns stand before the
    weights. `spread`: the planes, rows and columns of results that each window has, of own weights.
    """

    convolution: Convolution
    staging: Staging | None
    kernel: Kernel
    tiling: Tiling
    chunks: Chunks
    weight: LazyArray
    bias: Array
    is_flat: bool
    pixel_bytes: int
    spread: tuple[int, ...] = (1, 1, 1)
    unit_bytes: int = FLOAT_BYTES
    has_sums: bool = False

    def bind(self, arrays: Sequence[Array], scratch: Array, shift_memory: Array | None = None, **more: int) -> list[NativeCall]:
        """Returns the calls for source, result and addend; `more`: the numbers of NARROW_FIELDS."""
        (deep, down, right), group = self.spread, self.convolution.group
        channels, outputs = self.convolution.channels // group, self.convolution.outputs // group

        def bind_images(laid: Array, *others: Array) -> list[NativeCall]:
            calls, image = bind_staging(self.staging, laid, scratch, shift_memory)
            for number, (own, k, i, j) in enumerate(np.ndindex(group, deep, down, right)):
                results = slice(own * outputs, (own + 1) * outputs)
                places = (each[k::deep, results, i::down, j::right] for each in others)
                part = image[:, own * channels : (own + 1) * channels]
                calls.append(self._bind_part(number, own, more, part, *places))
            return calls

        return self.convolution.bind_planes(arrays, bind_images)

    def _bind_part(
        self, number: int, own: int, more: dict[str, int], image: Array, y: Array, addend: Array | None = None
    ) -> NativeCall:
        convolution, windows, tiling = self.convolution, self.convolution.windows, self.tiling
        plane, _, row, pixel = image.strides
        x = convolution.pick_planes(image)
        top, left = (max(pads[0], 0) for pads in windows.pads)
        # If pixels lie side by side, a row of the kernel is a single tap.
        is_merged = pixel == self.pixel_bytes and windows.dilations[1] == 1
        steps = 1 if is_merged else windows.kernel[1]
        taps = len(convolution.depth_taps) * windows.kernel[0] * steps
        depth = -(-(windows.kernel[1] // steps * self.pixel_bytes) // self.unit_bytes)
        dilation = 0 if convolution.depths is None else convolution.depths.dilations[0]
        offsets = lay_offsets(windows, row, pixel, steps, [tap * dilation * plane for tap in convolution.depth_taps])
        column_bytes = taps * depth * self.unit_bytes + self.has_sums * FLOAT_BYTES
        numbers = {
            "x": address_of(x) - top * row - left * pixel, "x_image": x.strides[0], "x_row": row * windows.strides[0],
            "x_pixel": pixel * windows.strides[1], "offsets": address_of(offsets), "taps": taps, "depth": depth,
            "w": address_of(self.weight) + number * column_bytes * tiling.padded_outputs,
            "block_bytes": column_bytes * tiling.vectors * tiling.width,
            "bias": address_of(self.bias) + own * tiling.padded_outputs * FLOAT_BYTES, "rows": 1 if self.is_flat else windows.outputs[0],
            **list_cut(tiling, self.chunks), **list_strides("y", y), **list_strides("added", addend), **more,
        }  # fmt: skip
        names = (*PARAMETERS, *NARROW_FIELDS) if more else PARAMETERS
        keep = (offsets, self.weight, self.bias, image, y, addend)
        return NativeCall(self.kernel, tuple(numbers.get(key, 0) for key in names), self.chunks.count, keep)


def choose_window_chunks(convolution: Convolution, tiling: Tiling, lines: int, pixel_bytes: int) -> Chunks:
    """Returns the chunks of the product of all windows over so many lines."""
    depth = -(-len(convolution.depth_taps) * prod(convolution.windows.kernel) * pixel_bytes // FLOAT_BYTES)
    read_bytes = pixel_bytes * prod(convolution.windows.strides)
    return choose_chunks(tiling, lines=lines, depth=depth, pixel_bytes=read_bytes, workers=convolution.site.workers)


def _make_recipe(
    convolution: Convolution, epilogue: NativeEpilogue, staging: Staging | None, spread: tuple[int, ...] = ()
) -> Recipe:
    """Returns the recipe of a convolution; `spread`: that of the product."""
    site, windows, group = convolution.site, convolution.windows, convolution.group
    outputs, pixel_bytes = convolution.outputs // group, convolution.channels // group * FLOAT_BYTES
    values = (convolution.source, epilogue.added) if epilogue.added else (convolution.source,)
    is_flat = windows.is_pointwise and not spread and site.output_halo == NO_HALO and staging is None
    is_flat = is_flat and all(is_even(site.prototypes[value]) for value in values)
    lines, pixels = convolution.count_lines(is_flat=is_flat)
    tiling = choose_tiling(pixels, outputs, find_width(), is_image=True, is_shared=site.weights.is_shared)
    chunks = choose_window_chunks(convolution, tiling, lines, pixel_bytes)
    # Read as the kernel does, in whole vectors.
    bias = pad_vector(epilogue.bias, outputs, tiling.padded_outputs, group)
    purpose: tuple[object, ...] = (tiling.vectors, tiling.width)
    prefetches = tiling.count_prefetches(chunks.units)
    kernel = make_product(tiling, epilogue.activations, adds=bool(epilogue.added), prefetches=prefetches)
    if spread or group > 1:
        parts = 0 if spread else group
        weight = convolution.pack_lazily(("parts", parts, *purpose), partial(_pack_parts, group=parts, tiling=tiling.packing))
    else:
        weight = convolution.pack_lazily(("product", *purpose), ColumnPacking(tiling.packing))
    product = WindowProduct(
        convolution, staging, kernel, tiling, chunks, weight, bias, is_flat, pixel_bytes, spread=spread or (1, 1, 1)
    )

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        return product.bind((reads[0], writes[0], *reads[1:]), scratch)

    reaches = () if staging is not None else (find_overhang(windows),)
    return join_recipe(convolution, epilogue, staging, bind, (kernel,), reaches=reaches)
