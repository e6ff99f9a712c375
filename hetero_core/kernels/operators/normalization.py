"""Normalization: statistics are taken in float32 or wider, with the population variance; the result is rounded once."""

from __future__ import annotations

from math import prod

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.operators.reductions import reduce_mean
from hetero_core.kernels.precision import Array, Namespace, narrow, normalize_axes, normalize_axis, widen
from hetero_core.kernels.registry import FLOAT32, FLOATS, kernel

# The stash types that are implemented: float and double.
_STASH = {"stash_type": (1, 11)}
_MOMENTUM = {"momentum": 0.9}
_TEST = {"is_test": (1,), "spatial": (0, 1)}


def _per_channel(x: Array, values: Array) -> Array:
    """Returns (channels,) shaped to broadcast over (batch, channels, *sizes); a tensor of rank 1 has one channel."""
    return widen(values).reshape(1 if x.ndim == 1 else (-1, *(1,) * (x.ndim - 2)))


def _apply_statistics(xp: Namespace, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    """Returns (x - mean) / sqrt(variance + epsilon) * scale + bias, with all but x already broadcastable."""
    factor = scale / xp.sqrt(variance + epsilon)
    y = (widen(x) - mean) * factor
    y += bias
    return narrow(y, x.dtype)


def _take_statistics(xp: Namespace, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns mean and variance over the axes, which stay as 1: the mean first, so that no digit of the variance is lost."""
    mean = reduce_mean(xp, x, axes, keepdims=True)
    centered = x - mean
    return mean, reduce_mean(xp, centered * centered, axes, keepdims=True)


@kernel("BatchNormalization", since=(9,), dtypes=FLOATS, unread=_MOMENTUM)
def batch_normalization_inference(
    xp: Namespace, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float = 1e-5
) -> Array:
    """Returns x normalized by the given statistics: with one output the operator is in test mode.

    Source: ONNX BatchNormalization-9.
    """
    parts = [_per_channel(x, values) for values in (scale, bias, mean, variance)]
    return _apply_statistics(xp, x, parts[0], parts[1], parts[2], parts[3], epsilon)


@kernel("BatchNormalization", since=(7,), dtypes=FLOATS, choices={"spatial": (0, 1)}, unread=_MOMENTUM)
def batch_normalization_spatial(
    xp: Namespace, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float = 1e-5, spatial: int = 1
) -> Array:
    """Returns x normalized by statistics per channel, or per element where spatial is 0. Source: ONNX BatchNormalization-7."""
    if spatial:
        return batch_normalization_inference(xp, x, scale, bias, mean, variance, epsilon=epsilon)
    parts = [widen(values).reshape(x.shape[1:]) for values in (scale, bias, mean, variance)]
    return _apply_statistics(xp, x, parts[0], parts[1], parts[2], parts[3], epsilon)


@kernel("BatchNormalization", since=(1,), dtypes=FLOATS, choices=_TEST, unread={**_MOMENTUM, "consumed_inputs": None})
@kernel("BatchNormalization", since=(6,), dtypes=FLOATS, choices=_TEST, unread=_MOMENTUM)
def batch_normalization_test(
    xp: Namespace,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float = 1e-5,
    is_test: int,
    spatial: int = 1,
) -> Array:
    """Returns x normalized by the given statistics; the operator trains unless is_test is 1.

    Statistics of each channel are taken so whatever `spatial` says, which decides how they come about; others are those of each element.
    Source: ONNX BatchNormalization-6.
    """
    per_channel = spatial or scale.size == x.shape[1]
    return batch_normalization_spatial(xp, x, scale, bias, mean, variance, epsilon=epsilon, spatial=int(per_channel))


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
    """Returns x normalized; in training by its own statistics, along with the running ones. Source: ONNX BatchNormalization-15."""
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
    """Returns x normalized in each channel of each instance. Source: ONNX InstanceNormalization-22."""
    axes = tuple(range(2, x.ndim))
    wide = widen(x)
    mean, variance = _take_statistics(xp, wide, axes)
    return _apply_statistics(xp, x, _per_channel(x, scale), _per_channel(x, bias), mean, variance, epsilon)


@kernel("GroupNormalization", since=(21,), dtypes=FLOATS, choices=_STASH)
def group_normalization(
    xp: Namespace, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Array:
    """Returns x normalized in each group of channels, then scaled per channel. Source: ONNX GroupNormalization-21."""
    dtype = numpy_dtype(dtype_of_onnx(stash_type) or "float32")
    normalized = _normalize_groups(xp, x.astype(dtype), num_groups, epsilon)
    y = widen(narrow(normalized, x.dtype)) * _per_channel(x, scale) + _per_channel(x, bias)
    return narrow(y, x.dtype)


@kernel("GroupNormalization", since=(18,), dtypes=FLOATS)
def group_normalization_per_group(
    xp: Namespace, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5, num_groups: int
) -> Array:
    """Returns x normalized and scaled in each group of channels. Source: ONNX GroupNormalization-18."""
    normalized = _normalize_groups(xp, widen(x), num_groups, epsilon).reshape(
        (x.shape[0], num_groups, prod(x.shape[1:]) // num_groups)
    )
    y = normalized * widen(scale).reshape((1, -1, 1)) + widen(bias).reshape((1, -1, 1))
    return narrow(y, x.dtype).reshape(x.shape)


def _normalize_groups(xp: Namespace, x: Array, num_groups: int, epsilon: float) -> Array:
    grouped = x.reshape((x.shape[0], num_groups, prod(x.shape[1:]) // num_groups))
    mean, variance = _take_statistics(xp, grouped, (2,))
    return ((grouped - mean) / xp.sqrt(variance + epsilon)).reshape(x.shape)


@kernel("LayerNormalization", since=(0, 17), dtypes=FLOATS, choices=_STASH, outputs=3)
def layer_normalization(
    xp: Namespace,
    x: Array,
    scale: Array,
    bias: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Array, Array, Array]:
    """Returns x normalized over the axes from `axis` on, the mean, and the inverse deviation.

    Before opset 17 ONNX Runtime's own operator of this name, which its transformer optimizer writes, is the same.
    Source: ONNX LayerNormalization-17; ONNX Runtime, ai.onnx.LayerNormalization-1.
    """
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    wide = x.astype(numpy_dtype(dtype_of_onnx(stash_type) or "float32"))
    mean = reduce_mean(xp, wide, axes, keepdims=True)
    centered = wide - mean
    inverse = 1 / xp.sqrt(reduce_mean(xp, centered * centered, axes, keepdims=True) + epsilon)
    y = widen(narrow(centered * inverse, x.dtype)) * widen(scale)
    if bias is not None:
        y = y + widen(bias)
    return narrow(y, x.dtype), mean, inverse


@kernel("RMSNormalization", since=(23,), dtypes=FLOATS, choices=_STASH)
def rms_normalization(
    xp: Namespace, x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """Returns x / sqrt(mean(x^2) + epsilon) * scale in the type of scale. Source: ONNX RMSNormalization-23."""
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    wide = x.astype(numpy_dtype(dtype_of_onnx(stash_type) or "float32"))
    normalized = wide / xp.sqrt(reduce_mean(xp, wide * wide, axes, keepdims=True) + epsilon)
    return narrow(widen(narrow(normalized, x.dtype)) * widen(scale), scale.dtype)


@kernel("LRN", since=(1, 13), dtypes=FLOATS)
def local_response_normalization(
    xp: Namespace, x: Array, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int
) -> Array:
    """Returns x / (bias + alpha / size * sum of x^2 over `size` channels)^beta; the odd channel lies ahead. Source: ONNX LRN-13."""
    wide = widen(x)
    squares = wide * wide
    channels = x.shape[1]
    before, after = (size - 1) // 2, size // 2
    total = xp.zeros(wide.shape, dtype=wide.dtype)
    for offset in range(-min(before, channels - 1), min(after, channels - 1) + 1):
        begin, end = max(0, -offset), min(channels, channels - offset)
        total[:, begin:end] += squares[:, begin + offset : end + offset]
    return narrow(wide / (bias + alpha / size * total) ** beta, x.dtype)


@kernel("LpNormalization", since=(1, 22), dtypes=FLOATS, choices={"p": (1, 2)})
def lp_normalization(xp: Namespace, x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """Returns x divided by its norm along the axis, 0 where the norm is 0. Source: ONNX LpNormalization-22."""
    wide = widen(x)
    magnitudes = xp.abs(wide) if p == 1 else wide * wide
    norm = xp.sum(magnitudes, axis=axis, keepdims=True)
    norm = norm if p == 1 else xp.sqrt(norm)
    return narrow(wide / xp.where(norm == 0, norm.dtype.type(1), norm), x.dtype)


@kernel("MeanVarianceNormalization", since=(9, 13), dtypes=FLOATS)
def mean_variance_normalization(xp: Namespace, x: Array, *, axes: tuple[int, ...] = (0, 2, 3)) -> Array:
    """Returns (x - mean) / (deviation + 1e-9) over the axes. Source: ONNX MeanVarianceNormalization-13, its function body."""
    wide = widen(x)
    resolved = normalize_axes(axes, x.ndim)
    mean, variance = _take_statistics(xp, wide, resolved)
    return narrow((wide - mean) / (xp.sqrt(variance) + 1e-9), x.dtype)


@kernel(
    "MeanVarianceNormalization",
    since=(0,),
    dtypes=FLOAT32,
    choices={"across_channels": (0, 1), "normalize_variance": (0, 1)},
)
def normalize_channels(xp: Namespace, x: Array, *, across_channels: int = 0, normalize_variance: int = 1) -> Array:
    """Returns x without its mean, by default divided by its deviation; statistics of each channel, or across channels.

    x: (batch, channels, *sizes). Source: ONNX Runtime, ai.onnx.MeanVarianceNormalization-1, the form before opset 9.
    """
    axes = tuple(axis for axis in range(x.ndim) if across_channels or axis != 1)
    mean, variance = _take_statistics(xp, x, axes)
    return (x - mean) / (xp.sqrt(variance) + x.dtype.type(1e-9)) if normalize_variance else x - mean
