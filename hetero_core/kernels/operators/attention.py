"""Attention of ONNX and of ONNX Runtime: rotations, masks, grouped heads, caches, linear recurrences and causal convolutions.

ONNX's Attention rounds at each value of its function body; ONNX Runtime's operators compute scores in float32.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod, sqrt
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.arrays import assign, bring, lay_out
from hetero_core.kernels.operators.elementwise import sigmoid_of, softplus_of
from hetero_core.kernels.operators.linear import mat_mul
from hetero_core.kernels.operators.quantization import mat_mul_integer_to_float
from hetero_core.kernels.operators.reductions import softmax_of
from hetero_core.kernels.precision import Array, Integers, Namespace, integers_of, multiply, narrow, widen
from hetero_core.kernels.registry import BYTES, FLOAT32, FLOATS, HALF, INT32, INT64, NUMBERS, SMALL_FLOATS, kernel, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType

_CHOICES = {"interleaved": (0, 1), "is_packed_batching": (0,), "scale": (1.0,)}
_ROTARY: dict[str, Any] = {
    "dtypes": (HALF, INT64, HALF, HALF),
    "shared": {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0},
    "unread": {"is_packed_batching": 0, "scale": 1.0},
}


def rotate(xp: Namespace, x: Array, cos: Array, sin: Array, *, is_interleaved: bool) -> Array:
    """Returns x (batch, heads, steps, size) with its first elements turned in pairs.

    cos, sin: (batch or 1, steps, half of the turned elements).
    """
    half = cos.shape[-1]
    turned, rest = widen(x[..., : 2 * half]), x[..., 2 * half :]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if is_interleaved else (turned[..., :half], turned[..., half:])
    cosine, sine = widen(cos)[:, None], widen(sin)[:, None]
    parts = [first * cosine - second * sine, second * cosine + first * sine]
    joined = xp.stack(parts, axis=-1).reshape(turned.shape) if is_interleaved else xp.concatenate(parts, axis=-1)
    return xp.concatenate([narrow(joined, x.dtype), rest], axis=-1)


def _rotate_layout(
    xp: Namespace, x: Array, cos: Array, sin: Array, *, interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0
) -> Array:
    """Returns x rotated, of rank 3 (batch, steps, heads * size) or 4 (batch, heads, steps, size)."""
    if rotary_embedding_dim and not num_heads:
        raise ValueError("rotary_embedding_dim is given without num_heads")
    if x.ndim == 4:
        return rotate(xp, x, cos, sin, is_interleaved=bool(interleaved))
    split = split_heads(xp, x, num_heads if rotary_embedding_dim else x.shape[2] // (2 * cos.shape[-1]))
    return join_heads(xp, rotate(xp, split, cos, sin, is_interleaved=bool(interleaved)))


@microsoft_kernel("RotaryEmbedding", choices=_CHOICES, **_ROTARY)
def microsoft_rotary_embedding(xp: Namespace, x: Array, ids: Array, cos_cache: Array, sin_cache: Array, **layout: int) -> Array:
    """Returns x with each head's pairs turned by the angles of their positions.

    ids: (batch, steps), or (1,), the first position.
    """
    steps = x.shape[1] if x.ndim == 3 else x.shape[2]
    places = ids if ids.ndim == 2 else (ids.reshape(()) + xp.arange(steps))[None]
    cos, sin = (xp.take(cache, places, axis=0) for cache in (cos_cache, sin_cache))
    return _rotate_layout(xp, x, cos, sin, **layout)


@microsoft_kernel("MRotaryEmbedding", choices={**_CHOICES, "mrope_layout": (0, 1)}, **_ROTARY)
def multimodal_rotary_embedding(
    xp: Namespace,
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    mrope_layout: int = 0,
    mrope_section: Integers,
    **layout: int,
) -> Array:
    """Returns x turned by angles of three positions: time, height and width each have sections of the pairs.

    position_ids: (3, batch, steps).
    """
    half = cos_cache.shape[1]
    streams = np.zeros(half, np.int64)
    if mrope_layout:
        for stream in (1, 2):
            streams[stream : mrope_section[stream] * 3 : 3] = stream
    else:
        streams = np.repeat(np.arange(3), mrope_section)[:half]
    places = xp.moveaxis(xp.take(position_ids, xp.asarray(streams), axis=0), 0, -1)
    cos, sin = (cache[places, xp.arange(half)] for cache in (cos_cache, sin_cache))
    return _rotate_layout(xp, x, cos, sin, **layout)


_QKV = (FLOATS, FLOATS, FLOATS, NUMBERS | {"bool"}, FLOATS, FLOATS, INT64)
_OPTIONS = {"is_causal": (0, 1), "qk_matmul_output_mode": (0, 1, 2, 3), "softmax_precision": (1, 10, 11, 16)}


def _count_scores(
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    *_: Any,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    **__: Any,
) -> int:
    """Returns the bytes of the products of queries and keys, and of the output."""
    heads = q.shape[1] if q_num_heads is None else q_num_heads
    size = v.shape[3] if v.ndim == 4 else v.shape[2] // (kv_num_heads or 1)
    keys = k.shape[-2] + (0 if past_key is None else past_key.shape[2])
    return prod((q.shape[0], heads, q.shape[-2], keys + size)) * int(q.itemsize)


_attention_kernel = partial(kernel, "Attention", dtypes=_QKV, host=(6,), choices=_OPTIONS, outputs=4, count_bytes=_count_scores)


@_attention_kernel(since=(25,))
@_attention_kernel(since=(23, 24), without=("left_window_size", "right_window_size"))
def attention(
    xp: Namespace,
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Returns softmax(scale q k^T + bias) v, the key and value caches, and the products or probabilities.

    q: (batch, heads, queries, size) or (batch, queries, heads * size); k and v likewise, with as many heads or a divisor of them.
    """
    is_packed = q.ndim == 3
    if is_packed:
        if q_num_heads is None or kv_num_heads is None:
            raise ValueError("q_num_heads and kv_num_heads are needed for inputs of rank 3")
        q, k, v = split_packed(xp, q, k, v, q_num_heads, kv_num_heads)
    present_key = k if past_key is None else xp.concatenate([past_key, k], axis=2)
    present_value = v if past_value is None else xp.concatenate([past_value, v], axis=2)
    queries, keys = q.shape[2], present_key.shape[2]
    valid = integers_of(nonpad_kv_seqlen)
    # A query stands behind the past keys, or at the end of its valid keys if they are counted.
    offsets = tuple(count - queries for count in valid) or (0 if past_key is None else past_key.shape[2],)
    allowed = allow_positions(
        queries, keys, offsets, valid, is_causal=bool(is_causal), windows=(left_window_size, right_window_size)
    )
    bias = _bias(xp, attn_mask, allowed, keys, q.dtype)
    repeats = q.shape[1] // present_key.shape[1]
    root = q.dtype.type(sqrt(1 / sqrt(q.shape[3]) if scale is None else scale))
    products = mat_mul(xp, q * root, xp.swapaxes(_repeat_heads(xp, present_key, repeats) * root, 2, 3))
    capped = narrow(softcap * xp.tanh(widen(products) / softcap), q.dtype) if softcap else products
    biased = narrow(widen(capped) + widen(bias), q.dtype)
    weights = _attend(xp, biased, bias, softmax_precision)
    y = mat_mul(xp, weights, _repeat_heads(xp, present_value, repeats))
    if is_packed:
        y = join_heads(xp, y)
    return y, present_key, present_value, (products, capped, biased, weights)[qk_matmul_output_mode]


def _repeat_heads(xp: Namespace, x: Array, repeats: int) -> Array:
    return x if repeats == 1 else xp.repeat(x, repeats, axis=1)


def allow_positions(
    queries: int, keys: int, offsets: Integers, valid: Integers, *, is_causal: bool, windows: tuple[int, int]
) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Returns which key each query may see, (1 or batch, 1, queries, keys); None when it is all.

    The first query stands behind `offsets` keys, one number for each row or for all; `valid` counts the keys of each row.
    """
    left, right = windows
    if not valid and not is_causal and left < 0 and right < 0:
        return None
    positions = np.arange(queries)[None, :, None] + np.asarray(offsets)[:, None, None]
    columns = np.arange(keys)[None, None, :]
    allowed = np.ones((len(offsets), queries, keys), dtype=bool)
    if is_causal:
        allowed &= columns <= positions
    if left >= 0:
        allowed &= columns >= positions - left
    if right >= 0:
        allowed &= columns <= positions + right
    if valid:
        allowed &= columns < np.asarray(valid)[:, None, None]
    return allowed[:, None]


def _bias(xp: Namespace, mask: Array | None, allowed: Any, keys: int, dtype: Any) -> Array:
    """Returns the summand of the products: the mask, 0 or minus infinity, in the type of the products."""
    zero, never = (xp.full((), value, dtype=dtype) for value in (0.0, -np.inf))
    bias = xp.zeros((1, 1, 1, keys), dtype=dtype)
    if mask is not None:
        # A mask of numbers is added in the type of the products, as the operator's function body casts it.
        mask = mask if mask.dtype.kind == "b" else narrow(mask, dtype)
        missing = keys - mask.shape[-1]
        if missing > 0:
            filler = xp.full((*mask.shape[:-1], missing), False if mask.dtype.kind == "b" else -np.inf, dtype=mask.dtype)
            mask = xp.concatenate([mask, filler], axis=-1)
        bias = xp.where(mask, zero, never) if mask.dtype.kind == "b" else mask
    if allowed is not None:
        bias = xp.where(bring(xp, allowed, bool), bias, never)
    return bias


def _attend(xp: Namespace, biased: Array, bias: Array, softmax_precision: int | None) -> Array:
    """Returns the softmax over the keys; a query that may see none attends to nothing."""
    precise = numpy_dtype(dtype_of_onnx(softmax_precision or 0) or "float32")
    wide = widen(biased if softmax_precision is None else narrow(biased, precise))
    return narrow(softmax_within(xp, wide, widen(bias) != -np.inf, None), biased.dtype)


@kernel("RotaryEmbedding", since=(23,), dtypes=(FLOATS, FLOATS, FLOATS, INT64), choices={"interleaved": (0, 1)})
def rotary_embedding(
    xp: Namespace,
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Returns x with pairs of elements of each head rotated by their position's angle."""
    cos, sin = (cache if position_ids is None else xp.take(cache, position_ids, axis=0) for cache in (cos_cache, sin_cache))
    return _rotate_layout(xp, x, cos, sin, interleaved=interleaved, num_heads=num_heads or 1, rotary_embedding_dim=1)


@kernel("SwiGLU", since=(28,), dtypes=FLOATS)
def swiglu(xp: Namespace, a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """Returns a * sigmoid(alpha * a) * b."""
    wide = widen(a)
    return narrow(wide * sigmoid_of(xp, alpha * wide) * widen(b), a.dtype)


@kernel(
    "FlexAttention",
    domain="ai.onnx.preview",
    since=(1,),
    dtypes=FLOATS,
    choices={"softmax_precision": (1, 10, 11, 16)},
    bodies=("score_mod", "prob_mod"),
)
def flex_attention(
    xp: Namespace,
    q: Array,
    k: Array,
    v: Array,
    *,
    prob_mod: Any = None,
    scale: float | None = None,
    score_mod: Any = None,
    softmax_precision: int | None = None,
) -> Array:
    """Returns prob_mod(softmax(score_mod(scale q k^T))) v; a head of k and v serves a group of heads of q.

    q: (batch, heads, queries, size). The bodies (`execution.BoundBody`) get and give softmax_precision, which is float32 or the wider
    type of q.
    """
    k, v = (_repeat_heads(xp, x, q.shape[1] // k.shape[1]) for x in (k, v))
    precise = widen(q).dtype if softmax_precision is None else numpy_dtype(dtype_of_onnx(softmax_precision) or "float32")
    root = q.dtype.type(sqrt(1 / sqrt(q.shape[3]) if scale is None else scale))
    scores = narrow(multiply(xp, widen(q * root), widen(xp.swapaxes(k * root, 2, 3))), precise)
    if score_mod is not None:
        (scores,) = score_mod(scores)
    weights = narrow(softmax_of(xp, widen(scores), -1), precise)
    if prob_mod is not None:
        (weights,) = prob_mod(weights)
    return narrow(multiply(xp, widen(weights), narrow(v, precise) if precise.itemsize >= 4 else widen(v)), v.dtype)


_LOWEST = np.float32(np.finfo(np.float32).min)
_MASKED = {"mask_filter_value": -10000.0, "scale": 0.0, "unidirectional": 0}
"""The attributes of ONNX Runtime's older attentions, with their defaults."""


def split_heads(xp: Namespace, x: Array, heads: int) -> Array:
    """Returns (batch, steps, heads * size) as (batch, heads, steps, size)."""
    return xp.swapaxes(x.reshape((*x.shape[:2], heads, x.shape[2] // heads)), 1, 2)


def join_heads(xp: Namespace, x: Array) -> Array:
    """Returns (batch, heads, steps, size) as (batch, steps, heads * size)."""
    batch, heads, steps, size = x.shape
    return xp.swapaxes(x, 1, 2).reshape((batch, steps, heads * size))


def _add_filter(xp: Namespace, mask: Array, batch: int, keys: int, low: Any) -> Array:
    """Returns the mask term of the scores, (batch or 1, 1, queries or 1, keys).

    mask: how many keys of each row count (batch,); ends, then begins (2 batch,); 1 and 0 for each key, (batch, keys) or
    (batch, queries, keys). Source: ONNX Runtime, com.microsoft.Attention-1, mask_index.
    """
    zero = np.float32(0)
    if mask.ndim == 3:
        return xp.where(mask > 0, zero, low)[:, None]
    if mask.ndim == 2:
        return xp.where(mask > 0, zero, low)[:, None, None, :]
    places = xp.arange(keys)[None, :]
    added = xp.where(places >= mask[:batch, None], low, zero)
    if mask.shape[0] == 2 * batch:
        added = xp.where(places < mask[batch:, None], low, added)
    return added[:, None, None, :]


def attend(
    xp: Namespace,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    bias: Array | None,
    *,
    past: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Array, Array]:
    """Returns softmax(scores) v and the scores; all of (batch, heads, steps, size). `mask` is that of `_add_filter`."""
    queries, keys = q.shape[2], k.shape[2]
    added = None if mask is None else _add_filter(xp, mask, q.shape[0], keys, np.float32(mask_filter_value))
    if unidirectional and queries > 1:
        ahead = xp.arange(keys)[None, :] > xp.arange(queries)[:, None] + past
        added = xp.where(ahead[None, None], _LOWEST, np.float32(0) if added is None else added).astype(np.float32)
    scores = xp.matmul(q, xp.swapaxes(k, 2, 3)) * np.float32(scale or 1 / sqrt(q.shape[3]))
    if bias is not None:
        scores = scores + (bias if added is None else bias + added)
    elif added is not None:
        scores = scores + added
    return xp.matmul(softmax_of(xp, scores, -1), v), scores


def _refuse_masks(node: Node, input_types: InputTypes) -> str | None:
    """Refuses masks of four dimensions, which ONNX Runtime's CPU kernels do not take."""
    position = {"Attention": 3, "QAttention": 5}.get(node.op_type, 4)
    mask = input_types[position] if position < len(input_types) else None
    if isinstance(mask, TensorType) and mask.shape is not None and len(mask.shape) not in (1, 2, 3):
        return f"{node.operator} has a mask of rank {len(mask.shape)}; implemented: 1, 2, 3"
    return None


_packed_kernel = partial(
    microsoft_kernel,
    halves=(0, 1),
    choices={"do_rotary": (0,), "past_present_share_buffer": (0,), "unidirectional": (0, 1)},
    outputs=2,
    shared=_MASKED,
    unread={"do_rotary": 0, "past_present_share_buffer": 0},
)


@_packed_kernel("Attention", dtypes=(FLOAT32, FLOAT32, FLOAT32, INT32, FLOAT32, FLOAT32), refuse=_refuse_masks)
def microsoft_attention(
    xp: Namespace,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Integers = (),
    **masked: Any,
) -> tuple[Array, Array]:
    """Returns the attention of x to itself and to the past, and the keys and values with the past before them.

    x: (batch, steps, input); weights: (input, all of q, k and v); past: (2, batch, heads, before, size).
    """
    projected = xp.matmul(x, weights)
    projected = projected if bias is None else projected + bias
    return attend_projected(xp, projected, mask_index, past, attention_bias, sizes=qkv_hidden_sizes, heads=num_heads, **masked)


def attend_projected(
    xp: Namespace,
    x: Array,
    mask: Array | None,
    past: Array | None,
    bias: Array | None,
    heads: int,
    sizes: Integers = (),
    **masked: Any,
) -> tuple[Array, Array]:
    """Returns the attention of (batch, steps, q and k and v) and the stacked keys and values."""
    width = x.shape[2]
    first, second = (sizes[0], sizes[0] + sizes[1]) if sizes else (width // 3, width // 3 * 2)
    q, k, v = (split_heads(xp, part, heads) for part in (x[..., :first], x[..., first:second], x[..., second:]))
    if past is not None:
        k, v = xp.concatenate([past[0], k], axis=2), xp.concatenate([past[1], v], axis=2)
    y, _ = attend(xp, q, k, v, mask, bias, past=0 if past is None else past.shape[3], **masked)
    # Keys and values of two sizes have no common tensor; the output is then unused.
    present = xp.stack([k, v]) if k.shape == v.shape else v
    return join_heads(xp, y), present


@_packed_kernel("QAttention", dtypes=(BYTES, BYTES, *(FLOAT32,) * 3, INT32, BYTES, BYTES, FLOAT32), refuse=_refuse_masks)
def quantized_attention(
    xp: Namespace,
    x: Array,
    weights: Array,
    bias: Array,
    input_scale: Array,
    weight_scale: Array,
    mask_index: Array | None = None,
    input_zero_point: Array | None = None,
    weight_zero_point: Array | None = None,
    past: Array | None = None,
    *,
    num_heads: int,
    **masked: Any,
) -> tuple[Array, Array]:
    """Returns the results of Attention with quantized input and weights."""
    projected = mat_mul_integer_to_float(xp, x, weights, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    return attend_projected(xp, projected, mask_index, past, None, heads=num_heads, **masked)


def _refuse_packed(node: Node, input_types: InputTypes) -> str | None:
    """Refuses query, key and value in a single tensor, which ONNX Runtime's CPU kernel does not take."""
    for index in (0, 1):
        value_type = input_types[index] if index < len(input_types) else None
        if isinstance(value_type, TensorType) and value_type.shape is not None and len(value_type.shape) == 5:
            return (
                f"{node.operator} has its input '{node.inputs[index]}' packed, of rank 5; implemented: query, key and value apart"
            )
    if not all(index < len(node.inputs) and node.inputs[index] for index in (1, 2)):
        return f"{node.operator} has no key or no value; implemented: query, key and value apart"
    return _refuse_masks(node, input_types)


@microsoft_kernel(
    "MultiHeadAttention",
    halves=(0, 1, 2, 3),
    dtypes=(*(FLOAT32,) * 4, INT32, FLOAT32),
    choices={"unidirectional": (0, 1)},
    outputs=4,
    refuse=_refuse_packed,
    shared=_MASKED,
)
def multi_head_attention(
    xp: Namespace,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    *,
    num_heads: int,
    **masked: Any,
) -> tuple[Array, Array, Array, Array]:
    """Returns the attention of query to key, the keys and values with the past before them, and the scores.

    query: (batch, steps, width); key, value: likewise, or (batch, heads, steps, size) as an encoder left them.
    """
    width = query.shape[2]
    parts = (0, 0, 0) if bias is None else (bias[:width], bias[width : 2 * width], bias[2 * width :])
    # What is already laid out by heads has the bias of the projection.
    q, k, v = (
        x if x.ndim == 4 else split_heads(xp, x if bias is None else x + part, num_heads)
        for x, part in zip((query, key, value), parts, strict=True)
    )
    if past_key is not None and past_value is not None:
        k, v = xp.concatenate([past_key, k], axis=2), xp.concatenate([past_value, v], axis=2)
    past = 0 if past_key is None else past_key.shape[2]
    y, scores = attend(xp, q, k, v, key_padding_mask, attention_bias, past=past, **masked)
    return join_heads(xp, y), k, v, scores


@microsoft_kernel(
    "DecoderMaskedMultiHeadAttention",
    halves=(0, 1, 2, 3),
    dtypes=(FLOAT32, FLOAT32, FLOAT32, INT32, FLOAT32, FLOAT32, FLOAT32, INT32, INT32, INT32, FLOAT32),
    choices={"past_present_share_buffer": (0,), "output_qk": (0, 1)},
    outputs=4,
    refuse=_refuse_packed,
    shared={name: default for name, default in _MASKED.items() if name != "unidirectional"},
    unread={"output_qk": 0, "past_present_share_buffer": 0},
)
def decoder_masked_multi_head_attention(
    xp: Namespace,
    query: Array,
    key: Array,
    value: Array,
    mask_index: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: Array | None = None,
    beam_width: Array | None = None,
    cache_indirection: Array | None = None,
    bias: Array | None = None,
    *,
    num_heads: int,
    **masked: Any,
) -> tuple[Array, Array, Array, Array]:
    """Returns the results of MultiHeadAttention for a single step, with growing caches; without beams."""
    if cache_indirection is not None:
        raise ValueError("a cache of several beams is not implemented")
    if query.shape[1] != 1:
        raise ValueError(f"the query has {query.shape[1]} steps; the operator takes one")
    y, k, v, scores = multi_head_attention(
        xp, query, key, value, bias, mask_index, attention_bias, past_key, past_value, num_heads=num_heads, **masked
    )
    return y, k, v, narrow(scores, np.float32)


_UNQUANTIZED = {"k_quant_type": ("NONE",), "v_quant_type": ("NONE",), "kv_cache_bit_width": (0, 8, 4)}


def split_packed(xp: Namespace, q: Array, k: Array | None, v: Array | None, heads: int, groups: int) -> tuple[Array, Array, Array]:
    """Returns q, k and v as (batch, heads, steps, size); without a k the q holds all three."""
    if k is not None and v is not None:
        return split_heads(xp, q, heads), split_heads(xp, k, groups), split_heads(xp, v, groups)
    split = split_heads(xp, q, heads + 2 * groups)
    return split[:, :heads], split[:, heads : heads + groups], split[:, heads + groups :]


def rotate_steps(
    xp: Namespace, x: Array, begins: Integers, positions: Array | None, caches: tuple[Array, Array], *, is_interleaved: bool
) -> Array:
    """Returns x turned; the positions of row b begin at begins[b], unless `positions` lists them."""
    steps = xp.asarray(begins)[:, None] + xp.arange(x.shape[2])[None, :]
    places = xp.clip(steps if positions is None else positions, 0, caches[0].shape[0] - 1)
    cos, sin = (xp.take(cache, places, axis=0) for cache in caches)
    return rotate(xp, x, cos, sin, is_interleaved=is_interleaved)


def append(xp: Namespace, past: Array | None, fresh: Array, begins: Integers, length: int) -> Array:
    """Returns a cache (batch, groups, length, size): each row's past up to its begin, the fresh steps, then zeros."""
    batch, groups, _, size = fresh.shape
    cache = xp.zeros((batch, groups, length, size), dtype=fresh.dtype)
    for row, begin in enumerate(begins):
        if past is not None and begin:
            cache = assign(cache, (row, slice(None), slice(begin)), past[row, :, :begin])
    return _write_steps(cache, fresh, begins)


def _write_steps(cache: Array, fresh: Array, begins: Integers) -> Array:
    """Returns a cache with the fresh steps of each row from its begin on, as far as the cache reaches."""
    for row, begin in enumerate(begins):
        end = min(begin + fresh.shape[2], cache.shape[2])
        cache = assign(cache, (row, slice(None), slice(begin, end)), fresh[row, :, : end - begin])
    return cache


def softmax_within(xp: Namespace, scores: Array, allowed: Any, sink: Array | None) -> Array:
    """Returns the softmax over the allowed keys; a sink takes a share without a key. A query without keys attends to none."""
    if scores.size == 0:
        return scores
    open_scores = xp.where(allowed, scores, -np.inf)
    peak = xp.max(open_scores, axis=-1, keepdims=True)
    peak = xp.where(xp.isfinite(peak), peak, peak.dtype.type(0))
    peak = peak if sink is None else xp.maximum(peak, sink)
    terms = xp.where(allowed, xp.exp(xp.where(allowed, scores, peak) - peak), scores.dtype.type(0))
    total = xp.sum(terms, axis=-1, keepdims=True)
    total = total if sink is None else total + xp.exp(sink - peak)
    return terms / xp.where(total == 0, np.float32(1), total)


def _refuse_sliding(node: Node, input_types: InputTypes) -> str | None:
    """Refuses a sliding cache without a window, which ONNX Runtime does not load, or with a bias, whose keys may be gone."""
    if not node.attributes.get("sliding_window_cache", 0):
        return None
    if node.attributes.get("local_window_size", -1) <= 0:
        return f"{node.operator} has sliding_window_cache=1 and no local_window_size; expected a window of at least 1"
    if len(node.inputs) > 10 and node.inputs[10]:
        return f"{node.operator} has sliding_window_cache=1 and attention_bias '{node.inputs[10]}'; implemented: one of them"
    return None


def _count_held(count: int, capacity: int, window: int) -> int:
    """Returns how many of `count` keys a sliding cache holds: a full one lets go all but the last `window`, and fills up again."""
    return count if count <= capacity else window + (count - capacity - 1) % (capacity - window + 1)


def _slide(xp: Namespace, cache: Array, ends: Integers, held: Integers, capacity: int) -> Array:
    """Returns a cache (batch, groups, capacity, size): each row's last keys of those before its end, then zeros."""
    slid = xp.zeros((*cache.shape[:2], capacity, cache.shape[3]), dtype=cache.dtype)
    for row, (end, count) in enumerate(zip(ends, held, strict=True)):
        slid = assign(slid, (row, slice(None), slice(count)), cache[row, :, end - count : end])
    return slid


@microsoft_kernel(
    "GroupQueryAttention",
    dtypes=(*(HALF,) * 5, INT32, INT32, HALF, HALF, INT64, HALF, HALF),
    host=(5, 6),
    choices={
        **dict.fromkeys(("causal", "do_rotary", "rotary_interleaved", "sliding_window_cache"), (0, 1)),
        **_UNQUANTIZED,
        "qk_output": (0,),
        "smooth_softmax": (-1, 0, 1),
    },
    outputs=3,
    refuse=_refuse_sliding,
    unread={"k_quant_type": "NONE", "kv_cache_bit_width": 0, "qk_output": 0, "v_quant_type": "NONE"},
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
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Returns the attention, and the caches of keys and values with the new steps behind each row's past.

    query: (batch, steps, heads * size), or with keys and values behind it; caches: (batch, groups, length, size); seqlens_k: for each
    row how many keys it has, less 1.
    """
    q, k, v = split_packed(xp, query, key, value, num_heads, kv_num_heads)
    steps, total = q.shape[2], integers_of(total_sequence_length)[0]
    counts = tuple(count + 1 for count in integers_of(seqlens_k))
    # A first prompt may be padded on the right; later steps stand at the end of the counted keys.
    begins = tuple(0 if steps == total else count - steps for count in counts)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ValueError("do_rotary is 1 and there is no cos_cache or no sin_cache")
        caches = (cos_cache, sin_cache)
        q, k = (rotate_steps(xp, x, begins, position_ids, caches, is_interleaved=bool(rotary_interleaved)) for x in (q, k))
    capacity, held = 0 if past_key is None else past_key.shape[2], counts
    is_sliding = bool(sliding_window_cache) and past_key is not None
    if is_sliding:
        if capacity < local_window_size:
            raise ValueError(f"the cache holds {capacity} keys; sliding_window_cache=1 needs local_window_size={local_window_size}")
        held, olds = (tuple(_count_held(n, capacity, local_window_size) for n in numbers) for numbers in (counts, begins))
        counts = tuple(old + count - begin for old, count, begin in zip(olds, counts, begins, strict=True))
        begins, total = olds, max(olds, default=0) + steps
    length = max(total, capacity)
    present_key, present_value = append(xp, past_key, k, begins, length), append(xp, past_value, v, begins, length)
    window = local_window_size - 1 if local_window_size >= 0 else -1
    allowed = bring(xp, allow_positions(steps, total, begins, counts, is_causal=bool(causal), windows=(window, -1)), bool)
    sink: Array = xp.zeros((1, 1, 1, 1), dtype=np.float32) if smooth_softmax == 1 else None
    sink = sink if head_sink is None else widen(head_sink).reshape((1, -1, 1, 1))
    scores = _score(xp, q, present_key[:, :, :total], scale=scale)
    scores = np.float32(softcap) * xp.tanh(scores / np.float32(softcap)) if softcap else scores
    scores = scores if attention_bias is None else scores + widen(attention_bias)[..., :total]
    weights = softmax_within(xp, scores, allowed, sink)
    mixed = _gather_values(xp, weights, present_value[:, :, :total], query.dtype)
    if is_sliding:
        present_key, present_value = (_slide(xp, cache, counts, held, capacity) for cache in (present_key, present_value))
    return mixed, present_key, present_value


def _score(xp: Namespace, q: Array, keys: Array, *, scale: float) -> Array:
    """Returns scale * q k^T in float32, each group of keys serving several heads."""
    wide = _repeat_heads(xp, widen(keys), q.shape[1] // keys.shape[1])
    return multiply(xp, widen(q), xp.swapaxes(wide, 2, 3)) * np.float32(scale or 1 / sqrt(q.shape[3]))


def _gather_values(xp: Namespace, weights: Array, values: Array, dtype: Any) -> Array:
    wide = _repeat_heads(xp, widen(values), weights.shape[1] // values.shape[1])
    return narrow(join_heads(xp, multiply(xp, weights, wide)), dtype)


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
    """Returns causal attention to the blocks of keys that each head's layout lists, and the caches with the new steps in them."""
    q, k, v = split_packed(xp, query, key, value, num_heads, kv_num_heads)
    steps, total = q.shape[2], integers_of(total_sequence_length)[0]
    counts = integers_of(key_total_sequence_lengths)
    begins = tuple(0 if steps == total else count - steps for count in counts)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        caches = (cos_cache, sin_cache)
        q, k = (rotate_steps(xp, x, begins, None, caches, is_interleaved=bool(rotary_interleaved)) for x in (q, k))
    present_key, present_value = _write_steps(past_key.copy(), k, begins), _write_steps(past_value.copy(), v, begins)
    allowed = bring(xp, allow_positions(steps, total, begins, counts, is_causal=True, windows=(-1, -1)), bool)
    listed = _list_blocks(np.asarray(block_row_indices), np.asarray(block_col_indices), sparse_block_size, total)
    layouts = np.stack([[listed[head % len(listed), begin : begin + steps] for head in range(num_heads)] for begin in begins])
    scores = _score(xp, q, present_key[:, :, :total], scale=scale)
    weights = softmax_within(xp, scores, allowed & xp.asarray(layouts), None)
    return _gather_values(xp, weights, present_value[:, :, :total], query.dtype), present_key, present_value


def _list_blocks(rows: Any, columns: Any, size: int, total: int) -> Any:
    """Returns (layouts, total, total): which keys stand in a block that the query's block lists."""
    blocks = rows.shape[1] - 1
    listed = np.zeros((rows.shape[0], blocks, blocks), bool)
    for layout, block in product(range(rows.shape[0]), range(blocks)):
        listed[layout, block, columns[layout, rows[layout, block] : rows[layout, block + 1]]] = True
    return np.repeat(np.repeat(listed, size, axis=1), size, axis=2)[:, :total, :total]


_RULES = {"update_rule": ("linear", "gated", "delta", "gated_delta")}
_HINTS = {"chunk_size": 64}
_ACTIVATIONS = ("none", "silu", "swish")


@kernel("LinearAttention", since=(27,), dtypes=FLOATS, choices=_RULES, outputs=2, unread=_HINTS)
@microsoft_kernel(
    "LinearAttention",
    dtypes=SMALL_FLOATS,
    choices={**_RULES, "state_window": (0,)},
    outputs=2,
    unread={**_HINTS, "state_window": 0},
)
def linear_attention(
    xp: Namespace,
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """Returns scale * q^T S at each step, and the last state S.

    Several heads of queries may share a head of keys, and vice versa; the chunk size is a hint without effect.
    """
    batch, steps = query.shape[:2]
    q, k, v = (
        widen(x).reshape((batch, steps, heads, prod(x.shape[2:]) // heads))
        for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    if k.shape[3] != q.shape[3]:
        k = k.reshape((batch, steps, kv_num_heads * k.shape[3] // q.shape[3], q.shape[3]))
        k = xp.repeat(k, kv_num_heads // k.shape[2], axis=2)
    shape = (batch, kv_num_heads, q.shape[3], v.shape[3])
    state = xp.zeros(shape, dtype=np.float32) if past_state is None else widen(past_state)
    decays: Array = (
        None if decay is None else xp.exp(widen(decay)).reshape((batch, steps, kv_num_heads, prod(decay.shape[2:]) // kv_num_heads))
    )
    rates: Array = None if beta is None else widen(beta)[..., None]
    heads = max(q_num_heads, kv_num_heads)
    outputs = []
    for step in range(steps):
        key_of_step, added = k[:, step], v[:, step]
        if update_rule.startswith("gated"):
            assert decays is not None, "a gated rule has a decay"
            state = state * decays[:, step][..., None]
        if update_rule.endswith("delta"):
            added = rates[:, step] * (added - (key_of_step[..., None, :] @ state)[..., 0, :])
        state = state + key_of_step[..., :, None] * added[..., None, :]
        query_of_step = xp.repeat(q[:, step], heads // q_num_heads, axis=-2)
        outputs.append((query_of_step[..., None, :] @ xp.repeat(state, heads // kv_num_heads, axis=-3))[..., 0, :])
    y = xp.stack(outputs, axis=1) if outputs else xp.zeros((batch, 0, heads, v.shape[3]), dtype=np.float32)
    y = np.float32(scale or 1 / sqrt(q.shape[3])) * y.reshape((batch, steps, heads * v.shape[3]))
    return narrow(y, query.dtype), narrow(state, query.dtype if past_state is None else past_state.dtype)


@microsoft_kernel("LinearAttentionGate", dtypes=(SMALL_FLOATS, FLOAT32, FLOAT32, SMALL_FLOATS), outputs=2)
def linear_attention_gate(xp: Namespace, a: Array, dt_bias: Array, rate: Array, b: Array | None = None) -> tuple[Array, Array]:
    """Returns rate * softplus(a + dt_bias), and sigmoid(b)."""
    decay = narrow(rate * softplus_of(xp, widen(a) + dt_bias), a.dtype)
    return decay, decay if b is None else narrow(sigmoid_of(xp, widen(b)), b.dtype)


_FIXED = {
    **dict.fromkeys(("input_channel_offset", "input_channels", "state_length", "state_update_capacity", "state_window"), 0),
    "ndim": 1,
    "state_channels_last": -1,
}
"""Attributes of a causal convolution that have one value alone."""


@kernel(
    "CausalConvWithState",
    since=(27,),
    dtypes=FLOATS,
    choices={"activation": _ACTIVATIONS},
    outputs=2,
    without=("channels_last", "dilation"),
)
@microsoft_kernel(
    "CausalConvWithState",
    halves=(0, 1),
    dtypes=FLOAT32,
    choices={"activation": _ACTIVATIONS, "channels_last": (0, 1), **{name: (value,) for name, value in _FIXED.items()}},
    outputs=2,
    unread=_FIXED,
)
def causal_conv_with_state(
    xp: Namespace,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
) -> tuple[Array, Array]:
    """Returns the depthwise convolution of each step with those before it, and the inputs that the next call needs.

    x: (batch, channels, steps), or (batch, steps, *channels) with channels_last.
    """
    channels = weight.shape[0]
    first = xp.swapaxes(x.reshape((*x.shape[:2], channels)), 1, 2) if channels_last else x
    batch, _, steps = first.shape
    reach = (weight.shape[2] - 1) * dilation
    past: Array = xp.zeros((batch, channels, reach), dtype=x.dtype)
    if past_state is not None:
        past = xp.swapaxes(past_state.reshape((batch, reach, channels)), 1, 2) if channels_last else past_state
    padded = xp.concatenate([past, first], axis=2)
    wide, filters = widen(padded), widen(weight[:, 0])
    y = xp.zeros((batch, channels, steps), dtype=wide.dtype)
    for tap in range(weight.shape[2]):
        y = y + wide[..., tap * dilation : tap * dilation + steps] * filters[:, tap, None]
    y = narrow(y if bias is None else y + widen(bias)[:, None], x.dtype)
    if activation != "none":
        y = narrow(widen(y) * sigmoid_of(xp, widen(y)), x.dtype)
    state = padded[:, :, steps:]
    if channels_last:
        y = xp.swapaxes(y, 1, 2).reshape(x.shape)
        state = xp.swapaxes(state, 1, 2).reshape((batch, reach, *x.shape[2:]))
    return lay_out(xp, y), lay_out(xp, state)
