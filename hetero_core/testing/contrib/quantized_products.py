"""Draws of cases: windows over quantized images and products of quantized matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator


def draw_windows(rng: Generator, rank: int, *, dilates: bool) -> dict[str, Any]:
    """Returns attributes of a convolution or a pooling over sizes of at least 7."""
    kernel = [int(size) for size in rng.integers(1, 4, rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if rng.flip():
        attributes["strides"] = [int(size) for size in rng.integers(1, 4, rank)]
    if dilates and rng.flip():
        attributes["dilations"] = [int(size) for size in rng.integers(1, 3, rank)]
    padding = rng.integers(3)
    if padding == 0:
        attributes["pads"] = [rng.integer(0, size) for size in kernel * 2]
    elif padding == 1:
        attributes["auto_pad"] = rng.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return attributes


def _lay(shape: tuple[int, ...], is_last: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if is_last else shape


def _draw_average_pool(rng: Generator) -> ContribCase:
    dtype, rank, is_last = rng.byte_type(), rng.integer(1, 4), rng.flip()
    attributes = draw_windows(rng, rank, dilates=False)
    attributes |= {"channels_last": int(is_last), "count_include_pad": int(rng.flip())}
    if "auto_pad" not in attributes and rng.flip():
        attributes["ceil_mode"] = 1
    shape = _lay((2, 3, *(int(size) for size in rng.integers(7, 10, rank))), is_last)
    inputs = (*rng.quantized(dtype, *shape), rng.scales(), rng.numbers(dtype))
    return ContribCase("QLinearAveragePool", inputs, attributes)


def _draw_global_pool(rng: Generator) -> ContribCase:
    dtype, is_last = rng.byte_type(), rng.flip()
    shape = _lay((2, rng.integer(1, 20), *(int(size) for size in rng.integers(1, 9, 2))), is_last)
    inputs = (*rng.quantized(dtype, *shape), rng.scales(), rng.numbers(dtype))
    return ContribCase("QLinearGlobalAveragePool", inputs, {"channels_last": int(is_last)})


def _draw_conv(rng: Generator) -> ContribCase:
    dtype, rank, is_last = rng.byte_type(), rng.integer(1, 3), rng.flip()
    weights = np.int8 if dtype == np.int8 else rng.byte_type()
    attributes = draw_windows(rng, rank, dilates=True)
    group, outputs, channels = rng.choose(((1, 4, 3), (2, 4, 3), (3, 3, 1)))
    attributes |= {"group": group, "channels_last": int(is_last)}
    sizes = (outputs,) if rng.flip() else ()
    shape = _lay((2, group * channels, *(int(size) for size in rng.integers(7, 10, rank))), is_last)
    w = rng.numbers(weights, outputs, channels, *attributes["kernel_shape"])
    zero = np.zeros(sizes, weights) if weights == np.int8 or sizes else rng.numbers(weights)
    bias = np.asarray(rng.integers(-9999, 9999, outputs), np.int32) if rng.flip() else None
    inputs = (
        *rng.quantized(dtype, *shape),
        w,
        rng.scales(*sizes),
        zero,
        np.asarray(rng.scales() * 20, np.float32),
        rng.numbers(dtype),
        bias,
    )
    return ContribCase("QLinearConv", inputs, attributes, constants=rng.constants(3, 4, 5, 8))


def _draw_max_pool(rng: Generator) -> ContribCase:
    attributes = draw_windows(rng, 2, dilates=True)
    if "auto_pad" not in attributes and rng.flip():
        attributes["ceil_mode"] = 1
    return ContribCase("NhwcMaxPool", (rng.numbers(rng.byte_type(), 2, 8, 9, 3),), attributes)


def _draw_types(rng: Generator) -> tuple[Any, Any]:
    bytes_type = rng.byte_type()
    return bytes_type, np.int8 if bytes_type == np.int8 else rng.byte_type()


def _draw_matrices(rng: Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rows, depth, columns = (int(size) for size in rng.integers(1, 20, 3))
    lead = rng.choose(((), (2,), (2, 3)))
    return (*lead, rows, depth), rng.choose(((depth, columns), (*lead, depth, columns)))


def _draw_integer_to_float(rng: Generator) -> ContribCase:
    left, right = _draw_types(rng)
    a, b = _draw_matrices(rng)
    sizes = (b[-1],) if rng.flip() and len(b) == 2 else ()
    inputs = (
        rng.numbers(left, *a),
        rng.numbers(right, *b),
        rng.scales(),
        rng.scales(*sizes),
        rng.numbers(left) if rng.flip() else None,
        rng.numbers(right, *sizes) if rng.flip() else None,
        rng.floats(b[-1]) if rng.flip() else None,
    )
    return ContribCase("MatMulIntegerToFloat", inputs, constants=rng.constants(1, 3))


def _draw_dynamic(rng: Generator) -> ContribCase:
    right = rng.byte_type()
    a, b = _draw_matrices(rng)
    sizes = (b[-1],) if rng.flip() and len(b) == 2 else ()
    x = rng.floats(*a) if rng.integers(8) else np.zeros(a, np.float32)
    inputs = (
        x + rng.choose((0, 0, 3, -3)).__float__() if x.any() else x,
        rng.numbers(right, *b),
        rng.scales(*sizes),
        rng.numbers(right, *sizes) if rng.flip() else None,
        rng.floats(b[-1]) if rng.flip() else None,
    )
    inputs = (np.asarray(inputs[0], np.float32), *inputs[1:])
    return ContribCase("DynamicQuantizeMatMul", inputs, constants=rng.constants(1, 2))


def _draw_integer_16(rng: Generator) -> ContribCase:
    a, b = _draw_matrices(rng)
    return ContribCase("MatMulInteger16", (rng.numbers(np.int16, *a) // 64, rng.numbers(np.int16, *b) // 64))


def _draw_gemm(rng: Generator) -> ContribCase:
    left, right = _draw_types(rng)
    rows, depth, columns = (int(size) for size in rng.integers(1, 20, 3))
    turns = (int(rng.flip()), int(rng.flip()))
    a = (depth, rows) if turns[0] else (rows, depth)
    b = (columns, depth) if turns[1] else (depth, columns)
    sizes = (columns,) if rng.flip() else ()
    c_shape = rng.choose(((), (columns,), (1, columns), (rows, columns), (rows, 1)))
    c = np.asarray(rng.integers(-9999, 9999, c_shape), np.int32) if rng.flip() else None
    is_quantized = rng.flip()
    inputs = (
        rng.numbers(left, *a),
        rng.scales(),
        rng.numbers(left),
        rng.numbers(right, *b),
        rng.scales(*sizes),
        rng.numbers(right, *sizes),
        c,
        np.asarray(rng.scales() * 20, np.float32) if is_quantized else None,
        rng.numbers(left) if is_quantized else None,
    )
    attributes = {"transA": turns[0], "transB": turns[1], "alpha": float(np.float32(rng.choose((1.0, 0.7, 2.0))))}
    return ContribCase("QGemm", inputs, attributes)


PRODUCTS: Mapping[str, Draw] = {
    "QLinearAveragePool": _draw_average_pool,
    "QLinearGlobalAveragePool": _draw_global_pool,
    "QLinearConv": _draw_conv,
    "NhwcMaxPool": _draw_max_pool,
    "MatMulIntegerToFloat": _draw_integer_to_float,
    "DynamicQuantizeMatMul": _draw_dynamic,
    "MatMulInteger16": _draw_integer_16,
    "QGemm": _draw_gemm,
}
