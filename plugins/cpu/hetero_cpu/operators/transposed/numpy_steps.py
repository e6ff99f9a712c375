"""ConvTranspose whose filters lie side by side, as U-Nets have it: one GEMM, then every pixel's block goes to its place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hetero_core.kernels.products import matmul
from hetero_cpu.planning.recipe import Array, Call, Choice, Recipe, Site, step
from hetero_cpu.planning.scratch import cut_scratch, measure_scratch

_ATTRIBUTES = {"auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"}


@step("ConvTranspose")
def plan_side_by_side(site: Site) -> Choice | None:
    """Returns the recipe where the stride is the kernel, without pads and groups. Source: ONNX ConvTranspose-22."""
    node, weight, bias = site.node, site.constant(1), site.constant(2)
    source = node.inputs[0]
    if weight is None or weight.ndim != 4 or not site.is_float32(*[name for name in node.inputs if name]):
        return None
    if not set(node.attributes) <= _ATTRIBUTES or (site.has_input(2) and bias is None) or len(site.shape(source)) != 4:
        return None
    batch, channels, height, width = site.shape(source)
    _, outputs, down, right = weight.shape
    is_plain = tuple(node.attributes.get("strides", (1, 1))) == (down, right) and node.attributes.get("group", 1) == 1
    # The shape tells that no pads and no output padding changed the result; dilated filters would reach into each other.
    expected = (batch, outputs, height * down, width * right)
    if not is_plain or site.types[node.outputs[0]].shape != expected or any(node.attributes.get("pads") or (0,)):
        return None
    if any(dilation != 1 for dilation in node.attributes.get("dilations") or (1,)) or any(
        node.attributes.get("output_padding") or (0,)
    ):
        return None
    packed = site.weights.pack(
        (weight,), ("side by side",), lambda w: np.ascontiguousarray(w.transpose(0, 2, 3, 1)).reshape(channels, -1)
    )
    shapes = [(batch, height, width, channels), (batch, height, down, width, right, outputs)]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        pixels, blocks = cut_scratch(scratch, shapes)
        x, y = reads[0].transpose(0, 2, 3, 1), writes[0].transpose(0, 2, 3, 1)
        product = blocks.reshape(batch * height * width, -1)
        rows = pixels.reshape(-1, channels)
        calls: list[Call] = [partial(np.copyto, pixels, x), partial(matmul, rows, packed, product)]
        if bias is not None:
            calls.append(partial(np.add, product.reshape(-1, outputs), bias, product.reshape(-1, outputs)))
        split = blocks.reshape(batch, height, width, down, right, outputs).transpose(0, 1, 3, 2, 4, 5)
        return [*calls, partial(np.copyto, y.reshape(batch, height, down, width, right, outputs), split)]

    return Recipe((source,), bind, measure_scratch(shapes), is_channels_last=True)
