"""BatchNormalization that no convolution took, LRN, LayerNormalization, RMSNormalization, Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hetero_cpu.planning.recipe import Array, Call, Choice, Recipe, Site, step
from hetero_cpu.planning.scratch import cut_scratch, measure_scratch
from hetero_cpu.planning.weights import pack_affine


@step("BatchNormalization")
def plan_batch_norm(site: Site) -> Choice | None:
    """Returns the recipe of a scale and a shift for each channel, made of the parameters in float64."""
    node = site.node
    value = node.inputs[0]
    parameters = [site.constant(position) for position in range(1, 5)]
    if (
        node.since_version < 9
        or any(node.outputs[1:])
        or node.attributes.get("training_mode", 0)
        or not site.is_float32(*node.inputs)
    ):
        return None
    if any(parameter is None for parameter in parameters) or len(site.shape(value)) != 4:
        return None
    constants = tuple(parameter for parameter in parameters if parameter is not None)
    if any(constant.shape != site.shape(value)[1:2] for constant in constants):
        return None  # the kernel of the toolkit says what is wrong
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    scale, shift = site.weights.pack(constants, ("affine", epsilon), partial(pack_affine, epsilon=epsilon))

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        x, y = reads[0].transpose(0, 2, 3, 1), writes[0].transpose(0, 2, 3, 1)
        return [partial(np.multiply, x, scale, y), partial(np.add, y, shift, y)]

    return Recipe((value,), bind, is_channels_last=site.is_channels_last(value), overwrites=(0,))


@step("LRN")
def plan_lrn(site: Site) -> Choice | None:
    """Returns the recipe of x / (bias + alpha / size * sum of squares over channels)^beta. Source: ONNX LRN-13."""
    node = site.node
    value = node.inputs[0]
    if not site.is_float32(value) or len(site.shape(value)) != 4:
        return None
    batch, channels, height, width = site.shape(value)
    size = int(node.attributes["size"])
    before, after = (size - 1) // 2, size // 2
    alpha, beta = float(node.attributes.get("alpha", 1e-4)), float(node.attributes.get("beta", 0.75))
    bias = np.float32(node.attributes.get("bias", 1.0))
    factor = np.float32(alpha / size)
    shapes = [(height, width, channels + size - 1), (height, width, channels)]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        squares, total = cut_scratch(scratch, shapes)
        calls: list[Call] = []
        for image in range(batch):
            x, y = (array[image].transpose(1, 2, 0) for array in (reads[0], writes[0]))
            inner = squares[:, :, before : before + channels]
            # Zeros stand beside the channels, so that every sum has `size` terms.
            calls += [
                partial(np.copyto, squares[:, :, :before], np.float32(0)),
                partial(np.copyto, squares[:, :, before + channels :], np.float32(0)),
            ]
            calls.append(partial(np.multiply, x, x, inner))
            calls.append(partial(np.copyto, total, squares[:, :, :channels]))
            calls += [
                partial(np.add, total, squares[:, :, begin : begin + channels], total) for begin in range(1, before + after + 1)
            ]
            calls += [partial(np.multiply, total, factor, total), partial(np.add, total, bias, total)]
            calls += _bind_power(total, beta, inner)
            calls.append(partial(np.divide, x, total, y))
        return calls

    return Recipe((value,), bind, measure_scratch(shapes), is_channels_last=site.is_channels_last(value))


def _bind_power(x: Array, exponent: float, spare: Array) -> list[Call]:
    # Roots are ten times as fast as powers, and the usual exponent is made of two.
    if exponent == 0.75:
        return [partial(np.sqrt, x, x), partial(np.sqrt, x, spare), partial(np.multiply, x, spare, x)]
    return [partial(np.power, x, np.float32(exponent), x)]


@step("LayerNormalization")
def plan_layer_norm(site: Site) -> Choice | None:
    """Returns the recipe of a normalization of the last axis. Source: ONNX LayerNormalization-17."""
    node = site.node
    value = node.inputs[0]
    rank = len(site.shape(value))
    if (
        not site.is_float32(*[name for name in node.inputs if name])
        or any(node.outputs[1:])
        or not site.prototypes[value].flags.c_contiguous
    ):
        return None
    if node.attributes.get("axis", -1) not in (-1, rank - 1) or node.attributes.get("stash_type", 1) != 1:
        return None
    size = site.shape(value)[-1]
    if any(site.shape(name) != (size,) for name in node.inputs[1:] if name):
        return None
    epsilon = np.float32(node.attributes.get("epsilon", 1e-5))
    rows = site.prototypes[value].size // size
    shapes = [(rows, 1)]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        (moment,) = cut_scratch(scratch, shapes)
        x, y = reads[0].reshape(rows, size), writes[0].reshape(rows, size)
        calls: list[Call] = [
            partial(np.mean, x, axis=1, keepdims=True, out=moment),
            partial(np.subtract, x, moment, y),
            partial(np.einsum, "ij,ij->i", y, y, out=moment[:, 0]),
            partial(np.multiply, moment, np.float32(1 / size), moment),
            partial(np.add, moment, epsilon, moment),
            partial(np.sqrt, moment, moment),
            partial(np.divide, y, moment, y),
            partial(np.multiply, y, reads[1], y),
        ]
        return calls + [partial(np.add, y, bias, y) for bias in reads[2:]]

    return Recipe(tuple(name for name in node.inputs if name), bind, measure_scratch(shapes))


@step("RMSNormalization")
def plan_rms_norm(site: Site) -> Choice | None:
    """Returns the recipe of x / sqrt(mean(x^2) + epsilon) * scale over the last axis. Source: ONNX RMSNormalization-23."""
    node = site.node
    value = node.inputs[0]
    shape = site.shape(value)
    if not shape or not site.is_float32(*node.inputs) or not site.prototypes[value].flags.c_contiguous:
        return None
    size = shape[-1]
    if node.attributes.get("axis", -1) not in (-1, len(shape) - 1) or site.shape(node.inputs[1]) != (size,):
        return None
    if node.attributes.get("stash_type", 1) != 1:
        return None
    epsilon = np.float32(node.attributes.get("epsilon", 1e-5))
    rows = site.prototypes[value].size // size
    shapes = [(rows, 1)]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        (moment,) = cut_scratch(scratch, shapes)
        x, y = reads[0].reshape(rows, size), writes[0].reshape(rows, size)
        return [
            partial(np.einsum, "ij,ij->i", x, x, out=moment[:, 0]),
            partial(np.multiply, moment, np.float32(1 / size), moment),
            partial(np.add, moment, epsilon, moment),
            partial(np.sqrt, moment, moment),
            partial(np.divide, x, moment, y),
            partial(np.multiply, y, reads[1], y),
        ]

    return Recipe(tuple(node.inputs), bind, measure_scratch(shapes))


@step("Softmax")
def plan_softmax(site: Site) -> Choice | None:
    """Returns the recipe of exp(x - max) / sum along one axis. Source: ONNX Softmax-13."""
    node = site.node
    (value,) = node.inputs
    shape = site.shape(value)
    if not site.is_float32(value) or node.since_version < 13 or not shape:
        return None
    axis = int(node.attributes.get("axis", -1)) % len(shape)
    reduced = tuple(1 if position == axis else size for position, size in enumerate(shape))
    shapes = [reduced]

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[Call]:
        (edge,) = cut_scratch(scratch, shapes)
        x, y = reads[0], writes[0]
        return [
            partial(np.max, x, axis=axis, keepdims=True, out=edge),
            partial(np.subtract, x, edge, y),
            partial(np.exp, y, y),
            partial(np.sum, y, axis=axis, keepdims=True, out=edge),
            partial(np.divide, y, edge, y),
        ]

    return Recipe((value,), bind, measure_scratch(shapes), is_channels_last=site.is_channels_last(value), overwrites=(0,))
