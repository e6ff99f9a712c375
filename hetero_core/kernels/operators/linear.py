"""Matrix products: MatMul, Gemm, Einsum. Small floats are multiplied and summed in float32."""
# ruff: noqa: N803  # ONNX's names of attributes

from __future__ import annotations

from math import prod
from typing import Any

from hetero_core.kernels.operators.elementwise import align
from hetero_core.kernels.precision import Array, Namespace, multiply, narrow, widen
from hetero_core.kernels.registry import FLOATS, NUMBERS, kernel


@kernel("MatMul", since=(1, 9, 13), dtypes=NUMBERS)
def mat_mul(xp: Namespace, a: Array, b: Array) -> Array:
    """Returns the product of the last two axes; the remaining axes broadcast.

    A stack of matrices times a single matrix is a single product: a product for each of them takes three times as long with few rows.
    """
    if a.ndim > 2 and b.ndim == 2:
        rows = multiply(xp, widen(a).reshape(prod(a.shape[:-1]), a.shape[-1]), widen(b))
        return narrow(rows.reshape((*a.shape[:-1], b.shape[-1])), a.dtype)
    return narrow(multiply(xp, widen(a), widen(b)), a.dtype)


@kernel("Gemm", since=(7, 9, 11, 13), dtypes=NUMBERS)
def gemm(
    xp: Namespace,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Returns alpha * A @ B + beta * C, with A and B transposed on demand and C broadcast."""
    left, right = widen(a), widen(b)
    y = multiply(xp, left.T if transA else left, right.T if transB else right)
    if alpha != 1:
        y = narrow(y * alpha, y.dtype)
    if c is not None:
        bias = widen(c)
        y = y + (bias if beta == 1 else narrow(bias * beta, bias.dtype))
    return narrow(y, a.dtype)


GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
"""The attributes of Gemm with their defaults, for operators that hand them on."""


@kernel("Gemm", since=(1, 6), dtypes=FLOATS, choices={"broadcast": (0, 1)}, shared=GEMM)
def gemm_with_broadcast(xp: Namespace, a: Array, b: Array, c: Array, *, broadcast: int = 0, **product: Any) -> Array:
    """Returns alpha * A @ B + beta * C; C has the result's shape unless broadcast is 1."""
    shape = (a.shape[1 if product.get("transA") else 0], b.shape[0 if product.get("transB") else 1])
    if not broadcast and c.shape != shape:
        raise ValueError(f"C has shape {c.shape}, the product {shape}, and broadcast is 0")
    return gemm(xp, a, b, align(xp.empty(shape), c, None), **product)


@kernel("Einsum", since=(12, 28), dtypes=NUMBERS)
def einsum(xp: Namespace, *inputs: Array, equation: str) -> Array:
    """Returns the sum of products that the equation names."""
    return narrow(xp.einsum(equation.replace(" ", ""), *[widen(x) for x in inputs], optimize=len(inputs) > 1), inputs[0].dtype)
