"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, per tensor and per axis, and products of integers of 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hetero_core.kernels.precision import normalize_axis
from hetero_core.network.graph import Node
from hetero_torch.arrays import torch_dtype
from hetero_torch.operators.linear import conv, refuse_rank
from hetero_torch.table import Types, dtype_of, operator

_BYTES = frozenset({"int8", "uint8"})
_FLOAT32, _INT8, _UINT8 = 1, 3, 2


def _refuse_quantization(node: Node, types: Types) -> str | None:
    """Refuses scales of other types than float32, blocks, and quantized types of other widths."""
    attributes = node.attributes
    is_to_integers = node.op_type == "QuantizeLinear"
    outputs = (0, _UINT8, _INT8) if is_to_integers else (0, _FLOAT32)
    if dtype_of(types, 1) != "float32":
        return f"the scale of {node.operator} has dtype {dtype_of(types, 1)}; implemented: float32"
    if attributes.get("block_size", 0) or attributes.get("precision", 0) not in (0, _FLOAT32):
        return f"block_size and precision of {node.operator} are not implemented"
    if attributes.get("output_dtype", 0) not in outputs:
        return f"attribute 'output_dtype' of {node.operator} is {attributes['output_dtype']}; implemented: {list(outputs)}"
    zero_point = dtype_of(types, 2)
    if zero_point is not None and zero_point not in (_BYTES if is_to_integers else _BYTES | {"int32"}):
        return f"the zero point of {node.operator} has dtype {zero_point}; implemented: int8, uint8"
    return None


@operator("QuantizeLinear", dtypes=frozenset({"float32"}), refuse=_refuse_quantization)
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    """Returns saturate(round(x / scale) + zero_point), ties to even. Source: ONNX QuantizeLinear-25."""
    default = torch.int8 if output_dtype == _INT8 else torch.uint8
    target = default if y_zero_point is None else y_zero_point.dtype
    quotient = x / _spread(y_scale, x, axis)
    zero = None if y_zero_point is None else _spread(y_zero_point.float(), x, axis)
    return _saturate(quotient, zero, target)


def _saturate(quotient: Tensor, zero: Tensor | None, target: torch.dtype) -> Tensor:
    """Returns round(quotient) + zero limited to an integer type; NaN becomes the lowest number, as in ONNX Runtime."""
    limits = torch.iinfo(target)
    rounded = torch.round(quotient) if zero is None else torch.round(quotient) + zero
    return torch.nan_to_num(rounded, nan=limits.min).clamp(limits.min, limits.max).to(target)


def _spread(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """Returns scales or zero points shaped to broadcast over x: one value, or one for each index of the axis."""
    if values.numel() == 1:
        return values.reshape(())
    return values.reshape((-1, *(1,) * (x.ndim - normalize_axis(axis, x.ndim) - 1)))


@operator("DequantizeLinear", dtypes=_BYTES | {"int32"}, refuse=_refuse_quantization)
def dequantize_linear(
    x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
    """Returns (x - zero point) * scale. Source: ONNX DequantizeLinear-25."""
    steps = x.to(torch.int32)
    if x_zero_point is not None:
        steps = steps - _spread(x_zero_point.to(torch.int32), x, axis)
    return steps.to(torch.float32) * _spread(x_scale, x, axis)


@operator("DynamicQuantizeLinear", dtypes=frozenset({"float32"}))
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x as uint8 with the scale and zero point of its own range, which includes 0; of zeros alone the scale is 1.

    Source: ONNX DynamicQuantizeLinear-11.
    """
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    low, high = (torch.minimum(x.amin(), zero), torch.maximum(x.amax(), zero)) if x.numel() else (zero, zero)
    scale = torch.where(low == high, 1.0, (high - low) / 255)
    zero_point = torch.round(torch.clamp(zero - low / scale, 0, 255))
    return _saturate(x / scale, zero_point, torch_dtype("uint8")), scale, zero_point.to(torch.uint8)


def _center(x: Tensor, zero_point: Tensor | None) -> Tensor:
    """Returns x - zero_point as float64, in which sums of products of bytes are exact."""
    return x.double() if zero_point is None else x.double() - zero_point.double()


@operator("MatMulInteger", dtypes=_BYTES)
def mat_mul_integer(a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None) -> Tensor:
    """Returns (a - a_zero_point) @ (b - b_zero_point) as int32. Source: ONNX MatMulInteger-10."""
    a_zero = a_zero_point
    if a_zero is not None and a_zero.ndim == 1 and a_zero.numel() > 1:
        a_zero = a_zero.reshape(-1, 1)
    return torch.matmul(_center(a, a_zero), _center(b, b_zero_point)).to(torch.int64).to(torch.int32)


@operator("ConvInteger", dtypes=_BYTES, refuse=refuse_rank)
def conv_integer(
    x: Tensor, w: Tensor, x_zero_point: Tensor | None = None, w_zero_point: Tensor | None = None, *, group: int = 1, **geometry: Any
) -> Tensor:
    """Returns the convolution of x - x_zero_point with w - w_zero_point as int32. Source: ONNX ConvInteger-10."""
    w_zero = w_zero_point
    if w_zero is not None and w_zero.numel() > 1:
        w_zero = w_zero.reshape(-1, *(1,) * (w.ndim - 1))
    return conv(_center(x, x_zero_point), _center(w, w_zero), group=group, **geometry).to(torch.int64).to(torch.int32)
