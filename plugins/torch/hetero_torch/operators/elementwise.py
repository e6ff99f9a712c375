"""Functions of single elements: activations, the softmax family, arithmetic, comparison, logic and bits.

Integers wrap. A division by 0, or of the lowest number by -1, which processors trap, is computed apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hetero_torch.table import FLOATS, NUMBERS, SIGNED, operator

# Functions of floats, with ONNX's attributes and defaults; halves are computed in float32.
_ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "Elu": lambda x, *, alpha=1.0: torch.where(x < 0, alpha * torch.expm1(x), x),
    "Gelu": lambda x, *, approximate="none": functional.gelu(x, approximate=approximate),
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
    "HardSwish": functional.hardswish,
    "LeakyRelu": lambda x, *, alpha=0.01: functional.leaky_relu(x, alpha),
    "Mish": functional.mish,
    # PyTorch's own softplus is x above a threshold.
    "Softplus": lambda x: torch.logaddexp(x, x.new_zeros(())),
    "Sum": lambda *inputs: reduce(torch.add, inputs),
    "Swish": lambda x, *, alpha=1.0: functional.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x),
}
for _name, _function in _ACTIVATIONS.items():
    operator(_name, dtypes=FLOATS, widens=True)(_function)
operator("PRelu", 7, 9, 16, dtypes=FLOATS | SIGNED, widens=True)(lambda x, slope: torch.where(x < 0, x * slope, x))
operator("Relu", dtypes=FLOATS | SIGNED)(torch.relu)


def _register(op_type: str, function: Any) -> None:
    @operator(op_type, 13, dtypes=FLOATS, widens=True)
    def compute_along_axis(x: Tensor, *, axis: int = -1) -> Tensor:
        return function(x, dim=axis) if x.numel() else x

    @operator(op_type, 1, 11, dtypes=FLOATS, widens=True)
    def compute_flattened(x: Tensor, *, axis: int = 1) -> Tensor:
        # The axes before `axis` are rows, the rest is a single axis of columns.
        if not x.numel():
            return x
        first = axis if axis >= 0 else axis + x.ndim
        return function(x.reshape(prod(x.shape[:first]), -1), dim=1).reshape(x.shape)


_register("Softmax", torch.softmax)
_register("LogSoftmax", torch.log_softmax)

_SINCE = (7, 13, 14)

for _name, _function in (("Add", torch.add), ("Sub", torch.sub), ("Mul", torch.mul)):
    operator(_name, *_SINCE, dtypes=NUMBERS)(_function)


@operator("Div", *_SINCE, dtypes=NUMBERS)
def div(a: Tensor, b: Tensor) -> Tensor:
    """Returns a / b; integers truncate toward zero, and a division by 0 gives 0. Source: ONNX Div-14."""
    if a.is_floating_point():
        return torch.div(a, b)
    is_trapped = b == 0 if b.dtype == torch.uint8 else (b == 0) | (b == -1)
    quotient = torch.div(a, torch.where(is_trapped, 1, b), rounding_mode="trunc")
    return torch.where(is_trapped, torch.where(b == 0, 0, -a), quotient)


@operator("Pow", 7, 12, 13, 15, dtypes=NUMBERS, widens=True)
def power(x: Tensor, y: Tensor) -> Tensor:
    """Returns x ** y in the type of x; an integer to a float is computed in float64. Source: ONNX Pow-15."""
    if not x.is_floating_point() and y.is_floating_point():
        return torch.pow(x.double(), y.double()).to(x.dtype)
    return torch.pow(x, y.to(x.dtype))


# NaN wins.
operator("Max", dtypes=NUMBERS)(lambda *inputs: reduce(torch.maximum, inputs))
operator("Min", dtypes=NUMBERS)(lambda *inputs: reduce(torch.minimum, inputs))

# Operators with the same meaning as a function of PyTorch.
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


@operator("Clip", 11, 12, 13, dtypes=NUMBERS)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Returns min(max(x, low), high); NaN stays. An absent bound is the limit of the type. Source: ONNX Clip-13."""
    if x.is_floating_point():
        limits = torch.finfo(x.dtype)
        low, high = (x.new_tensor(limit) if bound is None else bound for bound, limit in ((low, limits.min), (high, limits.max)))
    bounds = [None if bound is None else bound.reshape(()) for bound in (low, high)]
    return x if low is None and high is None else torch.clamp(x, bounds[0], bounds[1])
