"""Draws of cases: normalizations, activations and products with fused operators, and operators of ONNX's own domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator
from hetero_core.testing.contrib.quantized_products import draw_windows

_EPSILON = 1e-5


def _skip(op_type: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        dtype = rng.choose((np.float32, np.float32, np.float16))
        batch, steps, hidden = rng.sizes(3)
        hidden = rng.choose((hidden, 16, 64))
        shape = (batch, steps, hidden)
        skip = rng.choose((shape, (1, steps, hidden), (steps, hidden)))
        optional = [rng.floats(hidden, dtype=dtype) if rng.flip() else None for _ in range(2)]
        inputs = (
            rng.floats(*shape, dtype=dtype),
            rng.floats(*skip, dtype=dtype),
            rng.floats(hidden, dtype=dtype),
            *(optional if op_type == "SkipLayerNormalization" else optional[:1]),
        )
        outputs = (True, False, False, True) if rng.flip() else (True,)
        return ContribCase(op_type, inputs, {"epsilon": _EPSILON}, outputs)

    return draw


def _draw_simplified(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.float32, np.float64, np.float16))
    shape = rng.sizes(3)
    axis = rng.integer(-3, 3)
    inputs = (rng.floats(*shape, dtype=dtype), rng.floats(*shape[axis:], dtype=dtype))
    return ContribCase("SimplifiedLayerNormalization", inputs, {"axis": axis, "epsilon": _EPSILON}, (True, rng.flip()), domain="")


def _draw_layer(rng: Generator) -> ContribCase:
    # Without float64, whose statistics ONNX computes in float32 and ONNX Runtime in float64.
    dtype = rng.choose((np.float32, np.float16))
    shape = rng.sizes(3)
    axis = rng.integer(-3, 3)
    bias = rng.floats(*shape[axis:], dtype=dtype) if rng.flip() else None
    inputs = (rng.floats(*shape, dtype=dtype), rng.floats(*shape[axis:], dtype=dtype), bias)
    attributes = {"axis": axis, "epsilon": _EPSILON}
    outputs = (True, rng.flip(), rng.flip())
    return ContribCase("LayerNormalization", inputs, attributes, outputs, domain="", opset=rng.integer(9, 17))


def _draw_mean_variance(rng: Generator) -> ContribCase:
    attributes = {name: int(rng.flip()) for name in ("across_channels", "normalize_variance")}
    inputs = (rng.floats(*rng.sizes(4)),)
    return ContribCase("MeanVarianceNormalization", inputs, attributes, domain="", opset=8)


def _draw_thresholded(rng: Generator) -> ContribCase:
    attributes = {"alpha": float(np.float32(rng.uniform(0.2, 2)))}
    return ContribCase("ThresholdedRelu", (rng.floats(*rng.sizes(3)),), attributes, domain="", opset=9)


def _draw_ids(rng: Generator, count: int, *sizes: int) -> Any:
    return np.asarray(rng.integers(0, count, sizes), np.int32)


def _draw_embed(rng: Generator) -> ContribCase:
    batch, steps = rng.sizes(2)
    hidden, has_segments = rng.choose((8, 16)), rng.flip()
    positions = rng.choose((None, _draw_ids(rng, 9, batch, steps), _draw_ids(rng, 9, 1, steps)))
    inputs = (
        _draw_ids(rng, 20, batch, steps),
        _draw_ids(rng, 2, batch, steps) if has_segments else None,
        rng.floats(20, hidden),
        rng.floats(9, hidden),
        rng.floats(2, hidden) if has_segments else None,
        rng.floats(hidden),
        rng.floats(hidden),
        _draw_ids(rng, 2, batch, steps) if rng.flip() else None,
        positions,
    )
    return ContribCase("EmbedLayerNormalization", inputs, {"epsilon": _EPSILON}, rng.choose(((True, True), (True, True, True))))


def _draw_quantized_embed(rng: Generator) -> ContribCase:
    batch, steps = rng.sizes(2)
    hidden, has_segments, dtype = 16, rng.flip(), rng.choose((np.int8, np.uint8))
    tables = [rng.numbers(dtype, *shape) for shape in ((20, hidden), (9, hidden), (2, hidden), (hidden,), (hidden,))]
    scales, zeros = [rng.scales() for _ in range(5)], [rng.numbers(dtype) for _ in range(5)]
    segments = _draw_ids(rng, 2, batch, steps)
    if not has_segments:
        tables[2] = scales[2] = zeros[2] = segments = None
    mask = _draw_ids(rng, 2, batch, steps) if rng.flip() else None
    inputs = (_draw_ids(rng, 20, batch, steps), segments, *tables, mask, *scales, *zeros)
    return ContribCase("QEmbedLayerNormalization", inputs, {"epsilon": _EPSILON}, (True, True))


def _activation(op_type: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        shape = (*rng.sizes(2), 16)
        inputs: tuple[Any, ...] = (rng.floats(*shape, scale=3),)
        if op_type == "BiasGelu" or (op_type == "FastGelu" and rng.flip()):
            inputs = (*inputs, rng.floats(16))
        attributes = {"alpha": float(np.float32(rng.uniform(0.5, 2)))} if op_type == "QuickGelu" and rng.flip() else {}
        return ContribCase(op_type, inputs, attributes)

    return draw


def _draw_scaled_silu(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.float32, np.float16))
    scale = np.asarray(rng.uniform(0.5, 2), rng.choose((np.float32, np.float16))) if rng.flip() else None
    return ContribCase("ScaledSiLU", (rng.floats(*rng.sizes(3), dtype=dtype), scale), {"alpha": 0.5})


def _product(op_type: str) -> Draw:
    def draw(rng: Generator) -> ContribCase:
        dtype = np.float64 if op_type == "FusedMatMul" and rng.integers(4) == 0 else np.float32
        rows, depth, columns = rng.sizes(3, 9)
        lead = rng.choose(((), (2,), (2, 3)))
        turns = [int(rng.flip()), int(rng.flip())]
        moves = [int(rng.flip()), int(rng.flip())] if op_type == "FusedMatMul" and lead else [0, 0]
        shapes = [
            _turned(lead, rows, depth, turns[0], moves[0]),
            _turned(lead, depth, columns, turns[1], moves[1]),
        ]
        attributes: dict[str, Any] = {"transA": turns[0], "transB": turns[1], "alpha": float(np.float32(rng.uniform(0.1, 2)))}
        if any(moves):
            attributes |= {"transBatchA": moves[0], "transBatchB": moves[1]}
        return ContribCase(op_type, tuple(rng.floats(*shape, dtype=dtype) for shape in shapes), attributes)

    return draw


def _turned(lead: tuple[int, ...], rows: int, columns: int, swaps: int, moves: int) -> tuple[int, ...]:
    shape = (*lead, columns, rows) if swaps else (*lead, rows, columns)
    return (shape[-2], *shape[:-2], shape[-1]) if moves else shape


_GEMM: Mapping[str, dict[str, float]] = {
    "": {},
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "LeakyRelu": {"activation_alpha": 0.25},
    "Elu": {"activation_alpha": 0.5},
    "HardSigmoid": {"activation_alpha": 0.25, "activation_beta": 0.5},
    "ThresholdedRelu": {"activation_alpha": 0.75},
    "Celu": {"activation_alpha": 0.75},
    "ParametricSoftplus": {"activation_alpha": 0.5, "activation_beta": 1.25},
    "ScaledTanh": {"activation_alpha": 0.5, "activation_beta": 1.25},
}


def _draw_gemm(rng: Generator) -> ContribCase:
    rows, depth, columns = rng.sizes(3, 9)
    turns = (int(rng.flip()), int(rng.flip()))
    name = rng.choose(tuple(_GEMM)[1:])
    shapes = ((depth, rows) if turns[0] else (rows, depth), (columns, depth) if turns[1] else (depth, columns))
    c = rng.floats(*rng.choose(((columns,), (1, columns), (rows, columns), (rows, 1)))) if rng.flip() else None
    attributes = {"transA": turns[0], "transB": turns[1], "alpha": 0.5, "beta": 2.0, "activation": name, **_GEMM[name]}
    return ContribCase("FusedGemm", (*(rng.floats(*shape) for shape in shapes), c), attributes)


def _draw_conv(rng: Generator) -> ContribCase:
    rank = rng.integer(1, 3)
    attributes = draw_windows(rng, rank, dilates=True)
    attributes.pop("auto_pad", None)
    group, outputs, channels = rng.choose(((1, 4, 3), (2, 4, 3), (3, 3, 1)))
    name, parameters = rng.choose(
        (
            *(("Relu", ()), ("Tanh", ()), ("Sigmoid", ()), ("HardSwish", ())),
            *(("LeakyRelu", (0.25,)), ("Clip", (-0.5, 0.75)), ("HardSigmoid", (0.25, 0.5))),
        ),
    )
    attributes |= {"group": group, "activation": name} | ({"activation_params": list(parameters)} if parameters else {})
    x = rng.floats(2, group * channels, *(int(size) for size in rng.integers(7, 10, rank)))
    w = rng.floats(outputs, channels, *attributes["kernel_shape"])
    return ContribCase("FusedConv", (x, w, rng.floats(outputs) if rng.flip() else None), attributes)


def _draw_transposed(rng: Generator) -> ContribCase:
    group, kernel = rng.choose((1, 2)), [int(size) for size in rng.integers(2, 4, 2)]
    attributes = {"group": group, "kernel_shape": kernel, "strides": [int(size) for size in rng.integers(1, 3, 2)]}
    inputs = (
        rng.floats(2, 2 * group, 5, 6),
        rng.floats(2 * group, 3, *kernel),
        np.asarray(rng.integers(0, 2, 4), np.int64),
        rng.floats(3 * group) if rng.flip() else None,
    )
    return ContribCase("ConvTransposeWithDynamicPads", inputs, attributes)


def _draw_branchwise(rng: Generator) -> ContribCase:
    dtype, branches, size = rng.choose((np.float32, np.float16)), rng.integer(1, 5), rng.choose((4, 8))
    is_flat = rng.flip()
    scale_shape = rng.choose((None, (branches * size,), (branches, size), (size,)))
    shape = (2, 3, branches * size) if is_flat else (2, 3, branches, size)
    scale = None if scale_shape is None else rng.floats(*scale_shape, dtype=rng.choose((np.float32, np.float16)))
    return ContribCase("BranchwiseRMSNorm", (rng.floats(*shape, dtype=dtype), scale), {"num_branches": branches} if is_flat else {})


def _draw_gated_norm(rng: Generator) -> ContribCase:
    dtype, heads, size = rng.choose((np.float32, np.float16)), rng.integer(1, 4), rng.choose((4, 8))
    x, gate = (rng.floats(2, 3, heads * size, dtype=dtype) for _ in range(2))
    attributes = {"activation": rng.choose(("silu", "swish", "sigmoid")), "epsilon": _EPSILON}
    return ContribCase("GatedRMSNorm", (x, rng.floats(size, dtype=dtype), gate), attributes)


def _draw_engram(rng: Generator) -> ContribCase:
    dtype, streams, size = rng.choose((np.float32, np.float16)), rng.integer(1, 4), rng.choose((4, 8))
    key, query = (rng.floats(2, 3, streams, size, dtype=dtype) for _ in range(2))
    scales = [rng.floats(streams, size, dtype=dtype) for _ in range(3)]
    has_norm = rng.flip()
    inputs = (key, query, rng.floats(2, 3, size, dtype=dtype), *scales[: 3 if has_norm else 2])
    return ContribCase("EngramGate", inputs, {}, (True, True) if has_norm else (True,))


def _draw_pre_mix(rng: Generator) -> ContribCase:
    dtype, branches, size, is_flat = rng.choose((np.float32, np.float16)), rng.integer(1, 5), 8, rng.flip()
    gates = [(2, 3, branches), (2, 3, branches, 1), (2, 3, branches, size), *([(2, 3, branches * size)] if is_flat else [])]
    shape = (2, 3, branches * size) if is_flat else (2, 3, branches, size)
    attributes: dict[str, Any] = {"reduction_scale": 0.5} | ({"num_branches": branches} if is_flat else {})
    gate = rng.floats(*rng.choose(gates), dtype=rng.choose((np.float32, np.float16)))
    return ContribCase("HyperConnectionPreMix", (rng.floats(*shape, dtype=dtype), gate), attributes)


def _draw_post_mix(rng: Generator) -> ContribCase:
    dtype, mixed, branches, size = rng.choose((np.float32, np.float16)), rng.choose((np.float32, np.float16)), 3, 8
    is_flat = rng.flip()
    shape = (2, 3, branches * size) if is_flat else (2, 3, branches, size)
    gate = rng.floats(*rng.choose(((2, 3, branches), (2, 3, branches, 1), (2, 3, branches, size))), dtype=mixed)
    mix = rng.floats(2, 3, branches, branches, dtype=mixed) if rng.flip() else None
    inputs = (rng.floats(*shape, dtype=dtype), rng.floats(2, 3, size, dtype=dtype), gate, mix)
    return ContribCase("HyperConnectionPostMix", inputs, {"num_branches": branches} if is_flat else {})


def _draw_gated_add(rng: Generator) -> ContribCase:
    dtype, shape = rng.choose((np.float32, np.float16)), rng.sizes(3)
    x, y = (rng.floats(*shape, dtype=dtype) for _ in range(2))
    return ContribCase("GatedAdd", (x, y, rng.floats(*shape[:-1], 1, dtype=dtype)))


FUSED: Mapping[str, Draw] = {
    **{name: _skip(name) for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    "SimplifiedLayerNormalization": _draw_simplified,
    "LayerNormalization": _draw_layer,
    "MeanVarianceNormalization": _draw_mean_variance,
    "ThresholdedRelu": _draw_thresholded,
    "EmbedLayerNormalization": _draw_embed,
    "QEmbedLayerNormalization": _draw_quantized_embed,
    **{name: _activation(name) for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")},
    "ScaledSiLU": _draw_scaled_silu,
    **{name: _product(name) for name in ("FusedMatMul", "TransposeMatMul")},
    "FusedGemm": _draw_gemm,
    "FusedConv": _draw_conv,
    "ConvTransposeWithDynamicPads": _draw_transposed,
    "BranchwiseRMSNorm": _draw_branchwise,
    "GatedRMSNorm": _draw_gated_norm,
    "EngramGate": _draw_engram,
    "HyperConnectionPreMix": _draw_pre_mix,
    "HyperConnectionPostMix": _draw_post_mix,
    "GatedAdd": _draw_gated_add,
}
