"""Draws of cases: operators on quantized values, elementwise and concatenating."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator


def _binary(op_type: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        dtype = rng.byte_type()
        shape = rng.choose((rng.sizes(rng.integer(1, 4), 9), (97,), (2, 64)))
        other = rng.broadcastable(shape)
        shapes = (shape, other) if rng.flip() else (other, shape)
        zeros = [rng.numbers(dtype) for _ in range(3)]
        result = np.float32(rng.scales() * rng.choose((1, 8)))
        inputs = (
            rng.numbers(dtype, *shapes[0]),
            rng.scales(),
            zeros[0],
            rng.numbers(dtype, *shapes[1]),
            rng.scales(),
            zeros[1],
            np.asarray(result),
            zeros[2],
        )
        return ContribCase(op_type, inputs, constants=rng.constants(6, 7))

    return draw


def _unary(op_type: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        dtype = rng.byte_type()
        zeros = [rng.numbers(dtype) if rng.flip() else None for _ in range(2)]
        attributes = {"alpha": float(rng.uniform(0.01, 0.5))} if op_type == "QLinearLeakyRelu" else {}
        y_scale = np.asarray(rng.scales() if attributes else rng.uniform(1 / 300, 1 / 100), np.float32)
        inputs = (rng.numbers(dtype, *rng.sizes(3, 8)), rng.scales(), zeros[0], y_scale, zeros[1])
        return ContribCase(op_type, inputs, attributes)

    return draw


def _draw_softmax(rng: Generator) -> ContribCase:
    dtype = rng.byte_type()
    rank = rng.integer(1, 5)
    attributes = {"opset": rng.choose((11, 13)), "axis": rng.integer(-rank, rank)}
    zero = np.asarray(np.iinfo(dtype).min if rng.flip() else 0, dtype)
    y_scale = np.asarray(rng.choose((1 / 256, 1 / 255, 1 / 128)), np.float32)
    if dtype == np.int8 and zero == 0:
        y_scale = np.asarray(1 / 127, np.float32)
    elif zero != np.iinfo(dtype).min or dtype == np.int8:
        y_scale = np.asarray(1 / 255, np.float32)
    inputs = (rng.numbers(dtype, *rng.sizes(rank, 8)), rng.scales(), rng.numbers(dtype), y_scale, zero)
    return ContribCase("QLinearSoftmax", inputs, attributes)


def _draw_where(rng: Generator) -> ContribCase:
    dtype, shape = rng.byte_type(), rng.sizes(3)
    tensors = [rng.numbers(dtype, *rng.broadcastable(shape)) for _ in range(2)]
    scales = [rng.scales() for _ in range(3)]
    zeros = [rng.numbers(dtype) for _ in range(3)]
    if rng.flip():
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
    dtype, rank = rng.byte_type(), rng.integer(1, 4)
    shape, axis = rng.sizes(rank), rng.integer(-rank, rank)
    inputs: list[Any] = [rng.scales(), rng.numbers(dtype)]
    for _ in range(rng.integer(1, 4)):
        sizes = list(shape)
        sizes[axis] = rng.integer(1, 5)
        is_alike = rng.integers(4) == 0
        inputs += [rng.numbers(dtype, *sizes), *(inputs[:2] if is_alike else (rng.scales(), rng.numbers(dtype)))]
    constants = frozenset(range(len(inputs))) - frozenset(range(2, len(inputs), 3)) if rng.flip() else frozenset()
    return ContribCase("QLinearConcat", tuple(inputs), {"axis": axis}, constants=constants)


def _quantized_zero(rng: Generator, dtype: Any, sizes: tuple[int, ...]) -> Any:
    if np.dtype(dtype) in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)):
        low = -8 if np.dtype(dtype) == np.dtype(ml_dtypes.int4) else 0
        return np.asarray(rng.integers(low, low + 16, sizes)).astype(dtype)
    return rng.numbers(dtype, *sizes)


_TARGETS = (np.int8, np.uint8, np.int16, np.uint16)


def _draw_quantize(rng: Generator) -> ContribCase:
    dtype, rank = rng.choose(_TARGETS), rng.integer(1, 4)
    shape, axis = rng.sizes(rank), rng.integer(-rank, rank)
    sizes = (shape[axis],) if rng.flip() else ()
    x = rng.floats(*shape, scale=5 if dtype in (np.int8, np.uint8) else 900)
    if rng.flip():
        return ContribCase("QuantizeLinear", (x, rng.scales(*sizes), _quantized_zero(rng, dtype, sizes)), {"axis": axis})
    return ContribCase("QuantizeLinear", (x, rng.scales()))


def _draw_dequantize(rng: Generator) -> ContribCase:
    dtype, rank = rng.choose((*_TARGETS, np.int32, ml_dtypes.int4, ml_dtypes.uint4)), rng.integer(1, 4)
    shape, axis = rng.sizes(rank), rng.integer(-rank, rank)
    sizes = (shape[axis],) if rng.flip() else ()
    x = _quantized_zero(rng, dtype, shape)
    zero = None if dtype == np.int32 or rng.flip() else _quantized_zero(rng, dtype, sizes)
    packed = frozenset({0, 2}) if dtype in (ml_dtypes.int4, ml_dtypes.uint4) else frozenset()
    return ContribCase("DequantizeLinear", (x, rng.scales(*sizes), zero), {"axis": axis}, constants=packed)


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
