"""Operators of sequence networks: products, normalizations, attention, recurrent layers; float (batch, length, width) mostly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero_core.conformance.graphs.arrangement import reduce
from hetero_core.conformance.graphs.builder import LARGEST_WORK, DrawnValue, GraphBuilder, NotApplicable, Size

WIDTHS = (1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 128)
LENGTHS = (*range(1, 18), 20, 24, 27, 28, 29, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 67)


def _pick(b: GraphBuilder, *, lowest: int = 1) -> tuple[DrawnValue, int]:
    """Returns a value whose last axis has a known size, and that size."""
    x = b.pick_ranked(*range(lowest, 7), bound=300, closed_from=-1)
    return x, int(x.shape[-1])


def grow_linear(b: GraphBuilder) -> None:
    """Adds a product with a constant matrix, at times with a bias in either order, and an activation."""
    x, width = _pick(b)
    outputs = b.choose(*WIDTHS)
    if b.count(x.shape) * outputs > LARGEST_WORK:
        raise NotApplicable
    shape = (*x.shape[:-1], outputs)
    if x.rank == 2 and b.chance(0.5):
        turned = int(b.chance(0.5))
        weight = b.weight(*((outputs, width) if turned else (width, outputs)), deviation=width**-0.5)
        read: list[DrawnValue | str] = [x, weight]
        if b.chance(0.7):
            read.append(b.weight(*b.choose((outputs,), (1, outputs), (1,), ())))
        y = b.add(
            "Gemm", read, shape, bound=x.bound + 1, transB=turned, alpha=b.choose(1.0, 1.0, 0.5), beta=b.choose(1.0, 1.0, 0.25)
        )
    else:
        y = b.add("MatMul", [x, b.weight(width, outputs, deviation=width**-0.5)], shape, bound=x.bound)
        if b.chance(0.6):
            y = b.add("Add", b.choose([y, b.weight(outputs)], [b.weight(outputs), y]), shape, dtype=x.dtype, bound=x.bound + 1)
    if b.chance(0.3):
        others = [
            value
            for value in b.values
            if value.shape == y.shape and value.dtype == y.dtype and value is not y and value.bound < 300
        ]
        if others:
            y = b.add("Add", [b.choose(*others), y], shape, bound=2 * y.bound)
    if b.chance(0.3):
        b.add(b.choose("Relu", "Sigmoid", "Tanh", "Erf"), [y], shape, bound=y.bound)


def grow_product(b: GraphBuilder) -> None:
    """Adds a product of two values, at times of a value with its own transpose."""
    x, width = _pick(b, lowest=2)
    partners = [
        value for value in b.values
        if (value.dtype, value.shape[:-2]) == (x.dtype, x.shape[:-2]) and value.rank == x.rank
        and width in (value.shape[-1], value.shape[-2]) and value.bound < 100
    ]  # fmt: skip
    if not partners or x.bound > 100:
        raise NotApplicable
    y = b.choose(*partners)
    if y.shape[-2] != width:
        order = [*range(y.rank - 2), y.rank - 1, y.rank - 2]
        y = b.add("Transpose", [y], (*y.shape[:-2], y.shape[-1], y.shape[-2]), bound=y.bound, perm=order)
    if b.count(x.shape) * b.size(y.shape[-1]) > LARGEST_WORK:
        raise NotApplicable
    b.add("MatMul", [x, y], (*x.shape[:-1], y.shape[-1]), bound=x.bound * y.bound * math.sqrt(width))


def grow_einsum(b: GraphBuilder) -> None:
    """Adds an Einsum of two values or of a value and a constant."""
    x, width = _pick(b, lowest=3)
    if x.rank != 3 or x.bound > 50:
        raise NotApplicable
    outputs = b.choose(*WIDTHS[:12])
    match b.choose("weight", "self", "sum"):
        case "weight":
            weight = b.weight(outputs, width, deviation=width**-0.5)
            b.add("Einsum", [x, weight], (*x.shape[:2], outputs), bound=x.bound, equation="bld,od->blo")
        case "self":
            b.add(
                "Einsum", [x, x], (x.shape[0], x.shape[1], x.shape[1]), bound=x.bound**2 * math.sqrt(width), equation="bid,bjd->bij"
            )
        case "sum":
            b.add("Einsum", [x], (x.shape[0], x.shape[2]), bound=x.bound * 8, equation="bld->bd")


def grow_normalization(b: GraphBuilder) -> None:
    """Adds a normalization of the last axis, as one operator or written out."""
    x, width = _pick(b, lowest=2)
    if width < 2 and b.chance(0.9):
        raise NotApplicable
    scale, shift = b.weight(width, mean=1, deviation=0.2), b.weight(width)
    match b.choose("operator", "written", "rms", "softmax", "softmax", "log_softmax"):
        case "operator" if b.opset >= 17:
            read: list[DrawnValue | str] = [x, scale, shift] if b.chance(0.8) else [x, scale]
            b.add("LayerNormalization", read, x.shape, axis=-1, epsilon=1e-3)
        case "written" | "operator":
            mean = reduce(b, "ReduceMean", x, [x.rank - 1], keep=True)
            centered = b.add("Sub", [x, mean], x.shape, bound=x.bound)
            if b.chance(0.5):
                squares = b.add("Pow", [centered, b.scalar(2)], x.shape, bound=x.bound**2)
            else:
                squares = b.add("Mul", [centered, centered], x.shape, bound=x.bound**2)
            variance = b.add("Add", [reduce(b, "ReduceMean", squares, [x.rank - 1], keep=True), b.scalar(1e-3)], mean.shape)
            root = b.add("Sqrt", [variance], mean.shape)
            normalized = b.add("Div", [centered, root], x.shape)
            scaled = b.add("Mul", [normalized, scale], x.shape)
            b.add("Add", [scaled, shift], x.shape)
        case "rms":
            squares = b.add("Mul", [x, x], x.shape, bound=x.bound**2)
            mean = b.add("Add", [reduce(b, "ReduceMean", squares, [x.rank - 1], keep=True), b.scalar(1e-3)], (*x.shape[:-1], 1))
            inverse = b.add("Reciprocal", [b.add("Sqrt", [mean], mean.shape)], mean.shape)
            b.add("Mul", [b.add("Mul", [x, inverse], x.shape), scale], x.shape)
        case "softmax":
            if x.bound > 60:
                raise NotApplicable
            b.add("Softmax", [x], x.shape, bound=1, axis=b.choose(-1, -1, x.rank - 2))
        case _:
            if x.bound > 60:
                raise NotApplicable
            b.add("LogSoftmax", [x], x.shape, bound=x.bound + 5, axis=-1)


def grow_attention(b: GraphBuilder) -> None:
    """Adds attention as exporters write it: projections, heads, scores, Softmax, a mask at times, and the way back."""
    x = b.pick(
        lambda value: (
            value.dtype == b.dtype and value.rank == 3 and value.shape[2] in (8, 12, 16, 24, 32, 48, 64) and value.bound < 30
        )
    )
    batch, length, width = x.shape[0], x.shape[1], int(x.shape[2])
    heads = b.choose(*[count for count in (1, 2, 3, 4, 8) if width % count == 0])
    size = width // heads
    if b.count((batch, heads, length, length)) > 80_000:
        raise NotApplicable
    turned = []
    for role in ("query", "key", "value"):
        y = b.add("MatMul", [x, b.weight(width, width, deviation=width**-0.5)], x.shape, bound=x.bound)
        if b.chance(0.5):
            y = b.add("Add", [y, b.weight(width, deviation=0.3)], x.shape, bound=x.bound)
        y = b.add(
            "Reshape", [y, b.numbers(0, -1 if length == "L" else 0, heads, size)], (batch, length, heads, size), bound=x.bound
        )
        if role == "key":
            y = b.add("Transpose", [y], (batch, heads, size, length), bound=x.bound, perm=[0, 2, 3, 1])
        else:
            y = b.add("Transpose", [y], (batch, heads, length, size), bound=x.bound, perm=[0, 2, 1, 3])
        turned.append(y)
    query, key, value = turned
    scores = b.add("MatMul", [query, key], (batch, heads, length, length), bound=x.bound)
    scaled = b.add(
        b.choose("Div", "Mul"), [scores, b.scalar(math.sqrt(size) if b.chance(0.5) else 0.25)], scores.shape, bound=x.bound
    )
    if isinstance(length, int) and b.chance(0.4):
        mask = np.triu(np.full((length, length), -1e4), 1).astype(b.dtype)
        scaled = b.add("Add", [scaled, b.constant(mask)], scores.shape, bound=x.bound)
    shares = b.add("Softmax", [scaled], scores.shape, bound=1, axis=-1)
    mixed = b.add("MatMul", [shares, value], (batch, heads, length, size), bound=x.bound)
    back = b.add("Transpose", [mixed], (batch, length, heads, size), bound=x.bound, perm=[0, 2, 1, 3])
    flat = b.add("Reshape", [back, b.numbers(0, 0, width)], x.shape, bound=x.bound)
    y = b.add("MatMul", [flat, b.weight(width, width, deviation=width**-0.5)], x.shape, bound=x.bound)
    if b.chance(0.7):
        b.add("Add", [x, y], x.shape, bound=2 * x.bound)


def grow_recurrent(b: GraphBuilder) -> None:
    """Adds an LSTM, GRU or RNN over (length, batch, width)."""
    if b.dtype != "float32":
        raise NotApplicable
    x = b.pick_ranked(3, bound=30, closed_from=2)
    length, batch, width = x.shape[0], x.shape[1], int(x.shape[2])
    hidden = b.choose(1, 3, 4, 8, 9, 16, 17)
    directions = b.choose(1, 1, 2)
    operator, gates = b.choose(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    if b.size(length) * b.size(batch) * gates * hidden * (width + hidden) * directions > LARGEST_WORK // 4:
        raise NotApplicable
    w = b.weight(directions, gates * hidden, width, deviation=width**-0.5)
    r = b.weight(directions, gates * hidden, hidden, deviation=hidden**-0.5)
    read: list[DrawnValue | str] = [x, w, r]
    if b.chance(0.7):
        read.append(b.weight(directions, 2 * gates * hidden, deviation=0.3))
    shapes: list[tuple[Size, ...]] = [(length, directions, batch, hidden), (directions, batch, hidden)]
    if operator == "LSTM":
        shapes.append((directions, batch, hidden))
    before = int(b.chance(0.5)) if operator == "GRU" else None
    direction = b.choose("forward", "reverse") if directions == 1 else "bidirectional"
    b.add_many(operator, read, shapes, bound=1, hidden_size=hidden, direction=direction, linear_before_reset=before)


def grow_convolution(b: GraphBuilder) -> None:
    """Adds a convolution or a pooling over (batch, channels, length)."""
    x = b.pick_ranked(3, bound=300, closed_from=1)
    batch, channels, length = x.shape[0], int(x.shape[1]), int(x.shape[2])
    kernel, stride = b.choose(1, 3, 3, 5), b.choose(1, 1, 2)
    pad = kernel // 2
    shape_length = (length + 2 * pad - kernel) // stride + 1
    windows: dict[str, Any] = {"kernel_shape": [kernel], "strides": [stride], "pads": [pad, pad]}
    if b.chance(0.25):
        b.add(b.choose("MaxPool", "AveragePool"), [x], (batch, channels, shape_length), bound=x.bound, **windows)
        return
    outputs = b.choose(*WIDTHS[:16])
    group = channels if b.chance(0.25) else 1
    outputs = channels if group > 1 else outputs
    if b.count((batch, outputs, shape_length)) * channels * kernel > LARGEST_WORK:
        raise NotApplicable
    weight = b.weight(outputs, channels // group, kernel, deviation=(channels * kernel / group) ** -0.5)
    read: list[DrawnValue | str] = [x, weight, b.weight(outputs)] if b.chance(0.6) else [x, weight]
    y = b.add("Conv", read, (batch, outputs, shape_length), bound=x.bound + 1, group=group, **windows)
    if b.chance(0.4):
        b.add(b.choose("Relu", "Sigmoid"), [y], y.shape, bound=y.bound)


OPERATORS = (
    (6.0, grow_linear),
    (2.0, grow_product),
    (0.7, grow_einsum),
    (3.0, grow_normalization),
    (1.2, grow_attention),
    (0.7, grow_recurrent),
    (1.0, grow_convolution),
)
"""Each operator with its weight."""
