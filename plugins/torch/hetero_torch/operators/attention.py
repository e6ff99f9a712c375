"""Attention and RotaryEmbedding."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hetero_core.kernels.operators.attention import allow_positions
from hetero_core.kernels.precision import integers_of
from hetero_torch.table import FLOATS, SINGLE, operator


@operator("Attention", dtypes=SINGLE, widens=True, choices={"softmax_precision": (1,)}, outputs=3)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Any = None,
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns softmax(scale q k^T + bias) v, and the key and value caches. Source: ONNX Attention-25."""
    is_packed = q.ndim == 3
    if is_packed:
        q, k, v = (_split_heads(x, heads) for x, heads in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    key = k if past_key is None else torch.cat([past_key, k], 2)
    value = v if past_value is None else torch.cat([past_value, v], 2)
    repeats = q.shape[1] // key.shape[1]
    keys, values = (x if repeats == 1 else x.repeat_interleave(repeats, 1) for x in (key, value))
    valid = integers_of(nonpad_kv_seqlen)
    offsets = tuple(count - q.shape[2] for count in valid) or (0 if past_key is None else past_key.shape[2],)
    windows = left_window_size, right_window_size
    allowed = allow_positions(q.shape[2], key.shape[2], offsets, valid, is_causal=bool(is_causal), windows=windows)
    bias = _join_masks(q, attn_mask, allowed, key.shape[2])
    factor = 1 / sqrt(q.shape[3]) if scale is None else scale
    if softcap:
        y = _attend_capped(q, keys, values, bias, factor, softcap)
    else:  # a query that may see no key gets zeros
        y = functional.scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=factor)
    if is_packed:
        y = y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)
    return y, key, value


def _split_heads(x: Tensor, heads: int | None) -> Tensor:
    """Returns (batch, steps, heads * size) as (batch, heads, steps, size)."""
    if heads is None:
        raise ValueError("q_num_heads and kv_num_heads are needed for inputs of rank 3")
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _join_masks(q: Tensor, mask: Tensor | None, allowed: Any, keys: int) -> Tensor | None:
    """Returns the mask: values to add to the products, or bools of the allowed products; None if all are allowed."""
    if mask is not None:
        mask = mask if mask.dtype == torch.bool else mask.to(q.dtype)
        missing = keys - mask.shape[-1]
        if missing > 0:
            mask = functional.pad(mask, (0, missing), value=False if mask.dtype == torch.bool else -torch.inf)
    if allowed is None:
        return mask
    seen = torch.from_numpy(allowed).to(q.device)
    if mask is None:
        return seen
    return seen & mask if mask.dtype == torch.bool else torch.where(seen, mask, -torch.inf)


def _attend_capped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, factor: float, softcap: float) -> Tensor:
    scores = softcap * torch.tanh(torch.matmul(q * factor, k.transpose(2, 3)) / softcap)
    if bias is not None:
        scores = torch.where(bias, scores, -torch.inf) if bias.dtype == torch.bool else scores + bias
    weights = torch.softmax(scores, -1)
    if bias is not None:
        is_blind = torch.amax(scores, -1, keepdim=True) == -torch.inf
        weights = torch.where(is_blind, torch.zeros_like(weights), weights)
    return torch.matmul(weights, v)


@operator("RotaryEmbedding", dtypes=FLOATS, widens=True)
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Returns x with pairs of elements of each head rotated by their position's angle. Source: ONNX RotaryEmbedding-23."""
    heads = x.reshape(*x.shape[:2], num_heads, -1) if x.ndim == 3 else x.transpose(1, 2)
    turned = rotary_embedding_dim or heads.shape[3]
    cos, sin = ((cache if position_ids is None else cache[position_ids]).unsqueeze(2) for cache in (cos_cache, sin_cache))
    rotated, unrotated = heads[..., :turned], heads[..., turned:]
    half = turned // 2
    first, second = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else (rotated[..., :half], rotated[..., half:])
    parts = [cos * first - sin * second, sin * first + cos * second]
    joined = torch.stack(parts, -1).reshape(rotated.shape) if interleaved else torch.cat(parts, -1)
    y = torch.cat([joined, unrotated], -1)
    return y.reshape(x.shape) if x.ndim == 3 else y.transpose(1, 2)
