"""Support vector machines of ai.onnx.ml: SVMClassifier and SVMRegressor.

ONNX gives no formulas; they are libsvm's, which scikit-learn and ONNX Runtime share. The reference evaluator differs in the probabilities
of three and more classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetero_core.kernels.operators.ml_scores import NUMERIC, POST_TRANSFORMS, InputTypes, as_rows, read_labels, transform_scores
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import ml_kernel

_CHOICES = {"kernel_type": ("LINEAR", "POLY", "RBF", "SIGMOID"), "post_transform": POST_TRANSFORMS}


@dataclass(frozen=True, slots=True)
class Similarity:
    """The function that compares rows with support vectors, (features, vectors) as an array of the device."""

    vectors: Array
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


def _prepare_similarity(
    xp: Namespace, vectors: tuple[float, ...], count: int, kernel_type: str, kernel_params: tuple[float, ...]
) -> Similarity:
    if not vectors or len(vectors) % count:
        raise ValueError(f"has {len(vectors)} numbers for {count} support vectors")
    if len(kernel_params) not in (0, 3):
        raise ValueError(f"has {len(kernel_params)} kernel_params; expected gamma, coef0 and degree")
    columns = np.asarray(vectors, dtype=np.float64).reshape((count, -1)).T.tolist()
    return Similarity(xp.asarray(columns, dtype=np.float64), kernel_type, *(kernel_params or (0.0, 0.0, 0.0)))


def _compare(xp: Namespace, similarity: Similarity, rows: Array) -> Array:
    """Returns how similar each row is to each support vector, float64 (rows, vectors)."""
    x = rows.astype(np.float64)
    products = xp.matmul(x, similarity.vectors)
    if similarity.kernel_type == "LINEAR":
        return products
    if similarity.kernel_type == "RBF":
        squares = xp.sum(x * x, axis=1, keepdims=True) + xp.sum(similarity.vectors**2, axis=0)
        return xp.exp(-similarity.gamma * xp.maximum(squares - 2 * products, 0.0))
    affine = similarity.gamma * products + similarity.coef0
    return xp.tanh(affine) if similarity.kernel_type == "SIGMOID" else affine ** int(similarity.degree)


def _prepare_classifier(
    xp: Namespace,
    input_types: InputTypes,
    *,
    classlabels_ints: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    coefficients: tuple[float, ...],
    kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: tuple[float, ...] = (),
    prob_b: tuple[float, ...] = (),
    rho: tuple[float, ...],
    support_vectors: tuple[float, ...] = (),
    vectors_per_class: tuple[int, ...] = (),
) -> Machine:
    labels = read_labels(classlabels_ints, classlabels_strings)
    classes, count = len(labels), sum(vectors_per_class)
    if min(vectors_per_class, default=0) < 1 or len(vectors_per_class) != classes or classes < 2:
        raise ValueError(f"has vectors_per_class {list(vectors_per_class)} for {classes} classes; it needs vectors of two and more")
    pairs = tuple((first, second) for first in range(classes) for second in range(first + 1, classes))
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


def _weigh_pairs(table: Array, vectors_per_class: tuple[int, ...], pairs: tuple[tuple[int, int], ...]) -> Array:
    """Returns (vectors, pairs): row j - 1 weighs the vectors of class i against class j, row i those of j against i."""
    ends = np.cumsum(vectors_per_class)
    ranges = [slice(int(end) - size, int(end)) for end, size in zip(ends, vectors_per_class, strict=True)]
    weights = np.zeros((table.shape[1], len(pairs)))
    for index, (first, second) in enumerate(pairs):
        weights[ranges[first], index] = table[second - 1, ranges[first]]
        weights[ranges[second], index] = table[first, ranges[second]]
    return weights


@ml_kernel("SVMClassifier", since=(1,), dtypes=NUMERIC, choices=_CHOICES, outputs=2, runs_on_host=True, prepare=_prepare_classifier)
def svm_classifier(xp: Namespace, x: Array, *, prepared: Machine) -> tuple[Array, Array]:
    """Returns the label with most votes of the pairs and, float32, probabilities of the classes or scores of the pairs.

    A positive score is a vote for the first class of the pair. Two classes have -s and s. Source: ONNX SVMClassifier-1, libsvm.
    """
    decisions = _compare(xp, prepared.similarity, as_rows(xp, x)) @ prepared.pair_weights + prepared.rho
    votes = np.zeros((len(decisions), len(prepared.labels)), dtype=np.int64)
    for index, (first, second) in enumerate(prepared.pairs):
        votes[:, first] += decisions[:, index] > 0
        votes[:, second] += decisions[:, index] <= 0
    scores = decisions
    if len(prepared.prob_a):
        scores = _couple_pairs(decisions, prepared)
    elif len(prepared.labels) == 2:
        scores = np.concatenate([-decisions, decisions], axis=1)
    transformed = transform_scores(xp, scores, prepared.post_transform)
    return prepared.labels[votes.argmax(axis=1)], transformed.astype(np.float32)


def _couple_pairs(decisions: Array, machine: Machine) -> Array:
    """Returns probabilities of the classes from those of the pairs, 1 / (1 + exp(a d + b)), limited to 1e-7 from 0 and 1.

    Iterates for each row as libsvm does, up to its error of 0.005 / classes. Source: Wu, Lin & Weng 2004, algorithm 2.
    """
    classes = len(machine.labels)
    pairwise = np.clip(1 / (1 + np.exp(decisions * machine.prob_a + machine.prob_b)), 1e-7, 1 - 1e-7)
    odds = np.zeros((len(decisions), classes, classes))
    for index, (first, second) in enumerate(machine.pairs):
        odds[:, first, second] = pairwise[:, index]
        odds[:, second, first] = 1 - pairwise[:, index]
    q = -odds * odds.swapaxes(1, 2)
    q[:, range(classes), range(classes)] = (odds**2).sum(axis=1)
    probabilities = np.full((len(decisions), classes), 1 / classes)
    for row in _list_unfinished(q, probabilities, limit=max(100, classes)):
        _improve(q[row], probabilities, row)
    return probabilities


def _list_unfinished(q: Array, probabilities: Array, *, limit: int) -> Iterator[Array]:
    """Yields, up to `limit` times, the rows whose equations are not fulfilled yet."""
    for _ in range(limit):
        products = np.einsum("nij,nj->ni", q, probabilities)
        errors = np.abs(products - (probabilities * products).sum(axis=1, keepdims=True)).max(axis=1)
        rows = np.flatnonzero(errors >= 0.005 / probabilities.shape[1])
        if not len(rows):
            return
        yield rows


def _improve(q: Array, probabilities: Array, rows: Array) -> None:
    """Solves for one class after the other and rescales, writing into the rows of `probabilities`."""
    p = probabilities[rows]
    products = np.einsum("nij,nj->ni", q, p)
    for index in range(p.shape[1]):
        total = (p * products).sum(axis=1)
        step = (total - products[:, index]) / q[:, index, index]
        p[:, index] += step
        p /= (1 + step)[:, None]
        products = (products + step[:, None] * q[:, index]) / (1 + step)[:, None]
    probabilities[rows] = p


def _prepare_regressor(
    xp: Namespace,
    input_types: InputTypes,
    *,
    coefficients: tuple[float, ...],
    kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: tuple[float, ...],
    support_vectors: tuple[float, ...] = (),
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
    # ONNX Runtime takes the other transforms and leaves them out.
    choices={**_CHOICES, "post_transform": ("NONE",), "one_class": (0, 1)},
    prepare=_prepare_regressor,
)
def svm_regressor(xp: Namespace, x: Array, *, prepared: Regression) -> Array:
    """Returns K(x, vectors) w + rho, float32 (rows, 1); for one class its sign, -1 or 1. Source: ONNX SVMRegressor-1, libsvm."""
    rows = as_rows(xp, x)
    compared = rows.astype(np.float64) if prepared.similarity is None else _compare(xp, prepared.similarity, rows)
    y = xp.matmul(compared, prepared.weights) + prepared.rho
    return (xp.where(y > 0, 1.0, -1.0) if prepared.is_one_class else y).astype(np.float32)
