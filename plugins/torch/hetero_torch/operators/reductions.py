"""Reductions, with the axes as attribute (older versions) or as an array of the host (newer versions), both of them `axes`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hetero_core.kernels.precision import integers_of, normalize_axes
from hetero_core.kernels.registry import Dtypes
from hetero_torch.table import FLOATS, NUMBERS, operator

Axes = tuple[int, ...]
Formula = Callable[[Tensor, Axes, bool], Tensor]


def _sum(x: Tensor, axes: Axes, keepdim: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keepdim, dtype=x.dtype)


def _product(x: Tensor, axes: Axes, keepdim: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keepdim, dtype=x.dtype)
    return x


def _find_extreme(x: Tensor, axes: Axes, keepdim: bool, *, largest: bool) -> Tensor:
    """Returns the extreme; of nothing it is an infinity, or the outermost value of the type."""
    if all(x.shape[axis] for axis in axes):
        return (torch.amax if largest else torch.amin)(x, axes, keepdim=keepdim)
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keepdim or axis not in axes]
    if x.dtype == torch.bool:
        value: float = not largest
    elif x.is_floating_point():
        value = -torch.inf if largest else torch.inf
    else:
        value = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
    return torch.full(sizes, value, dtype=x.dtype, device=x.device)


_REDUCTIONS: tuple[tuple[str, Formula, Dtypes], ...] = (
    ("ReduceSum", _sum, NUMBERS),
    ("ReduceL1", lambda x, axes, keepdim: _sum(x.abs(), axes, keepdim), NUMBERS),
    ("ReduceL2", lambda x, axes, keepdim: torch.sqrt(_sum(x * x, axes, keepdim)), FLOATS),
    ("ReduceLogSum", lambda x, axes, keepdim: torch.log(_sum(x, axes, keepdim)), FLOATS),
    ("ReduceLogSumExp", lambda x, axes, keepdim: torch.logsumexp(x, axes, keepdim=keepdim), FLOATS),
    ("ReduceMax", partial(_find_extreme, largest=True), NUMBERS | {"bool"}),
    ("ReduceMean", lambda x, axes, keepdim: torch.mean(x, axes, keepdim=keepdim), FLOATS),
    ("ReduceMin", partial(_find_extreme, largest=False), NUMBERS | {"bool"}),
    ("ReduceProd", _product, NUMBERS),
    ("ReduceSumSquare", lambda x, axes, keepdim: _sum(x * x, axes, keepdim), NUMBERS),
)
"""Operator, formula, types."""


def _register(op_type: str, formula: Formula, dtypes: Dtypes) -> None:
    @operator(op_type, dtypes=dtypes, widens=True)
    def reduce(x: Tensor, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        named = integers_of(axes) or (() if noop_with_empty_axes == 1 else tuple(range(x.ndim)))
        if not named:
            # PyTorch takes no axes for all of them: each element is reduced along an axis of its own.
            return formula(x.unsqueeze(0), (0,), False)
        return formula(x, normalize_axes(named, x.ndim), keepdims == 1)


for _row in _REDUCTIONS:
    _register(*_row)
