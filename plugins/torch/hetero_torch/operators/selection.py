"""Selection of elements: ArgMax, ArgMin, TopK, NonZero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hetero_core.kernels.precision import integers_of, normalize_axis
from hetero_torch.table import NUMBERS, operator


def _find_extreme(search: Any, x: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    dim = normalize_axis(axis, x.ndim)
    if x.ndim == 0:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    # The first of equal elements is found.
    positions: Tensor = search(x.flip(dim) if last else x, dim, keepdim=bool(keepdims))
    return x.shape[dim] - 1 - positions if last else positions


@operator("ArgMax", dtypes=NUMBERS, widens=True)
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """Returns the position of the first (or last) largest element along the axis. Source: ONNX ArgMax-13."""
    return _find_extreme(torch.argmax, x, axis, keepdims, select_last_index)


@operator("ArgMin", dtypes=NUMBERS, widens=True)
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """Returns the position of the first (or last) smallest element along the axis. Source: ONNX ArgMin-13."""
    return _find_extreme(torch.argmin, x, axis, keepdims, select_last_index)


@operator("TopK", 11, 24, dtypes=NUMBERS)
def top_k(
    x: Tensor,
    k: Any,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002  # ONNX's name
) -> tuple[Tensor, Tensor]:
    """Returns the k largest (or smallest) elements along the axis in order, and their positions; the lower position wins a tie.

    torch.topk says nothing of ties, so the whole axis is sorted. Source: ONNX TopK-24.
    """
    values, positions = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    count = integers_of(k)[0]
    if count > x.shape[axis]:
        raise ValueError(f"k is {count}, and axis {axis} has {x.shape[axis]} elements")
    return values.narrow(axis, 0, count), positions.narrow(axis, 0, count)


@operator("TopK", 10, dtypes=NUMBERS)
def top_k_largest(x: Tensor, k: Any, *, axis: int = -1) -> tuple[Tensor, Tensor]:
    """Returns the k largest elements along the axis, and their positions. Source: ONNX TopK-10."""
    return top_k(x, k, axis=axis)


@operator("NonZero")
def non_zero(x: Tensor) -> Tensor:
    """Returns the positions of all elements that are not zero, one column each, in row-major order. Source: ONNX NonZero-13."""
    return torch.nonzero(x).t()
