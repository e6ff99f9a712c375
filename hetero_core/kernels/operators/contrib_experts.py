"""Mixtures of experts, as ONNX Runtime's own operators have them: MoE, QMoE and the router MoEGroupRouter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_core.kernels.operators.activations import sigmoid_of
from hetero_core.kernels.operators.contrib_blocks import restore_blocks, unpack_bits
from hetero_core.kernels.operators.contrib_fused import fast_gelu_of
from hetero_core.kernels.operators.softmax import softmax_of
from hetero_core.kernels.precision import Array, Namespace, narrow, widen
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import FLOAT32, SMALL_FLOATS, UINT8, microsoft_kernel
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
_NO_LIMIT = float("inf")
_UNREAD = {"swiglu_fusion": 0, "swiglu_limit_after_activation": 0, "use_sparse_mixer": 0}
_ACTIVATION = {"activation_alpha": 1.0, "activation_beta": 0.0, "activation_type": "relu", "swiglu_limit": _NO_LIMIT}
"""The attributes that `activate_expert` takes, with their defaults."""
_SHARED_CHOICES = {
    "activation_type": _ACTIVATIONS,
    "normalize_routing_weights": (0, 1),
    "swiglu_fusion": (0, 1),
    "swiglu_limit_after_activation": (0,),
    "use_sparse_mixer": (0,),
}


def route_tokens(xp: Namespace, scores: Array, weights: Array, k: int, *, normalizes: bool) -> tuple[Array, Array]:
    """Returns (tokens, k) experts of the largest scores, the later one first where two are equal, and their weights."""
    count = scores.shape[1]
    # Sorted backwards: of equal scores ONNX Runtime prefers the expert with the larger number.
    order = xp.argsort(-scores[:, ::-1], axis=1, kind="stable")[:, :k]
    experts = count - 1 - order
    chosen = xp.take_along_axis(weights, experts, axis=1)
    if normalizes:
        chosen = chosen / xp.sum(chosen, axis=1, keepdims=True)
    return experts, chosen


def activate_expert(
    xp: Namespace,
    x: Array,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    swiglu_limit: float = _NO_LIMIT,
) -> Array:
    """Returns what an expert makes of its first product; SwiGLU's gates and values alternate along the last axis."""
    if activation_type == "swiglu":
        gate, value, limit = x[..., 0::2], x[..., 1::2], np.float32(swiglu_limit)
        if swiglu_limit != _NO_LIMIT:
            gate, value = xp.minimum(gate, limit), xp.clip(value, -limit, limit)
        return gate * sigmoid_of(xp, np.float32(activation_alpha) * gate) * (value + np.float32(activation_beta))
    if activation_type == "gelu":
        return fast_gelu_of(xp, x)
    if activation_type == "silu":
        return x * sigmoid_of(xp, x)
    return xp.maximum(x, np.float32(0)) if activation_type == "relu" else x


def refuse_fusion(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses SwiGLU whose gates and values do not alternate, which ONNX Runtime's CPU kernels do not run."""
    is_swiglu = node.attributes.get("activation_type", "relu") == "swiglu"
    if is_swiglu and node.attributes.get("swiglu_fusion", 0) != 1:
        return f"swiglu_fusion of {node.operator} is {node.attributes.get('swiglu_fusion', 0)}; implemented for swiglu: 1"
    return None


@microsoft_kernel(
    "MoE", halves=(0,), dtypes=FLOAT32, choices=_SHARED_CHOICES, refuse=refuse_fusion, shared=_ACTIVATION, unread=_UNREAD
)
def mixture_of_experts(
    xp: Namespace,
    x: Array,
    router_probs: Array,
    fc1_weights: Array,
    fc1_bias: Array | None,
    fc2_weights: Array,
    fc2_bias: Array | None = None,
    *,
    k: int = 1,
    normalize_routing_weights: int = 0,
    **activation: Any,
) -> Array:
    """Returns for each token the weighted sum of what its k likeliest experts make of it.

    x: (tokens, hidden) or (batch, steps, hidden); router_probs: logits (tokens, experts); fc1_weights: (experts, inner, hidden);
    fc2_weights: (experts, hidden, inner). Source: ONNX Runtime, com.microsoft.MoE-1.
    """
    rows = x.reshape((-1, x.shape[-1]))
    shares = softmax_of(xp, router_probs, 1)
    experts, weights = route_tokens(xp, shares, shares, k, normalizes=bool(normalize_routing_weights))

    def run_expert(index: int, tokens: Array) -> Array:
        inner = multiply(xp, tokens, fc1_weights[index].T)
        inner = inner if fc1_bias is None else inner + fc1_bias[index]
        inner = activate_expert(xp, inner, **activation)
        y = multiply(xp, inner, fc2_weights[index].T)
        return y if fc2_bias is None else y + fc2_bias[index]

    return sum_experts(xp, rows, experts, weights, fc1_weights.shape[0], run_expert).reshape(x.shape)


def sum_experts(
    xp: Namespace, rows: Array, experts: Array, weights: Array, count: int, run_expert: Callable[[int, Array], Array]
) -> Array:
    """Returns the weighted sum over the experts of each token; every expert sees all tokens, and counts where it was chosen."""
    y = xp.zeros(rows.shape, dtype=np.float32)
    for index in range(count):
        share = xp.sum(xp.where(experts == index, weights, np.float32(0)), axis=1, keepdims=True)
        y = y + xp.where(share > 0, share * run_expert(index, rows), np.float32(0))
    return y


def _refuse_quantization(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses weights that are laid out for one engine, and scales of 8 bits."""
    if node.attributes.get("weights_prepacked", -1) == 1:
        return f"weights_prepacked of {node.operator} is 1, a layout of one execution provider; implemented: raw weights"
    return refuse_fusion(node, input_types)


@microsoft_kernel(
    "QMoE",
    dtypes=(
        *(SMALL_FLOATS, SMALL_FLOATS, UINT8, SMALL_FLOATS, SMALL_FLOATS, UINT8, SMALL_FLOATS, SMALL_FLOATS),
        *(UINT8, SMALL_FLOATS, SMALL_FLOATS, UINT8, UINT8, UINT8, SMALL_FLOATS),
    ),
    choices={**_SHARED_CHOICES, "quant_type": ("int",), "expert_weight_bits": (2, 4, 8), "accuracy_level": (0, 1, 2, 3, 4)},
    refuse=_refuse_quantization,
    shared=_ACTIVATION,
    unread={**_UNREAD, "accuracy_level": 0, "quant_type": "int", "weights_prepacked": -1},
)
def quantized_mixture_of_experts(
    xp: Namespace,
    x: Array,
    router_probs: Array,
    fc1_weights: Array,
    fc1_scales: Array,
    fc1_bias: Array | None,
    fc2_weights: Array,
    fc2_scales: Array,
    fc2_bias: Array | None = None,
    fc3_weights: Array | None = None,
    fc3_scales: Array | None = None,
    fc3_bias: Array | None = None,
    fc1_zero_points: Array | None = None,
    fc2_zero_points: Array | None = None,
    fc3_zero_points: Array | None = None,
    router_weights: Array | None = None,
    *,
    block_size: int = 0,
    expert_weight_bits: int = 4,
    k: int = 1,
    normalize_routing_weights: int = 0,
    **activation: Any,
) -> Array:
    """Returns what MoE returns, of weights in codes of 2, 4 or 8 bits with a scale for each row or block of a row.

    Source: ONNX Runtime, com.microsoft.QMoE-1.
    """
    if fc3_weights is not None:
        raise ValueError("weights of a third product are not implemented; fuse them into the first with swiglu_fusion 1")
    rows = widen(x.reshape((-1, x.shape[-1])))
    shares = softmax_of(xp, widen(router_probs), 1)
    mixing = shares if router_weights is None else widen(router_weights)
    # ONNX Runtime takes the softmax over the chosen experts alone, so without other weights theirs always sum to 1.
    normalizes = bool(normalize_routing_weights) or router_weights is None
    experts, weights = route_tokens(xp, shares, mixing, k, normalizes=normalizes)

    def restore(packed: Array, scales: Array, zero_points: Array | None, index: int) -> Array:
        codes = unpack_bits(xp, packed[index], expert_weight_bits)
        size = block_size or codes.shape[1]
        zeros = None if zero_points is None else zero_points[index]
        if zeros is not None and not block_size:
            zeros = unpack_bits(xp, zeros, expert_weight_bits)[: codes.shape[0]].astype(np.float32)
        blocks = codes.reshape((codes.shape[0], -1, size))
        return restore_blocks(xp, blocks, scales[index], zeros, expert_weight_bits, codes.shape[1])

    def run_expert(index: int, tokens: Array) -> Array:
        inner = multiply(xp, tokens, restore(fc1_weights, fc1_scales, fc1_zero_points, index).T)
        inner = inner if fc1_bias is None else inner + widen(fc1_bias[index])
        inner = activate_expert(xp, inner, **activation)
        y = multiply(xp, inner, restore(fc2_weights, fc2_scales, fc2_zero_points, index).T)
        return y if fc2_bias is None else y + widen(fc2_bias[index])

    y = sum_experts(xp, rows, experts, weights, fc1_weights.shape[0], run_expert)
    return narrow(y.reshape(x.shape), x.dtype)


@microsoft_kernel("MoEGroupRouter", dtypes=(SMALL_FLOATS, FLOAT32, SMALL_FLOATS), outputs=3, counts_outputs=True)
def moe_group_router(
    xp: Namespace,
    logits: Array,
    expert_bias: Array,
    projection_weight: Array | None = None,
    *,
    group_topk: int = 2,
    n_group: int = 1,
    output_count: int = 1,
    router_sentinel: float = -10000.0,
    top_k: int,
    topk_group: int = 1,
) -> tuple[Array, Array, Array]:
    """Returns the logarithm of the sigmoid of each token's top experts and a sentinel elsewhere; or all scores, with and without bias.

    Experts are chosen by biased score from the groups whose best scores sum highest.
    Source: ONNX Runtime, com.microsoft.MoEGroupRouter-1.
    """
    wide = widen(logits).reshape((-1, logits.shape[-1]))
    scores = sigmoid_of(xp, wide if projection_weight is None else multiply(xp, wide, widen(projection_weight).T))
    biased = scores + expert_bias
    tokens, count = scores.shape
    groups = biased.reshape((tokens, n_group, count // n_group))
    best = xp.sort(groups, axis=2)[:, :, -min(group_topk, groups.shape[2]) :]
    ranks = xp.argsort(-xp.sum(best, axis=2), axis=1, kind="stable")[:, :topk_group]
    is_open = xp.any(xp.arange(n_group)[None, None, :] == ranks[:, :, None], axis=1)
    allowed = xp.repeat(is_open, count // n_group, axis=1)
    chosen = xp.argsort(-xp.where(allowed, biased, -np.inf), axis=1, kind="stable")[:, :top_k]
    is_chosen = xp.any(xp.arange(count)[None, None, :] == chosen[:, :, None], axis=1)
    logarithms = xp.log(xp.maximum(scores, np.float32(1e-20)))
    probabilities = xp.where(is_chosen & allowed, logarithms, np.float32(router_sentinel))
    return narrow(probabilities, logits.dtype), biased, scores
