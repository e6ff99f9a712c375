"""Draws of cases: windows over quantized images and products of quantized matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import (
    Generator,
    choose,
    draw_bytes_type,
    draw_floats,
    draw_integers,
    draw_scale,
    flip,
)


def draw_windows(rng: Generator, rank: int, *, dilates: bool) -> dict[str, Any]:
    """Returns attributes of a convolution or a pooling over sizes of at least 7."""
    kernel = [int(size) for size in rng.integers(1, 4, rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if flip(rng):
        attributes["strides"] = [int(size) for size in rng.integers(1, 4, rank)]
    if dilates and flip(rng):
        attributes["dilations"] = [int(size) for size in rng.integers(1, 3, rank)]
    padding = rng.integers(3)
    if padding == 0:
        attributes["pads"] = [int(rng.integers(0, size)) for size in kernel * 2]
    elif padding == 1:
        attributes["auto_pad"] = choose(rng, ("SAME_UPPER", "SAME_LOWER", "VALID"))
    return attributes


def _lay(shape: tuple[int, ...], is_last: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if is_last else shape


def _draw_average_pool(rng: Generator) -> ContribCase:
    dtype, rank, is_last = draw_bytes_type(rng), int(rng.integers(1, 4)), flip(rng)
    attributes = draw_windows(rng, rank, dilates=False)
    attributes |= {"channels_last": int(is_last), "count_include_pad": int(flip(rng))}
    if "auto_pad" not in attributes and flip(rng):
        attributes["ceil_mode"] = 1
    shape = _lay((2, 3, *(int(size) for size in rng.integers(7, 10, rank))), is_last)
    inputs = (
        draw_integers(rng, dtype, *shape),
        draw_scale(rng),
        draw_integers(rng, dtype),
        draw_scale(rng),
        draw_integers(rng, dtype),
    )
    return ContribCase("QLinearAveragePool", inputs, attributes)


def _draw_global_pool(rng: Generator) -> ContribCase:
    dtype, is_last = draw_bytes_type(rng), flip(rng)
    shape = _lay((2, int(rng.integers(1, 20)), *(int(size) for size in rng.integers(1, 9, 2))), is_last)
    inputs = (
        draw_integers(rng, dtype, *shape),
        draw_scale(rng),
        draw_integers(rng, dtype),
        draw_scale(rng),
        draw_integers(rng, dtype),
    )
    return ContribCase("QLinearGlobalAveragePool", inputs, {"channels_last": int(is_last)})


def _draw_conv(rng: Generator) -> ContribCase:
    dtype, rank, is_last = draw_bytes_type(rng), int(rng.integers(1, 3)), flip(rng)
    weights = np.int8 if dtype == np.int8 else draw_bytes_type(rng)
    attributes = draw_windows(rng, rank, dilates=True)
    group, outputs, channels = choose(rng, ((1, 4, 3), (2, 4, 3), (3, 3, 1)))
    attributes |= {"group": group, "channels_last": int(is_last)}
    sizes = (outputs,) if flip(rng) else ()
    shape = _lay((2, group * channels, *(int(size) for size in rng.integers(7, 10, rank))), is_last)
    w = draw_integers(rng, weights, outputs, channels, *attributes["kernel_shape"])
    zero = np.zeros(sizes, weights) if weights == np.int8 or sizes else draw_integers(rng, weights)
    bias = np.asarray(rng.integers(-9999, 9999, outputs), np.int32) if flip(rng) else None
    inputs = (
        draw_integers(rng, dtype, *shape),
        draw_scale(rng),
        draw_integers(rng, dtype),
        w,
        draw_scale(rng, *sizes),
        zero,
        np.asarray(draw_scale(rng) * 20, np.float32),
        draw_integers(rng, dtype),
        bias,
    )
    return ContribCase("QLinearConv", inputs, attributes, constants=frozenset({3, 4, 5, 8}) if flip(rng) else frozenset())


def _draw_max_pool(rng: Generator) -> ContribCase:
    attributes = draw_windows(rng, 2, dilates=True)
    if "auto_pad" not in attributes and flip(rng):
        attributes["ceil_mode"] = 1
    return ContribCase("NhwcMaxPool", (draw_integers(rng, draw_bytes_type(rng), 2, 8, 9, 3),), attributes)


def _draw_types(rng: Generator) -> tuple[Any, Any]:
    bytes_type = draw_bytes_type(rng)
    return bytes_type, np.int8 if bytes_type == np.int8 else draw_bytes_type(rng)


def _draw_matrices(rng: Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rows, depth, columns = (int(size) for size in rng.integers(1, 20, 3))
    lead = choose(rng, ((), (2,), (2, 3)))
    return (*lead, rows, depth), choose(rng, ((depth, columns), (*lead, depth, columns)))


def _draw_integer_to_float(rng: Generator) -> ContribCase:
    left, right = _draw_types(rng)
    a, b = _draw_matrices(rng)
    sizes = (b[-1],) if flip(rng) and len(b) == 2 else ()
    inputs = (
        draw_integers(rng, left, *a),
        draw_integers(rng, right, *b),
        draw_scale(rng),
        draw_scale(rng, *sizes),
        draw_integers(rng, left) if flip(rng) else None,
        draw_integers(rng, right, *sizes) if flip(rng) else None,
        draw_floats(rng, b[-1]) if flip(rng) else None,
    )
    return ContribCase("MatMulIntegerToFloat", inputs, constants=frozenset({1, 3}) if flip(rng) else frozenset())


def _draw_dynamic(rng: Generator) -> ContribCase:
    right = draw_bytes_type(rng)
    a, b = _draw_matrices(rng)
    sizes = (b[-1],) if flip(rng) and len(b) == 2 else ()
    x = draw_floats(rng, *a) if rng.integers(8) else np.zeros(a, np.float32)
    inputs = (
        x + choose(rng, (0, 0, 3, -3)).__float__() if x.any() else x,
        draw_integers(rng, right, *b),
        draw_scale(rng, *sizes),
        draw_integers(rng, right, *sizes) if flip(rng) else None,
        draw_floats(rng, b[-1]) if flip(rng) else None,
    )
    inputs = (np.asarray(inputs[0], np.float32), *inputs[1:])
    return ContribCase("DynamicQuantizeMatMul", inputs, constants=frozenset({1, 2}) if flip(rng) else frozenset())


def _draw_integer_16(rng: Generator) -> ContribCase:
    a, b = _draw_matrices(rng)
    return ContribCase("MatMulInteger16", (draw_integers(rng, np.int16, *a) // 64, draw_integers(rng, np.int16, *b) // 64))


def _draw_gemm(rng: Generator) -> ContribCase:
    left, right = _draw_types(rng)
    rows, depth, columns = (int(size) for size in rng.integers(1, 20, 3))
    turns = (int(flip(rng)), int(flip(rng)))
    a = (depth, rows) if turns[0] else (rows, depth)
    b = (columns, depth) if turns[1] else (depth, columns)
    sizes = (columns,) if flip(rng) else ()
    c_shape = choose(rng, ((), (columns,), (1, columns), (rows, columns), (rows, 1)))
    c = np.asarray(rng.integers(-9999, 9999, c_shape), np.int32) if flip(rng) else None
    is_quantized = flip(rng)
    inputs = (
        draw_integers(rng, left, *a),
        draw_scale(rng),
        draw_integers(rng, left),
        draw_integers(rng, right, *b),
        draw_scale(rng, *sizes),
        draw_integers(rng, right, *sizes),
        c,
        np.asarray(draw_scale(rng) * 20, np.float32) if is_quantized else None,
        draw_integers(rng, left) if is_quantized else None,
    )
    attributes = {"transA": turns[0], "transB": turns[1], "alpha": float(np.float32(choose(rng, (1.0, 0.7, 2.0))))}
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
