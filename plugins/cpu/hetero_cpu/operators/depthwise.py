"""Depthwise Conv over images, channels last: each output channel is made of one input channel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np

from hetero_cpu.machine.calls import NativeCall
from hetero_cpu.machine.code import FLOAT_BYTES
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.machine.terms import Floats
from hetero_cpu.operators.convolution import choose_staging
from hetero_cpu.operators.elementwise import PLAIN_EXPRESSION
from hetero_cpu.operators.images import bind_staging, find_overhang, has_channel_vectors, is_whole, read_convolution
from hetero_cpu.operators.product import join_recipe, read_epilogue
from hetero_cpu.operators.recipe import NO_HALO, Array, Recipe, Site
from hetero_cpu.operators.tiling import pad_vector
from hetero_cpu.operators.weights import allocate_floats
from hetero_cpu.operators.windows import TileCode, WindowBody, WindowCall, make_window_kernel, plan_shape

# Weights that stay in registers while a vector of channels is computed; more are read when they are used.
_HELD_WEIGHTS = 9


def _emit_sums(at: TileCode) -> list[list[Floats]]:
    """Returns the sums of products; the weights are, for each vector of channels, the window, row by row, a vector each."""
    code, tile = at.code, at.tile
    vector_bytes = code.width * FLOAT_BYTES
    down, right = tile.kernel

    def load_weight(i: int, j: int) -> Floats:
        return code.load(at.weights, (i * right + j) * vector_bytes)

    bias = code.load(at.bias)
    is_held = down * right <= _HELD_WEIGHTS
    held = {(i, j): load_weight(i, j) for i in range(down) for j in range(right)} if is_held else {}
    sums = [[bias] * tile.pixels for _ in range(tile.rows)]
    for y, of_row in enumerate(tile.list_uses(0).values()):
        for x, of_column in enumerate(tile.list_uses(1).values()):
            pixel = at.load(y, x)
            for (r, i), (t, j) in product(of_row, of_column):
                sums[r][t] = code.multiply_add(pixel, held[i, j] if is_held else load_weight(i, j), sums[r][t])
    return sums


def plan_depthwise(site: Site) -> Recipe | None:
    """Returns the recipe of a depthwise convolution of float32 images with constant weights. Source: ONNX Conv-22."""
    convolution = read_convolution(site, of_bytes=True)
    if convolution is None or not convolution.group == convolution.channels == convolution.outputs > 1:
        return None
    epilogue = read_epilogue(site, site.constant(2), convolution.outputs, channel_axis=1)
    if epilogue is None or not epilogue.has_channel_vectors(site):
        return None
    added, width, source = epilogue.added, find_width(), convolution.source
    shift = site.shifts.get(source)
    if shift is not None and (not _is_exact(convolution.weight, epilogue.bias) or not site.is_channels_last(source)):
        return None
    # In C order the image is copied first, with zeros around it.
    is_read = has_channel_vectors(site.prototypes[source]) and not any(convolution.depth_halo)
    staging = None if shift is not None or is_read else choose_staging(convolution)
    zeros = site.halos.get(source, NO_HALO) if staging is None else staging.halo
    shape = plan_shape(convolution.windows, convolution.channels, width, zeros=zeros)
    if shape is None:
        return None
    is_plain = shift is None and epilogue.expression is PLAIN_EXPRESSION and added not in site.shifts
    # Sums of several planes are float32 until the last.
    if convolution.depths is not None and not is_plain:
        return None
    weights = convolution.pack_lazily(("native depthwise", width), partial(_pack, width=width)).get()
    # Read as the kernel does, in whole vectors.
    own_bias = epilogue.bias
    if shift is not None:
        # All numbers are larger by the shift, also those around the image.
        own_bias = (0 if own_bias is None else own_bias) - shift * convolution.weight.sum((1, 2, 3))
    bias, nothing = (pad_vector(vector, convolution.outputs, weights.shape[1] * width) for vector in (own_bias, None))
    vectors = epilogue.lay_vectors(bias.size)

    def make_call(tap: int, *, is_first: bool, is_last: bool) -> WindowCall:
        # The sum of a plane is added to those of the planes before it, which lie in the result.
        activations, adds = epilogue.activations if is_last else (), bool(added) or not is_first
        name = "_".join(("depthwise", *(activation.name for activation in activations))) + "_a" * adds
        kind = "v" if shift is None else "b"
        body = WindowBody(name, _emit_sums, prod(shape.kernel), adds, activations, kind=kind, expression=epilogue.expression)
        kernel = make_window_kernel(shape, body)
        constants = {"weights": weights[tap], "bias": bias if is_first else nothing, "vectors": vectors}
        return WindowCall(kernel, shape, convolution.windows, width, shift or 0.0, site.workers, constants, bias.nbytes)

    taps = convolution.depth_taps
    calls_of_taps = [make_call(tap, is_first=tap == taps[0], is_last=tap == taps[-1]) for tap in taps]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        def bind_images(laid: Array, y: Array, *addend: Array) -> list[NativeCall]:
            staged, image = bind_staging(staging, laid, scratch)
            planes = [convolution.pick_planes(image, tap) for tap in taps]
            return staged + [call.bind(planes[tap], y, *([y] if tap else addend)) for tap, call in enumerate(calls_of_taps)]

        return convolution.bind_planes((reads[0], writes[0], *reads[1:]), bind_images)

    reaches = (find_overhang(convolution.windows),) if staging is None and not shape.clips else ()
    kernels = tuple(dict.fromkeys(call.kernel for call in calls_of_taps))
    return join_recipe(convolution, epilogue, staging, bind, kernels, reaches=reaches)


def _is_exact(weight: Array, bias: Array | None) -> bool:
    """Says whether float32 holds all sums of products with bytes."""
    largest = 255 * np.abs(weight).sum((1, 2, 3)) + (0 if bias is None else np.abs(bias))
    return is_whole(weight) and (bias is None or is_whole(bias)) and bool(largest.max() < 1 << 24)


def _pack(weight: Array, width: int) -> Array:
    """Returns (planes, vectors of channels, window, width), zeros for channels that there are not.

    weight: (channels, 1, [depth,] height, width), a single plane without depth.
    """
    channels, taps = weight.shape[0], prod(weight.shape[-2:])
    vectors = -(-channels // width)
    filled = np.zeros((vectors * width, weight[0].size), np.float32)
    filled[:channels] = weight.reshape(channels, -1)
    packed = allocate_floats(filled.size).reshape(-1, vectors, taps, width)
    packed[...] = filled.reshape(vectors, width, -1, taps).transpose(2, 0, 3, 1)
    return packed
