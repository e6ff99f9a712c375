"""Draws of cases: attention, its caches and masks, and rotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_core.testing.contrib.case import ContribCase, Draw
from hetero_core.testing.contrib.drawing import Generator

_MASKED = 4e-3
"""In a row with all keys masked, 10,000 is subtracted from each score, which leaves a resolution of about a thousandth."""


def _draw_mask(rng: Generator, batch: int, queries: int, keys: int) -> Any:
    """Returns None, or a mask in a form that ONNX Runtime's CPU kernels take."""
    kind = rng.integer(5)
    if kind == 0:
        return None
    if kind == 1:
        return np.asarray(rng.integers(1, keys + 1, batch), np.int32)
    if kind == 2:
        ends = rng.integers(1, keys + 1, batch)
        return np.concatenate([ends, rng.integers(0, ends)]).astype(np.int32)
    mask = np.asarray(rng.integers(0, 2, (batch, keys) if kind == 3 else (batch, queries, keys)), np.int32)
    mask[..., 0] = 1
    return mask


def _draw_bias(rng: Generator, batch: int, heads: int, queries: int, keys: int, *, dtype: Any = np.float32) -> Any:
    """Returns the bias of the attention scores, either separate for each batch and head or shared."""
    return rng.floats(rng.choose((1, batch)), rng.choose((1, heads)), queries, keys, dtype=dtype)


def _draw_attention(rng: Generator) -> ContribCase:
    batch, steps, heads, size, width = (int(value) for value in rng.integers((1, 1, 1, 2, 4), (4, 7, 4, 6, 12)))
    before = rng.integer(0, 5) if rng.flip() else 0
    own = not before and rng.flip()
    v_size = size + 2 if own else size
    columns = heads * (2 * size + v_size)
    keys = before + steps
    bias = _draw_bias(rng, batch, heads, steps, keys) if rng.integers(3) == 0 and not before else None
    inputs = (
        rng.floats(batch, steps, width),
        rng.floats(width, columns),
        rng.floats(columns) if rng.flip() else None,
        _draw_mask(rng, batch, steps, keys),
        rng.floats(2, batch, heads, before, size) if before else None,
        bias,
    )
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": int(rng.flip())}
    if own:
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * v_size]
    if rng.flip():
        attributes |= {"scale": 0.25, "mask_filter_value": -5000.0}
    asks = bool(before) or (not own and rng.flip())
    return ContribCase("Attention", inputs, attributes, (True, True) if asks else (True,), tolerance=_MASKED)


def _draw_quantized(rng: Generator) -> ContribCase:
    batch, steps, heads, size, width = (int(value) for value in rng.integers((1, 1, 1, 2, 4), (4, 7, 4, 6, 12)))
    before = rng.integer(1, 5) if rng.flip() else 0
    columns, dtype = 3 * heads * size, rng.choose((np.int8, np.uint8))
    sizes = (columns,) if rng.flip() else ()
    inputs = (
        rng.numbers(np.uint8, batch, steps, width),
        rng.numbers(dtype, width, columns),
        rng.floats(columns),
        np.asarray(rng.scales() / 8),
        rng.scales(*sizes),
        _draw_mask(rng, batch, steps, before + steps),
        rng.numbers(np.uint8) if rng.flip() else None,
        rng.numbers(dtype, *sizes) if rng.flip() else None,
        rng.floats(2, batch, heads, before, size) if before else None,
    )
    attributes = {"num_heads": heads, "unidirectional": int(rng.flip())}
    return ContribCase("QAttention", inputs, attributes, (True, True) if before else (True,), tolerance=_MASKED)


def _draw_heads(rng: Generator) -> ContribCase:
    batch, steps, others, heads, size = (int(value) for value in rng.integers((1, 1, 1, 1, 2), (4, 7, 7, 4, 6)))
    kind = rng.choose(("self", "cross", "cached", "encoder"))
    others = steps if kind in ("self", "cached") else others
    before = rng.integer(1, 5) if kind == "cached" else 0
    v_size = size + 2 if kind in ("self", "cross") and rng.flip() else size
    keys = before + others
    if kind == "encoder":
        key, value = rng.floats(batch, heads, others, size), rng.floats(batch, heads, others, size)
    else:
        key, value = rng.floats(batch, others, heads * size), rng.floats(batch, others, heads * v_size)
    past = (None, None)
    if before:
        past = (rng.floats(batch, heads, before, size), rng.floats(batch, heads, before, size))
    bias = rng.floats(heads * (2 * size + v_size)) if rng.flip() and kind != "encoder" else None
    mask = rng.choose(
        (None, np.asarray(rng.integers(0, 2, (batch, keys)), np.int32), np.asarray(rng.integers(1, keys + 1, batch), np.int32))
    )
    mask = None if mask is not None and mask.ndim == 1 and before else mask
    added = _draw_bias(rng, batch, heads, steps, keys) if rng.integers(3) == 0 else None
    inputs = (rng.floats(batch, steps, heads * size), key, value, bias, mask, added, *past)
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": int(kind in ("self", "cached") and rng.flip())}
    if rng.flip():
        attributes |= {"scale": 0.25, "mask_filter_value": -5000.0}
    return ContribCase("MultiHeadAttention", inputs, attributes, (True, True, True) if before else (True,), tolerance=_MASKED)


def _draw_decoder(rng: Generator) -> ContribCase:
    batch, others, heads, size = (int(value) for value in rng.integers((1, 1, 1, 2), (4, 7, 4, 6)))
    query = rng.floats(batch, 1, heads * size)
    attributes: dict[str, Any] = {"num_heads": heads} | ({"scale": 0.25} if rng.flip() else {})
    key, value = (rng.floats(batch, heads, others, size) for _ in range(2))
    mask = np.asarray(rng.integers(0, 2, (batch, others)), np.int32) if rng.flip() else None
    bias = rng.floats(3 * heads * size) if rng.flip() else None
    return ContribCase("DecoderMaskedMultiHeadAttention", (query, key, value, mask, *(None,) * 6, bias), attributes)


def _draw_caches(rng: Generator, length: int, half: int, dtype: Any) -> tuple[Any, Any]:
    angles = rng.uniform(-3, 3, (length, half))
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def _draw_groups(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.float32, np.float32, np.float16))
    batch, groups, repeats, size = rng.integer(1, 4), rng.integer(1, 3), rng.integer(1, 4), rng.choose((16, 32))
    heads, is_prompt = groups * repeats, rng.flip()
    if is_prompt:
        steps = total = rng.integer(2, 8)
        counts = np.full(batch, total)
        past: tuple[Any, Any] = (None, None)
    else:
        before, room = rng.integer(1, 8), rng.choose((0, 0, 5))
        steps = 1 if batch > 1 else rng.integer(1, 4)
        total = before + steps
        counts = rng.integers(steps + 1, total + 1, batch) if steps == 1 else np.full(batch, total)
        counts[0] = total
        past = tuple(rng.floats(batch, groups, before + room, size, dtype=dtype) for _ in range(2))
    does_rotate = rng.flip()
    caches = _draw_caches(rng, 16, size // 2, dtype) if does_rotate else (None, None)
    if rng.integers(3) == 0:
        query, key, value = rng.floats(batch, steps, (heads + 2 * groups) * size, dtype=dtype), None, None
    else:
        query = rng.floats(batch, steps, heads * size, dtype=dtype)
        key, value = (rng.floats(batch, steps, groups * size, dtype=dtype) for _ in range(2))
    added = _draw_bias(rng, batch, heads, steps, total, dtype=dtype) if rng.integers(4) == 0 else None
    sink = rng.floats(heads, dtype=dtype) if rng.integers(4) == 0 else None
    positions = (
        np.asarray(counts[:, None] - steps + np.arange(steps)[None], np.int64) if does_rotate and rng.integers(4) == 0 else None
    )
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    if does_rotate:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.flip())}
    if rng.integers(3) == 0:
        attributes["local_window_size"] = rng.integer(1, 6)
    if rng.integers(3) == 0:
        attributes["softcap"] = 5.0
    if rng.integers(3) == 0:
        attributes["scale"] = 0.25
    if sink is None and rng.integers(4) == 0:
        attributes["smooth_softmax"] = 1
    inputs = (
        query,
        key,
        value,
        *past,
        np.asarray(counts - 1, np.int32),
        np.asarray(total, np.int32),
        *caches,
        positions,
        added,
        sink,
    )
    return ContribCase("GroupQueryAttention", inputs, attributes, (True, True, True))


def _draw_sparse(rng: Generator) -> ContribCase:
    batch, groups, repeats, size, block = rng.integer(1, 3), rng.integer(1, 3), rng.integer(1, 3), 16, 16
    heads, blocks, length = groups * repeats, 3, 48
    is_prompt = rng.flip()
    steps = rng.integer(2, 40) if is_prompt else 1
    total = steps if is_prompt else rng.integer(2, 48)
    layouts = 1 if heads % 2 else rng.choose((1, 2))
    masks = [np.tril(rng.integers(0, 2, (blocks, blocks))) | np.eye(blocks, dtype=np.int64) for _ in range(layouts)]
    rows = np.stack([np.concatenate([[0], np.cumsum(mask.sum(axis=1))]) for mask in masks]).astype(np.int32)
    columns = np.full((layouts, int(rows.max())), -1, np.int32)
    for index, mask in enumerate(masks):
        places = np.nonzero(mask)[1]
        columns[index, : len(places)] = places
    query = rng.floats(batch, steps, heads * size)
    key, value = (rng.floats(batch, steps, groups * size) for _ in range(2))
    past = [rng.floats(batch, groups, length, size) for _ in range(2)]
    does_rotate = rng.flip()
    caches = _draw_caches(rng, 64, size // 2, np.float32) if does_rotate else ()
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups, "sparse_block_size": block}
    if does_rotate:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.flip())}
    inputs = (query, key, value, *past, rows, columns, np.asarray(total, np.int32), np.full(batch, total, np.int32), *caches)
    return ContribCase("SparseAttention", inputs, attributes, (True, True, True), aliases=((1, 3), (2, 4)))


def _draw_rotary(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.float32, np.float16))
    batch, steps, heads, size = rng.integer(1, 4), rng.integer(1, 6), rng.integer(1, 4), 8
    is_part = rng.flip()
    turned = 4 if is_part else size
    positions = rng.choose(
        (np.asarray(rng.integers(0, 20 - steps, 1), np.int64), np.asarray(rng.integers(0, 20, (batch, steps)), np.int64))
    )
    x = rng.floats(*rng.choose(((batch, steps, heads * size), (batch, heads, steps, size))), dtype=dtype)
    attributes: dict[str, Any] = {"interleaved": int(rng.flip())}
    if is_part:
        attributes |= {"rotary_embedding_dim": turned, "num_heads": heads}
    return ContribCase("RotaryEmbedding", (x, positions, *_draw_caches(rng, 20, turned // 2, dtype)), attributes)


def _draw_multimodal(rng: Generator) -> ContribCase:
    dtype = rng.choose((np.float32, np.float16))
    batch, steps, heads, size = rng.integer(1, 4), rng.integer(1, 6), rng.integer(1, 4), 16
    is_part = rng.flip()
    turned = 12 if is_part else size
    half, layout = turned // 2, int(rng.flip())
    sections = (
        [half - 2 * (half // 3), half // 3, half // 3] if layout else rng.choose(([half - 3, 2, 1], [half, 0, 0], [1, 2, half - 3]))
    )
    x = rng.floats(*rng.choose(((batch, steps, heads * size), (batch, heads, steps, size))), dtype=dtype)
    attributes: dict[str, Any] = {
        "interleaved": int(rng.flip()),
        "mrope_layout": layout,
        "mrope_section": sections,
        "num_heads": heads,
    }
    if is_part:
        attributes |= {"rotary_embedding_dim": turned}
    positions = np.asarray(rng.integers(0, 20, (3, batch, steps)), np.int64)
    return ContribCase("MRotaryEmbedding", (x, positions, *_draw_caches(rng, 20, half, dtype)), attributes)


ATTENTION: Mapping[str, Draw] = {
    "Attention": _draw_attention,
    "QAttention": _draw_quantized,
    "MultiHeadAttention": _draw_heads,
    "DecoderMaskedMultiHeadAttention": _draw_decoder,
    "GroupQueryAttention": _draw_groups,
    "SparseAttention": _draw_sparse,
    "RotaryEmbedding": _draw_rotary,
    "MRotaryEmbedding": _draw_multimodal,
}
