"""Draws of cases: operators on quantized values, element by element and joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import (
    Generator,
    choose,
    draw_bytes_type,
    draw_floats,
    draw_integers,
    draw_scale,
    draw_sizes,
    flip,
    make_broadcastable,
)


def _binary(op_type: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        dtype = draw_bytes_type(rng)
        shape = choose(rng, (draw_sizes(rng, int(rng.integers(1, 4)), 9), (97,), (2, 64)))
        other = make_broadcastable(rng, shape)
        shapes = (shape, other) if flip(rng) else (other, shape)
        zeros = [draw_integers(rng, dtype) for _ in range(3)]
        result = np.float32(draw_scale(rng) * choose(rng, (1, 8)))
        inputs = (
            draw_integers(rng, dtype, *shapes[0]),
            draw_scale(rng),
            zeros[0],
            draw_integers(rng, dtype, *shapes[1]),
            draw_scale(rng),
            zeros[1],
            np.asarray(result),
            zeros[2],
        )
        return ContribCase(op_type, inputs, constants=frozenset({6, 7}) if flip(rng) else frozenset())

    return draw


def _unary(op_type: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        dtype = draw_bytes_type(rng)
        zeros = [draw_integers(rng, dtype) if flip(rng) else None for _ in range(2)]
        attributes = {"alpha": float(rng.uniform(0.01, 0.5))} if op_type == "QLinearLeakyRelu" else {}
        y_scale = np.asarray(draw_scale(rng) if attributes else rng.uniform(1 / 300, 1 / 100), np.float32)
        inputs = (draw_integers(rng, dtype, *draw_sizes(rng, 3, 8)), draw_scale(rng), zeros[0], y_scale, zeros[1])
        return ContribCase(op_type, inputs, attributes)

    return draw


def _draw_softmax(rng: Generator) -> ContribCase:
    dtype = draw_bytes_type(rng)
    rank = int(rng.integers(1, 5))
    attributes = {"opset": choose(rng, (11, 13)), "axis": int(rng.integers(-rank, rank))}
    zero = np.asarray(np.iinfo(dtype).min if flip(rng) else 0, dtype)
    y_scale = np.asarray(choose(rng, (1 / 256, 1 / 255, 1 / 128)), np.float32)
    if dtype == np.int8 and zero == 0:
        y_scale = np.asarray(1 / 127, np.float32)
    elif zero != np.iinfo(dtype).min or dtype == np.int8:
        y_scale = np.asarray(1 / 255, np.float32)
    inputs = (draw_integers(rng, dtype, *draw_sizes(rng, rank, 8)), draw_scale(rng), draw_integers(rng, dtype), y_scale, zero)
    return ContribCase("QLinearSoftmax", inputs, attributes)


def _draw_where(rng: Generator) -> ContribCase:
    dtype, shape = draw_bytes_type(rng), draw_sizes(rng, 3)
    tensors = [draw_integers(rng, dtype, *make_broadcastable(rng, shape)) for _ in range(2)]
    scales = [draw_scale(rng) for _ in range(3)]
    zeros = [draw_integers(rng, dtype) for _ in range(3)]
    if flip(rng):
        scales[2], zeros[2] = scales[0], zeros[0]
    inputs = (
        np.asarray(rng.integers(0, 2, shape), bool),
        tensors[0],
        scales[0],
        zeros[0],
        tensors[1],
        scales[1],
        zeros[1],
        scales[2],
        zeros[2],
    )
    return ContribCase("QLinearWhere", inputs)


def _draw_concat(rng: Generator) -> ContribCase:
    dtype, rank = draw_bytes_type(rng), int(rng.integers(1, 4))
    shape, axis = draw_sizes(rng, rank), int(rng.integers(-rank, rank))
    inputs: list[Any] = [draw_scale(rng), draw_integers(rng, dtype)]
    for _ in range(int(rng.integers(1, 4))):
        sizes = list(shape)
        sizes[axis] = int(rng.integers(1, 5))
        is_alike = rng.integers(4) == 0
        inputs += [draw_integers(rng, dtype, *sizes), *(inputs[:2] if is_alike else (draw_scale(rng), draw_integers(rng, dtype)))]
    constants = frozenset(range(len(inputs))) - frozenset(range(2, len(inputs), 3)) if flip(rng) else frozenset()
    return ContribCase("QLinearConcat", tuple(inputs), {"axis": axis}, constants=constants)


def _quantized_zero(rng: Generator, dtype: Any, sizes: tuple[int, ...]) -> Any:
    if np.dtype(dtype) in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)):
        low = -8 if np.dtype(dtype) == np.dtype(ml_dtypes.int4) else 0
        return np.asarray(rng.integers(low, low + 16, sizes)).astype(dtype)
    return draw_integers(rng, dtype, *sizes)


_TARGETS = (np.int8, np.uint8, np.int16, np.uint16)


def _draw_quantize(rng: Generator) -> ContribCase:
    dtype, rank = choose(rng, _TARGETS), int(rng.integers(1, 4))
    shape, axis = draw_sizes(rng, rank), int(rng.integers(-rank, rank))
    sizes = (shape[axis],) if flip(rng) else ()
    x = draw_floats(rng, *shape, scale=5 if dtype in (np.int8, np.uint8) else 900)
    if flip(rng):
        return ContribCase("QuantizeLinear", (x, draw_scale(rng, *sizes), _quantized_zero(rng, dtype, sizes)), {"axis": axis})
    return ContribCase("QuantizeLinear", (x, draw_scale(rng)))


def _draw_dequantize(rng: Generator) -> ContribCase:
    dtype, rank = choose(rng, (*_TARGETS, np.int32, ml_dtypes.int4, ml_dtypes.uint4)), int(rng.integers(1, 4))
    shape, axis = draw_sizes(rng, rank), int(rng.integers(-rank, rank))
    sizes = (shape[axis],) if flip(rng) else ()
    x = _quantized_zero(rng, dtype, shape)
    zero = None if dtype == np.int32 or flip(rng) else _quantized_zero(rng, dtype, sizes)
    packed = frozenset({0, 2}) if dtype in (ml_dtypes.int4, ml_dtypes.uint4) else frozenset()
    return ContribCase("DequantizeLinear", (x, draw_scale(rng, *sizes), zero), {"axis": axis}, constants=packed)


QUANTIZED: Mapping[str, Draw] = {
    "QLinearAdd": _binary("QLinearAdd"),
    "QLinearMul": _binary("QLinearMul"),
    "QLinearLeakyRelu": _unary("QLinearLeakyRelu"),
    "QLinearSigmoid": _unary("QLinearSigmoid"),
    "QLinearSoftmax": _draw_softmax,
    "QLinearWhere": _draw_where,
    "QLinearConcat": _draw_concat,
    "QuantizeLinear": _draw_quantize,
    "DequantizeLinear": _draw_dequantize,
}
