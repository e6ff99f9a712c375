"""Attention with a cache of keys and values that several heads share: ONNX Runtime's GroupQueryAttention and SparseAttention.

How long each row's cache is stands in values, so they are read on the host. Scores, their softmax and the sums are float32.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from hetero_core.kernels.operators.contrib_attention import join_heads, split_heads
from hetero_core.kernels.operators.contrib_rotary import rotate
from hetero_core.kernels.precision import Array, Namespace, integers_of, narrow, widen
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import HALF, INT32, INT64, microsoft_kernel

_UNQUANTIZED = {"k_quant_type": ("NONE",), "v_quant_type": ("NONE",), "kv_cache_bit_width": (0, 8, 4)}


def split_packed(
    xp: Namespace, query: Array, key: Array | None, value: Array | None, heads: int, groups: int
) -> tuple[Array, Array, Array]:
    """Returns query, key and value as (batch, heads, steps, size); without a key the query holds all three."""
    if key is not None and value is not None:
        return split_heads(xp, query, heads), split_heads(xp, key, groups), split_heads(xp, value, groups)
    split = split_heads(xp, query, heads + 2 * groups)
    return split[:, :heads], split[:, heads : heads + groups], split[:, heads + groups :]


def rotate_steps(
    xp: Namespace, x: Array, begins: tuple[int, ...], positions: Array | None, caches: tuple[Array, Array], *, is_interleaved: bool
) -> Array:
    """Returns x turned; the steps of row b stand at begins[b] and behind it, unless `positions` says where."""
    steps = xp.asarray(begins)[:, None] + xp.arange(x.shape[2])[None, :]
    places = xp.clip(steps if positions is None else positions, 0, caches[0].shape[0] - 1)
    cos, sin = (xp.take(cache, places, axis=0) for cache in caches)
    return rotate(xp, x, cos, sin, is_interleaved=is_interleaved)


def append(xp: Namespace, past: Array | None, fresh: Array, begins: tuple[int, ...], length: int) -> Array:
    """Returns a cache (batch, groups, length, size): each row's past up to where it begins, the fresh steps, then zeros."""
    batch, groups, steps, size = fresh.shape
    cache = xp.zeros((batch, groups, length, size), dtype=fresh.dtype)
    for row, begin in enumerate(begins):
        if past is not None and begin:
            cache[row, :, :begin] = past[row, :, :begin]
        end = min(begin + steps, length)
        cache[row, :, begin:end] = fresh[row, :, : end - begin]
    return cache


def softmax_within(xp: Namespace, scores: Array, allowed: Any, sink: Array | None) -> Array:
    """Returns the softmax over the allowed keys; a sink takes a share without a key. A query without keys attends to none."""
    if scores.size == 0:
        return scores
    open_scores = xp.where(allowed, scores, -np.inf)
    peak = xp.max(open_scores, axis=-1, keepdims=True)
    peak = xp.where(xp.isfinite(peak), peak, np.float32(0))
    peak = peak if sink is None else xp.maximum(peak, sink)
    terms = xp.where(allowed, xp.exp(xp.where(allowed, scores, peak) - peak), np.float32(0))
    total = xp.sum(terms, axis=-1, keepdims=True)
    total = total if sink is None else total + xp.exp(sink - peak)
    return terms / xp.where(total == 0, np.float32(1), total)


@microsoft_kernel(
    "GroupQueryAttention",
    dtypes=(*(HALF,) * 5, INT32, INT32, HALF, HALF, INT64, HALF, HALF),
    host=(5, 6),
    choices={
        **_UNQUANTIZED,
        "causal": (0, 1),
        "do_rotary": (0, 1),
        "rotary_interleaved": (0, 1),
        "qk_output": (0,),
        "sliding_window_cache": (0,),
        "smooth_softmax": (-1, 0, 1),
    },
    outputs=3,
    unread={"k_quant_type": "NONE", "kv_cache_bit_width": 0, "qk_output": 0, "sliding_window_cache": 0, "v_quant_type": "NONE"},
)
def group_query_attention(
    xp: Namespace,
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_sequence_length: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Returns the attention, and the caches of keys and values with the new steps behind each row's past.

    query: (batch, steps, heads * size), or with keys and values behind it; caches: (batch, groups, length, size); seqlens_k: for each
    row how many keys it has, less 1. Source: ONNX Runtime, com.microsoft.GroupQueryAttention-1.
    """
    q, k, v = split_packed(xp, query, key, value, num_heads, kv_num_heads)
    steps, total = q.shape[2], integers_of(total_sequence_length)[0]
    counts = tuple(count + 1 for count in integers_of(seqlens_k))
    # A first prompt may be padded on the right; later steps stand at the end of what counts.
    begins = tuple(0 if steps == total else count - steps for count in counts)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ValueError("do_rotary is 1 and there is no cos_cache or no sin_cache")
        caches = (cos_cache, sin_cache)
        turned = (rotate_steps(xp, x, begins, position_ids, caches, is_interleaved=bool(rotary_interleaved)) for x in (q, k))
        q, k = turned
    length = max(total, 0 if past_key is None else past_key.shape[2])
    present_key, present_value = append(xp, past_key, k, begins, length), append(xp, past_value, v, begins, length)
    allowed = _allow(xp, begins, counts, steps, total, causal=bool(causal), window=local_window_size)
    sink: Array = None
    if head_sink is not None:
        sink = widen(head_sink).reshape((1, -1, 1, 1))
    elif smooth_softmax == 1:
        sink = xp.zeros((1, 1, 1, 1), dtype=np.float32)
    scores = _score(xp, q, present_key[:, :, :total], scale=scale)
    scores = np.float32(softcap) * xp.tanh(scores / np.float32(softcap)) if softcap else scores
    scores = scores if attention_bias is None else scores + widen(attention_bias)[..., :total]
    weights = softmax_within(xp, scores, allowed, sink)
    return _gather_values(xp, weights, present_value[:, :, :total], query.dtype), present_key, present_value


def _allow(
    xp: Namespace, begins: tuple[int, ...], counts: tuple[int, ...], steps: int, total: int, *, causal: bool, window: int
) -> Array:
    """Returns which keys each query sees, (batch, 1, steps, keys)."""
    keys = xp.arange(total)[None, None, :]
    ends = (xp.asarray(begins)[:, None] + xp.arange(steps)[None, :] + 1)[:, :, None]
    allowed = keys < xp.asarray(counts)[:, None, None]
    if causal:
        allowed = allowed & (keys < ends)
    if window >= 0:
        allowed = allowed & (keys >= ends - window)
    return xp.broadcast_to(allowed, (len(begins), steps, total))[:, None]


def _score(xp: Namespace, q: Array, keys: Array, *, scale: float) -> Array:
    """Returns scale * q k^T in float32, each group of keys serving several heads."""
    repeats = q.shape[1] // keys.shape[1]
    wide = xp.repeat(widen(keys), repeats, axis=1)
    return multiply(xp, widen(q), xp.swapaxes(wide, 2, 3)) * np.float32(scale or 1 / sqrt(q.shape[3]))


def _gather_values(xp: Namespace, weights: Array, values: Array, dtype: Any) -> Array:
    repeats = weights.shape[1] // values.shape[1]
    return narrow(join_heads(xp, multiply(xp, weights, xp.repeat(widen(values), repeats, axis=1))), dtype)


@microsoft_kernel(
    "SparseAttention",
    dtypes=(*(HALF,) * 5, *(INT32,) * 4, HALF, HALF),
    host=(5, 6, 7, 8),
    choices={"do_rotary": (0, 1), "rotary_interleaved": (0, 1), "sparse_block_size": (16, 32, 64, 128)},
    outputs=3,
)
def sparse_attention(
    xp: Namespace,
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array,
    past_value: Array,
    block_row_indices: Array,
    block_col_indices: Array,
    total_sequence_length: Array,
    key_total_sequence_lengths: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sparse_block_size: int,
) -> tuple[Array, Array, Array]:
    """Returns causal attention to the blocks of keys that each head's layout lists, and the caches with the new steps in them.

    Source: ONNX Runtime, com.microsoft.SparseAttention-1.
    """
    q, k, v = split_packed(xp, query, key, value, num_heads, kv_num_heads)
    steps, total = q.shape[2], integers_of(total_sequence_length)[0]
    counts = integers_of(key_total_sequence_lengths)
    begins = tuple(0 if steps == total else count - steps for count in counts)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        caches = (cos_cache, sin_cache)
        q, k = (rotate_steps(xp, x, begins, None, caches, is_interleaved=bool(rotary_interleaved)) for x in (q, k))
    length = past_key.shape[2]
    present_key, present_value = append(xp, past_key, k, begins, length), append(xp, past_value, v, begins, length)
    for row, (begin, past, fresh) in enumerate((begin, past_key, present_key) for begin in begins):
        fresh[row, :, begin + steps :] = past[row, :, begin + steps :]
        present_value[row, :, begin + steps :] = past_value[row, :, begin + steps :]
    allowed = _allow(xp, begins, counts, steps, total, causal=True, window=-1)
    listed = _list_blocks(np.asarray(block_row_indices), np.asarray(block_col_indices), sparse_block_size, total)
    layouts = np.stack([[listed[head % len(listed), begin : begin + steps] for head in range(num_heads)] for begin in begins])
    scores = _score(xp, q, present_key[:, :, :total], scale=scale)
    weights = softmax_within(xp, scores, allowed & xp.asarray(layouts), None)
    return _gather_values(xp, weights, present_value[:, :, :total], query.dtype), present_key, present_value


def _list_blocks(rows: Any, columns: Any, size: int, total: int) -> Any:
    """Returns (layouts, total, total): which keys stand in a block that the query's block lists."""
    blocks = rows.shape[1] - 1
    listed = np.zeros((rows.shape[0], blocks, blocks), bool)
    for layout in range(rows.shape[0]):
        for block in range(blocks):
            listed[layout, block, columns[layout, rows[layout, block] : rows[layout, block + 1]]] = True
    return np.repeat(np.repeat(listed, size, axis=1), size, axis=2)[:, :total, :total]
