"""Type, borders and picked slices: Slice, Pad, Cast, Gather."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.kernels.operators.layout import clamp, find_sources
from hetero_core.kernels.precision import integers_of, normalize_axes, normalize_axis
from hetero_core.network.graph import Node
from hetero_torch.arrays import torch_dtype
from hetero_torch.table import Types, operator


@operator("Slice", 10, 11, 13)
def slice_(x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    """Returns x[start:end:step] along the axes; ends are clamped, a negative step walks back. Source: ONNX Slice-13."""
    begins, stops = integers_of(starts), integers_of(ends)
    resolved = tuple(range(len(begins))) if axes is None else integers_of(axes)
    strides = (1,) * len(begins) if steps is None else integers_of(steps)
    for begin, stop, axis, stride in zip(begins, stops, normalize_axes(resolved, x.ndim), strides, strict=True):
        part = clamp(begin, stop, stride, x.shape[axis])
        if stride > 0:
            x = x[(slice(None),) * axis + (part,)]
        else:
            x = x.index_select(axis, torch.tensor(range(x.shape[axis])[part], dtype=torch.int64, device=x.device))
    return x


@operator("Pad", 11, 13, 18, 19, 21, 23, 24, 25)
def pad(x: Tensor, pads: Any, constant_value: Tensor | None = None, axes: Any = None, *, mode: str = "constant") -> Tensor:
    """Returns x with a border on the axes; negative pads cut. Source: ONNX Pad-25."""
    named = tuple(range(x.ndim)) if axes is None else normalize_axes(integers_of(axes), x.ndim)
    flat = integers_of(pads)
    if len(flat) != 2 * len(named):
        raise ValueError(f"{len(flat)} pads are given for {len(named)} axes")
    spread = [(0, 0)] * x.ndim
    for index, axis in enumerate(named):
        spread[axis] = (flat[index], flat[index + len(named)])
    if mode == "constant":
        value = 0 if constant_value is None else constant_value.reshape(()).item()
        return functional.pad(x, [width for widths in reversed(spread) for width in widths], value=value)
    for axis, (begin, end) in enumerate(spread):
        if begin or end:
            # Cuts come first: elements that were cut off are not mirrored or repeated.
            x = x.narrow(axis, max(-begin, 0), x.shape[axis] - max(-begin, 0) - max(-end, 0))
            sources = find_sources(x.shape[axis], max(begin, 0), max(end, 0), mode)
            x = x.index_select(axis, torch.tensor(sources, dtype=torch.int64, device=x.device))
    return x


def _refuse_two_roundings(node: Node, types: Types) -> str | None:
    """Refuses float64 to float16, which PyTorch rounds to float32 on its way."""
    if getattr(types[0], "dtype", None) == "float64" and dtype_of_onnx(node.attributes["to"]) == "float16":
        return f"PyTorch rounds twice from float64 to float16, by way of float32, which {node.operator} does not"
    return None


@operator("Cast", refuse=_refuse_two_roundings)
def cast(x: Tensor, *, round_mode: str = "up", saturate: int = 1, to: int | str) -> Tensor:
    """Returns x in another element type; the other attributes are for floats of 8 bits. Source: ONNX Cast-25."""
    name = dtype_of_onnx(to)
    assert name is not None, f"{to} is no element type"
    return x.to(torch_dtype(name))


def _wrap(indices: Tensor, size: int) -> Tensor:
    whole = indices.to(torch.int64)
    return torch.where(whole < 0, whole + size, whole)


@operator("Gather")
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Returns the slices of x along the axis that the indices name, in their shape. Source: ONNX Gather-13."""
    dim = normalize_axis(axis, x.ndim)
    picked = x.index_select(dim, _wrap(indices.reshape(-1), x.shape[dim]))
    return picked.reshape((*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :]))
