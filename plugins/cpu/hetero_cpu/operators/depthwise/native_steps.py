"""Depthwise Conv over images, channels last: each output channel is made of one input channel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from hetero_cpu.machine.compiler import find_width
from hetero_cpu.machine.native import NativeCall, native_step
from hetero_cpu.operators.convolution.geometry import read_convolution
from hetero_cpu.operators.convolution.native_steps import choose_staging
from hetero_cpu.operators.convolution.staging import bind_staging
from hetero_cpu.operators.depthwise.kernel import make_depthwise
from hetero_cpu.operators.product.native_epilogue import list_overwritten, read_native_epilogue
from hetero_cpu.operators.product.tiling import pad_vector
from hetero_cpu.operators.windows.window_plan import WindowCall, find_overhang, has_channel_vectors, plan_shape
from hetero_cpu.planning.recipe import NO_HALO, Array, Recipe, Site
from hetero_cpu.planning.weights import allocate_floats


@native_step("Conv")
def plan_depthwise(site: Site) -> Recipe | None:
    """Returns the recipe of a depthwise convolution of float32 images with constant weights. Source: ONNX Conv-22."""
    convolution = read_convolution(site)
    if convolution is None or not convolution.group == convolution.channels == convolution.outputs > 1:
        return None
    epilogue = read_native_epilogue(site, site.constant(2), convolution.outputs, channel_axis=1)
    if epilogue is None or (epilogue.added and not has_channel_vectors(site.prototypes[epilogue.added])):
        return None
    added = epilogue.added
    width = find_width()
    source = convolution.source
    # In C order the image is copied first, with zeros around it.
    staging = None if has_channel_vectors(site.prototypes[source]) else choose_staging(convolution)
    zeros = site.halos.get(source, NO_HALO) if staging is None else staging.halo
    shape = plan_shape(convolution.windows, convolution.channels, width, zeros=zeros)
    if shape is None:
        return None
    kernel = make_depthwise(shape, epilogue.activations, adds=bool(added))
    weights = convolution.pack(("native depthwise", width), partial(_pack, width=width))
    # Read as the kernel does, in whole vectors.
    bias = pad_vector(epilogue.bias, convolution.outputs, weights.shape[0] * width)
    call = WindowCall(kernel, shape, convolution.windows, width, 0.0, site.workers, {"weights": weights, "bias": bias})

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        calls, image = bind_staging(staging, reads[0], scratch)
        return [*calls, call.bind(image, writes[0], reads[1] if added else None)]

    overwrites = list_overwritten(site, source, added)
    reads = (source, added) if added else (source,)
    kernels = (kernel,) if staging is None else (staging.kernel, kernel)
    nbytes = 0 if staging is None else prod(staging.shape) * 4
    reaches = (find_overhang(convolution.windows),) if staging is None and not shape.clips else ()
    return Recipe(reads, bind, nbytes, is_channels_last=True, overwrites=overwrites, kernels=kernels, reaches=reaches)


def _pack(weight: Array, width: int) -> Array:
    """Returns (vectors of channels, window, width), zeros for channels that there are not. weight: (channels, 1, height, width)."""
    channels, taps = weight.shape[0], weight.shape[2] * weight.shape[3]
    vectors = -(-channels // width)
    filled = np.zeros((vectors * width, taps), np.float32)
    filled[:channels] = weight.reshape(channels, taps)
    packed = allocate_floats(filled.size).reshape(vectors, taps, width)
    packed[...] = filled.reshape(vectors, width, taps).transpose(0, 2, 1)
    return packed
