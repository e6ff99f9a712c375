"""FlexAttention: attention whose scores and probabilities pass through bodies of the user's."""

from __future__ import annotations

from math import sqrt
from typing import Any

from hetero_core.dtypes import dtype_of_onnx, numpy_dtype
from hetero_core.kernels.operators.softmax import softmax_of
from hetero_core.kernels.precision import Array, Namespace, narrow, widen
from hetero_core.kernels.products import multiply
from hetero_core.kernels.registry import FLOATS, kernel

Body = Any
"""A `execution.BoundBody`; named loosely, because kernels know no program."""


@kernel(
    "FlexAttention",
    domain="ai.onnx.preview",
    since=(1,),
    dtypes=FLOATS,
    choices={"softmax_precision": (1, 10, 11, 16)},
    bodies=("score_mod", "prob_mod"),
)
def flex_attention(
    xp: Namespace,
    q: Array,
    k: Array,
    v: Array,
    *,
    prob_mod: Body | None = None,
    scale: float | None = None,
    score_mod: Body | None = None,
    softmax_precision: int | None = None,
) -> Array:
    """Returns prob_mod(softmax(score_mod(scale q k^T))) v; a head of k and v serves a group of heads of q.

    q: (batch, heads, queries, size). The bodies get and give softmax_precision, which is float32 or the wider type of q.
    Source: ONNX FlexAttention-1.
    """
    repeats = q.shape[1] // k.shape[1]
    if repeats != 1:
        k, v = xp.repeat(k, repeats, axis=1), xp.repeat(v, repeats, axis=1)
    precise = widen(q).dtype if softmax_precision is None else numpy_dtype(dtype_of_onnx(softmax_precision) or "float32")
    root = q.dtype.type(sqrt(1 / sqrt(q.shape[3]) if scale is None else scale))
    scores = narrow(multiply(xp, widen(q * root), widen(xp.swapaxes(k * root, 2, 3))), precise)
    if score_mod is not None:
        (scores,) = score_mod(scores)
    weights = narrow(softmax_of(xp, widen(scores), -1), precise)
    if prob_mod is not None:
        (weights,) = prob_mod(weights)
    return narrow(multiply(xp, widen(weights), narrow(v, precise) if precise.itemsize >= 4 else widen(v)), v.dtype)
