"""GridSample, whose text in ONNX is PyTorch's own function."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from hetero_core.network.graph import Node
from hetero_torch.table import FLOATS, Types, operator, rank_of

_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def _refuse_rank(node: Node, types: Types) -> str | None:
    """Refuses what PyTorch samples: images, and volumes without cubic interpolation."""
    rank = rank_of(types, 0)
    allowed = (4,) if node.attributes.get("mode", "") in ("cubic", "bicubic") else (4, 5)
    return None if rank in allowed else f"input '{node.inputs[0]}' of {node.operator} has rank {rank}; implemented: {list(allowed)}"


@operator("GridSample", 16, dtypes=FLOATS, widens=True, refuse=_refuse_rank)
def grid_sample_image(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Tensor:
    """Returns images sampled at the grid's positions. Source: ONNX GridSample-16."""
    return functional.grid_sample(x, grid.to(x.dtype), mode, padding_mode, bool(align_corners))


@operator("GridSample", 20, 22, dtypes=FLOATS, widens=True, refuse=_refuse_rank)
def grid_sample(x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros") -> Tensor:
    """Returns images or volumes sampled at the grid's positions. Source: ONNX GridSample-22."""
    general = _MODES.get(mode, mode)
    return grid_sample_image(x, grid, align_corners=align_corners, mode=general, padding_mode=padding_mode)
