"""Operators of com.microsoft: which of those that the engine knows it computes right, and with which attributes."""

from __future__ import annotations

from collections.abc import Callable

from hetero_core.engines.inspection import has_input
from hetero_core.network.contrib_types import MICROSOFT
from hetero_core.network.graph import Node


def find_contrib_error(node: Node) -> str | None:
    """Returns why a node of com.microsoft is refused, in words, or None."""
    check = CONTRIB_CHECKS.get(node.op_type)
    return f"OpenVINO's {node.op_type} of {MICROSOFT} was not found right" if check is None else check(node)


def _take(node: Node) -> None:
    return None


def _check_product(node: Node) -> str | None:
    moves = [name for name in ("transBatchA", "transBatchB") if node.attributes.get(name, 0)]
    return f"OpenVINO ignores {moves[0]} of FusedMatMul" if moves else None


def _check_attention(node: Node) -> str | None:
    # A padded key that comes first leaves the first row without any.
    is_hidden_twice = node.attributes.get("unidirectional", 0) and has_input(node, 4)
    reason = "OpenVINO differs in rows of unidirectional MultiHeadAttention of which the mask of padded keys leaves none"
    return reason if is_hidden_twice else None


CONTRIB_CHECKS: dict[str, Callable[[Node], str | None]] = {
    "BiasGelu": _take,
    "DequantizeLinear": _take,
    "EmbedLayerNormalization": _take,
    "FastGelu": _take,
    "FusedConv": _take,
    "FusedMatMul": _check_product,
    "GatherBlockQuantized": _take,
    "Gelu": _take,
    "MatMulIntegerToFloat": _take,
    "MatMulNBits": _take,
    "MultiHeadAttention": _check_attention,
    "Pad": _take,
    "QuickGelu": _take,
    "Range": _take,
    "SkipLayerNormalization": _take,
    "SkipSimplifiedLayerNormalization": _take,
}
"""Of the operators of com.microsoft that the engine knows those with no wrong case among 40 of each that the conformance kit draws.

Wrong were all QLinear ones, which cut off where they should round, Attention, DynamicQuantizeLSTM, DynamicQuantizeMatMul, FusedGemm,
GroupQueryAttention, RotaryEmbedding and others.
"""
