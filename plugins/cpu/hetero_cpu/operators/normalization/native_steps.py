"""Softmax and normalizations by machine code: rows along the fastest axis, of sequences in C order or of images channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.native import Array, NativeCall, bits_of, native_step
from hetero_cpu.machine.row_walk import call_rows
from hetero_cpu.machine.rows import list_rows
from hetero_cpu.open.arrays import lay_empty
from hetero_cpu.operators.normalization.kernel import Moments, make_moments, make_neighbour_norm, make_softmax
from hetero_cpu.planning.recipe import Recipe, Site

Turn = Callable[[Array], Array]


@native_step("Softmax", "LogSoftmax")
def plan_native_softmax(site: Site) -> Recipe | None:
    """Returns the recipe along one axis; before version 13 along all axes from one on. Source: ONNX Softmax-13, Softmax-11."""
    node = site.node
    value = node.inputs[0]
    shape = site.shape(value)
    is_old = node.since_version < 13
    if not site.is_float32(value) or not shape or site.group.epilogue:
        return None
    axis = int(node.attributes.get("axis", 1 if is_old else -1))
    if not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    kernel = make_softmax(is_logarithm=node.op_type == "LogSoftmax")
    if is_old or prod(shape[axis + 1 :]) == 1:
        # What is one piece from the axis on is one row.
        sizes = (prod(shape[:axis]), prod(shape[axis:]))
        if site.prototypes[value].flags.c_contiguous:
            return _plan_rows(site, kernel, (), turn=lambda array: array.reshape(sizes), axis=1, overwrites=True)
    return None if is_old else _plan_rows(site, kernel, (), axis=axis, overwrites=True)


@native_step("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
def plan_native_layer_norm(site: Site) -> Recipe | None:
    """Returns the recipe of a normalization over the last axes. Source: ONNX LayerNormalization-17, RMSNormalization-23."""
    node = site.node
    value = node.inputs[0]
    shape = site.shape(value)
    names = [name for name in node.inputs if name]
    axis = int(node.attributes.get("axis", -1)) % max(len(shape), 1)
    if not site.is_float32(*names) or len(node.writes) != 1 or not node.outputs[0] or node.attributes.get("stash_type", 1) != 1:
        return None
    if site.group.epilogue or not all(site.prototypes[name].flags.c_contiguous for name in names):
        return None
    sizes = (prod(shape[:axis]), prod(shape[axis:]))
    if any(site.shape(name) != shape[axis:] for name in names[1:]):
        return None
    has_mean = node.op_type == "LayerNormalization"
    kernel = make_moments(Moments(has_mean, "v" * site.has_input(1), "v" * site.has_input(2)))
    epsilon = bits_of(node.attributes.get("epsilon", 1e-5))

    def turn(array: Array) -> Array:
        return array.reshape(sizes) if array.size == prod(shape) and array.shape == shape else array.reshape(1, -1)

    return _plan_rows(site, kernel, (epsilon,), turn=turn, axis=1, overwrites=True)


@native_step("InstanceNormalization")
def plan_native_instance_norm(site: Site) -> Recipe | None:
    """Returns the recipe of a normalization of each channel of each image, in C order. Source: ONNX InstanceNormalization-6."""
    node = site.node
    value = node.inputs[0]
    shape = site.shape(value)
    if node.since_version < 6 or not site.is_float32(*node.inputs) or len(shape) < 3 or site.group.epilogue:
        return None
    if not all(site.prototypes[name].flags.c_contiguous for name in node.inputs):
        return None
    batch, channels = shape[:2]
    kernel = make_moments(Moments(has_mean=True, scale="r", shift="r"))

    def turn(array: Array) -> Array:
        return array.reshape(batch, channels, -1) if array.ndim == len(shape) else array.reshape(1, channels, 1)

    epsilon = bits_of(node.attributes.get("epsilon", 1e-5))
    return _plan_rows(site, kernel, (epsilon,), turn=turn, axis=2, overwrites=True)


@native_step("LRN")
def plan_native_neighbour_norm(site: Site) -> Recipe | None:
    """Returns the recipe of x / (bias + alpha / size * sum of squares of neighbouring channels) ** beta. Source: ONNX LRN-13."""
    node = site.node
    value = node.inputs[0]
    if not site.is_float32(value) or len(site.shape(value)) != 4 or site.group.epilogue:
        return None
    size = int(node.attributes["size"])
    alpha, beta, bias = (
        float(node.attributes.get(name, default)) for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    if size < 1 or size > 16 or alpha < 0 or bias <= 0:
        return None
    kernel = make_neighbour_norm((size - 1) // 2, size // 2, beta)
    return _plan_rows(site, kernel, (bits_of(bias), bits_of(alpha / size)), axis=1, overwrites=False)


def _keep(array: Array) -> Array:
    return array


def _plan_rows(
    site: Site, kernel: Kernel, own: tuple[int, ...], *, turn: Turn = _keep, axis: int, overwrites: bool
) -> Recipe | None:
    """Returns the recipe of a kernel over rows along an axis of what the inputs are turned into; None if they do not lie so."""
    values = tuple(name for name in site.node.inputs if name)
    arrays = [turn(site.prototypes[value]) for value in values]
    x = arrays[0]
    is_last = site.is_channels_last(values[0])
    order = (0, 2, 3, 1) if is_last else tuple(range(x.ndim))
    y = lay_empty(x.shape, np.float32, order)
    if x.size == 0 or y.strides[axis] != y.itemsize or (x.shape[axis] > 1 and x.strides[axis] != x.itemsize):
        return None
    if list_rows(y, arrays, axis) is None:
        return None

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        turned = [turn(array) for array in (writes[0], *reads)]
        rows = list_rows(turned[0], turned[1:], axis)
        assert rows is not None
        return [call_rows(kernel, rows, turned, own, workers=site.workers)]

    return Recipe(values, bind, is_channels_last=is_last, overwrites=(0,) if overwrites else (), kernels=(kernel,))
