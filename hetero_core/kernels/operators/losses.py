"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: class scores against class indices, weighted and reduced."""

from __future__ import annotations

from hetero_core.kernels.operators.softmax import log_softmax_of
from hetero_core.kernels.precision import Array, Namespace, narrow, widen
from hetero_core.kernels.registry import FLOATS, INDEX, kernel

_DTYPES = (FLOATS, INDEX, FLOATS)
_REDUCTION = {"reduction": ("none", "mean", "sum")}


@kernel("NegativeLogLikelihoodLoss", since=(12, 13, 22), dtypes=_DTYPES, choices=_REDUCTION)
def negative_log_likelihood_loss(
    xp: Namespace, x: Array, target: Array, weight: Array | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Array:
    """Returns -weight[target] * x[target], or its sum, or its mean by weight. Source: ONNX NegativeLogLikelihoodLoss-22."""
    return narrow(_lose(xp, widen(x), target, weight, ignore_index, reduction), x.dtype)


@kernel("SoftmaxCrossEntropyLoss", since=(12, 13), dtypes=_DTYPES, choices=_REDUCTION, outputs=2)
def softmax_cross_entropy_loss(
    xp: Namespace, x: Array, target: Array, weight: Array | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> tuple[Array, Array]:
    """Returns the loss of log(softmax(x)), and that logarithm. Source: ONNX SoftmaxCrossEntropyLoss-13."""
    logarithm = log_softmax_of(xp, widen(x), 1)
    loss = _lose(xp, logarithm, target, weight, ignore_index, reduction)
    return narrow(loss, x.dtype), narrow(logarithm, x.dtype)


def _lose(xp: Namespace, x: Array, target: Array, weight: Array | None, ignore_index: int | None, reduction: str) -> Array:
    """Returns the loss of log-probabilities x: (batch, classes, *sizes) for targets (batch, *sizes); an ignored target weighs 0."""
    counted = xp.ones(target.shape, dtype=bool) if ignore_index is None else target != ignore_index
    classes = xp.where(counted, target, target.dtype.type(0))
    picked = xp.squeeze(xp.take_along_axis(x, xp.expand_dims(classes, 1), axis=1), axis=1)
    weights = xp.ones(target.shape, dtype=x.dtype) if weight is None else xp.take(widen(weight).astype(x.dtype), classes, axis=0)
    weights = xp.where(counted, weights, weights.dtype.type(0))
    losses = -picked * weights
    if reduction == "none":
        return losses
    total = xp.sum(losses)
    return xp.asarray(total / xp.sum(weights) if reduction == "mean" else total)
