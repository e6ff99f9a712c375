"""Elementwise activations and the softmax family."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hetero_torch.table import FLOATS, SIGNED, operator

operator("Relu", dtypes=FLOATS | SIGNED)(torch.relu)
operator("HardSwish", dtypes=FLOATS, widens=True)(functional.hardswish)
operator("Mish", dtypes=FLOATS, widens=True)(functional.mish)
operator("Softsign", dtypes=FLOATS, widens=True)(functional.softsign)


@operator("LeakyRelu", dtypes=FLOATS, widens=True)
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """Returns x, times alpha where it is negative. Source: ONNX LeakyRelu-16."""
    return functional.leaky_relu(x, alpha)


@operator("PRelu", 7, 9, 16, dtypes=FLOATS | SIGNED, widens=True)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Returns x, times slope where it is negative. Source: ONNX PRelu-16."""
    return torch.where(x < 0, x * slope, x)


@operator("ThresholdedRelu", dtypes=FLOATS, widens=True)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Returns x where it is above alpha, else 0. Source: ONNX ThresholdedRelu-22."""
    return torch.where(x > alpha, x, torch.zeros((), dtype=x.dtype, device=x.device))


@operator("Elu", dtypes=FLOATS, widens=True)
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Returns x, alpha * (exp(x) - 1) where it is negative. Source: ONNX Elu-22."""
    return torch.where(x < 0, alpha * torch.expm1(x), x)


@operator("Celu", dtypes=FLOATS, widens=True)
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Returns max(0, x) + min(0, alpha * (exp(x / alpha) - 1)). Source: ONNX Celu-28."""
    return torch.clamp(x, min=0) + torch.clamp(alpha * torch.expm1(x / alpha), max=0)


@operator("Selu", 6, 22, dtypes=FLOATS, widens=True)
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    """Returns gamma * (alpha * exp(x) - alpha) for x <= 0, else gamma * x. Source: ONNX Selu-22."""
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0)))


@operator("HardSigmoid", dtypes=FLOATS, widens=True)
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """Returns alpha * x + beta, clipped to 0 and 1. Source: ONNX HardSigmoid-22."""
    return torch.clamp(alpha * x + beta, 0, 1)


@operator("Swish", dtypes=FLOATS, widens=True)
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Returns x * sigmoid(alpha * x). Source: ONNX Swish-24."""
    return functional.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@operator("Softplus", dtypes=FLOATS, widens=True)
def softplus(x: Tensor) -> Tensor:
    """Returns log(1 + exp(x)); torch's own softplus is x above a threshold. Source: ONNX Softplus-22."""
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype, device=x.device))


@operator("Gelu", dtypes=FLOATS, widens=True)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Returns x * (1 + erf(x / sqrt(2))) / 2, or its approximation by tanh. Source: ONNX Gelu-20."""
    return functional.gelu(x, approximate=approximate)


@operator("Shrink", dtypes=FLOATS, widens=True)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """Returns x + bias below -lambd, x - bias above lambd, else 0. Source: ONNX Shrink-9."""
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


def _hardmax(x: Tensor, dim: int) -> Tensor:
    """Returns 1 at the first maximum and 0 elsewhere."""
    return torch.zeros_like(x).scatter_(dim, torch.argmax(x, dim, keepdim=True), 1)


def _register(op_type: str, function: Any) -> None:
    @operator(op_type, 13, dtypes=FLOATS, widens=True)
    def compute_along_axis(x: Tensor, *, axis: int = -1) -> Tensor:
        return function(x, dim=axis) if x.numel() else x

    @operator(op_type, 1, 11, dtypes=FLOATS, widens=True)
    def compute_flattened(x: Tensor, *, axis: int = 1) -> Tensor:
        # All axes before `axis` are rows, all others one column axis.
        if not x.numel():
            return x
        first = axis if axis >= 0 else axis + x.ndim
        return function(x.reshape(prod(x.shape[:first]), -1), dim=1).reshape(x.shape)


for _row in (("Softmax", torch.softmax), ("LogSoftmax", torch.log_softmax), ("Hardmax", _hardmax)):
    _register(*_row)
