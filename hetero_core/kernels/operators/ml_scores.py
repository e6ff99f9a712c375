"""Shared parts of the classifiers and regressors of ai.onnx.ml: post transforms of scores, and class labels.

The scores are those of one row of x along the last axis. PROBIT is the approximation that ONNX Runtime and the reference evaluator
share, good to about 0.002 of the inverse error function.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import pi
from typing import Any

import numpy as np

from hetero_core.kernels.operators.activations import sigmoid_of
from hetero_core.kernels.operators.softmax import softmax_of
from hetero_core.kernels.precision import Array, Namespace, widen
from hetero_core.kernels.registry import Dtypes
from hetero_core.network.types import ValueType

NUMERIC: Dtypes = frozenset({"float32", "float64", "int32", "int64"})
"""The element types that the operators of ai.onnx.ml compute on."""

InputTypes = tuple[ValueType | None, ...]
"""The known types of a node's inputs at the time when its attributes are prepared."""

POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""In the order of the numbers that TreeEnsemble-5 gives them."""

UNREAD_HITRATES: Mapping[str, Any] = {"nodes_hitrates": (), "nodes_hitrates_as_tensor": None}
"""Attributes of tree ensembles that say how often a node was hit, and change no result."""


def transform_scores(xp: Namespace, scores: Array, post_transform: str) -> Array:
    """Returns the scores after one of `POST_TRANSFORMS`; the shape stays."""
    if post_transform == "LOGISTIC":
        return sigmoid_of(xp, scores)
    if post_transform == "SOFTMAX":
        return softmax_of(xp, scores, -1)
    if post_transform == "SOFTMAX_ZERO":
        return _softmax_zero(xp, scores)
    return _probit(xp, scores) if post_transform == "PROBIT" else scores


def _softmax_zero(xp: Namespace, scores: Array) -> Array:
    """Returns the softmax in which a score of zero has no share; halves where all are zero, as ONNX's reference evaluator has it."""
    peak = xp.max(scores, axis=-1, keepdims=True)
    is_zero = xp.abs(scores) <= 1e-7
    parts = xp.where(is_zero, scores * xp.exp(-peak), xp.exp(scores - peak))
    total = xp.sum(parts, axis=-1, keepdims=True)
    return xp.where(total == 0, scores.dtype.type(0.5), parts / xp.where(total == 0, scores.dtype.type(1), total))


def _probit(xp: Namespace, scores: Array) -> Array:
    """Returns sqrt(2) erfinv(2 p - 1). Source: Winitzki 2008, with a = 0.147."""
    centered = 2 * scores - 1
    log = xp.log((1 - centered) * (1 + centered))
    first = 2 / (pi * 0.147) + 0.5 * log
    return 1.41421356 * xp.copysign(xp.sqrt(xp.sqrt(first * first - log / 0.147) - first), centered)


def as_rows(xp: Namespace, x: Array) -> Array:
    """Returns x as float32 or float64 of two dimensions; a vector is one row."""
    rows = x.reshape((1, -1)) if x.ndim <= 1 else x
    if rows.ndim != 2:
        raise ValueError(f"expected x of shape (rows, features), got {list(x.shape)}")
    return rows if rows.dtype == np.float64 else widen(rows).astype(np.float32)


def read_labels(integers: tuple[int, ...], strings: tuple[str, ...]) -> Array:
    """Returns the class labels as one host array, int64 or object.

    Raises: ValueError unless exactly one kind is given.
    """
    if bool(integers) == bool(strings):
        raise ValueError("needs its class labels either as integers or as strings")
    return np.asarray(integers, dtype=np.int64) if integers else np.asarray(strings, dtype=object)


def read_floats(values: Any, tensor: Any, name: str) -> Array:
    """Returns an attribute that may be given as a list of float32 or as a tensor of another type; () for neither.

    Raises: ValueError when both are given.
    """
    if tensor is None:
        return np.asarray(values, dtype=np.float32)
    if len(values):
        raise ValueError(f"has both {name} and {name}_as_tensor")
    return np.asarray(tensor).reshape(-1)


def refuse_transform(targets: int, post_transform: str) -> None:
    """Raises ValueError for a transform of a single target that engines leave out."""
    if targets == 1 and post_transform not in ("NONE", "PROBIT"):
        raise ValueError(f"transforms its one target by {post_transform}, which ONNX Runtime leaves out")
