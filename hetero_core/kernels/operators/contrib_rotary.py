"""Rotations of positions as ONNX Runtime's own operators have them: RotaryEmbedding and MRotaryEmbedding, and those within attention."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, narrow, widen
from hetero_core.kernels.registry import HALF, INT64, microsoft_kernel

_CHOICES = {"interleaved": (0, 1), "is_packed_batching": (0,), "scale": (1.0,)}
_UNREAD = {"is_packed_batching": 0, "scale": 1.0}


def rotate(xp: Namespace, x: Array, cos: Array, sin: Array, *, is_interleaved: bool) -> Array:
    """Returns x (batch, heads, steps, size) with its first elements turned in pairs.

    cos, sin: (batch or 1, steps, half of what turns).
    """
    half = cos.shape[-1]
    turned, rest = widen(x[..., : 2 * half]), x[..., 2 * half :]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if is_interleaved else (turned[..., :half], turned[..., half:])
    cosine, sine = widen(cos)[:, None], widen(sin)[:, None]
    parts = [first * cosine - second * sine, second * cosine + first * sine]
    joined = xp.stack(parts, axis=-1).reshape(turned.shape) if is_interleaved else xp.concatenate(parts, axis=-1)
    return xp.concatenate([narrow(joined, x.dtype), rest], axis=-1)


def _rotate_layout(xp: Namespace, x: Array, cos: Array, sin: Array, *, heads: int, turns_part: bool, is_interleaved: bool) -> Array:
    """Returns x rotated, of rank 3 (batch, steps, heads * size) or 4 (batch, heads, steps, size)."""
    if x.ndim == 4:
        return rotate(xp, x, cos, sin, is_interleaved=is_interleaved)
    size = x.shape[2] // heads if turns_part else 2 * cos.shape[-1]
    split = xp.swapaxes(x.reshape((*x.shape[:2], x.shape[2] // size, size)), 1, 2)
    return xp.swapaxes(rotate(xp, split, cos, sin, is_interleaved=is_interleaved), 1, 2).reshape(x.shape)


@microsoft_kernel("RotaryEmbedding", dtypes=(HALF, INT64, HALF, HALF), choices=_CHOICES, unread=_UNREAD)
def microsoft_rotary_embedding(
    xp: Namespace,
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Returns x with each head's pairs turned by the angles of their positions.

    position_ids: (batch, steps), or (1,) where the steps begin. Source: ONNX Runtime, com.microsoft.RotaryEmbedding-1.
    """
    if rotary_embedding_dim and not num_heads:
        raise ValueError("rotary_embedding_dim is given without num_heads")
    steps = x.shape[1] if x.ndim == 3 else x.shape[2]
    places = position_ids if position_ids.ndim == 2 else (position_ids.reshape(()) + xp.arange(steps))[None]
    cos, sin = (xp.take(cache, places, axis=0) for cache in (cos_cache, sin_cache))
    return _rotate_layout(xp, x, cos, sin, heads=num_heads, turns_part=bool(rotary_embedding_dim), is_interleaved=bool(interleaved))


@microsoft_kernel(
    "MRotaryEmbedding", dtypes=(HALF, INT64, HALF, HALF), choices={**_CHOICES, "mrope_layout": (0, 1)}, unread=_UNREAD
)
def multimodal_rotary_embedding(
    xp: Namespace,
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    mrope_layout: int = 0,
    mrope_section: tuple[int, ...],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Returns x turned by angles of three positions: time, height and width each have sections of the pairs.

    position_ids: (3, batch, steps). Source: ONNX Runtime, com.microsoft.MRotaryEmbedding-1.
    """
    half = cos_cache.shape[1]
    streams = np.zeros(half, np.int64)
    if mrope_layout:
        for stream in (1, 2):
            streams[stream : mrope_section[stream] * 3 : 3] = stream
    else:
        streams = np.repeat(np.arange(3), mrope_section)[:half]
    chosen = xp.asarray(streams)
    columns = xp.arange(half)
    places = xp.moveaxis(xp.take(position_ids, chosen, axis=0), 0, -1)
    cos, sin = (cache[places, columns] for cache in (cos_cache, sin_cache))
    return _rotate_layout(xp, x, cos, sin, heads=num_heads, turns_part=bool(rotary_embedding_dim), is_interleaved=bool(interleaved))
