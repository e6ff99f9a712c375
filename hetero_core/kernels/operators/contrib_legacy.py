"""Operators that ONNX tried and took back, and that ONNX Runtime still runs in ONNX's own domain; and its copies between memories."""

from __future__ import annotations

import numpy as np

from hetero_core.kernels.precision import Array, Namespace, integers_of, normalize_axis
from hetero_core.kernels.registry import ANY, FLOAT32, INDEX, kernel


@kernel("Affine", since=(0,), dtypes=FLOAT32)
def affine(xp: Namespace, x: Array, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
    """Returns alpha x + beta. Source: ONNX Runtime, ai.onnx.Affine-1."""
    return np.float32(alpha) * x + np.float32(beta)


@kernel("Scale", since=(0,), dtypes=FLOAT32)
def scale(xp: Namespace, x: Array, *, scale: float = 1.0) -> Array:
    """Returns scale x. Source: ONNX Runtime, ai.onnx.Scale-1."""
    return np.float32(scale) * x


@kernel("ScaledTanh", since=(0,), dtypes=FLOAT32)
def scaled_tanh(xp: Namespace, x: Array, *, alpha: float, beta: float) -> Array:
    """Returns alpha tanh(beta x). Source: ONNX Runtime, ai.onnx.ScaledTanh-1."""
    return np.float32(alpha) * xp.tanh(np.float32(beta) * x)


@kernel("ParametricSoftplus", since=(0,), dtypes=FLOAT32)
def parametric_softplus(xp: Namespace, x: Array, *, alpha: float, beta: float) -> Array:
    """Returns alpha log(1 + exp(beta x)). Source: ONNX Runtime, ai.onnx.ParametricSoftplus-1."""
    return np.float32(alpha) * xp.logaddexp(np.float32(beta) * x, np.float32(0))


@kernel("ImageScaler", since=(0,), dtypes=FLOAT32)
def image_scaler(xp: Namespace, x: Array, *, bias: tuple[float, ...], scale: float = 1.0) -> Array:
    """Returns scale x plus a bias for each channel. Source: ONNX Runtime, ai.onnx.ImageScaler-1."""
    return np.float32(scale) * x + xp.asarray(bias, dtype=np.float32).reshape((-1, 1, 1))


@kernel("Crop", since=(0,), dtypes=FLOAT32)
def crop(xp: Namespace, x: Array, *, border: tuple[int, ...], scale: tuple[int, ...] = ()) -> Array:
    """Returns the image without its border (left, top, right, bottom), or a piece of the size `scale` from left and top on.

    Source: ONNX Runtime, ai.onnx.Crop-1.
    """
    left, top, right, bottom = border
    height, width = x.shape[2:]
    lower, outer = (top + scale[0], left + scale[1]) if scale else (height - bottom, width - right)
    if lower > height or outer > width or lower <= top or outer <= left:
        raise ValueError(f"a crop to rows {top} to {lower} and columns {left} to {outer} leaves an image of {height} x {width}")
    return x[:, :, top:lower, left:outer]


@kernel("DynamicSlice", since=(0,), dtypes=(ANY, INDEX, INDEX, INDEX), host=(1, 2, 3))
def dynamic_slice(xp: Namespace, x: Array, starts: Array, ends: Array, axes: Array | None = None) -> Array:
    """Returns a slice; bounds beyond an axis are taken to its end. Source: ONNX Runtime, ai.onnx.DynamicSlice-1."""
    picked = [slice(None)] * x.ndim
    places = range(len(starts)) if axes is None else integers_of(axes)
    for axis, start, end in zip(places, integers_of(starts), integers_of(ends), strict=True):
        picked[normalize_axis(axis, x.ndim)] = slice(start, end)
    return x[tuple(picked)]


@kernel("MemcpyFromHost", since=(0,), dtypes=ANY)
@kernel("MemcpyToHost", since=(0,), dtypes=ANY)
def copy_between_memories(xp: Namespace, x: Array) -> Array:
    """Returns x. Source: ONNX Runtime, ai.onnx.MemcpyFromHost-1."""
    return x
