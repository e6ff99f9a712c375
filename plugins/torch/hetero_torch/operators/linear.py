"""Products and convolutions: MatMul, Gemm, Einsum, Conv, ConvTranspose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hetero_core.kernels.windows import lay_windows
from hetero_core.network.graph import Node
from hetero_core.network.types import rank_of
from hetero_torch.table import FLOATS, Types, operator

Sizes = tuple[int, ...]
_CONVOLUTIONS = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}
_TRANSPOSED = {3: functional.conv_transpose1d, 4: functional.conv_transpose2d, 5: functional.conv_transpose3d}

operator("MatMul", dtypes=FLOATS, widens=True)(torch.matmul)


@operator("Gemm", 7, 9, 11, 13, dtypes=FLOATS, widens=True)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803  # ONNX's name
    transB: int = 0,  # noqa: N803  # ONNX's name
) -> Tensor:
    """Returns alpha * A @ B + beta * C. Source: ONNX Gemm-13."""
    left, right = a.t() if transA else a, b.t() if transB else b
    if c is not None:
        return torch.addmm(c, left, right, alpha=alpha, beta=beta)
    return torch.mm(left, right) if alpha == 1 else torch.mm(left, right) * alpha


@operator("Einsum", dtypes=FLOATS, widens=True)
def einsum(*inputs: Tensor, equation: str) -> Tensor:
    """Returns the sum of products that the equation names. Source: ONNX Einsum-28."""
    return torch.einsum(equation.replace(" ", ""), *inputs)


def refuse_rank(node: Node, types: Types) -> str | None:
    """Refuses images of ranks beyond 3, 4 and 5: PyTorch has windows over one, two and three axes."""
    rank = next((rank for value_type in types[:2] if (rank := rank_of(value_type)) is not None), None)
    if rank is None and "kernel_shape" in node.attributes:
        rank = 2 + len(node.attributes["kernel_shape"])
    return None if rank in (3, 4, 5) else f"input '{node.inputs[0]}' of {node.operator} has rank {rank}; implemented: 3, 4, 5"


@operator("Conv", dtypes=FLOATS, widens=True, refuse=refuse_rank)
def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, group: int = 1, dilations: Sizes | None = None, **geometry: Any
) -> Tensor:
    """Returns the cross-correlation of x with w, plus b for each output channel. Source: ONNX Conv-22."""
    windows = lay_windows(tuple(x.shape[2:]), tuple(w.shape[2:]), dilations=dilations, **geometry)
    padding = tuple(begin for begin, _ in windows.pads)
    if any(begin != end or begin < 0 for begin, end in windows.pads):
        x, padding = functional.pad(x, flatten_pads(windows.pads)), (0,) * len(padding)
    return _CONVOLUTIONS[x.ndim](x, w, b, windows.strides, padding, windows.dilations, group)


def flatten_pads(pads: tuple[tuple[int, int], ...]) -> list[int]:
    """Returns pads as PyTorch has them: the last axis first."""
    return [width for widths in reversed(pads) for width in widths]


def _refuse_transposed(node: Node, types: Types) -> str | None:
    """Refuses ranks, negative pads, and more output_padding than PyTorch takes: less than the stride or the dilation."""
    padding = node.attributes.get("output_padding", ())
    steps = (node.attributes.get(name) or (1,) * len(padding) for name in ("strides", "dilations"))
    if any(size >= max(stride, dilation) for size, stride, dilation in zip(padding, *steps, strict=False)):
        return f"output_padding {list(padding)} of {node.operator} is not less than its strides or dilations"
    if min(node.attributes.get("pads", ()), default=0) < 0:
        return f"pads {list(node.attributes['pads'])} of {node.operator} are negative"
    if "output_shape" in node.attributes:
        return f"attribute 'output_shape' of {node.operator} is not implemented"
    return refuse_rank(node, types)


@operator(
    "ConvTranspose",
    dtypes=FLOATS,
    widens=True,
    choices={"auto_pad": ("NOTSET", "VALID")},
    refuse=_refuse_transposed,
)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sizes | None = None,
    group: int = 1,
    kernel_shape: Sizes | None = None,
    output_padding: Sizes | None = None,
    pads: Sizes | None = None,
    strides: Sizes | None = None,
) -> Tensor:
    """Returns the transposed convolution: each element adds its scaled filter, then the pads are cut. Source: ONNX ConvTranspose-22."""
    rank = x.ndim - 2
    ones, zeros = (1,) * rank, (0,) * rank
    flat = pads if pads is not None and auto_pad == "NOTSET" else zeros * 2
    begins, ends = flat[:rank], flat[rank:]
    is_even = begins == ends
    y = _TRANSPOSED[x.ndim](
        x, w, b, strides or ones, begins if is_even else zeros, output_padding or zeros, group, dilations or ones
    )
    if is_even:
        return y
    cuts = (slice(begin, size - end) for begin, end, size in zip(begins, ends, y.shape[2:], strict=True))
    return y[(slice(None), slice(None), *cuts)]
