"""Normalization, also fused with its neighbours as ONNX Runtime has it.

Statistics are taken in float32 or wider, with the population variance; the result is rounded once.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.arrays import assign
from hetero_core.kernels.operators.elementwise import sigmoid_of
from hetero_core.kernels.operators.quantization import dequantize_bytes
from hetero_core.kernels.operators.reductions import reduce_mean
from hetero_core.kernels.precision import Array, Integers, Namespace, narrow, normalize_axes, normalize_axis, widen
from hetero_core.kernels.registry import BYTES, FLOAT32, FLOATS, INT32, SMALL_FLOATS, kernel, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.network.graph import Node

# The stash types that are implemented: float and double.
_STASH = {"stash_type": (1, 11)}
_MOMENTUM = {"momentum": 0.9}
_TEST = {"is_test": (1,), "spatial": (0, 1)}


def _per_channel(x: Array, values: Array) -> Array:
    """Returns (channels,) shaped to broadcast over (batch, channels, *sizes); a tensor of rank 1 has a single channel."""
    return widen(values).reshape(1 if x.ndim == 1 else (-1, *(1,) * (x.ndim - 2)))


def _scale_centered(
    xp: Namespace, centered: Array, scale: Array, bias: Array, variance: Array, epsilon: float, dtype: Any
) -> Array:
    """Returns centered / sqrt(variance + epsilon) * scale + bias; may write into the first, over which the others broadcast."""
    centered *= scale / xp.sqrt(variance + epsilon)
    centered += bias
    return narrow(centered, dtype)


def _center(xp: Namespace, x: Array, axes: Integers) -> tuple[Array, Array, Array]:
    """Returns x - mean, mean and variance over the axes, which stay as 1: the mean first, so that no digit of the variance is lost."""
    mean = reduce_mean(xp, x, axes, keepdims=True)
    centered = x - mean
    return centered, mean, reduce_mean(xp, centered * centered, axes, keepdims=True)


@kernel("BatchNormalization", since=(9,), dtypes=FLOATS, unread=_MOMENTUM, without=("spatial",))
@kernel("BatchNormalization", since=(7,), dtypes=FLOATS, choices={"spatial": (0, 1)}, unread=_MOMENTUM)
def batch_normalization_inference(
    xp: Namespace, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float = 1e-5, spatial: int = 1
) -> Array:
    """Returns x normalized by the given statistics per channel, or per element if spatial is 0; a single output is not trained."""
    scale, bias, mean, variance = (
        _per_channel(x, values) if spatial else widen(values).reshape(x.shape[1:]) for values in (scale, bias, mean, variance)
    )
    return _scale_centered(xp, widen(x) - mean, scale, bias, variance, epsilon, x.dtype)


@kernel("BatchNormalization", since=(1,), dtypes=FLOATS, choices=_TEST, unread={**_MOMENTUM, "consumed_inputs": None})
@kernel("BatchNormalization", since=(6,), dtypes=FLOATS, choices=_TEST, unread=_MOMENTUM)
def batch_normalization_test(
    xp: Namespace, x: Array, scale: Array, *others: Array, epsilon: float = 1e-5, is_test: int, spatial: int = 1
) -> Array:
    """Returns x normalized by the given statistics; the operator trains unless is_test is 1.

    Statistics of rank 1 are those of each channel, for every value of `spatial`; further statistics are those of each element.
    """
    per_channel = spatial or scale.size == x.shape[1]
    return batch_normalization_inference(xp, x, scale, *others, epsilon=epsilon, spatial=int(per_channel))


@kernel("BatchNormalization", since=(14, 15), dtypes=FLOATS, choices={"training_mode": (0, 1)}, outputs=3)
def batch_normalization(
    xp: Namespace,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Array | tuple[Array, Array, Array]:
    """Returns x normalized; in training by its own statistics, along with the running statistics."""
    if not training_mode:
        return batch_normalization_inference(xp, x, scale, bias, mean, variance, epsilon=epsilon)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    wide = widen(x)
    current_mean, current_variance = xp.mean(wide, axis=axes), xp.var(wide, axis=axes)
    y = batch_normalization_inference(xp, x, scale, bias, current_mean, current_variance, epsilon=epsilon)
    running = [
        narrow(widen(old) * momentum + new * (1 - momentum), old.dtype)
        for old, new in ((mean, current_mean), (variance, current_variance))
    ]
    return y, running[0], running[1]


@kernel("InstanceNormalization", since=(1, 6, 22), dtypes=FLOATS)
def instance_normalization(xp: Namespace, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5) -> Array:
    """Returns x normalized in each channel of each instance."""
    centered, _, variance = _center(xp, widen(x), tuple(range(2, x.ndim)))
    return _scale_centered(xp, centered, _per_channel(x, scale), _per_channel(x, bias), variance, epsilon, x.dtype)


@kernel("GroupNormalization", since=(21,), dtypes=FLOATS, choices=_STASH)
def group_normalization(
    xp: Namespace, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Array:
    """Returns x normalized in each group of channels, then scaled per channel."""
    dtype = numpy_dtype(dtype_of_onnx(stash_type) or "float32")
    normalized = _normalize_groups(xp, x.astype(dtype), num_groups, epsilon)
    y = widen(narrow(normalized, x.dtype)) * _per_channel(x, scale) + _per_channel(x, bias)
    return narrow(y, x.dtype)


@kernel("GroupNormalization", since=(18,), dtypes=FLOATS)
def group_normalization_18(xp: Namespace, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int) -> Array:
    """Returns x normalized and scaled in each group of channels."""
    normalized = _normalize_groups(xp, widen(x), num_groups, epsilon)
    normalized = normalized.reshape((x.shape[0], num_groups, prod(x.shape[1:]) // num_groups))
    y = normalized * _per_channel(normalized, scale) + _per_channel(normalized, bias)
    return narrow(y, x.dtype).reshape(x.shape)


def _normalize_groups(xp: Namespace, x: Array, num_groups: int, epsilon: float) -> Array:
    centered, _, variance = _center(xp, x.reshape((x.shape[0], num_groups, prod(x.shape[1:]) // num_groups)), (2,))
    return (centered / xp.sqrt(variance + epsilon)).reshape(x.shape)


@kernel("LayerNormalization", since=(0, 17), dtypes=FLOATS, choices=_STASH, outputs=3)
def layer_normalization(
    xp: Namespace, x: Array, scale: Array, bias: Array | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Array, Array, Array]:
    """Returns x normalized over the axes from `axis` on, the mean, and the inverse deviation.

    Before opset 17 ONNX Runtime's own operator of this name, which its transformer optimizer writes, is the same.
    Source: ONNX LayerNormalization-17; ONNX Runtime, ai.onnx.LayerNormalization-1.
    """
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    wide = x.astype(numpy_dtype(dtype_of_onnx(stash_type) or "float32"))
    normalized, mean, inverse = _normalize(xp, wide, axes, epsilon)
    y = widen(narrow(normalized, x.dtype)) * widen(scale)
    if bias is not None:
        y = y + widen(bias)
    return narrow(y, x.dtype), mean, inverse


@kernel("RMSNormalization", since=(23,), dtypes=FLOATS, choices=_STASH)
def rms_normalize(xp: Namespace, x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Array:
    """Returns x / sqrt(mean(x^2) + epsilon) * scale in the type of scale."""
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    wide = x.astype(numpy_dtype(dtype_of_onnx(stash_type) or "float32"))
    normalized = wide / xp.sqrt(reduce_mean(xp, wide * wide, axes, keepdims=True) + epsilon)
    return narrow(widen(narrow(normalized, x.dtype)) * widen(scale), scale.dtype)


@kernel("LRN", since=(1, 13), dtypes=FLOATS)
def local_response_normalization(
    xp: Namespace, x: Array, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int
) -> Array:
    """Returns x / (bias + alpha / size * sum of x^2 over `size` channels)^beta; the odd channel lies ahead."""
    wide = widen(x)
    squares = wide * wide
    channels = x.shape[1]
    before, after = (size - 1) // 2, size // 2
    total = xp.zeros(wide.shape, dtype=wide.dtype)
    for offset in range(-min(before, channels - 1), min(after, channels - 1) + 1):
        begin, end = max(0, -offset), min(channels, channels - offset)
        total = assign(total, (slice(None), slice(begin, end)), total[:, begin:end] + squares[:, begin + offset : end + offset])
    return narrow(wide / (bias + alpha / size * total) ** beta, x.dtype)


@kernel("LpNormalization", since=(1, 22), dtypes=FLOATS, choices={"p": (1, 2)})
def lp_normalization(xp: Namespace, x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """Returns x divided by its norm along the axis, or 0 if the norm is 0."""
    wide = widen(x)
    magnitudes = xp.abs(wide) if p == 1 else wide * wide
    norm = xp.sum(magnitudes, axis=axis, keepdims=True)
    norm = norm if p == 1 else xp.sqrt(norm)
    return narrow(wide / xp.where(norm == 0, norm.dtype.type(1), norm), x.dtype)


@kernel("MeanVarianceNormalization", since=(9, 13), dtypes=FLOATS)
def mean_variance_normalization(xp: Namespace, x: Array, *, axes: Integers = (0, 2, 3)) -> Array:
    """Returns (x - mean) / (deviation + 1e-9) over the axes. Source: ONNX MeanVarianceNormalization-13, its function body."""
    centered, _, variance = _center(xp, widen(x), normalize_axes(axes, x.ndim))
    return narrow(centered / (xp.sqrt(variance) + 1e-9), x.dtype)


@kernel("MeanVarianceNormalization", since=(0,), dtypes=FLOAT32, choices={"across_channels": (0, 1), "normalize_variance": (0, 1)})
def normalize_channels(xp: Namespace, x: Array, *, across_channels: int = 0, normalize_variance: int = 1) -> Array:
    """Returns x without its mean, by default divided by its deviation; statistics of each channel, or across channels.

    x: (batch, channels, *sizes). Source: ONNX Runtime, ai.onnx.MeanVarianceNormalization-1, the form before opset 9.
    """
    axes = tuple(axis for axis in range(x.ndim) if across_channels or axis != 1)
    centered, _, variance = _center(xp, x, axes)
    return centered / (xp.sqrt(variance) + x.dtype.type(1e-9)) if normalize_variance else centered


def _normalize(xp: Namespace, x: Array, axes: Integers, epsilon: float) -> tuple[Array, Array, Array]:
    """Returns (x - mean) / sqrt(variance + epsilon) over the axes, the mean, and the inverse deviation."""
    centered, mean, variance = _center(xp, x, axes)
    inverse = 1 / xp.sqrt(variance + epsilon)
    return centered * inverse, mean, inverse


def scale_rows(xp: Namespace, x: Array, epsilon: float, axes: int | Integers = -1) -> tuple[Array, Array]:
    """Returns x / sqrt(mean(x^2) + epsilon) over the axes, by default the last, and the inverse root."""
    inverse = 1 / xp.sqrt(xp.mean(x * x, axis=axes, keepdims=True) + x.dtype.type(epsilon))
    return x * inverse, inverse


@microsoft_kernel("SkipLayerNormalization", dtypes=FLOATS, outputs=4)
def skip_layer_normalization(
    xp: Namespace, x: Array, skip: Array, w: Array, b: Array | None = None, bias: Array | None = None, *, epsilon: float = 1e-12
) -> tuple[Array, Array, Array, Array]:
    """Returns the normalized sum of x, skip and bias, times w plus b; mean, inverse deviation and the sum itself."""
    total = _add_skip(x, skip, bias)
    normalized, mean, inverse = _normalize(xp, total, (x.ndim - 1,), epsilon)
    y = normalized * widen(w)
    if b is not None:
        y = y + widen(b)
    return narrow(y, x.dtype), narrow(mean, np.float32), narrow(inverse, np.float32), narrow(total, x.dtype)


def _add_skip(x: Array, skip: Array, bias: Array | None) -> Array:
    total = widen(x) + widen(skip)
    return total if bias is None else total + widen(bias)


@microsoft_kernel("SkipSimplifiedLayerNormalization", dtypes=FLOATS, outputs=4)
def skip_simplified_layer_normalization(
    xp: Namespace, x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12
) -> tuple[Array, Array, Array, Array]:
    """Returns the sum of x, skip and bias divided by its root mean square, scaled; 0, the inverse root and the sum itself."""
    total = _add_skip(x, skip, bias)
    normalized, inverse = scale_rows(xp, total, epsilon)
    y = narrow(normalized * widen(gamma), x.dtype)
    return y, xp.zeros(inverse.shape, dtype=np.float32), narrow(inverse, np.float32), narrow(total, x.dtype)


@kernel("SimplifiedLayerNormalization", since=(0,), dtypes=FLOATS, choices={"stash_type": (1,)}, outputs=2)
def simplified_layer_normalization(
    xp: Namespace, x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Array, Array]:
    """Returns x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on, and the inverse root as float32."""
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    normalized, inverse = scale_rows(xp, widen(x), epsilon, axes)
    y = normalized * widen(scale).reshape(x.shape[axes[0] :] if scale.size > 1 else ())
    return narrow(y, scale.dtype), narrow(inverse, numpy_dtype(dtype_of_onnx(stash_type) or "float32"))


_EMBEDDED = (INT32, INT32, *(FLOAT32,) * 5, INT32)
_MASK_TYPE: dict[str, Any] = {"choices": {"mask_index_type": (0, 1)}, "unread": {"mask_index_type": 0}}


@microsoft_kernel("EmbedLayerNormalization", halves=(0, 2), dtypes=_EMBEDDED, outputs=3, **_MASK_TYPE)
def embed_layer_normalization(
    xp: Namespace,
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Array, Array, Array]:
    """Returns the normalized sum of the embeddings of words, positions and segments, how many of a row the mask lets pass, the sum."""
    total = xp.take(word_embedding, input_ids, axis=0)
    steps = input_ids.shape[1]
    total = total + (position_embedding[:steps] if position_ids is None else xp.take(position_embedding, position_ids, axis=0))
    if segment_embedding is not None and segment_ids is not None:
        total = total + xp.take(segment_embedding, segment_ids, axis=0)
    y = _normalize(xp, total, (2,), epsilon)[0] * gamma + beta
    return y, _count_mask(xp, mask, input_ids), total


def _count_mask(xp: Namespace, mask: Array | None, input_ids: Array) -> Array:
    if mask is None:
        return xp.zeros((input_ids.shape[0],), dtype=np.int32)
    return xp.sum(mask == 1, axis=1).astype(np.int32)


def _refuse_half_segments(node: Node, input_types: InputTypes) -> str | None:
    """Refuses segments without their embedding, its scale or its zero point."""
    present = [index < len(node.inputs) and bool(node.inputs[index]) for index in (1, 4, 10, 15)]
    return None if all(present) or not any(present) else f"{node.operator} has some of the four inputs of segments, not all"


@microsoft_kernel(
    "QEmbedLayerNormalization",
    dtypes=(INT32, INT32, *(BYTES,) * 5, INT32, *(FLOAT32,) * 5, *(BYTES,) * 5),
    outputs=2,
    refuse=_refuse_half_segments,
)
def qembed_layer_normalization(
    xp: Namespace,
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None,
    word_scale: Array,
    position_scale: Array,
    segment_scale: Array | None,
    gamma_scale: Array,
    beta_scale: Array,
    word_zero_point: Array,
    position_zero_point: Array,
    segment_zero_point: Array | None,
    gamma_zero_point: Array,
    beta_zero_point: Array,
    *,
    epsilon: float = 1e-12,
) -> tuple[Array, Array]:
    """Returns the result of EmbedLayerNormalization for quantized tables."""
    steps = input_ids.shape[1]
    total = dequantize_bytes(xp.take(word_embedding, input_ids, axis=0), word_scale, word_zero_point)
    total = total + dequantize_bytes(position_embedding[:steps], position_scale, position_zero_point)
    if segment_embedding is not None and segment_ids is not None:
        total = total + dequantize_bytes(xp.take(segment_embedding, segment_ids, axis=0), segment_scale, segment_zero_point)
    y = _normalize(xp, total, (2,), epsilon)[0] * dequantize_bytes(gamma, gamma_scale, gamma_zero_point)
    return y + dequantize_bytes(beta, beta_scale, beta_zero_point), _count_mask(xp, mask, input_ids)


@microsoft_kernel("GatedRMSNorm", dtypes=SMALL_FLOATS, choices={"activation": ("silu", "swish", "sigmoid")})
def gated_rms_norm(xp: Namespace, x: Array, scale: Array, gate: Array, *, activation: str = "silu", epsilon: float = 1e-5) -> Array:
    """Returns x / rms(x) * scale * activation(gate), by groups as long as scale."""
    groups = widen(x).reshape((*x.shape[:-1], x.shape[-1] // scale.shape[0], scale.shape[0]))
    normalized = (scale_rows(xp, groups, epsilon)[0] * widen(scale)).reshape(x.shape)
    wide = widen(gate)
    factor = sigmoid_of(xp, wide)
    return narrow(normalized * (factor if activation == "sigmoid" else wide * factor), x.dtype)


@microsoft_kernel("GatedAdd", dtypes=frozenset({"float32", "float16"}))
def gated_add(xp: Namespace, x: Array, y: Array, gate: Array) -> Array:
    """Returns x + y * gate, the product rounded first. Source: ONNX Runtime, com.microsoft.GatedAdd-1, plain mode."""
    return x + narrow(widen(y) * widen(gate), x.dtype)
