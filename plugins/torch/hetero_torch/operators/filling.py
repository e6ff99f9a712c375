"""Tensors made from sizes, numbers or indices: Range, ConstantOfShape, EyeLike, OneHot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetero_core.dtypes import dtype_of_onnx
from hetero_core.kernels.operators.layout import range_
from hetero_core.kernels.precision import integers_of, normalize_axis
from hetero_core.network.graph import Node
from hetero_torch.arrays import DTYPES, to_tensor, torch_dtype
from hetero_torch.table import Types, operator


@operator("Range", 11, is_placed=True)
def fill_range(start: Any, limit: Any, delta: Any, *, place: torch.device) -> Tensor:
    """Returns start, start + delta, ... below the limit, as the host computes it. Source: ONNX Range-11."""
    return to_tensor(range_(np, start, limit, delta), place)


def _refuse_value(node: Node, types: Types) -> str | None:
    value = node.attributes.get("value")
    dtype = "float32" if value is None else str(value.dtype)
    return None if dtype in DTYPES else f"{node.operator} makes {dtype}, which this device does not have"


@operator("ConstantOfShape", is_placed=True, refuse=_refuse_value)
def constant_of_shape(shape: Any, *, place: torch.device, value: Any = None) -> Tensor:
    """Returns a tensor of one value, float32 zero by default. Source: ONNX ConstantOfShape-25."""
    fill = to_tensor(np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1), torch.device("cpu"))
    return torch.full(integers_of(shape), fill[0].item(), dtype=fill.dtype, device=place)


@operator("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """Returns ones on the k-th diagonal of a matrix like x. Source: ONNX EyeLike-22."""
    name = None if dtype is None else dtype_of_onnx(dtype)
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
    return (columns[None, :] - rows[:, None] == k).to(x.dtype if name is None else torch_dtype(name))


@operator("OneHot")
def one_hot(indices: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    """Returns values[1] where the new axis equals the index and values[0] elsewhere; indices outside select nothing.

    Source: ONNX OneHot-28.
    """
    count = integers_of(depth)[0]
    place = normalize_axis(axis, indices.ndim + 1)
    shape = [1] * (indices.ndim + 1)
    shape[place] = count
    whole = indices.to(torch.int64)
    wrapped = torch.where(whole < 0, whole + count, whole).unsqueeze(place)
    hot = torch.arange(count, device=indices.device).reshape(shape) == wrapped
    return torch.where(hot, values[1], values[0])
