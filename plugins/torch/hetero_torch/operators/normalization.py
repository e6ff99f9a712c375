"""Normalization: statistics are taken in float32 or wider, with the population variance."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hetero_core.kernels.precision import normalize_axis
from hetero_torch.table import FLOATS, SINGLE, operator

_STASH = {"stash_type": (1,)}


@operator("BatchNormalization", 9, 14, 15, dtypes=FLOATS, widens=True, choices={"training_mode": (0,)}, outputs=1)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor:
    """Returns x normalized by the given statistics. Source: ONNX BatchNormalization-15."""
    if x.ndim == 1:
        return (x - mean) * (scale / torch.sqrt(variance + epsilon)) + bias
    return functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


@operator("InstanceNormalization", dtypes=FLOATS, widens=True)
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Returns x normalized in each channel of each instance. Source: ONNX InstanceNormalization-22."""
    return _normalize_groups(x, x.shape[1], scale, bias, epsilon)


@operator("GroupNormalization", 21, dtypes=SINGLE, widens=True, choices=_STASH)
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Tensor:
    """Returns x normalized in each group of channels, then scaled per channel. Source: ONNX GroupNormalization-21."""
    return _normalize_groups(x, num_groups, scale, bias, epsilon)


def _normalize_groups(x: Tensor, groups: int, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    # The function of torch.nn refuses groups of one element, which are zero.
    return torch.group_norm(x, groups, scale, bias, epsilon) if x.numel() else x


@operator("LayerNormalization", dtypes=SINGLE, choices=_STASH)
def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x normalized over the axes from `axis` on, the mean, and the inverse deviation; the latter two are float32.

    Source: ONNX LayerNormalization-17.
    """
    first = normalize_axis(axis, x.ndim)
    shape = x.shape[first:]
    wide, factor, shift = x.float(), scale.float(), None if bias is None else bias.float()
    is_plain = factor.shape == shape and (shift is None or shift.shape == shape)
    y, mean, inverse = torch.native_layer_norm(wide, shape, factor if is_plain else None, shift if is_plain else None, epsilon)
    if not is_plain:
        y = y * factor if shift is None else y * factor + shift
    shape_of_statistics = (*x.shape[:first], *(1,) * len(shape))
    return y.to(x.dtype), mean.reshape(shape_of_statistics), inverse.reshape(shape_of_statistics)


@operator("RMSNormalization", dtypes=SINGLE, choices=_STASH)
def rms_normalization(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    """Returns x / sqrt(mean(x^2) + epsilon) * scale in the type of scale. Source: ONNX RMSNormalization-23."""
    wide = x.float()
    axes = tuple(range(normalize_axis(axis, x.ndim), x.ndim))
    normalized = wide * torch.rsqrt(torch.mean(wide * wide, axes, keepdim=True) + epsilon)
    return (normalized * scale.float()).to(scale.dtype)
