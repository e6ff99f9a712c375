"""Draws of cases: weights quantized in blocks, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator


def _draw_n_bits(rng: Generator) -> ContribCase:
    bits, size = rng.choose((2, 4, 8)), rng.choose((16, 32, 64))
    depth, columns = rng.integer(1, 130), rng.integer(1, 40)
    blocks = -(-depth // size)
    dtype = rng.choose((np.float32, np.float32, np.float16))
    lead = rng.choose(((1,), (3,), (2, 3)))
    zeros = rng.choose(
        (
            None,
            rng.numbers(np.uint8, columns, -(-blocks * bits // 8)),
            None if bits == 8 else rng.floats(columns, blocks, scale=4, dtype=dtype),
        ),
    )
    inputs = (
        rng.floats(*lead, depth, dtype=dtype),
        rng.numbers(np.uint8, columns, blocks, size * bits // 8),
        rng.scales(columns, blocks).astype(dtype),
        zeros,
        None,
        rng.floats(columns, dtype=dtype) if rng.flip() else None,
    )
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": size}
    return ContribCase("MatMulNBits", inputs, attributes, constants=rng.constants(1, 2, 3), tolerance=1e-3)


def _draw_bnb4(rng: Generator) -> ContribCase:
    size, depth, columns = rng.choose((16, 32, 64)), rng.integer(1, 70), rng.integer(1, 20)
    count = depth * columns
    inputs = (
        rng.floats(*rng.choose(((3,), (2, 3))), depth),
        rng.numbers(np.uint8, (count + 1) // 2),
        rng.scales(-(-count // size)),
    )
    return ContribCase(
        "MatMulBnb4", inputs, {"K": depth, "N": columns, "block_size": size, "quant_type": int(rng.flip())}, tolerance=1e-3
    )


def _draw_fp_q4(rng: Generator) -> ContribCase:
    kind, columns, size = rng.integer(2), rng.integer(1, 9), 32
    blocks = rng.integer(1, 4)
    depth = blocks * size
    cells = [rng.scales(columns, blocks, 1).view(np.uint8)]
    if kind == 1:
        cells.append(np.asarray(rng.integers(0, 16, (columns, blocks, 1)), np.uint8))
    blob = np.concatenate([*cells, rng.numbers(np.uint8, columns, blocks, size // 2)], axis=-1).reshape(-1)
    inputs = (rng.floats(3, depth), blob, np.asarray([depth, columns], np.int64))
    return ContribCase("MatMulFpQ4", inputs, {"blk_quant_type": kind}, constants=frozenset({1, 2}), tolerance=1e-3)


def _draw_gather(rng: Generator) -> ContribCase:
    indices = np.asarray(rng.integers(-6, 6, rng.choose(((), (3,), (2, 3)))), rng.choose((np.int32, np.int64)))
    target = rng.choose((np.float32, np.float16))
    if rng.flip():
        bits, size = rng.choose((4, 8)), rng.choose((16, 32))
        blocks = rng.integer(1, 4)
        x = rng.numbers(np.uint8, 6, blocks * size * bits // 8)
        zeros = rng.numbers(np.uint8, 6, -(-blocks * bits // 8)) if rng.flip() else None
        inputs = (x, indices, rng.scales(6, blocks).astype(target), zeros)
        attributes = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
        return ContribCase("GatherBlockQuantized", inputs, attributes, constants=frozenset({0, 2, 3}))
    dtype = rng.choose((ml_dtypes.int4, ml_dtypes.uint4))
    low = -8 if dtype is ml_dtypes.int4 else 0
    axis = rng.integer(3)
    shape, quantized = [6, 6, 6], rng.choose(tuple({0, 1, 2} - {axis}))
    shape[quantized] = 40
    scales = [*shape]
    scales[quantized] = 3
    x, zeros = (np.asarray(rng.integers(low, low + 16, sizes)).astype(dtype) for sizes in (shape, scales))
    inputs = (x, indices, rng.scales(*scales).astype(target), zeros if rng.flip() else None)
    attributes = {"block_size": 16, "gather_axis": axis, "quantize_axis": quantized}
    return ContribCase("GatherBlockQuantized", inputs, attributes, constants=frozenset({0, 2, 3}))


_PACKED = {0: (1, 4), 1: (1, 2), 2: (32, 18), 6: (32, 22), 8: (32, 34), 13: (256, 176), 14: (256, 210), 20: (32, 18), 30: (1, 2)}


def _draw_packed(rng: Generator) -> ContribCase:
    kind = rng.choose(tuple(_PACKED))
    size, count = _PACKED[kind]
    blocks = rng.integer(1, 3) * (32 // size if size == 1 else 1)
    rows = rng.numbers(np.uint8, 5, blocks, count)
    if size == 1:
        kinds = {0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16}
        rows = rng.floats(5, blocks, 1, dtype=kinds[kind]).view(np.uint8)
    else:
        # The positions of the scales in a block.
        for place in {13: (0, 2), 14: (208,)}.get(kind, (0,)):
            rows[..., place : place + 2] = rng.scales(5, blocks, 1).astype(np.float16).view(np.uint8)
    indices = np.asarray(rng.integers(-2, 8, rng.choose(((), (3,), (2, 3)))), rng.choose((np.int32, np.int64)))
    attributes = {"packed_type": kind, "K": blocks * size, "output_dtype": rng.choose((1, 10))}
    return ContribCase("GatherPacked", (rows.reshape((5, -1)), indices), attributes)


def _draw_attributes(rng: Generator) -> dict[str, Any]:
    name = rng.choose(("relu", "gelu", "silu", "identity", "swiglu"))
    attributes: dict[str, Any] = {
        "activation_type": name,
        "k": rng.integer(1, 4),
        "normalize_routing_weights": int(rng.flip()),
    }
    if name == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.5, "activation_beta": 1.0}
        if rng.flip():
            attributes["swiglu_limit"] = 0.75
    return attributes


def _draw_experts(rng: Generator) -> ContribCase:
    attributes, experts, hidden, inner = _draw_attributes(rng), 5, 8, 12
    outer = inner * (2 if attributes["activation_type"] == "swiglu" else 1)
    lead = rng.choose(((6,), (2, 3)))
    inputs = (
        rng.floats(*lead, hidden),
        rng.floats(6, experts),
        rng.floats(experts, outer, hidden),
        rng.floats(experts, outer) if rng.flip() else None,
        rng.floats(experts, hidden, inner),
        rng.floats(experts, hidden) if rng.flip() else None,
    )
    return ContribCase("MoE", inputs, attributes)


def _draw_quantized_experts(rng: Generator) -> ContribCase:
    attributes, experts, hidden, inner = _draw_attributes(rng), 4, 32, 64
    bits = rng.choose((4, 8))
    outer = inner * (2 if attributes["activation_type"] == "swiglu" else 1)
    size = rng.choose((0, 16, 32)) if bits == 4 else 0
    attributes |= {"expert_weight_bits": bits, "weights_prepacked": 0} | ({"block_size": size} if size else {})
    lead = rng.choose(((6,), (2, 3)))
    scales = [(experts, rows, depth // size) if size else (experts, rows) for rows, depth in ((outer, hidden), (hidden, inner))]
    inputs: tuple[Any, ...] = (
        rng.floats(*lead, hidden),
        rng.floats(6, experts),
        rng.numbers(np.uint8, experts, outer, hidden * bits // 8),
        rng.scales(*scales[0]),
        rng.floats(experts, outer) if rng.flip() else None,
        rng.numbers(np.uint8, experts, hidden, inner * bits // 8),
        rng.scales(*scales[1]),
        rng.floats(experts, hidden) if rng.flip() else None,
    )
    if rng.flip():
        rows = [
            (experts, -(-rows * bits // 8)) if not size else (experts, rows, -(-(depth // size) * bits // 8))
            for rows, depth in ((outer, hidden), (hidden, inner))
        ]
        inputs = (*inputs, None, None, None, *(rng.numbers(np.uint8, *sizes) for sizes in rows))
        if rng.flip():
            inputs = (*inputs, None, np.asarray(rng.uniform(0.1, 1, (6, experts)), np.float32))
    return ContribCase("QMoE", inputs, attributes, tolerance=1e-2 if bits == 8 else 1e-3)


def _draw_router(rng: Generator) -> ContribCase:
    groups, dtype = rng.choose((1, 2, 4)), rng.choose((np.float32, np.float16))
    logits, bias = rng.floats(*rng.choose(((6,), (2, 3))), 8, dtype=dtype), rng.floats(8, scale=0.1)
    if rng.integers(3) == 0:
        return ContribCase("MoEGroupRouter", (logits, bias), {"top_k": 2}, (False, True, True))
    attributes = {
        "top_k": 2,
        "n_group": groups,
        "topk_group": rng.integer(1, groups + 1),
        "group_topk": rng.integer(1, 3),
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
