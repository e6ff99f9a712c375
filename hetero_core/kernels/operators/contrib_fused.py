"""Fused operators of ONNX Runtime's graph rewriting: activations with their bias, products and convolutions with what follows them."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np

from hetero_core.kernels.operators.activations import sigmoid_of
from hetero_core.kernels.operators.convolution import conv, conv_transpose, count_convolved
from hetero_core.kernels.operators.linear import gemm
from hetero_core.kernels.operators.mathematics import erf_of
from hetero_core.kernels.precision import Array, Namespace, integers_of, narrow, widen
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import FLOAT32, INT64, SMALL_FLOATS, microsoft_kernel
from hetero_core.kernels.windows import AUTO_PADS, SLIDING
from hetero_core.network.graph import Node
from hetero_core.network.types import ValueType

Sizes = tuple[int, ...]
_DOUBLE = frozenset({"float32", "float64"})


def _add_bias(x: Array, bias: Array) -> Array:
    if tuple(bias.shape) != tuple(x.shape[-1:]):
        raise ValueError(f"the bias has shape {tuple(bias.shape)}; expected {tuple(x.shape[-1:])}, the last size of the input")
    return x + bias


def gelu_of(xp: Namespace, x: Array) -> Array:
    """Returns x / 2 (1 + erf(x / sqrt 2))."""
    return np.float32(0.5) * x * (1 + erf_of(xp, x * np.float32(sqrt(0.5))))


def fast_gelu_of(xp: Namespace, x: Array) -> Array:
    """Returns x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    inner = x * (np.float32(0.044715 * sqrt(2 / pi)) * x * x + np.float32(sqrt(2 / pi)))
    return np.float32(0.5) * x * (1 + xp.tanh(inner))


@microsoft_kernel("Gelu", halves=(0,), dtypes=FLOAT32)
def microsoft_gelu(xp: Namespace, x: Array) -> Array:
    """Returns x / 2 (1 + erf(x / sqrt 2)). Source: ONNX Runtime, com.microsoft.Gelu-1."""
    return gelu_of(xp, x)


@microsoft_kernel("BiasGelu", halves=(0,), dtypes=FLOAT32)
def bias_gelu(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns gelu(a + b). Source: ONNX Runtime, com.microsoft.BiasGelu-1."""
    return gelu_of(xp, _add_bias(a, b))


@microsoft_kernel("FastGelu", halves=(0,), dtypes=FLOAT32)
def fast_gelu(xp: Namespace, x: Array, bias: Array | None = None) -> Array:
    """Returns the tanh approximation of gelu(x + bias). Source: ONNX Runtime, com.microsoft.FastGelu-1."""
    return fast_gelu_of(xp, x if bias is None else _add_bias(x, bias))


@microsoft_kernel("QuickGelu", halves=(0,), dtypes=FLOAT32)
def quick_gelu(xp: Namespace, x: Array, *, alpha: float = 1.702) -> Array:
    """Returns x sigmoid(alpha x). Source: ONNX Runtime, com.microsoft.QuickGelu-1."""
    return x * sigmoid_of(xp, np.float32(alpha) * x)


@microsoft_kernel("ScaledSiLU", dtypes=SMALL_FLOATS)
def scaled_silu(xp: Namespace, x: Array, scale: Array | None = None, *, alpha: float = 1.0) -> Array:
    """Returns z sigmoid(z) of z = scale x, rounded to the type of x after each step.

    Source: ONNX Runtime, com.microsoft.ScaledSiLU-1.
    """
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
    """Returns alpha A @ B; transBatch moves the first axis behind the other batch axes, trans swaps the last two.

    Source: ONNX Runtime, com.microsoft.FusedMatMul-1 and TransposeMatMul-1.
    """
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


def _activate(xp: Namespace, x: Array, name: str, alpha: float, beta: float) -> Array:
    """Returns one of the activations that may follow a product."""
    first, second = x.dtype.type(alpha), x.dtype.type(beta)
    formulas: dict[str, Callable[[], Array]] = {
        "": lambda: x,
        "Celu": lambda: xp.maximum(x, 0) + xp.minimum(first * xp.expm1(x / first), 0),
        "Clip": lambda: xp.clip(x, first, second),
        "Elu": lambda: xp.where(x >= 0, x, first * xp.expm1(xp.minimum(x, 0))),
        "HardSigmoid": lambda: xp.clip(first * x + second, 0, 1),
        "HardSwish": lambda: x * xp.clip(x / 6 + x.dtype.type(0.5), 0, 1),
        "LeakyRelu": lambda: xp.where(x >= 0, x, first * x),
        "ParametricSoftplus": lambda: first * xp.logaddexp(second * x, x.dtype.type(0)),
        "Relu": lambda: xp.maximum(x, 0),
        "ScaledTanh": lambda: first * xp.tanh(second * x),
        "Sigmoid": lambda: sigmoid_of(xp, x),
        "Softplus": lambda: xp.logaddexp(x, x.dtype.type(0)),
        "Softsign": lambda: x / (1 + xp.abs(x)),
        "Tanh": lambda: xp.tanh(x),
        "ThresholdedRelu": lambda: xp.where(x > first, x, x.dtype.type(0)),
    }
    return formulas[name]()


@microsoft_kernel("FusedGemm", halves=(0,), dtypes=FLOAT32, choices={**_TURNS, "activation": _GEMM_ACTIVATIONS})
def fused_gemm(
    xp: Namespace,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's name
    transB: int = 0,  # noqa: N803 - ONNX's name
) -> Array:
    """Returns activation(alpha A @ B + beta C). Source: ONNX Runtime, com.microsoft.FusedGemm-1."""
    y = gemm(xp, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return _activate(xp, y, activation, activation_alpha, activation_beta)


def _refuse_conv_parameters(node: Node, input_types: tuple[ValueType | None, ...]) -> str | None:
    """Refuses an activation whose parameters are missing."""
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
    count_bytes=count_convolved,
)
def fused_conv(
    xp: Namespace,
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    **geometry: Any,
) -> Array:
    """Returns activation(conv(x, w) + b + z). Source: ONNX Runtime, com.microsoft.FusedConv-1."""
    y = conv(xp, x, w, b, **geometry)
    first, second = (*activation_params, 0.0, 0.0)[:2]
    return _activate(xp, y if z is None else y + z, activation, first, second)


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
    """Returns ONNX's ConvTranspose with pads as an input. Source: ONNX Runtime, com.microsoft.ConvTransposeWithDynamicPads-1."""
    return conv_transpose(xp, x, w, b, pads=integers_of(pads) or None, **attributes)
