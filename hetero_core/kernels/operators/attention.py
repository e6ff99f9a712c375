"""Attention and its companions: Attention, RotaryEmbedding, LinearAttention, CausalConvWithState, SwiGLU.

Products are summed in float32 and rounded where the operator's own diagram has a value of its own.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.operators.activations import sigmoid_of
from hetero_core.kernels.operators.linear import mat_mul
from hetero_core.kernels.precision import Array, Namespace, integers_of, narrow, widen
from hetero_core.kernels.registry import BOOL, FLOATS, INT64, NUMBERS, kernel
from hetero_core.kernels.sizes import product

_QKV = (FLOATS, FLOATS, FLOATS, NUMBERS | BOOL, FLOATS, FLOATS, INT64)
_CHOICES = {"is_causal": (0, 1), "qk_matmul_output_mode": (0, 1, 2, 3), "softmax_precision": (1, 10, 11, 16)}


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
    return product((q.shape[0], heads, q.shape[-2], keys + size)) * int(q.itemsize)


@kernel("Attention", since=(25,), dtypes=_QKV, host=(6,), choices=_CHOICES, outputs=4, count_bytes=_count_scores)
@kernel(
    "Attention",
    since=(23, 24),
    dtypes=_QKV,
    host=(6,),
    choices=_CHOICES,
    outputs=4,
    count_bytes=_count_scores,
    without=("left_window_size", "right_window_size"),
)
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
    Source: ONNX Attention-25.
    """
    is_packed = q.ndim == 3
    if is_packed:
        q, k, v = (_split_heads(xp, x, heads) for x, heads in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    present_key = k if past_key is None else xp.concatenate([past_key, k], axis=2)
    present_value = v if past_value is None else xp.concatenate([past_value, v], axis=2)
    queries, keys = q.shape[2], present_key.shape[2]
    past = 0 if past_key is None else past_key.shape[2]
    allowed = allow_positions(
        queries, keys, past, integers_of(nonpad_kv_seqlen), is_causal=bool(is_causal), windows=(left_window_size, right_window_size)
    )
    bias = _bias(xp, attn_mask, allowed, keys, q.dtype)
    repeats = q.shape[1] // present_key.shape[1]
    root = sqrt(1 / sqrt(q.shape[3]) if scale is None else scale)
    products = mat_mul(xp, _scale(q, root), xp.swapaxes(_scale(_repeat_heads(xp, present_key, repeats), root), 2, 3))
    capped = narrow(softcap * xp.tanh(widen(products) / softcap), q.dtype) if softcap else products
    biased = narrow(widen(capped) + widen(bias), q.dtype)
    weights = _attend(xp, biased, bias, softmax_precision)
    y = mat_mul(xp, weights, _repeat_heads(xp, present_value, repeats))
    if is_packed:
        y = xp.swapaxes(y, 1, 2).reshape((y.shape[0], queries, y.shape[1] * y.shape[3]))
    return y, present_key, present_value, (products, capped, biased, weights)[qk_matmul_output_mode]


def _split_heads(xp: Namespace, x: Array, heads: int | None) -> Array:
    """Returns (batch, steps, heads * size) as (batch, heads, steps, size)."""
    if heads is None:
        raise ValueError("q_num_heads and kv_num_heads are needed for inputs of rank 3")
    return xp.swapaxes(x.reshape((*x.shape[:2], heads, x.shape[2] // heads)), 1, 2)


def _repeat_heads(xp: Namespace, x: Array, repeats: int) -> Array:
    return x if repeats == 1 else xp.repeat(x, repeats, axis=1)


def _scale(x: Array, factor: float) -> Array:
    """Returns x times the factor, both in the type of x."""
    return x * x.dtype.type(factor)


def allow_positions(
    queries: int, keys: int, past: int, valid: tuple[int, ...], *, is_causal: bool, windows: tuple[int, int]
) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Returns which key each query may see, (1 or batch, 1, queries, keys); None when it is all.

    A query stands `past` keys in, or at the end of its valid ones where those are counted.
    """
    left, right = windows
    if not valid and not is_causal and left < 0 and right < 0:
        return None
    offsets = [count - queries for count in valid] or [past]
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
    """Returns what is added to the products: the mask, 0 or minus infinity, in the type of the products."""
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
        bias = xp.where(xp.asarray(allowed.tolist(), dtype=bool).reshape(allowed.shape), bias, never)
    return bias


def _attend(xp: Namespace, biased: Array, bias: Array, softmax_precision: int | None) -> Array:
    """Returns the softmax over the keys; a query that may see none attends to nothing."""
    if not biased.size:
        return biased  # no keys: the sums over them are 0
    precise = numpy_dtype(dtype_of_onnx(softmax_precision or 0) or "float32")
    wide = narrow(biased, precise) if softmax_precision is not None else biased
    wide = widen(wide)
    if wide.size == 0:
        return biased
    peak = xp.max(wide, axis=-1, keepdims=True)
    peak = xp.where(xp.isfinite(peak), peak, peak.dtype.type(0))
    exponentials = xp.exp(wide - peak)
    weights = exponentials / xp.sum(exponentials, axis=-1, keepdims=True)
    is_blind = xp.max(widen(bias), axis=-1, keepdims=True) == -np.inf
    return narrow(xp.where(is_blind, weights.dtype.type(0), weights), biased.dtype)


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
    """Returns x with pairs of elements of each head rotated by their position's angle. Source: ONNX RotaryEmbedding-23."""
    heads = x.reshape((*x.shape[:2], num_heads or 1, x.shape[2] // (num_heads or 1))) if x.ndim == 3 else xp.swapaxes(x, 1, 2)
    turned = rotary_embedding_dim or heads.shape[3]
    cos, sin = (
        xp.expand_dims(widen(cache if position_ids is None else xp.take(cache, position_ids, axis=0)), 2)
        for cache in (cos_cache, sin_cache)
    )
    rotated, unrotated = widen(heads[..., :turned]), heads[..., turned:]
    half = turned // 2
    first, second = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else (rotated[..., :half], rotated[..., half:])
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    parts = [real, imaginary]
    joined = xp.stack(parts, axis=-1).reshape(rotated.shape) if interleaved else xp.concatenate(parts, axis=-1)
    y = xp.concatenate([narrow(joined, x.dtype), unrotated], axis=-1)
    return y.reshape(x.shape) if x.ndim == 3 else xp.swapaxes(y, 1, 2)


@kernel("SwiGLU", since=(28,), dtypes=FLOATS)
def swiglu(xp: Namespace, a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """Returns a * sigmoid(alpha * a) * b. Source: ONNX SwiGLU-28."""
    wide = widen(a)
    return narrow(wide * sigmoid_of(xp, alpha * wide) * widen(b), a.dtype)


@kernel("CausalConvWithState", since=(27,), dtypes=FLOATS, choices={"activation": ("none", "silu", "swish")}, outputs=2)
def causal_conv_with_state(
    xp: Namespace, x: Array, weight: Array, bias: Array | None = None, past_state: Array | None = None, *, activation: str = "none"
) -> tuple[Array, Array]:
    """Returns the depthwise convolution of past and present elements, and the last k - 1 of them.

    Source: ONNX CausalConvWithState-27.
    """
    batch, channels, length = x.shape
    taps = weight.shape[2]
    past = xp.zeros((batch, channels, taps - 1), dtype=x.dtype) if past_state is None else past_state
    padded = xp.concatenate([past, x], axis=2)
    total = xp.zeros(x.shape, dtype=widen(x).dtype)
    for tap in range(taps):
        total += widen(padded[:, :, tap : tap + length]) * widen(weight[:, 0, tap])[:, None]
    if bias is not None:
        total += widen(bias)[:, None]
    y = narrow(total, x.dtype)
    if activation != "none":
        wide = widen(y)
        y = narrow(wide * sigmoid_of(xp, wide), x.dtype)
    return y, padded[:, :, length:]
