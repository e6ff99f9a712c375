"""Fused operators of ONNX Runtime: activations with their bias, products and convolutions with their successors, mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import pi, sqrt
from typing import Any

import numpy as np

from hetero_core.kernels.operators.convolution import conv, conv_transpose
from hetero_core.kernels.operators.elementwise import activate, gelu, sigmoid_of
from hetero_core.kernels.operators.linear import GEMM, gemm
from hetero_core.kernels.operators.quantization import restore_blocks, unpack_bits
from hetero_core.kernels.operators.reductions import softmax_of
from hetero_core.kernels.precision import Array, Floats, Namespace, integers_of, multiply, narrow, widen
from hetero_core.kernels.registry import FLOAT32, INT64, SMALL_FLOATS, UINT8, microsoft_kernel
from hetero_core.kernels.tables import InputTypes
from hetero_core.kernels.windows import AUTO_PADS, SLIDING
from hetero_core.network.graph import Node

_DOUBLE = frozenset({"float32", "float64"})


def _add_bias(x: Array, bias: Array) -> Array:
    if tuple(bias.shape) != tuple(x.shape[-1:]):
        raise ValueError(f"the bias has shape {tuple(bias.shape)}; expected {tuple(x.shape[-1:])}, the last size of the input")
    return x + bias


def fast_gelu_of(xp: Namespace, x: Array) -> Array:
    """Returns x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    inner = x * (np.float32(0.044715 * sqrt(2 / pi)) * x * x + np.float32(sqrt(2 / pi)))
    return np.float32(0.5) * x * (1 + xp.tanh(inner))


microsoft_kernel("Gelu", halves=(0,), dtypes=FLOAT32, without=("approximate",))(gelu)


@microsoft_kernel("BiasGelu", halves=(0,), dtypes=FLOAT32)
def bias_gelu(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns gelu(a + b)."""
    return gelu(xp, _add_bias(a, b))


@microsoft_kernel("FastGelu", halves=(0,), dtypes=FLOAT32)
def fast_gelu(xp: Namespace, x: Array, bias: Array | None = None) -> Array:
    """Returns the tanh approximation of gelu(x + bias)."""
    return fast_gelu_of(xp, x if bias is None else _add_bias(x, bias))


@microsoft_kernel("QuickGelu", halves=(0,), dtypes=FLOAT32)
def quick_gelu(xp: Namespace, x: Array, *, alpha: float = 1.702) -> Array:
    """Returns x sigmoid(alpha x)."""
    return x * sigmoid_of(xp, np.float32(alpha) * x)


@microsoft_kernel("ScaledSiLU", dtypes=SMALL_FLOATS)
def scaled_silu(xp: Namespace, x: Array, scale: Array | None = None, *, alpha: float = 1.0) -> Array:
    """Returns z sigmoid(z) of z = scale x, rounded to the type of x after each step."""
    factor = np.float32(alpha) if scale is None else widen(scale).reshape(())
    z = narrow(widen(x) * factor, x.dtype)
    s = narrow(sigmoid_of(xp, widen(z)), x.dtype)
    return narrow(widen(z) * widen(s), x.dtype)


_TURNS = {"transA": (0, 1), "transB": (0, 1)}


@microsoft_kernel("TransposeMatMul", halves=(0,), dtypes=FLOAT32, choices=_TURNS, without=("transBatchA", "transBatchB"))
@microsoft_kernel("FusedMatMul", halves=(0,), dtypes=_DOUBLE, choices={**_TURNS, "transBatchA": (0, 1), "transBatchB": (0, 1)})
def fused_mat_mul(
    xp: Namespace,
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803 - ONNX's name
    transBatchA: int = 0,  # noqa: N803 - ONNX's name
    transBatchB: int = 0,  # noqa: N803 - ONNX's name
) -> Array:
    """Returns alpha A @ B; transBatch moves the first axis behind the remaining batch axes, trans swaps the last two."""
    product = multiply(xp, _turn(xp, a, transA, transBatchA), _turn(xp, b, transB, transBatchB))
    return product if alpha == 1 else product * a.dtype.type(alpha)


def _turn(xp: Namespace, x: Array, swaps: int, moves: int) -> Array:
    if x.ndim < 2:
        return x
    turned = xp.moveaxis(x, 0, -2) if moves else x
    return xp.swapaxes(turned, -1, -2) if swaps else turned


# The activations that ONNX Runtime fuses into a GEMM, and into a convolution; "" is none.
_GEMM_ACTIVATIONS = (
    *("", "Celu", "Elu", "HardSigmoid", "LeakyRelu", "ParametricSoftplus", "Relu", "ScaledTanh", "Sigmoid", "Softplus", "Softsign"),
    *("Tanh", "ThresholdedRelu"),
)
_CONV_ACTIVATIONS = ("", "Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh")


@microsoft_kernel("FusedGemm", halves=(0,), dtypes=FLOAT32, choices={**_TURNS, "activation": _GEMM_ACTIVATIONS}, shared=GEMM)
def fused_gemm(
    xp: Namespace,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    **product: Any,
) -> Array:
    """Returns activation(alpha A @ B + beta C)."""
    y = gemm(xp, a, b, c, **product)
    return activate(xp, y, activation.casefold(), activation_alpha, activation_beta)


def _refuse_conv_parameters(node: Node, input_types: InputTypes) -> str | None:
    """Refuses an activation without its parameters."""
    name = str(node.attributes.get("activation", ""))
    needed = {"LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}.get(name, 0)
    count = len(node.attributes.get("activation_params", ()))
    return None if count >= needed else f"activation '{name}' of {node.operator} has {count} parameters; it needs {needed}"


@microsoft_kernel(
    "FusedConv",
    halves=(0,),
    dtypes=FLOAT32,
    choices={"auto_pad": AUTO_PADS, "activation": _CONV_ACTIVATIONS},
    shared={**SLIDING, "group": 1},
    unread={"kernel_shape": None},
    refuse=_refuse_conv_parameters,
)
def fused_conv(
    xp: Namespace,
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: Floats = (),
    **geometry: Any,
) -> Array:
    """Returns activation(conv(x, w) + b + z)."""
    y = conv(xp, x, w, b, **geometry)
    first, second = (*activation_params, 0.0, 0.0)[:2]
    return activate(xp, y if z is None else y + z, activation.casefold(), first, second)


@microsoft_kernel(
    "ConvTransposeWithDynamicPads",
    halves=(0,),
    dtypes=(FLOAT32, FLOAT32, INT64, FLOAT32),
    host=(2,),
    choices={"auto_pad": ("NOTSET",)},
    shared={"auto_pad": "NOTSET", "dilations": None, "group": 1, "output_padding": None, "strides": None},
    unread={"kernel_shape": None},
)
def conv_transpose_with_dynamic_pads(
    xp: Namespace, x: Array, w: Array, pads: Array | None = None, b: Array | None = None, **attributes: Any
) -> Array:
    """Returns ONNX's ConvTranspose with pads as an input."""
    return conv_transpose(xp, x, w, b, pads=integers_of(pads) or None, **attributes)


_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
_NO_LIMIT = float("inf")
_UNREAD = {"swiglu_fusion": 0, "swiglu_limit_after_activation": 0, "use_sparse_mixer": 0}
_ACTIVATION = {"activation_alpha": 1.0, "activation_beta": 0.0, "activation_type": "relu", "swiglu_limit": _NO_LIMIT}
"""The attributes that `activate_expert` takes, with their defaults."""
_CHOICES = {
    "activation_type": _ACTIVATIONS,
    "normalize_routing_weights": (0, 1),
    "swiglu_fusion": (0, 1),
    "swiglu_limit_after_activation": (0,),
    "use_sparse_mixer": (0,),
}


def activate_expert(
    xp: Namespace,
    x: Array,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    swiglu_limit: float = _NO_LIMIT,
) -> Array:
    """Returns the activation of an expert's first product; SwiGLU's gates and values alternate along the last axis."""
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


def _refuse_experts(node: Node, input_types: InputTypes) -> str | None:
    """Refuses weights that are laid out for a single engine, and SwiGLU with gates and values apart, which ONNX Runtime does not run."""
    if node.attributes.get("weights_prepacked", -1) == 1:
        return f"weights_prepacked of {node.operator} is 1, a layout of one execution provider; implemented: raw weights"
    is_swiglu = node.attributes.get("activation_type", "relu") == "swiglu"
    if is_swiglu and node.attributes.get("swiglu_fusion", 0) != 1:
        return f"swiglu_fusion of {node.operator} is {node.attributes.get('swiglu_fusion', 0)}; implemented for swiglu: 1"
    return None


@microsoft_kernel("MoE", halves=(0,), dtypes=FLOAT32, choices=_CHOICES, refuse=_refuse_experts, shared=_ACTIVATION, unread=_UNREAD)
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
    """Returns for each token the weighted sum of the results of its k likeliest experts.

    x: (tokens, hidden) or (batch, steps, hidden); router_probs: logits (tokens, experts); fc1_weights: (experts, inner, hidden);
    fc2_weights: (experts, hidden, inner).
    """
    products = ((fc1_weights.__getitem__, fc1_bias), (fc2_weights.__getitem__, fc2_bias))
    return mix_experts(xp, x, router_probs, None, products, activation, k=k, normalizes=bool(normalize_routing_weights))


Products = tuple[tuple[Callable[[int], Array], Array | None], ...]


def mix_experts(
    xp: Namespace,
    x: Array,
    router_probs: Array,
    router_weights: Array | None,
    products: Products,
    activation: Mapping[str, Any],
    *,
    k: int,
    normalizes: bool,
) -> Array:
    """Returns for each token the weighted sum of its k likeliest experts; every expert sees all tokens, and counts if it was chosen.

    products: the weights by expert and the bias, for each of both products. The weights of the experts are their probabilities, or
    `router_weights`.
    """
    shares = softmax_of(xp, widen(router_probs), 1)
    count = shares.shape[1]
    # Sorted backwards: of equal shares ONNX Runtime prefers the expert with the larger number.
    experts = count - 1 - xp.argsort(-shares[:, ::-1], axis=1, stable=True)[:, :k]
    weights = xp.take_along_axis(shares if router_weights is None else widen(router_weights), experts, axis=1)
    if normalizes:
        weights = weights / xp.sum(weights, axis=1, keepdims=True)
    rows = widen(x.reshape((-1, x.shape[-1])))
    y = xp.zeros(rows.shape, dtype=np.float32)
    for index in range(count):
        share = xp.sum(xp.where(experts == index, weights, np.float32(0)), axis=1, keepdims=True)
        inner = rows
        for place, (read_weights, bias) in enumerate(products):
            inner = activate_expert(xp, inner, **activation) if place else inner
            inner = multiply(xp, inner, read_weights(index).T)
            inner = inner if bias is None else inner + widen(bias[index])
        y = y + xp.where(share > 0, share * inner, np.float32(0))
    return narrow(y.reshape(x.shape), x.dtype)


@microsoft_kernel(
    "QMoE",
    dtypes=(
        *(SMALL_FLOATS, SMALL_FLOATS, UINT8, SMALL_FLOATS, SMALL_FLOATS, UINT8, SMALL_FLOATS, SMALL_FLOATS),
        *(UINT8, SMALL_FLOATS, SMALL_FLOATS, UINT8, UINT8, UINT8, SMALL_FLOATS),
    ),
    choices={**_CHOICES, "quant_type": ("int",), "expert_weight_bits": (2, 4, 8), "accuracy_level": (0, 1, 2, 3, 4)},
    refuse=_refuse_experts,
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
    """Returns the result of MoE for weights in codes of 2, 4 or 8 bits with a scale for each row or block of a row."""
    if fc3_weights is not None:
        raise ValueError("weights of a third product are not implemented; fuse them into the first with swiglu_fusion 1")
    # ONNX Runtime takes the softmax over the chosen experts alone, so without router weights theirs always sum to 1.
    normalizes = bool(normalize_routing_weights) or router_weights is None

    def restore(packed: Array, scales: Array, zero_points: Array | None, index: int) -> Array:
        codes = unpack_bits(xp, packed[index], expert_weight_bits)
        size = block_size or codes.shape[1]
        zeros = None if zero_points is None else zero_points[index]
        if zeros is not None and not block_size:
            zeros = unpack_bits(xp, zeros, expert_weight_bits)[: codes.shape[0]].astype(np.float32)
        blocks = codes.reshape((codes.shape[0], -1, size))
        return restore_blocks(xp, blocks, scales[index], zeros, expert_weight_bits, codes.shape[1])

    products = (
        (partial(restore, fc1_weights, fc1_scales, fc1_zero_points), fc1_bias),
        (partial(restore, fc2_weights, fc2_scales, fc2_zero_points), fc2_bias),
    )
    return mix_experts(xp, x, router_probs, router_weights, products, activation, k=k, normalizes=normalizes)
