"""Arithmetic with broadcasting. Integers wrap; what a processor traps, a division by 0 or of the lowest number by -1, is computed apart."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from hetero_torch.table import FLOATS, NUMBERS, operator

_SINCE = (7, 13, 14)

for _name, _function in (("Add", torch.add), ("Sub", torch.sub), ("Mul", torch.mul)):
    operator(_name, *_SINCE, dtypes=NUMBERS)(_function)


@operator("Div", *_SINCE, dtypes=NUMBERS)
def div(a: Tensor, b: Tensor) -> Tensor:
    """Returns a / b; integers truncate toward zero, and a division by 0 gives 0. Source: ONNX Div-14."""
    if a.is_floating_point():
        return torch.div(a, b)
    quotient = torch.div(a, torch.where(_is_trapped(b), 1, b), rounding_mode="trunc")
    negated = torch.where(b == 0, torch.zeros_like(quotient), -a) if b.dtype != torch.uint8 else torch.zeros_like(quotient)
    return torch.where(_is_trapped(b), negated, quotient)


def _is_trapped(b: Tensor) -> Tensor:
    return b == 0 if b.dtype == torch.uint8 else (b == 0) | (b == -1)


@operator("Mod", dtypes=NUMBERS, widens=True)
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """Returns the remainder, with the sign of b, or of a where fmod is 1. Source: ONNX Mod-28."""
    trapped = None if a.is_floating_point() else _is_trapped(b)
    divisor = b if trapped is None else torch.where(trapped, 1, b)
    remainder = torch.fmod(a, divisor)
    if not fmod:
        # torch.remainder of floats rounds the quotient first.
        remainder = torch.where((remainder != 0) & ((remainder < 0) != (divisor < 0)), remainder + divisor, remainder)
    return remainder if trapped is None else torch.where(trapped, torch.zeros_like(remainder), remainder)


@operator("Pow", 7, 12, 13, 15, dtypes=NUMBERS, widens=True)
def power(x: Tensor, y: Tensor) -> Tensor:
    """Returns x ** y in the type of x; an integer to a float is computed in float64. Source: ONNX Pow-15."""
    if not x.is_floating_point() and y.is_floating_point():
        return torch.pow(x.double(), y.double()).to(x.dtype)
    return torch.pow(x, y.to(x.dtype))


@operator("Sum", dtypes=FLOATS, widens=True)
def add_all(*inputs: Tensor) -> Tensor:
    """Returns the sum of all inputs. Source: ONNX Sum-13."""
    return reduce(torch.add, inputs)


@operator("Mean", dtypes=FLOATS, widens=True)
def average(*inputs: Tensor) -> Tensor:
    """Returns the mean of all inputs. Source: ONNX Mean-13."""
    return reduce(torch.add, inputs) / len(inputs)


@operator("Max", dtypes=NUMBERS)
def maximum(*inputs: Tensor) -> Tensor:
    """Returns the largest of all inputs; NaN wins. Source: ONNX Max-13."""
    return reduce(torch.maximum, inputs)


@operator("Min", dtypes=NUMBERS)
def minimum(*inputs: Tensor) -> Tensor:
    """Returns the smallest of all inputs; NaN wins. Source: ONNX Min-13."""
    return reduce(torch.minimum, inputs)
