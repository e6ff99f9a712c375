"""Attention as ONNX Runtime's own operators have it: Attention, QAttention, MultiHeadAttention, DecoderMaskedMultiHeadAttention.

Scores are scale * q k^T plus masks and biases, in float32: a masked position has `mask_filter_value` added, one that lies
ahead under `unidirectional` the lowest float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np

from hetero_core.kernels.operators.contrib_quantized_products import mat_mul_integer_to_float
from hetero_core.kernels.operators.softmax import softmax_of
from hetero_core.kernels.precision import Array, Namespace, narrow
from hetero_core.kernels.registry import BYTES, FLOAT32, INT32, microsoft_kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType, ValueType

_LOWEST = np.float32(np.finfo(np.float32).min)
_FILTER = -10000.0
InputTypes = tuple[ValueType | None, ...]


def split_heads(xp: Namespace, x: Array, heads: int) -> Array:
    """Returns (batch, steps, heads * size) as (batch, heads, steps, size)."""
    return xp.swapaxes(x.reshape((*x.shape[:2], heads, x.shape[2] // heads)), 1, 2)


def join_heads(xp: Namespace, x: Array) -> Array:
    """Returns (batch, heads, steps, size) as (batch, steps, heads * size)."""
    batch, heads, steps, size = x.shape
    return xp.swapaxes(x, 1, 2).reshape((batch, steps, heads * size))


def make_mask(
    xp: Namespace, mask: Array | None, batch: int, queries: int, keys: int, *, past: int, is_causal: bool, low: float
) -> Any:
    """Returns the mask term of the scores, (batch or 1, 1, queries, keys), None if nothing is masked.

    mask: how many keys of each row count (batch,); ends, then begins (2 batch,); 1 and 0 for each key, (batch, keys) or
    (batch, queries, keys). Source: ONNX Runtime, com.microsoft.Attention-1, mask_index.
    """
    added: Any = None
    if mask is not None:
        added = _add_filter(xp, mask, batch, keys, np.float32(low))
    if is_causal and queries > 1:
        ahead = xp.arange(keys)[None, :] > xp.arange(queries)[:, None] + past
        base = np.float32(0) if added is None else added
        added = xp.where(ahead[None, None], _LOWEST, base).astype(np.float32)
    return added


def _add_filter(xp: Namespace, mask: Array, batch: int, keys: int, low: Any) -> Array:
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


def attend(xp: Namespace, q: Array, k: Array, v: Array, *, scale: float, added: Any, bias: Array | None) -> tuple[Array, Array]:
    """Returns softmax(scores) v and the scores; all of (batch, heads, steps, size)."""
    scores = xp.matmul(q, xp.swapaxes(k, 2, 3)) * np.float32(scale)
    if bias is not None:
        scores = scores + (bias if added is None else bias + added)
    elif added is not None:
        scores = scores + added
    return xp.matmul(softmax_of(xp, scores, -1), v), scores


def _refuse_masks(position: int) -> Callable[[Node, InputTypes], str | None]:
    """Returns the refusal of masks of four dimensions, which ONNX Runtime's CPU kernels do not take."""

    def refuse(node: Node, input_types: InputTypes) -> str | None:
        mask = input_types[position] if position < len(input_types) else None
        if isinstance(mask, TensorType) and mask.shape is not None and len(mask.shape) not in (1, 2, 3):
            return f"{node.operator} has a mask of rank {len(mask.shape)}; implemented: 1, 2, 3"
        return None

    return refuse


@microsoft_kernel(
    "Attention",
    halves=(0, 1),
    dtypes=(FLOAT32, FLOAT32, FLOAT32, INT32, FLOAT32, FLOAT32),
    choices={"do_rotary": (0,), "past_present_share_buffer": (0,), "unidirectional": (0, 1)},
    outputs=2,
    refuse=_refuse_masks(3),
    unread={"do_rotary": 0, "past_present_share_buffer": 0},
)
def microsoft_attention(
    xp: Namespace,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    *,
    mask_filter_value: float = _FILTER,
    num_heads: int,
    qkv_hidden_sizes: tuple[int, ...] = (),
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Array, Array]:
    """Returns the attention of x to itself and to the past, and the keys and values with the past before them.

    x: (batch, steps, input); weights: (input, all of q, k and v); past: (2, batch, heads, before, size).
    Source: ONNX Runtime, com.microsoft.Attention-1.
    """
    projected = xp.matmul(x, weights)
    projected = projected if bias is None else projected + bias
    return attend_projected(
        xp, projected, mask_index, past, attention_bias, sizes=qkv_hidden_sizes, heads=num_heads, scale=scale,
        is_causal=bool(unidirectional), low=mask_filter_value,
    )  # fmt: skip


def attend_projected(
    xp: Namespace,
    projected: Array,
    mask: Array | None,
    past: Array | None,
    bias: Array | None,
    *,
    sizes: tuple[int, ...],
    heads: int,
    scale: float,
    is_causal: bool,
    low: float,
) -> tuple[Array, Array]:
    """Returns the attention of (batch, steps, q and k and v) and the stacked keys and values."""
    width = projected.shape[2]
    first, second = (sizes[0], sizes[0] + sizes[1]) if sizes else (width // 3, width // 3 * 2)
    q, k, v = (
        split_heads(xp, part, heads) for part in (projected[..., :first], projected[..., first:second], projected[..., second:])
    )
    before = 0 if past is None else past.shape[3]
    if past is not None:
        k, v = xp.concatenate([past[0], k], axis=2), xp.concatenate([past[1], v], axis=2)
    added = make_mask(xp, mask, q.shape[0], q.shape[2], k.shape[2], past=before, is_causal=is_causal, low=low)
    y, _ = attend(xp, q, k, v, scale=scale or 1 / sqrt(q.shape[3]), added=added, bias=bias)
    # Keys and values of two sizes have no common tensor; nobody can ask for it.
    present = xp.stack([k, v]) if k.shape == v.shape else v
    return join_heads(xp, y), present


@microsoft_kernel(
    "QAttention",
    halves=(0, 1),
    dtypes=(BYTES, BYTES, FLOAT32, FLOAT32, FLOAT32, INT32, BYTES, BYTES, FLOAT32),
    choices={"do_rotary": (0,), "past_present_share_buffer": (0,), "unidirectional": (0, 1)},
    outputs=2,
    refuse=_refuse_masks(5),
    unread={"do_rotary": 0, "past_present_share_buffer": 0},
)
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
    mask_filter_value: float = _FILTER,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Array, Array]:
    """Returns the results of Attention with quantized input and weights. Source: ONNX Runtime, com.microsoft.QAttention-1."""
    projected = mat_mul_integer_to_float(xp, x, weights, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    return attend_projected(
        xp, projected, mask_index, past, None, sizes=(), heads=num_heads, scale=scale, is_causal=bool(unidirectional),
        low=mask_filter_value,
    )  # fmt: skip


def _refuse_packed(node: Node, input_types: InputTypes) -> str | None:
    """Refuses query, key and value in one tensor, which ONNX Runtime's CPU kernel does not take."""
    for index in (0, 1):
        value_type = input_types[index] if index < len(input_types) else None
        if isinstance(value_type, TensorType) and value_type.shape is not None and len(value_type.shape) == 5:
            return (
                f"{node.operator} has its input '{node.inputs[index]}' packed, of rank 5; implemented: query, key and value apart"
            )
    if not all(index < len(node.inputs) and node.inputs[index] for index in (1, 2)):
        return f"{node.operator} has no key or no value; implemented: query, key and value apart"
    return _refuse_masks(4)(node, input_types)


@microsoft_kernel(
    "MultiHeadAttention",
    halves=(0, 1, 2, 3),
    dtypes=(FLOAT32, FLOAT32, FLOAT32, FLOAT32, INT32, FLOAT32, FLOAT32, FLOAT32),
    choices={"unidirectional": (0, 1)},
    outputs=4,
    refuse=_refuse_packed,
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
    mask_filter_value: float = _FILTER,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Array, Array, Array, Array]:
    """Returns the attention of query to key, the keys and values with the past before them, and the scores.

    query: (batch, steps, width); key, value: likewise, or (batch, heads, steps, size) as an encoder left them.
    Source: ONNX Runtime, com.microsoft.MultiHeadAttention-1.
    """
    width = query.shape[2]
    parts = (None,) * 3 if bias is None else (bias[:width], bias[width : 2 * width], bias[2 * width :])
    q = _lay_heads(xp, query, parts[0], num_heads)
    k, v = _lay_heads(xp, key, parts[1], num_heads), _lay_heads(xp, value, parts[2], num_heads)
    before = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = xp.concatenate([past_key, k], axis=2), xp.concatenate([past_value, v], axis=2)
    added = make_mask(
        xp, key_padding_mask, q.shape[0], q.shape[2], k.shape[2], past=before, is_causal=bool(unidirectional), low=mask_filter_value
    )
    y, scores = attend(xp, q, k, v, scale=scale or 1 / sqrt(q.shape[3]), added=added, bias=attention_bias)
    return join_heads(xp, y), k, v, scores


def _lay_heads(xp: Namespace, x: Array, bias: Array | None, heads: int) -> Array:
    """Returns (batch, heads, steps, size), with the bias of the projection unless x is already laid out by heads."""
    if x.ndim == 4:
        return x
    return split_heads(xp, x if bias is None else x + bias, heads)


@microsoft_kernel(
    "DecoderMaskedMultiHeadAttention",
    halves=(0, 1, 2, 3),
    dtypes=(FLOAT32, FLOAT32, FLOAT32, INT32, FLOAT32, FLOAT32, FLOAT32, INT32, INT32, INT32, FLOAT32),
    choices={"past_present_share_buffer": (0,), "output_qk": (0, 1)},
    outputs=4,
    refuse=_refuse_packed,
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
    mask_filter_value: float = _FILTER,
    num_heads: int,
    scale: float = 0.0,
) -> tuple[Array, Array, Array, Array]:
    """Returns the results of MultiHeadAttention for a single step, with growing caches; without beams.

    Source: ONNX Runtime, com.microsoft.DecoderMaskedMultiHeadAttention-1.
    """
    if cache_indirection is not None:
        raise ValueError("a cache of several beams is not implemented")
    if query.shape[1] != 1:
        raise ValueError(f"the query has {query.shape[1]} steps; the operator takes one")
    y, k, v, scores = multi_head_attention(
        xp, query, key, value, bias, mask_index, attention_bias, past_key, past_value, mask_filter_value=mask_filter_value,
        num_heads=num_heads, scale=scale,
    )  # fmt: skip
    return y, k, v, narrow(scores, np.float32)
