"""Draws quantized networks with answers by exact integer arithmetic: `nox -s integers`, or this file with --cases.

Sums are int64; the rescaling that a standard's text leaves open is that of ONNX Runtime: float32, one rounding for each operation. Sizes
lie around widths of vectors and around depths from which on float32 sums could round. Prints the cases that differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh

from hetero_core import Core

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

CHANNELS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 33)
DEPTHS = (1, 3, 7, 8, 9, 16, 31, 64, 65, 129, 257, 258, 259, 300, 517, 1030, 4100)
TYPES = (np.uint8, np.int8)
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and its outputs; `steps`: the largest permitted difference of an element, above 0 if a float decides."""

    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    expected: Mapping[str, Array]
    steps: int = 0


@dataclass
class Builder:
    """A graph as far as it is built."""

    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onh.from_array(np.asarray(array), name))
        return name

    def feed(self, array: Array) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return name

    def node(self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(oh.make_node(op_type, list(inputs), names, domain=domain, **attributes))
        return names[0]

    def finish(self, expected: Mapping[str, Array], *, steps: int = 0, is_open: bool = False) -> Case:
        inputs = [
            oh.make_tensor_value_info(
                name,
                oh.np_dtype_to_tensor_dtype(array.dtype),
                ["n", *array.shape[1:]] if is_open and array.ndim > 1 else array.shape,
            )
            for name, array in self.feeds.items()
        ]
        outputs = [
            oh.make_tensor_value_info(
                name, oh.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim if is_open else array.shape
            )
            for name, array in expected.items()
        ]
        graph = oh.make_graph(self.nodes, "integers", inputs, outputs, self.constants)
        opsets = [oh.make_opsetid("", 21), oh.make_opsetid(MICROSOFT, 1)]
        return Case(oh.make_model(graph, opset_imports=opsets, ir_version=10), self.feeds, expected, steps)


def draw_bytes(rng: Rng, dtype: Any, *shape: int) -> Array:
    """Returns bytes: of the whole range, extremes alone, or one extreme."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    kind = rng.integers(4)
    if kind <= 1:
        return rng.integers(low, high + 1, shape).astype(dtype)
    return rng.choice([low, high] if kind == 2 else [high], shape).astype(dtype)


def draw_zero(rng: Rng, dtype: Any, *shape: int) -> Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    choices = [low, high, (low + high + 1) // 2, int(rng.integers(low, high + 1))]
    return np.asarray(rng.choice(choices, shape)).astype(dtype)


def draw_scale(rng: Rng, *shape: int) -> Array:
    """Returns scales: powers of two, with which halves are exact, or any."""
    if rng.integers(2):
        return np.asarray(2.0 ** rng.integers(-8, 2, shape)).astype(np.float32)
    return np.asarray(rng.uniform(1e-3, 2, shape)).astype(np.float32)


def fit_scale(rng: Rng, total: Array, factor: Array) -> Array:
    """Returns a scale with which most results lie inside the range of bytes."""
    largest = max(float(np.abs(total * factor.astype(np.float64)).max(initial=1)), 1e-3)
    scale = largest / rng.choice([100, 127, 300])
    return np.float32(2.0 ** np.round(np.log2(scale)) if rng.integers(2) else scale)


def wide(x: Array, zero: Array | int = 0) -> Array:
    return x.astype(np.int64) - np.asarray(zero).astype(np.int64)


def limit(rounded: Array, zero: Any, dtype: Any) -> Array:
    """Returns whole numbers plus a zero point within a type."""
    limits = np.iinfo(dtype)
    return np.clip(rounded.astype(np.float64) + np.float64(zero), limits.min, limits.max).astype(dtype)


def rescale(total: Array, factor: Array, zero: Any, dtype: Any) -> Array:
    """Returns an exact sum times a factor, rounded half to even."""
    return limit(np.rint(total.astype(np.float32) * factor), zero, dtype)


def convolve(x: Array, w: Array, *, strides: Any, pads: Any, dilations: Any, group: int) -> Array:
    """Returns the convolution of int64 images."""
    batch, _, height, width = x.shape
    outputs, own, rows, columns = w.shape
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    high = (height + pads[0] + pads[2] - dilations[0] * (rows - 1) - 1) // strides[0] + 1
    long = (width + pads[1] + pads[3] - dilations[1] * (columns - 1) - 1) // strides[1] + 1
    y = np.zeros((batch, outputs, high, long), np.int64)
    outputs_of_group = outputs // group
    for i, j in np.ndindex(rows, columns):
        top, left = i * dilations[0], j * dilations[1]
        part = padded[
            :, :, top : top + (high - 1) * strides[0] + 1 : strides[0], left : left + (long - 1) * strides[1] + 1 : strides[1]
        ]
        for g in range(group):
            y[:, g * outputs_of_group : (g + 1) * outputs_of_group] += np.einsum(
                "bchw,oc->bohw", part[:, g * own : (g + 1) * own], w[g * outputs_of_group : (g + 1) * outputs_of_group, :, i, j]
            )
    return y


@dataclass(frozen=True)
class Convolution:
    """Drawn operands of a convolution of bytes, and its exact sums."""

    x: Array
    x_zero: Array
    w: Array
    w_zero: Array
    attributes: dict[str, Any]
    total: Array


def draw_convolution(rng: Rng, *, is_signed: bool = False) -> Convolution:
    x_type, w_type = TYPES[rng.integers(2)], np.int8 if is_signed else TYPES[rng.integers(2)]
    kernel = [int(size) for size in rng.choice([1, 2, 3, 5], 2)] if rng.integers(2) else [3, 3]
    pads = [int(pad) for pad in rng.integers(0, 3, 4)] if rng.integers(2) else [kernel[0] // 2, kernel[1] // 2] * 2
    strides, dilations = ([int(size) for size in rng.choice([1, 1, 2], 2)] for _ in range(2))
    group = int(rng.choice([1, 1, 1, 2, 4]))
    own, outputs_of_group = int(rng.choice(CHANNELS)), int(rng.choice(CHANNELS))
    if rng.integers(8) == 0:
        own, group = int(rng.choice([130, 300])), 1
    elif rng.integers(4) == 0:
        own, outputs_of_group, group = 1, 1, int(rng.choice(CHANNELS))
    sides = [int(rng.integers(dilations[axis] * (kernel[axis] - 1) + 1, 14)) for axis in (0, 1)]
    x = draw_bytes(rng, x_type, int(rng.integers(1, 3)), own * group, *sides)
    w = draw_bytes(rng, w_type, outputs_of_group * group, own, *kernel)
    x_zero = draw_zero(rng, x_type)
    w_zero = np.zeros((), w_type) if is_signed or rng.integers(2) else draw_zero(rng, w_type)
    geometry = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    total = convolve(wide(x, x_zero), wide(w, w_zero), **geometry)
    return Convolution(x, x_zero, w, w_zero, {**geometry, "kernel_shape": kernel}, total)


def draw_matrices(rng: Rng) -> tuple[Array, Array, Array, Array, Array]:
    """Returns a and its zero point, b and its zero point, and the exact product."""
    a_type, b_type = TYPES[rng.integers(2)], TYPES[rng.integers(2)]
    depth, columns, rows = int(rng.choice(DEPTHS)), int(rng.choice(CHANNELS)), int(rng.choice([1, 2, 5, 8, 13]))
    batch = [2] if rng.integers(3) == 0 else []
    a, b = draw_bytes(rng, a_type, *batch, rows, depth), draw_bytes(rng, b_type, depth, columns)
    a_zero, b_zero = draw_zero(rng, a_type), draw_zero(rng, b_type)
    return a, a_zero, b, b_zero, wide(a, a_zero) @ wide(b, b_zero)


def conv_integer(rng: Rng) -> Case:
    graph, drawn = Builder(), draw_convolution(rng)
    zeros = graph.constant(drawn.x_zero), graph.constant(drawn.w_zero)
    y = graph.node("ConvInteger", graph.feed(drawn.x), graph.constant(drawn.w), *zeros, **drawn.attributes)
    return graph.finish({y: drawn.total.astype(np.int32)})


def mat_mul_integer(rng: Rng) -> Case:
    graph, (a, a_zero, b, b_zero, total) = Builder(), draw_matrices(rng)
    right = graph.constant(b) if rng.integers(2) else graph.feed(b)
    y = graph.node("MatMulInteger", graph.feed(a), right, graph.constant(a_zero), graph.constant(b_zero))
    if rng.integers(2):
        return graph.finish({y: total.astype(np.int32)})
    return graph.finish({graph.node("Cast", y, to=1): total.astype(np.float32)})


def qlinear_conv(rng: Rng) -> Case:
    graph, drawn = Builder(), draw_convolution(rng)
    outputs = len(drawn.w)
    w_scale = draw_scale(rng, *([outputs] if rng.integers(2) else []))
    bias = rng.integers(-(2 ** int(rng.choice([4, 16, 23]))), 2**16, outputs).astype(np.int32) if rng.integers(2) else None
    total = drawn.total if bias is None else drawn.total + bias.reshape(-1, 1, 1).astype(np.int64)
    x_scale, dtype = draw_scale(rng), drawn.x.dtype
    factor = x_scale * (w_scale.reshape(-1, 1, 1) if w_scale.ndim else w_scale)
    y_scale, y_zero = fit_scale(rng, total, factor), draw_zero(rng, dtype)
    names = [graph.feed(drawn.x), *map(graph.constant, (x_scale, drawn.x_zero, drawn.w, w_scale, drawn.w_zero, y_scale, y_zero))]
    if bias is not None:
        names.append(graph.constant(bias))
    y = graph.node("QLinearConv", *names, **drawn.attributes)
    return graph.finish({y: rescale(total, factor / y_scale, y_zero, dtype)}, is_open=bool(rng.integers(2)))


def qlinear_mat_mul(rng: Rng) -> Case:
    graph, (a, a_zero, b, b_zero, total) = Builder(), draw_matrices(rng)
    is_constant = bool(rng.integers(2))
    a_scale, b_scale = draw_scale(rng), draw_scale(rng, *([b.shape[1]] if is_constant and rng.integers(2) else []))
    factor = a_scale * b_scale
    y_scale, y_zero = fit_scale(rng, total, factor), draw_zero(rng, a.dtype)
    right = graph.constant(b) if is_constant else graph.feed(b)
    constants = map(graph.constant, (b_scale, b_zero, y_scale, y_zero))
    y = graph.node("QLinearMatMul", graph.feed(a), graph.constant(a_scale), graph.constant(a_zero), right, *constants)
    return graph.finish({y: rescale(total, factor / y_scale, y_zero, a.dtype)})


def qgemm(rng: Rng) -> Case:
    graph, (a, a_zero, b, b_zero, total) = Builder(), draw_matrices(rng)
    a, total = a.reshape(-1, a.shape[-1]), total.reshape(-1, total.shape[-1])
    is_turned, alpha = int(rng.integers(2)), np.float32(rng.choice([1, 0.5]))
    bias = rng.integers(-(2**20), 2**20, b.shape[1]).astype(np.int32)
    total = total + bias
    a_scale, b_scale = draw_scale(rng), draw_scale(rng, *([b.shape[1]] if rng.integers(2) else []))
    factor = alpha * a_scale * b_scale
    y_scale, y_zero = fit_scale(rng, total, factor), draw_zero(rng, a.dtype)
    constants = [a_scale, a_zero, b.T.copy() if is_turned else b, b_scale, b_zero, bias, y_scale, y_zero]
    is_float = bool(rng.integers(2))
    names = map(graph.constant, constants[:6] if is_float else constants)
    y = graph.node("QGemm", graph.feed(a), *names, domain=MICROSOFT, alpha=float(alpha), transB=is_turned)
    if is_float:
        return graph.finish({y: total.astype(np.float32) * factor})
    return graph.finish({y: rescale(total, factor / y_scale, y_zero, a.dtype)})


def fuse(a: Any, b: Any, c: Any) -> Array:
    return np.asarray(np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)).astype(np.float32)


def draw_pair(rng: Rng) -> tuple[Builder, list[Array], list[Array], list[Array], list[str]]:
    """Returns two tensors of one type, their zero points, the scales of both and of the result, and the node's inputs."""
    graph, dtype = Builder(), TYPES[rng.integers(2)]
    channels, side = int(rng.choice(CHANNELS)), int(rng.integers(1, 9))
    shape = (1, channels, side, side)
    other = shape if rng.integers(2) else (1, channels, 1, 1)
    tensors = [draw_bytes(rng, dtype, *shape), draw_bytes(rng, dtype, *other)]
    zeros, scales = [draw_zero(rng, dtype) for _ in range(3)], [draw_scale(rng) for _ in range(3)]
    names = []
    for index, tensor in enumerate(tensors):
        held = graph.constant(tensor) if index and rng.integers(2) else graph.feed(tensor)
        names += [held, graph.constant(scales[index]), graph.constant(zeros[index])]
    return graph, tensors, zeros, scales, [*names, graph.constant(scales[2]), graph.constant(zeros[2])]


def qlinear_add(rng: Rng) -> Case:
    graph, (a, b), zeros, scales, names = draw_pair(rng)
    y = graph.node("QLinearAdd", *names, domain=MICROSOFT)
    ratios = scales[0] / scales[2], scales[1] / scales[2]
    wide_zeros = [np.float32(zero) for zero in zeros]
    constant = wide_zeros[2] - fuse(ratios[0], wide_zeros[0], ratios[1] * wide_zeros[1])
    total = fuse(a, ratios[0], fuse(b, ratios[1], constant))
    # A sum in another order decides halves.
    return graph.finish({y: limit(np.rint(total), 0, a.dtype)}, steps=1)


def qlinear_mul(rng: Rng) -> Case:
    graph, (a, b), zeros, scales, names = draw_pair(rng)
    y = graph.node("QLinearMul", *names, domain=MICROSOFT)
    total = fuse(wide(a, zeros[0]) * wide(b, zeros[1]), scales[0] * scales[1] / scales[2], np.float32(zeros[2]))
    # A sum in another order decides halves.
    return graph.finish({y: limit(np.rint(total), 0, a.dtype)}, steps=1)


def qlinear_global_average_pool(rng: Rng) -> Case:
    graph, dtype = Builder(), TYPES[rng.integers(2)]
    shape = (2, int(rng.choice(CHANNELS)), int(rng.integers(1, 12)), int(rng.integers(1, 40)))
    x, zeros, scales = (
        draw_bytes(rng, dtype, *shape),
        [draw_zero(rng, dtype) for _ in range(2)],
        [draw_scale(rng) for _ in range(2)],
    )
    constants = map(graph.constant, (scales[0], zeros[0], scales[1], zeros[1]))
    y = graph.node("QLinearGlobalAveragePool", graph.feed(x), *constants, domain=MICROSOFT)
    total = wide(x, zeros[0]).sum(axis=(2, 3), keepdims=True)
    factor = scales[0] / (scales[1] * np.float32(shape[2] * shape[3]))
    return graph.finish({y: rescale(total, factor, zeros[1], dtype)}, steps=1)


def qlinear_unary(rng: Rng) -> Case:
    graph, dtype = Builder(), TYPES[rng.integers(2)]
    x = draw_bytes(rng, dtype, int(rng.integers(1, 4)), int(rng.choice(CHANNELS)))
    zeros, scales = [draw_zero(rng, dtype) for _ in range(2)], [draw_scale(rng) for _ in range(2)]
    alpha = np.float32(rng.uniform(0.01, 0.5))
    constants = map(graph.constant, (scales[0], zeros[0], scales[1], zeros[1]))
    y = graph.node("QLinearLeakyRelu", graph.feed(x), *constants, domain=MICROSOFT, alpha=float(alpha))
    value = scales[0] * wide(x, zeros[0]).astype(np.float32)
    value = np.where(value >= 0, value, alpha * value)
    return graph.finish({y: limit(np.rint(value / scales[1]), zeros[1], dtype)})


def qlinear_average_pool(rng: Rng) -> Case:
    graph, dtype = Builder(), TYPES[rng.integers(2)]
    kernel, strides = ([int(size) for size in rng.integers(1, 4, 2)] for _ in range(2))
    pads = [int(rng.integers(0, size)) for size in (*kernel, *kernel)] if rng.integers(2) else [0] * 4
    sides = [int(rng.integers(4, 20)) for _ in range(2)]
    x = draw_bytes(rng, dtype, 2, int(rng.choice(CHANNELS)), *sides)
    zeros, scales = [draw_zero(rng, dtype) for _ in range(2)], [draw_scale(rng) for _ in range(2)]
    counts_pads = int(rng.integers(2))
    constants = map(graph.constant, (scales[0], zeros[0], scales[1], zeros[1]))
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "count_include_pad": counts_pads}
    y = graph.node("QLinearAveragePool", graph.feed(x), *constants, domain=MICROSOFT, **attributes)
    geometry = {"strides": strides, "pads": pads, "dilations": [1, 1], "group": 1}
    window, (batch, channels) = np.ones((1, 1, *kernel), np.int64), x.shape[:2]
    numbers = wide(x, zeros[0]).reshape(batch * channels, 1, *sides)
    total = convolve(numbers, window, **geometry)
    counts = np.float32(kernel[0] * kernel[1]) if counts_pads else convolve(np.ones_like(numbers), window, **geometry)
    total, counts = (np.broadcast_to(each, total.shape).reshape(batch, channels, *total.shape[2:]) for each in (total, counts))
    quotients = total * (scales[0] / (scales[1] * counts.astype(np.float64)))
    return graph.finish({y: limit(np.rint(quotients), zeros[1], dtype)}, steps=1)


def qlinear_softmax(rng: Rng) -> Case:
    graph, dtype, axis = Builder(), TYPES[rng.integers(2)], int(rng.integers(3))
    x = draw_bytes(rng, dtype, *(int(size) for size in rng.choice(CHANNELS, 3)))
    scale, y_scale = np.float32(rng.uniform(1e-3, 0.2)), np.float32(rng.choice([1 / 256, 1 / 128, 0.0039, 0.02]))
    zeros = [draw_zero(rng, dtype) for _ in range(2)]
    constants = map(graph.constant, (scale, zeros[0], y_scale, zeros[1]))
    y = graph.node("QLinearSoftmax", graph.feed(x), *constants, domain=MICROSOFT, axis=axis, opset=13)
    terms = np.exp(wide(x, x.max(axis, keepdims=True)) * np.float64(scale))
    shares = terms / terms.sum(axis, keepdims=True) * np.floor(np.float32(1) / y_scale)
    # The quotient is no whole number, so the rounding of floats decides halves.
    return graph.finish({y: limit(np.rint(shares), zeros[1], dtype)}, steps=1)


def qlinear_where(rng: Rng) -> Case:
    graph, dtype, shape = Builder(), TYPES[rng.integers(2)], (2, int(rng.choice(CHANNELS)), 5)
    sides = draw_bytes(rng, dtype, *shape), draw_bytes(rng, dtype, *shape[1:] if rng.integers(2) else (1,))
    zeros, scales = [draw_zero(rng, dtype) for _ in range(3)], [np.float32(2.0 ** rng.integers(-6, 1)) for _ in range(3)]
    condition = rng.integers(0, 2, shape).astype(np.bool_)
    names = [name for place in range(2) for name in map(graph.constant, (scales[place], zeros[place]))]
    operands = graph.feed(condition), graph.feed(sides[0]), *names[:2], graph.feed(sides[1]), *names[2:]
    y = graph.node("QLinearWhere", *operands, graph.constant(scales[2]), graph.constant(zeros[2]), domain=MICROSOFT)
    left, right = (
        rescale(wide(side, zero), scale / scales[2], zeros[2], dtype)
        for side, zero, scale in zip(sides, zeros[:2], scales[:2], strict=True)
    )
    return graph.finish({y: np.where(condition, left, right)})


def resized_codes(rng: Rng) -> Case:
    """Returns an image of bytes that a nearest Resize enlarges, and its floats."""
    graph, dtype = Builder(), TYPES[rng.integers(2)]
    x, zero = (
        draw_bytes(rng, dtype, 1, int(rng.choice(CHANNELS)), *(int(side) for side in rng.integers(1, 9, 2))),
        draw_zero(rng, dtype),
    )
    names, factors = (graph.constant(np.float32(0.25)), graph.constant(zero)), [int(factor) for factor in rng.integers(1, 4, 2)]
    codes = graph.node("QuantizeLinear", graph.feed(wide(x, zero).astype(np.float32) / 4), *names)
    scales = graph.constant(np.array([1, 1, *factors], np.float32))
    geometry = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    larger = graph.node("Resize", codes, "", scales, **geometry)
    expected = x.repeat(factors[0], 2).repeat(factors[1], 3)
    floats = wide(expected, zero).astype(np.float32) / 4
    return graph.finish({larger: expected, graph.node("DequantizeLinear", larger, *names): floats})


def mat_mul_to_float(rng: Rng) -> Case:
    graph, (a, a_zero, b, b_zero, total) = Builder(), draw_matrices(rng)
    a_scale, b_scale = draw_scale(rng), draw_scale(rng, *([b.shape[1]] if rng.integers(2) else []))
    bias = rng.standard_normal(b.shape[1]).astype(np.float32)
    names = [graph.feed(a), *map(graph.constant, (b, a_scale, b_scale, a_zero, b_zero))]
    expected = total.astype(np.float32) * (a_scale * b_scale)
    if rng.integers(2):
        names.append(graph.constant(bias))
        expected = expected + bias
    return graph.finish({graph.node("MatMulIntegerToFloat", *names, domain=MICROSOFT): expected})


def quantize_dynamically(x: Array) -> tuple[Array, Array, Array]:
    """Source: ONNX DynamicQuantizeLinear-11, in float32; the scale of zeros is 1."""
    zero = np.float32(0)
    low, high = np.minimum(x.min(), zero), np.maximum(x.max(), zero)
    scale = np.float32(1) if low == high else (high - low) / np.float32(255)
    offset = np.rint(np.clip(zero - low / scale, 0, 255))
    return np.clip(np.rint(x / scale) + offset, 0, 255).astype(np.int64), np.float32(scale), offset.astype(np.int64)


def dynamic_mat_mul(rng: Rng) -> Case:
    graph, (a, _, b, b_zero, _) = Builder(), draw_matrices(rng)
    x = rng.standard_normal(a.shape).astype(np.float32) * np.float32(rng.choice([0, 1, 100]))
    x = np.abs(x) if rng.integers(3) == 0 else x
    codes, scale, zero = quantize_dynamically(x)
    b_scale = draw_scale(rng, *([b.shape[1]] if rng.integers(2) else []))
    total = (codes - zero) @ wide(b, b_zero)
    expected = total.astype(np.float32) * (scale * b_scale)
    if rng.integers(2):
        names = [graph.feed(x), *map(graph.constant, (b, b_scale, b_zero))]
        return graph.finish({graph.node("DynamicQuantizeMatMul", *names, domain=MICROSOFT): expected})
    y = graph.node("DynamicQuantizeLinear", graph.feed(x), outputs=3)
    scales = graph.node("Mul", f"{y[:-1]}1", graph.constant(b_scale))
    product = graph.node("MatMulInteger", y, graph.constant(b), f"{y[:-1]}2", graph.constant(b_zero))
    return graph.finish({graph.node("Mul", graph.node("Cast", product, to=1), scales): expected}, is_open=bool(rng.integers(2)))


def qdq_conv(rng: Rng) -> Case:
    """Returns quantized Conv, perhaps Relu: exactly the integer's formula, as scales are multiplied ahead."""
    graph, drawn = Builder(), draw_convolution(rng, is_signed=True)
    outputs, dtype = len(drawn.w), drawn.x.dtype
    w_scale, x_scale = draw_scale(rng, *([outputs] if rng.integers(2) else [])), draw_scale(rng)
    factor = x_scale * w_scale
    bias = rng.integers(-(2**12), 2**12, outputs).astype(np.int32)
    total = drawn.total + bias.reshape(-1, 1, 1).astype(np.int64)
    spread = factor.reshape(-1, 1, 1) if factor.ndim else factor
    y_scale, y_zero = fit_scale(rng, total, spread), draw_zero(rng, dtype)
    x = graph.node("DequantizeLinear", graph.feed(drawn.x), graph.constant(x_scale), graph.constant(drawn.x_zero))
    w = graph.node(
        "DequantizeLinear",
        graph.constant(drawn.w),
        graph.constant(w_scale),
        graph.constant(np.zeros(w_scale.shape, np.int8)),
        axis=0,
    )
    b = graph.node("DequantizeLinear", graph.constant(bias), graph.constant(np.broadcast_to(factor, (outputs,)).copy()), axis=0)
    y = graph.node("Conv", x, w, b, **drawn.attributes)
    if rng.integers(2):
        y, total = graph.node("Relu", y), np.maximum(total, 0)
    y = graph.node("QuantizeLinear", y, graph.constant(y_scale), graph.constant(y_zero))
    return graph.finish({y: rescale(total, spread / y_scale, y_zero, dtype)}, is_open=bool(rng.integers(2)))


def qdq_mat_mul(rng: Rng) -> Case:
    graph, (a, a_zero, b, b_zero, total) = Builder(), draw_matrices(rng)
    a_scale, b_scale = draw_scale(rng), draw_scale(rng)
    y_scale, y_zero = fit_scale(rng, total, a_scale * b_scale), draw_zero(rng, a.dtype)
    right = graph.constant(b.T.copy()) if (is_constant := bool(rng.integers(2))) else graph.feed(b)
    left = graph.node("DequantizeLinear", graph.feed(a), graph.constant(a_scale), graph.constant(a_zero))
    other = graph.node("DequantizeLinear", right, graph.constant(b_scale), graph.constant(b_zero))
    y = graph.node("MatMul", left, graph.node("Transpose", other, perm=[1, 0]) if is_constant else other)
    y = graph.node("QuantizeLinear", y, graph.constant(y_scale), graph.constant(y_zero))
    # A product of two computed sides that are too deep is computed in floats.
    is_deep = not is_constant and a.shape[-1] * 255 * 255 * 1.0 >= 2**24
    return graph.finish({y: rescale(total, a_scale * b_scale / y_scale, y_zero, a.dtype)}, steps=int(is_deep))


def qdq_residual(rng: Rng) -> Case:
    """Returns a block: two convolutions, a sum with its input, a maximum and a mean, by the float text of each operator."""
    graph, channels = Builder(), int(rng.choice([4, 8, 16, 24]))
    dtype = TYPES[rng.integers(2)]
    steps = [np.float32(2.0**-4)] * 4
    zero = draw_zero(rng, dtype)
    x = rng.standard_normal((2, channels, 12, 12)).astype(np.float32) * 4

    def quantize(value: str) -> str:
        names = graph.constant(steps[0]), graph.constant(zero)
        return graph.node("DequantizeLinear", graph.node("QuantizeLinear", value, *names), *names)

    def quantize_exactly(value: Array) -> Array:
        return wide(limit(np.rint(value / np.float64(steps[0])), zero, dtype), zero) * np.float64(steps[0])

    y, value = quantize(graph.feed(x)), quantize_exactly(x)
    first, source = y, value
    geometry = {"strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1}
    for _ in range(2):
        w, scale = draw_bytes(rng, np.int8, channels, channels, 3, 3), np.float32(2.0**-9)
        weights = graph.node("DequantizeLinear", graph.constant(w), graph.constant(scale))
        y = quantize(graph.node("Relu", graph.node("Conv", y, weights, kernel_shape=[3, 3], **geometry)))
        sums = convolve(np.rint(value / steps[0]).astype(np.int64), wide(w), **geometry) * (np.float64(steps[0]) * scale)
        value = quantize_exactly(np.maximum(sums, 0))
    y, value = quantize(graph.node("Add", y, first)), quantize_exactly(value + source)
    y = graph.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    value = value.reshape(2, channels, 6, 2, 6, 2).max(axis=(3, 5))
    y, value = graph.node("GlobalAveragePool", y), value.mean(axis=(2, 3), keepdims=True)
    names = graph.constant(steps[0]), graph.constant(zero)
    expected = limit(np.rint(value / np.float64(steps[0])), zero, dtype)
    # The mean is no multiple of a power of two, so its rounding decides halves.
    return graph.finish({graph.node("QuantizeLinear", y, *names): expected}, steps=1)


def qdq_inverted_residual(rng: Rng) -> Case:
    """Returns a block whose values may all be held as bytes: products, one of them depthwise, a sum, a ConvTranspose.

    All scales are powers of two, so that the float text of each operator is exact.
    """
    graph, dtype, step = Builder(), TYPES[rng.integers(2)], np.float32(2.0**-4)
    channels, wide_channels, outputs = (int(rng.choice(sizes)) for sizes in ([8, 24, 40], [16, 33, 72], [8, 20]))
    zero, side = draw_zero(rng, dtype), int(rng.integers(5, 19))
    names = graph.constant(step), graph.constant(zero)

    def quantize(value: str, numbers: Array, factor: float) -> tuple[str, Array]:
        codes = graph.node("QuantizeLinear", value, *names)
        return graph.node("DequantizeLinear", codes, *names), wide(limit(np.rint(numbers * factor), zero, dtype), zero)

    def multiply(op_type: str, x: str, shape: tuple[int, ...], **attributes: Any) -> tuple[str, Array]:
        w = draw_bytes(rng, np.int8, *shape)
        weights = graph.node("DequantizeLinear", graph.constant(w), graph.constant(np.float32(2.0**-8)))
        return graph.node(op_type, x, weights, kernel_shape=list(shape[2:]), **attributes), wide(w)

    plain = {"strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1], "group": 1}
    image = rng.standard_normal((2, channels, side, side)).astype(np.float32) * 4
    x, numbers = quantize(graph.feed(image), image.astype(np.float64), 16)
    y, w = multiply("Conv", x, (channels, channels, 1, 1), **plain)
    x, numbers = quantize(y, convolve(numbers, w, **plain), 2.0**-8)
    y, w = multiply("Conv", x, (wide_channels, channels, 1, 1), **plain)
    y, total = quantize(graph.node("Relu", y), np.maximum(convolve(numbers, w, **plain), 0), 2.0**-8)
    around = plain | {"pads": [1, 1, 1, 1], "group": wide_channels}
    y, w = multiply("Conv", y, (wide_channels, 1, 3, 3), **around)
    y, total = quantize(graph.node("Clip", y, graph.constant(np.float32(0))), np.maximum(convolve(total, w, **around), 0), 2.0**-8)
    y, w = multiply("Conv", y, (channels, wide_channels, 1, 1), **plain)
    y, total = quantize(y, convolve(total, w, **plain), 2.0**-8)
    y, total = quantize(graph.node("Add", y, x), total + numbers, 1)
    y, w = multiply("ConvTranspose", y, (channels, outputs, 2, 2), strides=[2, 2])
    total = np.einsum("nchw,coij->nohiwj", total, w).reshape(2, outputs, 2 * side, 2 * side)
    y, total = quantize(y, total, 2.0**-8)
    y, w = multiply("Conv", y, (9, outputs, 3, 3), **plain | {"pads": [1, 1, 1, 1], "strides": [2, 2]})
    total = convolve(total, w, **plain | {"pads": [1, 1, 1, 1], "strides": [2, 2]})
    return graph.finish({y: (total * 2.0**-12).astype(np.float32)})


def qdq_tiles(rng: Rng) -> Case:
    """Returns a convolution of quantized floats that may be computed in Winograd's tiles; its result shows the exact sums."""
    graph, dtype = Builder(), TYPES[rng.integers(2)]
    channels, outputs = (int(count) for count in rng.choice([16, 24, 32, 64, 128], 2))
    sides = [int(side) for side in rng.integers(10, 23, 2)]
    most = int(rng.choice([1, 5, 20, 127]))
    w = (
        rng.integers(-most, most + 1, (outputs, channels, 3, 3))
        if rng.integers(2)
        else rng.choice([-most, most], (outputs, channels, 3, 3))
    )
    zero = draw_zero(rng, dtype)
    numbers = wide(draw_bytes(rng, dtype, 1, channels, *sides), zero)
    numbers = np.maximum(numbers, 0) if (is_positive := bool(rng.integers(2))) else numbers
    x = graph.feed(numbers.astype(np.float32) / 16)
    names = graph.constant(np.float32(1 / 16)), graph.constant(zero)
    y = graph.node("QuantizeLinear", graph.node("Relu", x) if is_positive else x, *names)
    weights = graph.node("DequantizeLinear", graph.constant(w.astype(np.int8)), graph.constant(np.float32(1 / 128)))
    geometry = {"strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1}
    y = graph.node("Conv", graph.node("DequantizeLinear", y, *names), weights, kernel_shape=[3, 3], **geometry)
    return graph.finish({y: convolve(numbers, w, **geometry).astype(np.float32) / np.float32(2048)})


KINDS: Mapping[str, Callable[[Rng], Case]] = {
    function.__name__: function
    for function in (
        conv_integer, mat_mul_integer, qlinear_conv, qlinear_mat_mul, qgemm, qlinear_add, qlinear_mul, qlinear_global_average_pool,
        qlinear_unary, mat_mul_to_float, dynamic_mat_mul, qdq_conv, qdq_mat_mul, qdq_residual, qdq_inverted_residual,
        qdq_tiles,
        qlinear_average_pool, qlinear_softmax, qlinear_where, resized_codes,
    )
}  # fmt: skip


def draw_case(kind: str, index: int) -> Case:
    """Returns a case; equal numbers give equal cases."""
    return KINDS[kind](np.random.default_rng([index, list(KINDS).index(kind)]))


def find_difference(core: Core, case: Case, kernels: str, config: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns a line about the first output that differs; empty if none does."""
    with np.errstate(all="ignore"):
        network = core.load_network(case.model, "CPU", {"CPU_KERNELS": kernels, **config})
        answers = network.infer(dict(case.feeds))
    for name, expected in case.expected.items():
        answer = answers[name]
        if answer.dtype != expected.dtype or answer.shape != expected.shape:
            return f"{answer.dtype}{answer.shape} instead of {expected.dtype}{expected.shape}"
        distance = np.abs(answer.astype(np.float64) - expected.astype(np.float64))
        if not bool((distance <= case.steps).all()):
            place = np.unravel_index(np.argmax(distance), distance.shape)
            return f"{int((distance > case.steps).sum())} of {answer.size} differ, at {place}: {answer[place]} instead of {expected[place]}"
    return ""


def main() -> int:
    """Runs cases of all kinds in turns; returns how many differ, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each kind")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--kernels", nargs="+", default=["JIT"], choices=["JIT", "NUMPY"])
    arguments = parser.parse_args()
    wrong = 0
    with Core() as core:
        for number in range(arguments.cases):
            kind, index = arguments.kinds[number % len(arguments.kinds)], arguments.first + number // len(arguments.kinds)
            case = draw_case(kind, index)
            for kernels in arguments.kernels:
                difference = find_difference(core, case, kernels)
                if difference:
                    wrong += 1
                    sys.stdout.write(f"{kind} {index} {kernels}: {difference}\n")
                    sys.stdout.flush()
    sys.stdout.write(f"{arguments.cases} cases, {wrong} wrong\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
