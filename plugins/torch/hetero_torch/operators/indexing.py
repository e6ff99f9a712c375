"""Reading and writing by index. Negative indices count from the end; one outside is an error on the processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetero_core.kernels.precision import normalize_axis
from hetero_core.network.graph import Node
from hetero_torch.table import NUMBERS, Types, dtype_of, operator, refuse_any, refuse_attributes


def _wrap(indices: Tensor, size: int) -> Tensor:
    whole = indices.to(torch.int64)
    return torch.where(whole < 0, whole + size, whole)


@operator("Gather")
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Returns the slices of x along the axis that the indices name, in their shape. Source: ONNX Gather-13."""
    dim = normalize_axis(axis, x.ndim)
    picked = x.index_select(dim, _wrap(indices.reshape(-1), x.shape[dim]))
    return picked.reshape((*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :]))


@operator("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Returns x[..., indices[...], ...] with the index in place of the position along the axis. Source: ONNX GatherElements-13."""
    dim = normalize_axis(axis, x.ndim)
    return torch.gather(x, dim, _wrap(indices, x.shape[dim]))


@operator("GatherND")
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Returns the slices of x that the last axis of the indices addresses, batch by batch. Source: ONNX GatherND-13."""
    coordinates = indices.to(torch.int64).unbind(-1)
    rank = indices.ndim - 1
    batches = [
        torch.arange(x.shape[axis], device=x.device).reshape([-1 if axis == other else 1 for other in range(rank)])
        for axis in range(batch_dims)
    ]
    return x[(*batches, *coordinates)]


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _refuse_bool(node: Node, types: Types) -> str | None:
    reduction = node.attributes.get("reduction", "none")
    if reduction != "none" and dtype_of(types, 0) not in NUMBERS:
        return f"reduction '{reduction}' of {node.operator} is implemented for numbers, not for {dtype_of(types, 0)}"
    return None


@operator("Scatter", widens=True)
@operator("ScatterElements", widens=True, refuse=_refuse_bool)
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    """Returns x with the updates written, or combined with what lies there. Source: ONNX ScatterElements-18."""
    dim = normalize_axis(axis, x.ndim)
    places = _wrap(indices, x.shape[dim])
    if reduction == "none":
        return x.scatter(dim, places, updates)
    return x.scatter_reduce(dim, places, updates, _REDUCTIONS[reduction], include_self=True)


@operator("ScatterND", widens=True, refuse=refuse_any(refuse_attributes(reduction=("none", "add")), _refuse_bool))
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """Returns x with the slices that the last axis of the indices addresses replaced, or added to. Source: ONNX ScatterND-18."""
    return x.index_put(indices.to(torch.int64).unbind(-1), updates, accumulate=reduction == "add")


@operator("Compress")
def compress(x: Tensor, condition: Any, *, axis: int | None = None) -> Tensor:
    """Returns the slices along the axis, or the elements, where the condition holds. Source: ONNX Compress-28."""
    positions = torch.from_numpy(np.flatnonzero(condition).astype(np.int64)).to(x.device)
    return x.reshape(-1).index_select(0, positions) if axis is None else x.index_select(axis, positions)
