"""Unary mathematics, comparison, logic and bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hetero_torch.table import FLOATS, NUMBERS, SIGNED, operator

# Operators that are one function of PyTorch.
_OF_FLOATS = "Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Reciprocal Round Sigmoid Sin Sinh Sqrt Tan Tanh"
_OF_ANYTHING: tuple[tuple[str, Callable[..., Any], tuple[int, ...]], ...] = (
    ("Equal", torch.eq, (7, 11, 13, 19)),
    ("Greater", torch.gt, (7, 9, 13)),
    ("GreaterOrEqual", torch.ge, ()),
    ("Less", torch.lt, (7, 9, 13)),
    ("LessOrEqual", torch.le, ()),
    ("And", torch.logical_and, (7,)),
    ("Or", torch.logical_or, (7,)),
    ("Xor", torch.logical_xor, (7,)),
    ("Not", torch.logical_not, ()),
    ("BitwiseAnd", torch.bitwise_and, ()),
    ("BitwiseOr", torch.bitwise_or, ()),
    ("BitwiseXor", torch.bitwise_xor, ()),
    ("BitwiseNot", torch.bitwise_not, ()),
    ("IsNaN", torch.isnan, ()),
    ("Where", torch.where, ()),
)

for _name in _OF_FLOATS.split():
    operator(_name, dtypes=FLOATS, widens=True)(getattr(torch, _name.lower()))
for _name, _function, _since in _OF_ANYTHING:
    operator(_name, *_since)(_function)
operator("Abs", dtypes=NUMBERS)(torch.abs)
operator("Neg", dtypes=FLOATS | SIGNED)(torch.neg)


@operator("Sign", dtypes=NUMBERS)
def sign(x: Tensor) -> Tensor:
    """Returns -1, 0 or 1; NaN stays NaN, which torch.sign makes 0. Source: ONNX Sign-13."""
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


@operator("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Returns where x is an infinity of a wanted sign. Source: ONNX IsInf-20."""
    infinite = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    if detect_negative:
        infinite = torch.isneginf(x)
    return infinite | torch.isposinf(x) if detect_positive else infinite


@operator("Clip", 11, 12, 13, dtypes=NUMBERS)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Returns min(max(x, low), high); NaN stays. An absent bound is the limit of the type. Source: ONNX Clip-13."""
    if x.is_floating_point():
        limits = torch.finfo(x.dtype)
        low, high = (x.new_tensor(limit) if bound is None else bound for bound, limit in ((low, limits.min), (high, limits.max)))
    bounds = [None if bound is None else bound.reshape(()) for bound in (low, high)]
    return x if low is None and high is None else torch.clamp(x, bounds[0], bounds[1])


@operator("Clip", 1, dtypes=frozenset({"float32", "float64"}))
def clip_by_bounds(x: Tensor, *, max: float | None = None, min: float | None = None) -> Tensor:  # noqa: A002  # ONNX's names
    """Returns x limited by the attributes; an absent bound is the limit of the type. Source: ONNX Clip-1."""
    limits = torch.finfo(x.dtype)
    return torch.clamp(x, limits.min if min is None else min, limits.max if max is None else max)


_LARGEST = torch.finfo(torch.float32).max


@operator("Clip", 6, dtypes=frozenset({"float32", "float64"}))
def clip_by_attributes(x: Tensor, *, max: float = _LARGEST, min: float = -_LARGEST) -> Tensor:  # noqa: A002  # ONNX's names
    """Returns x limited by the attributes. Source: ONNX Clip-6."""
    return torch.clamp(x, min, max)
