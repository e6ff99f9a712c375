"""Linear models and support vector machines of ai.onnx.ml, and the scores and labels of all its classifiers.

The scores of one row of x lie along the last axis. PROBIT is the approximation of ONNX Runtime and the reference evaluator, good to
about 0.002 of the inverse error function. The formulas of support vector machines are libsvm's, which scikit-learn and ONNX Runtime
share; the reference evaluator differs in the probabilities of three and more classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import pi
from typing import Any

import numpy as np

from hetero_core.kernels.operators.elementwise import sigmoid_of
from hetero_core.kernels.operators.reductions import softmax_of
from hetero_core.kernels.precision import Array, Floats, Integers, Namespace, Texts, widen
from hetero_core.kernels.registry import FLOAT32, Dtypes, kernel, ml_kernel
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
    """Returns the scores after a transform of `POST_TRANSFORMS`; the shape stays."""
    if post_transform == "LOGISTIC":
        return sigmoid_of(xp, scores)
    if post_transform == "SOFTMAX":
        return softmax_of(xp, scores, -1)
    if post_transform == "SOFTMAX_ZERO":
        return _softmax_zero(xp, scores)
    return _probit(xp, scores) if post_transform == "PROBIT" else scores


def _softmax_zero(xp: Namespace, scores: Array) -> Array:
    """Returns the softmax in which a score of zero has no share; halves if all are zero, as in ONNX's reference evaluator."""
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
    """Returns x as float32 or float64 of two dimensions; a vector is a row."""
    rows = x.reshape((1, -1)) if x.ndim <= 1 else x
    if rows.ndim != 2:
        raise ValueError(f"expected x of shape (rows, features), got {list(x.shape)}")
    return rows if rows.dtype == np.float64 else widen(rows).astype(np.float32)


def read_labels(integers: Integers, strings: Texts) -> Array:
    """Returns the class labels as a host array, int64 or object. Raises: ValueError."""
    if bool(integers) == bool(strings):
        raise ValueError("needs its class labels either as integers or as strings")
    return np.asarray(integers, dtype=np.int64) if integers else np.asarray(strings, dtype=object)


def read_floats(values: Any, tensor: Any, name: str) -> Array:
    """Returns an attribute that may be given as a list of float32 or as a tensor of its own type; () without both.

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


_BLOCK = 32768
"""About so many similarities, 256 KiB, are computed together, so that they stay in the processor's cache."""

_CHOICES = {"post_transform": POST_TRANSFORMS}


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Coefficients (features, scores) and intercepts (scores,) as arrays of the device, the labels on the host."""

    coefficients: Array
    intercepts: Array
    labels: Array
    post_transform: str


def _prepare(
    xp: Namespace, coefficients: Floats, intercepts: Floats, scores: int, labels: Array, post_transform: str
) -> LinearModel:
    if not coefficients or scores < 1 or len(coefficients) % scores or len(intercepts) not in (0, scores):
        raise ValueError(f"has {len(coefficients)} coefficients and {len(intercepts)} intercepts for {scores} scores")
    table = np.asarray(coefficients, dtype=np.float32).reshape((scores, -1)).T.tolist()
    return LinearModel(
        xp.asarray(table, dtype=np.float32), xp.asarray(intercepts or (0.0,) * scores, dtype=np.float32), labels, post_transform
    )


def _score(xp: Namespace, model: LinearModel, x: Array) -> Array:
    rows, table = as_rows(xp, x), model.coefficients
    features, scores = rows.shape[1], table.shape[1]
    if features < table.shape[0]:  # as in ONNX Runtime, the first coefficients are a row for each score, and the rest is not read
        table = xp.reshape(xp.reshape(table.T, (-1,))[: features * scores], (scores, features)).T
    return xp.matmul(rows, table.astype(rows.dtype)) + model.intercepts.astype(rows.dtype)


def _prepare_classifier(
    xp: Namespace,
    input_types: InputTypes,
    *,
    classlabels_ints: Integers = (),
    classlabels_strings: Texts = (),
    coefficients: Floats,
    intercepts: Floats = (),
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
    """Returns the label of the greatest of x W + b and, float32, these scores transformed.

    x: (rows, features) or (features,). `multi_class` has no effect on the formula.
    """
    scores = _score(xp, prepared, x)
    transformed = transform_scores(xp, scores, prepared.post_transform)
    return prepared.labels[scores.argmax(axis=1)], transformed.astype(np.float32)


def _prepare_regressor(
    xp: Namespace,
    input_types: InputTypes,
    *,
    coefficients: Floats,
    intercepts: Floats = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> LinearModel:
    refuse_transform(targets, post_transform)
    return _prepare(xp, coefficients, intercepts, targets, np.zeros(0), post_transform)


@ml_kernel("LinearRegressor", since=(1,), dtypes=NUMERIC, choices=_CHOICES, prepare=_prepare_regressor)
def linear_regressor(xp: Namespace, x: Array, *, prepared: LinearModel) -> Array:
    """Returns x W + b, transformed, float32 (rows, targets)."""
    return transform_scores(xp, _score(xp, prepared, x), prepared.post_transform).astype(np.float32)


_SVM_CHOICES = {"kernel_type": ("LINEAR", "POLY", "RBF", "SIGMOID"), "post_transform": POST_TRANSFORMS}


@dataclass(frozen=True, slots=True)
class Similarity:
    """The function that compares rows with support vectors, (features, vectors) as an array of the device."""

    vectors: Array
    squares: Array
    """The sum of the squares of each vector."""
    kernel_type: str
    gamma: float
    coef0: float
    degree: float


@dataclass(frozen=True, slots=True)
class Machine:
    """One decision for each pair of classes, all on the host: `pair_weights` is (vectors, pairs)."""

    similarity: Similarity
    labels: Array
    pairs: tuple[tuple[int, int], ...]
    pair_weights: Array
    rho: Array
    prob_a: Array
    prob_b: Array
    post_transform: str


@dataclass(frozen=True, slots=True)
class Regression:
    """Weights (vectors, 1) and offset; `similarity` is None for a plain linear model."""

    similarity: Similarity | None
    weights: Array
    rho: float
    is_one_class: bool


def _prepare_similarity(xp: Namespace, vectors: Floats, count: int, kernel_type: str, kernel_params: Floats) -> Similarity:
    if not vectors or len(vectors) % count:
        raise ValueError(f"has {len(vectors)} numbers for {count} support vectors")
    if len(kernel_params) not in (0, 3):
        raise ValueError(f"has {len(kernel_params)} kernel_params; expected gamma, coef0 and degree")
    columns = np.asarray(vectors, dtype=np.float64).reshape((count, -1)).T.tolist()
    table = xp.asarray(columns, dtype=np.float64)
    return Similarity(table, xp.sum(table**2, axis=0), kernel_type, *(kernel_params or (0.0, 0.0, 0.0)))


def _compare(xp: Namespace, similarity: Similarity, rows: Array) -> Array:
    """Returns how similar each row is to each support vector, float64 (rows, vectors)."""
    x = rows.astype(np.float64)
    products = xp.matmul(x, similarity.vectors)
    if similarity.kernel_type == "LINEAR":
        return products
    if similarity.kernel_type == "RBF":
        squares = xp.sum(x * x, axis=1, keepdims=True) + similarity.squares
        return xp.exp(-similarity.gamma * xp.maximum(squares - 2 * products, 0.0))
    affine = similarity.gamma * products + similarity.coef0
    return xp.tanh(affine) if similarity.kernel_type == "SIGMOID" else affine ** int(similarity.degree)


def _prepare_svm_classifier(
    xp: Namespace,
    input_types: InputTypes,
    *,
    classlabels_ints: Integers = (),
    classlabels_strings: Texts = (),
    coefficients: Floats,
    kernel_params: Floats = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Floats = (),
    prob_b: Floats = (),
    rho: Floats,
    support_vectors: Floats = (),
    vectors_per_class: Integers = (),
) -> Machine:
    labels = read_labels(classlabels_ints, classlabels_strings)
    classes, count = len(labels), sum(vectors_per_class)
    if min(vectors_per_class, default=0) < 1 or len(vectors_per_class) != classes or classes < 2:
        raise ValueError(f"has vectors_per_class {list(vectors_per_class)} for {classes} classes; it needs vectors of two and more")
    pairs = tuple(combinations(range(classes), 2))
    if len(rho) != len(pairs) or len(coefficients) != (classes - 1) * count or not len(prob_a) == len(prob_b) in (0, len(pairs)):
        raise ValueError(f"has {len(rho)} rho, {len(prob_a)} prob_a and {len(coefficients)} coefficients for {len(pairs)} pairs")
    if classes == 2 and not prob_a and post_transform not in ("NONE", "LOGISTIC"):
        raise ValueError(f"has one score for two classes under {post_transform}, which engines read in different ways")
    if classes == 2 and not prob_a and min(coefficients) >= 0:
        raise ValueError("has no negative coefficient, for which ONNX Runtime has a rule of its own")
    table = np.asarray(coefficients, dtype=np.float64).reshape((classes - 1, count))
    return Machine(
        _prepare_similarity(xp, support_vectors, count, kernel_type, kernel_params),
        labels,
        pairs,
        _weigh_pairs(table, vectors_per_class, pairs),
        np.asarray(rho, dtype=np.float64),
        np.asarray(prob_a, dtype=np.float64),
        np.asarray(prob_b, dtype=np.float64),
        post_transform,
    )


def _weigh_pairs(table: Array, vectors_per_class: Integers, pairs: tuple[tuple[int, int], ...]) -> Array:
    """Returns (vectors, pairs): row j - 1 weighs the vectors of class i against class j, row i those of j against i."""
    ends = np.cumsum(vectors_per_class)
    ranges = [slice(int(end) - size, int(end)) for end, size in zip(ends, vectors_per_class, strict=True)]
    weights = np.zeros((table.shape[1], len(pairs)))
    for index, (first, second) in enumerate(pairs):
        weights[ranges[first], index] = table[second - 1, ranges[first]]
        weights[ranges[second], index] = table[first, ranges[second]]
    return weights


@ml_kernel(
    "SVMClassifier", since=(1,), dtypes=NUMERIC, choices=_SVM_CHOICES, outputs=2, runs_on_host=True, prepare=_prepare_svm_classifier
)
def svm_classifier(xp: Namespace, x: Array, *, prepared: Machine) -> tuple[Array, Array]:
    """Returns the label with most votes of the pairs and, float32, probabilities of the classes or scores of the pairs.

    A positive score is a vote for the first class of the pair. Two classes have -s and s. Source: ONNX SVMClassifier-1, libsvm.
    """
    rows, block = as_rows(xp, x), max(1, _BLOCK // len(prepared.pair_weights))
    blocks = [rows[start : start + block] for start in range(0, max(1, len(rows)), block)]
    decisions = np.concatenate([_compare(xp, prepared.similarity, part) @ prepared.pair_weights + prepared.rho for part in blocks])
    votes = np.zeros((len(decisions), len(prepared.labels)), dtype=np.int64)
    for index, (first, second) in enumerate(prepared.pairs):
        votes[:, first] += decisions[:, index] > 0
        votes[:, second] += decisions[:, index] <= 0
    scores = decisions
    if len(prepared.prob_a):
        scores = _couple_pairs(decisions * prepared.prob_a + prepared.prob_b, len(prepared.labels))
    elif len(prepared.labels) == 2:
        scores = np.concatenate([-decisions, decisions], axis=1)
    transformed = transform_scores(xp, scores, prepared.post_transform)
    return prepared.labels[votes.argmax(axis=1)], transformed.astype(np.float32)


@kernel("CouplePairs", since=(0,), dtypes=FLOAT32)
def couple_pairs(xp: Namespace, exponents: Array, *, classes: int) -> Array:
    """Returns the probabilities of the classes as SVMClassifier does; no operator of ONNX, but a node that a pass makes."""
    return _couple_pairs(exponents.astype(np.float64), classes).astype(np.float32)


def _couple_pairs(exponents: Array, classes: int) -> Array:
    """Returns probabilities of the classes from those of the pairs, 1 / (1 + exp(a d + b)), limited to 1e-7 from 0 and 1.

    Iterates for each row as libsvm does, up to its error of 0.005 / classes. Source: Wu, Lin & Weng 2004, algorithm 2.
    """
    pairwise = np.clip(1 / (1 + np.exp(exponents)), 1e-7, 1 - 1e-7)
    odds = np.zeros((len(exponents), classes, classes))
    for index, (first, second) in enumerate(combinations(range(classes), 2)):
        odds[:, first, second] = pairwise[:, index]
        odds[:, second, first] = 1 - pairwise[:, index]
    q = -odds * odds.swapaxes(1, 2)
    q[:, range(classes), range(classes)] = (odds**2).sum(axis=1)
    probabilities = np.full((len(exponents), classes), 1 / classes)
    for row in _list_unfinished(q, probabilities, limit=max(100, classes)):
        _improve(q[row], probabilities, row)
    return probabilities


def _list_unfinished(q: Array, probabilities: Array, *, limit: int) -> Iterator[Array]:
    """Yields, up to `limit` times, the rows with open equations."""
    for _ in range(limit):
        products = np.einsum("nij,nj->ni", q, probabilities)
        errors = np.abs(products - (probabilities * products).sum(axis=1, keepdims=True)).max(axis=1)
        rows = np.flatnonzero(errors >= 0.005 / probabilities.shape[1])
        if not len(rows):
            return
        yield rows


def _improve(q: Array, probabilities: Array, rows: Array) -> None:
    """Solves class by class and rescales, writing into the rows of `probabilities`."""
    p = probabilities[rows]
    products = np.einsum("nij,nj->ni", q, p)
    for index in range(p.shape[1]):
        total = (p * products).sum(axis=1)
        step = (total - products[:, index]) / q[:, index, index]
        p[:, index] += step
        p /= (1 + step)[:, None]
        products = (products + step[:, None] * q[:, index]) / (1 + step)[:, None]
    probabilities[rows] = p


def _prepare_svm_regressor(
    xp: Namespace,
    input_types: InputTypes,
    *,
    coefficients: Floats,
    kernel_params: Floats = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Floats,
    support_vectors: Floats = (),
) -> Regression:
    if n_supports and len(coefficients) != n_supports:
        raise ValueError(f"has {len(coefficients)} coefficients for {n_supports} support vectors")
    if not n_supports and kernel_type != "LINEAR":
        raise ValueError(f"has no support vectors for its kernel {kernel_type}")
    if len(rho) != 1:
        raise ValueError(f"has {len(rho)} values of rho instead of one")
    similarity = _prepare_similarity(xp, support_vectors, n_supports, kernel_type, kernel_params) if n_supports else None
    weights = xp.asarray([[value] for value in coefficients], dtype=np.float64)
    return Regression(similarity, weights, float(rho[0]), bool(one_class))


@ml_kernel(
    "SVMRegressor",
    since=(1,),
    dtypes=NUMERIC,
    # ONNX Runtime accepts all transforms and ignores them.
    choices={**_SVM_CHOICES, "post_transform": ("NONE",), "one_class": (0, 1)},
    prepare=_prepare_svm_regressor,
)
def svm_regressor(xp: Namespace, x: Array, *, prepared: Regression) -> Array:
    """Returns K(x, vectors) w + rho, float32 (rows, 1); for one class its sign, -1 or 1. Source: ONNX SVMRegressor-1, libsvm."""
    rows = as_rows(xp, x)
    compared = rows.astype(np.float64) if prepared.similarity is None else _compare(xp, prepared.similarity, rows)
    y = xp.matmul(compared, prepared.weights) + prepared.rho
    return (xp.where(y > 0, 1.0, -1.0) if prepared.is_one_class else y).astype(np.float32)
