"""Linear models of ai.onnx.ml: LinearClassifier and LinearRegressor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_core.kernels.operators.ml_scores import (
    NUMERIC,
    POST_TRANSFORMS,
    InputTypes,
    as_rows,
    read_labels,
    refuse_transform,
    transform_scores,
)
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import ml_kernel

_CHOICES = {"post_transform": POST_TRANSFORMS}


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Coefficients (features, scores) and intercepts (scores,) as arrays of the device, the labels on the host."""

    coefficients: Array
    intercepts: Array
    labels: Array
    post_transform: str


def _prepare(
    xp: Namespace, coefficients: tuple[float, ...], intercepts: tuple[float, ...], scores: int, labels: Array, post_transform: str
) -> LinearModel:
    if not coefficients or scores < 1 or len(coefficients) % scores or len(intercepts) not in (0, scores):
        raise ValueError(f"has {len(coefficients)} coefficients and {len(intercepts)} intercepts for {scores} scores")
    table = np.asarray(coefficients, dtype=np.float32).reshape((scores, -1)).T.tolist()
    return LinearModel(
        xp.asarray(table, dtype=np.float32),
        xp.asarray(intercepts or (0.0,) * scores, dtype=np.float32),
        labels,
        post_transform,
    )


def _score(xp: Namespace, model: LinearModel, x: Array) -> Array:
    rows = as_rows(xp, x)
    return xp.matmul(rows, model.coefficients.astype(rows.dtype)) + model.intercepts.astype(rows.dtype)


def _prepare_classifier(
    xp: Namespace,
    input_types: InputTypes,
    *,
    classlabels_ints: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    coefficients: tuple[float, ...],
    intercepts: tuple[float, ...] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> LinearModel:
    labels = read_labels(classlabels_ints, classlabels_strings)
    scores = len(intercepts) or len(labels)
    if scores == 1 and len(labels) == 2 and post_transform == "LOGISTIC":
        # The score of the second class; the first has its negative.
        halves = tuple(-value for value in coefficients), tuple(-value for value in intercepts)
        return _prepare(xp, halves[0] + coefficients, halves[1] + intercepts, 2, labels, post_transform)
    if scores == 1:
        raise ValueError("has one score for two classes without LOGISTIC, which engines read in different ways")
    if scores != len(labels):
        raise ValueError(f"has {scores} scores for {len(labels)} classes")
    return _prepare(xp, coefficients, intercepts, scores, labels, post_transform)


@ml_kernel(
    "LinearClassifier", since=(1,), dtypes=NUMERIC, choices=_CHOICES, outputs=2, runs_on_host=True, prepare=_prepare_classifier
)
def linear_classifier(xp: Namespace, x: Array, *, prepared: LinearModel) -> tuple[Array, Array]:
    """Returns the label of the greatest of x W + b and, float32, these scores transformed. Source: ONNX LinearClassifier-1.

    x: (rows, features) or (features,). `multi_class` has no effect on the formula.
    """
    scores = _score(xp, prepared, x)
    transformed = transform_scores(xp, scores, prepared.post_transform)
    return prepared.labels[scores.argmax(axis=1)], transformed.astype(np.float32)


def _prepare_regressor(
    xp: Namespace,
    input_types: InputTypes,
    *,
    coefficients: tuple[float, ...],
    intercepts: tuple[float, ...] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> LinearModel:
    refuse_transform(targets, post_transform)
    return _prepare(xp, coefficients, intercepts, targets, np.zeros(0), post_transform)


@ml_kernel("LinearRegressor", since=(1,), dtypes=NUMERIC, choices=_CHOICES, prepare=_prepare_regressor)
def linear_regressor(xp: Namespace, x: Array, *, prepared: LinearModel) -> Array:
    """Returns x W + b, transformed, float32 (rows, targets). Source: ONNX LinearRegressor-1."""
    return transform_scores(xp, _score(xp, prepared, x), prepared.post_transform).astype(np.float32)
