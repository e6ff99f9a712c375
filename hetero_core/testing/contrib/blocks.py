"""Draws of cases: weights quantized in blocks, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator, choose, draw_floats, draw_integers, draw_scale, flip


def _draw_n_bits(rng: Generator) -> ContribCase:
    bits, size = choose(rng, (2, 4, 8)), choose(rng, (16, 32, 64))
    depth, columns = int(rng.integers(1, 130)), int(rng.integers(1, 40))
    blocks = -(-depth // size)
    dtype = choose(rng, (np.float32, np.float32, np.float16))
    lead = choose(rng, ((1,), (3,), (2, 3)))
    zeros = choose(
        rng,
        (
            None,
            draw_integers(rng, np.uint8, columns, -(-blocks * bits // 8)),
            None if bits == 8 else draw_floats(rng, columns, blocks, scale=4, dtype=dtype),
        ),
    )
    inputs = (
        draw_floats(rng, *lead, depth, dtype=dtype),
        draw_integers(rng, np.uint8, columns, blocks, size * bits // 8),
        draw_scale(rng, columns, blocks).astype(dtype),
        zeros,
        None,
        draw_floats(rng, columns, dtype=dtype) if flip(rng) else None,
    )
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": size}
    return ContribCase(
        "MatMulNBits", inputs, attributes, constants=frozenset({1, 2, 3}) if flip(rng) else frozenset(), tolerance=1e-3
    )


def _draw_bnb4(rng: Generator) -> ContribCase:
    size, depth, columns = choose(rng, (16, 32, 64)), int(rng.integers(1, 70)), int(rng.integers(1, 20))
    count = depth * columns
    inputs = (
        draw_floats(rng, *choose(rng, ((3,), (2, 3))), depth),
        draw_integers(rng, np.uint8, (count + 1) // 2),
        draw_scale(rng, -(-count // size)),
    )
    return ContribCase(
        "MatMulBnb4", inputs, {"K": depth, "N": columns, "block_size": size, "quant_type": int(flip(rng))}, tolerance=1e-3
    )


def _draw_fp_q4(rng: Generator) -> ContribCase:
    kind, columns, size = int(rng.integers(2)), int(rng.integers(1, 9)), 32
    blocks = int(rng.integers(1, 4))
    depth = blocks * size
    cells = [draw_scale(rng, columns, blocks, 1).view(np.uint8)]
    if kind == 1:
        cells.append(np.asarray(rng.integers(0, 16, (columns, blocks, 1)), np.uint8))
    blob = np.concatenate([*cells, draw_integers(rng, np.uint8, columns, blocks, size // 2)], axis=-1).reshape(-1)
    inputs = (draw_floats(rng, 3, depth), blob, np.asarray([depth, columns], np.int64))
    return ContribCase("MatMulFpQ4", inputs, {"blk_quant_type": kind}, constants=frozenset({1, 2}), tolerance=1e-3)


def _draw_gather(rng: Generator) -> ContribCase:
    indices = np.asarray(rng.integers(-6, 6, choose(rng, ((), (3,), (2, 3)))), choose(rng, (np.int32, np.int64)))
    target = choose(rng, (np.float32, np.float16))
    if flip(rng):
        bits, size = choose(rng, (4, 8)), choose(rng, (16, 32))
        blocks = int(rng.integers(1, 4))
        x = draw_integers(rng, np.uint8, 6, blocks * size * bits // 8)
        zeros = draw_integers(rng, np.uint8, 6, -(-blocks * bits // 8)) if flip(rng) else None
        inputs = (x, indices, draw_scale(rng, 6, blocks).astype(target), zeros)
        attributes = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
        return ContribCase("GatherBlockQuantized", inputs, attributes, constants=frozenset({0, 2, 3}))
    dtype = choose(rng, (ml_dtypes.int4, ml_dtypes.uint4))
    low = -8 if dtype is ml_dtypes.int4 else 0
    axis = int(rng.integers(3))
    shape, quantized = [6, 6, 6], choose(rng, tuple({0, 1, 2} - {axis}))
    shape[quantized] = 40
    scales = [*shape]
    scales[quantized] = 3
    x, zeros = (np.asarray(rng.integers(low, low + 16, sizes)).astype(dtype) for sizes in (shape, scales))
    inputs = (x, indices, draw_scale(rng, *scales).astype(target), zeros if flip(rng) else None)
    attributes = {"block_size": 16, "gather_axis": axis, "quantize_axis": quantized}
    return ContribCase("GatherBlockQuantized", inputs, attributes, constants=frozenset({0, 2, 3}))


_PACKED = {0: (1, 4), 1: (1, 2), 2: (32, 18), 6: (32, 22), 8: (32, 34), 13: (256, 176), 14: (256, 210), 20: (32, 18), 30: (1, 2)}


def _draw_packed(rng: Generator) -> ContribCase:
    kind = choose(rng, tuple(_PACKED))
    size, count = _PACKED[kind]
    blocks = int(rng.integers(1, 3)) * (32 // size if size == 1 else 1)
    rows = draw_integers(rng, np.uint8, 5, blocks, count)
    if size == 1:
        kinds = {0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16}
        rows = draw_floats(rng, 5, blocks, 1, dtype=kinds[kind]).view(np.uint8)
    else:
        # Where the scales of a block stand.
        for place in {13: (0, 2), 14: (208,)}.get(kind, (0,)):
            rows[..., place : place + 2] = draw_scale(rng, 5, blocks, 1).astype(np.float16).view(np.uint8)
    indices = np.asarray(rng.integers(-2, 8, choose(rng, ((), (3,), (2, 3)))), choose(rng, (np.int32, np.int64)))
    attributes = {"packed_type": kind, "K": blocks * size, "output_dtype": choose(rng, (1, 10))}
    return ContribCase("GatherPacked", (rows.reshape((5, -1)), indices), attributes)


def _draw_attributes(rng: Generator) -> dict[str, Any]:
    name = choose(rng, ("relu", "gelu", "silu", "identity", "swiglu"))
    attributes: dict[str, Any] = {
        "activation_type": name,
        "k": int(rng.integers(1, 4)),
        "normalize_routing_weights": int(flip(rng)),
    }
    if name == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.5, "activation_beta": 1.0}
        if flip(rng):
            attributes["swiglu_limit"] = 0.75
    return attributes


def _draw_experts(rng: Generator) -> ContribCase:
    attributes, experts, hidden, inner = _draw_attributes(rng), 5, 8, 12
    outer = inner * (2 if attributes["activation_type"] == "swiglu" else 1)
    lead = choose(rng, ((6,), (2, 3)))
    inputs = (
        draw_floats(rng, *lead, hidden),
        draw_floats(rng, 6, experts),
        draw_floats(rng, experts, outer, hidden),
        draw_floats(rng, experts, outer) if flip(rng) else None,
        draw_floats(rng, experts, hidden, inner),
        draw_floats(rng, experts, hidden) if flip(rng) else None,
    )
    return ContribCase("MoE", inputs, attributes)


def _draw_quantized_experts(rng: Generator) -> ContribCase:
    attributes, experts, hidden, inner = _draw_attributes(rng), 4, 32, 64
    bits = choose(rng, (4, 8))
    outer = inner * (2 if attributes["activation_type"] == "swiglu" else 1)
    size = choose(rng, (0, 16, 32)) if bits == 4 else 0
    attributes |= {"expert_weight_bits": bits, "weights_prepacked": 0} | ({"block_size": size} if size else {})
    lead = choose(rng, ((6,), (2, 3)))
    scales = [(experts, rows, depth // size) if size else (experts, rows) for rows, depth in ((outer, hidden), (hidden, inner))]
    inputs: tuple[Any, ...] = (
        draw_floats(rng, *lead, hidden),
        draw_floats(rng, 6, experts),
        draw_integers(rng, np.uint8, experts, outer, hidden * bits // 8),
        draw_scale(rng, *scales[0]),
        draw_floats(rng, experts, outer) if flip(rng) else None,
        draw_integers(rng, np.uint8, experts, hidden, inner * bits // 8),
        draw_scale(rng, *scales[1]),
        draw_floats(rng, experts, hidden) if flip(rng) else None,
    )
    if flip(rng):
        rows = [
            (experts, -(-rows * bits // 8)) if not size else (experts, rows, -(-(depth // size) * bits // 8))
            for rows, depth in ((outer, hidden), (hidden, inner))
        ]
        inputs = (*inputs, None, None, None, *(draw_integers(rng, np.uint8, *sizes) for sizes in rows))
        if flip(rng):
            inputs = (*inputs, None, np.asarray(rng.uniform(0.1, 1, (6, experts)), np.float32))
    return ContribCase("QMoE", inputs, attributes, tolerance=1e-2 if bits == 8 else 1e-3)


def _draw_router(rng: Generator) -> ContribCase:
    groups, dtype = choose(rng, (1, 2, 4)), choose(rng, (np.float32, np.float16))
    logits, bias = draw_floats(rng, *choose(rng, ((6,), (2, 3))), 8, dtype=dtype), draw_floats(rng, 8, scale=0.1)
    if rng.integers(3) == 0:
        return ContribCase("MoEGroupRouter", (logits, bias), {"top_k": 2}, (False, True, True))
    attributes = {
        "top_k": 2,
        "n_group": groups,
        "topk_group": int(rng.integers(1, groups + 1)),
        "group_topk": int(rng.integers(1, 3)),
    }
    return ContribCase("MoEGroupRouter", (logits, bias), attributes)


BLOCKS: Mapping[str, Draw] = {
    "MatMulNBits": _draw_n_bits,
    "MatMulBnb4": _draw_bnb4,
    "MatMulFpQ4": _draw_fp_q4,
    "GatherBlockQuantized": _draw_gather,
    "GatherPacked": _draw_packed,
    "MoE": _draw_experts,
    "QMoE": _draw_quantized_experts,
    "MoEGroupRouter": _draw_router,
}
