"""Resize and Upsample: each axis by itself, from the toolkit's positions and weights; images by PyTorch where it is the same."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hetero_core.kernels.operators.resize import Axis, Sampling, find_taps, lay_axes
from hetero_core.kernels.precision import normalize_axes
from hetero_torch.table import operator, refuse_attributes

_TRANSFORMATIONS = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    *("align_corners", "asymmetric", "tf_half_pixel_for_nn"),
)


@operator(
    "Resize",
    11,
    13,
    18,
    19,
    widens=True,
    refuse=refuse_attributes(coordinate_transformation_mode=_TRANSFORMATIONS, keep_aspect_ratio_policy=("stretch",)),
)
def resize(
    x: Tensor,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """Returns x resampled to the sizes, or by the scales. Source: ONNX Resize-19."""
    sampling = Sampling(mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias))
    named = tuple(range(x.ndim)) if axes is None else normalize_axes(axes, x.ndim)
    return _resample(x, lay_axes(x.shape, named, None, scales, sizes, keep_aspect_ratio_policy), sampling)


@operator("Resize", 10, widens=True)
@operator("Upsample", 9, widens=True)
def resize_by_scales(x: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    """Returns x resampled from coordinates x / scale; nearest rounds down where the axis grows and up where it shrinks.

    Source: ONNX Resize-10.
    """
    for axis in lay_axes(x.shape, tuple(range(x.ndim)), None, scales, None, "stretch"):
        x = _resample(x, [axis], Sampling(mode, "asymmetric", "ceil" if axis.scale < 1 else "floor"))
    return x


def _resample(x: Tensor, axes: list[Axis], sampling: Sampling) -> Tensor:
    changed = [axis for axis in axes if axis.scale != 1 or axis.output != axis.size]
    if _is_interpolation(x, changed, sampling):
        outputs = [next((axis.output for axis in changed if axis.axis == dim), x.shape[dim]) for dim in (2, 3)]
        is_aligned = sampling.transformation == "align_corners"
        return functional.interpolate(x, outputs, mode="bilinear", align_corners=is_aligned)
    for axis in changed:
        x = _resample_axis(x, axis, sampling)
    return x


def _is_interpolation(x: Tensor, axes: list[Axis], sampling: Sampling) -> bool:
    """Says whether PyTorch's bilinear interpolation of images is the same: scales that are quotients of sizes, no filter."""
    return (
        x.ndim == 4
        and (sampling.mode, sampling.antialias, sampling.exclude_outside) == ("linear", False, False)
        and sampling.transformation in ("half_pixel", "align_corners")
        and bool(axes)
        and x.numel() > 0
        and all(axis.axis > 1 and axis.output > 1 and axis.output == axis.size * axis.scale for axis in axes)
    )


def _resample_axis(x: Tensor, axis: Axis, sampling: Sampling) -> Tensor:
    if axis.output == 0:
        return x.narrow(axis.axis, 0, 0)
    positions, weights = find_taps(axis, sampling)
    shape = (-1, *(1,) * (x.ndim - axis.axis - 1))
    parts = []
    for tap in range(positions.shape[1]):
        read = x.index_select(axis.axis, torch.from_numpy(np.ascontiguousarray(positions[:, tap])).to(x.device))
        if sampling.mode == "nearest":
            return read
        parts.append(read * torch.tensor(weights[:, tap], dtype=x.dtype, device=x.device).reshape(shape))
    return reduce(torch.add, parts)
