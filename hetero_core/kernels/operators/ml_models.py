"""Linear models, support vector machines and tree ensembles of ai.onnx.ml, and the scores and labels of all its classifiers.

The scores of one row of x lie along the last axis. PROBIT is the approximation of ONNX Runtime and the reference evaluator, good to
about 0.002 of the inverse error function. The formulas of support vector machines are libsvm's, which scikit-learn and ONNX Runtime
share; the reference evaluator differs in the probabilities of three and more classes.

All trees of an ensemble are one list of nodes and leaves, built on the host once; all rows walk down all trees at once, one level a step.
A leaf's two ways lead back to it, so that early rows wait. Attributes that make no forest raise ValueError. ONNX leaves open the meaning
of a forest of two classes that weighs only one of them, as gradient boosting and binary forests do. The kernel does what ONNX Runtime and
the reference evaluator agree on: weights of the first class id are scores of the second class; without a transform, and without a negative
weight, they are probabilities. The rest is refused. The label has the greatest score, the first of equals.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from inspect import signature
from itertools import combinations, pairwise
from math import pi
from typing import Any

import numpy as np

from hetero_core.kernels.arrays import bring
from hetero_core.kernels.operators.elementwise import sigmoid_of
from hetero_core.kernels.operators.reductions import softmax_of
from hetero_core.kernels.precision import Array, Floats, Integers, Namespace, Texts, widen
from hetero_core.kernels.registry import FLOAT32, Dtypes, kernel, ml_kernel
from hetero_core.kernels.tables import InputTypes

NUMERIC: Dtypes = frozenset({"float32", "float64", "int32", "int64"})
"""The element types that the operators of ai.onnx.ml compute on."""

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
        # A score of zero has no share. All are halves if all are zero, as in ONNX's reference evaluator.
        peak = xp.max(scores, axis=-1, keepdims=True)
        parts = xp.where(xp.abs(scores) <= 1e-7, scores * xp.exp(-peak), xp.exp(scores - peak))
        total = xp.sum(parts, axis=-1, keepdims=True)
        return xp.where(total == 0, scores.dtype.type(0.5), parts / xp.where(total == 0, scores.dtype.type(1), total))
    if post_transform == "PROBIT":
        # sqrt(2) erfinv(2 p - 1). Source: Winitzki 2008, with a = 0.147.
        centered = 2 * scores - 1
        log = xp.log((1 - centered) * (1 + centered))
        first = 2 / (pi * 0.147) + 0.5 * log
        return 1.41421356 * xp.copysign(xp.sqrt(xp.sqrt(first * first - log / 0.147) - first), centered)
    return scores


def as_rows(xp: Namespace, x: Array) -> Array:
    """Returns x as float32 or float64 of two dimensions; a vector is a row."""
    rows = x.reshape((1, -1)) if x.ndim <= 1 else x
    if rows.ndim != 2:
        raise ValueError(f"expected x of shape (rows, features), got {list(x.shape)}")
    return rows if rows.dtype == np.float64 else widen(rows).astype(np.float32)


def choose_list(integers: Integers, others: tuple[Any, ...], what: str, kind: str = "strings") -> tuple[Any, ...]:
    """Returns the attribute that is given. Raises: ValueError for none or both."""
    if bool(integers) == bool(others):
        raise ValueError(f"needs its {what} either as integers or as {kind}")
    return integers or others


def read_labels(integers: Integers, strings: Texts) -> Array:
    """Returns the class labels as a host array, int64 or object. Raises: as `choose_list`."""
    return np.asarray(choose_list(integers, strings, "class labels"), dtype=np.int64 if integers else object)


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


def _prepare(xp: Namespace, coefficients: Floats, intercepts: Floats, scores: int, labels: Array, transform: str) -> LinearModel:
    if not coefficients or scores < 1 or len(coefficients) % scores or len(intercepts) not in (0, scores):
        raise ValueError(f"has {len(coefficients)} coefficients and {len(intercepts)} intercepts for {scores} scores")
    table = np.asarray(coefficients, dtype=np.float32).reshape((scores, -1)).T.tolist()
    return LinearModel(
        xp.asarray(table, dtype=np.float32), xp.asarray(intercepts or (0.0,) * scores, dtype=np.float32), labels, transform
    )


def _score(xp: Namespace, model: LinearModel, x: Array) -> Array:
    rows, table = as_rows(xp, x), model.coefficients
    features, scores = rows.shape[1], table.shape[1]
    if features < table.shape[0]:  # as in ONNX Runtime, the first coefficients are a row for each score, and the rest is not read
        table = xp.reshape(xp.reshape(table.T, (-1,))[: features * scores], (scores, features)).T
    return xp.matmul(rows, table.astype(rows.dtype)) + model.intercepts.astype(rows.dtype)


def _prepare_linear(
    xp: Namespace,
    _: InputTypes,
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


@ml_kernel("LinearClassifier", since=(1,), dtypes=NUMERIC, choices=_CHOICES, outputs=2, runs_on_host=True, prepare=_prepare_linear)
def linear_classifier(xp: Namespace, x: Array, *, prepared: LinearModel) -> tuple[Array, Array]:
    """Returns the label of the greatest of x W + b and, float32, these scores transformed.

    x: (rows, features) or (features,). `multi_class` has no effect on the formula.
    """
    scores = _score(xp, prepared, x)
    transformed = transform_scores(xp, scores, prepared.post_transform)
    return prepared.labels[scores.argmax(axis=1)], transformed.astype(np.float32)


def _prepare_regressor(
    xp: Namespace, _: InputTypes, *, coefficients: Floats, intercepts: Floats = (), post_transform: str = "NONE", targets: int = 1
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
    """Weights (vectors, 1) and offset. A plain linear model has a single vector, its coefficients, with weight 1."""

    similarity: Similarity
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


def _prepare_svm(
    xp: Namespace,
    _: InputTypes,
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


@ml_kernel("SVMClassifier", since=(1,), dtypes=NUMERIC, choices=_SVM_CHOICES, outputs=2, runs_on_host=True, prepare=_prepare_svm)
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
    for _ in range(max(100, classes)):
        products = np.einsum("nij,nj->ni", q, probabilities)
        errors = np.abs(products - (probabilities * products).sum(axis=1, keepdims=True)).max(axis=1)
        rows = np.flatnonzero(errors >= 0.005 / classes)
        if not len(rows):
            break
        # Solves the open rows class by class, and rescales.
        p, products = probabilities[rows], products[rows]
        for index in range(classes):
            step = ((p * products).sum(axis=1) - products[:, index]) / q[rows, index, index]
            p[:, index] += step
            p /= (1 + step)[:, None]
            products = (products + step[:, None] * q[rows, index]) / (1 + step)[:, None]
        probabilities[rows] = p
    return probabilities


def _prepare_svm_regressor(
    xp: Namespace,
    _: InputTypes,
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
    if not n_supports:
        support_vectors, n_supports, coefficients = coefficients, 1, (1.0,)
    similarity = _prepare_similarity(xp, support_vectors, n_supports, kernel_type, kernel_params)
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
    y = xp.matmul(_compare(xp, prepared.similarity, as_rows(xp, x)), prepared.weights) + prepared.rho
    return (xp.where(y > 0, 1.0, -1.0) if prepared.is_one_class else y).astype(np.float32)


_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_MEMBER = 6
# A gibibyte of float64: no number in a small file makes the query of a network take more.
_LARGEST_TABLE = 2**27
_NUMBER_OF_MODE = {**{mode: number for number, mode in enumerate(_MODES[:-1])}, "LEAF": 0}
Places = dict[int, dict[int, int]]
"""Tree -> node -> place. Pairs as keys would be an object for each node, which bring on garbage collections."""


Leaves = tuple[Array, Array, Array]
"""For each weight: the place of its leaf, its target, its value."""


@dataclass(frozen=True, slots=True)
class Forest:
    """The forest as arrays of the device. `depth` is the longest way in steps; `weights` has a row for each leaf, row 0 has none.

    A weight that is not there is 0 in a sum, and NaN for a minimum or a maximum.
    """

    roots: Array
    depth: int
    modes_used: Integers
    features: Array
    modes: Array
    splits: Array
    true_places: Array
    false_places: Array
    missing_is_true: Array
    members: Array
    member_rows: Array
    weight_rows: Array
    weights: Array
    base_values: Array
    aggregate: str
    post_transform: str


def _tabulate_nodes(
    features: Sequence[int], modes: Any, splits: Array, true_places: Any, false_places: Any, missing_is_true: Sequence[int]
) -> dict[str, Array]:
    """Returns the tables of a forest's nodes, named as in `Forest`; places may lie behind the last node, where leaves are."""
    return {
        "features": np.asarray(features, dtype=np.int64),
        "modes": np.asarray(modes, dtype=np.int64),
        "splits": splits.astype(np.float64),
        "true_places": np.asarray(true_places, dtype=np.int64),
        "false_places": np.asarray(false_places, dtype=np.int64),
        "missing_is_true": np.asarray(missing_is_true or (0,) * len(features), dtype=bool),
    }


def _require_lengths(count: int, lists: Mapping[str, Any]) -> None:
    for name, values in lists.items():
        if len(values) != count:
            raise ValueError(f"has {len(values)} {name} for {count} nodes")


def link_nodes(
    *,
    nodes_falsenodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Sequence[str] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_treeids: Sequence[int] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Any = None,
) -> tuple[dict[str, Array], Integers, Places]:
    """Returns tables with places instead of ids, the root of each tree (its first node), and the place of each id."""
    count, splits = len(nodes_treeids), read_floats(nodes_values, nodes_values_as_tensor, "nodes_values")
    if not count:
        raise ValueError("has no nodes_treeids")
    lists = {"nodes_nodeids": nodes_nodeids, "nodes_featureids": nodes_featureids, "nodes_modes": nodes_modes, "nodes_values": splits,
             "nodes_truenodeids": nodes_truenodeids, "nodes_falsenodeids": nodes_falsenodeids,
             "nodes_missing_value_tracks_true": nodes_missing_value_tracks_true or nodes_treeids}  # fmt: skip
    _require_lengths(count, lists)
    places_of_tree: Places = {}
    for place, (tree, node) in enumerate(zip(nodes_treeids, nodes_nodeids, strict=True)):
        places = places_of_tree.setdefault(tree, {})
        if node in places:
            raise ValueError(f"has node {node} of tree {tree} twice")
        places[node] = place
    wrong = next((mode for mode in nodes_modes if mode not in _NUMBER_OF_MODE), None)
    if wrong is not None:
        raise ValueError(f"has a node of mode '{wrong}'")

    def follow(ids: Sequence[int]) -> list[int]:
        following = [
            place if mode == "LEAF" else places_of_tree[tree].get(node, -1)
            for place, (mode, tree, node) in enumerate(zip(nodes_modes, nodes_treeids, ids, strict=True))
        ]
        if -1 in following:
            place = following.index(-1)
            owner = f"node {nodes_nodeids[place]} of tree {nodes_treeids[place]}"
            raise ValueError(f"leads from {owner} to node {ids[place]}, which it does not have")
        return following

    ways = follow(nodes_truenodeids), follow(nodes_falsenodeids)
    modes = [_NUMBER_OF_MODE[mode] for mode in nodes_modes]
    nodes = _tabulate_nodes(nodes_featureids, modes, splits, *ways, nodes_missing_value_tracks_true)
    return nodes, tuple([next(iter(places.values())) for places in places_of_tree.values()]), places_of_tree


_NODES = {name: parameter.default for name, parameter in signature(link_nodes).parameters.items()}


def gather_leaf_weights(
    places_of_tree: Places, tree_ids: Sequence[int], node_ids: Sequence[int], targets: Sequence[int], weights: Array
) -> Leaves:
    """Returns the weights with the places of their nodes."""
    if not len(tree_ids) == len(node_ids) == len(targets) == len(weights):
        raise ValueError(f"has {len(tree_ids)} trees, {len(node_ids)} nodes and {len(targets)} targets for {len(weights)} weights")
    places = [places_of_tree.get(tree, {}).get(node, -1) for tree, node in zip(tree_ids, node_ids, strict=True)]
    if -1 in places:
        index = places.index(-1)
        raise ValueError(f"gives a weight to node {node_ids[index]} of tree {tree_ids[index]}, which it does not have")
    return np.asarray(places, dtype=np.int64), np.asarray(targets, dtype=np.int64), weights.astype(np.float64)


def build_forest(
    xp: Namespace,
    nodes: Mapping[str, Array],
    leaves: Leaves,
    *,
    roots: Integers,
    targets: int,
    aggregate: str,
    post_transform: str,
    bases: Floats = (),
    membership_values: Any = None,
) -> Forest:
    """Returns the forest on the device, from the tables of `_tabulate_nodes`."""
    places_of_leaves, targets_of_leaves, weights_of_leaves = leaves
    features, modes, count = nodes["features"], nodes["modes"], len(nodes["features"])
    if count and not 0 <= modes.min() <= modes.max() < len(_MODES):
        raise ValueError(f"has a node of mode {int(modes.max())}")
    if count and features.min() < 0:
        raise ValueError(f"reads feature {int(features.min())}")
    if targets < 1 or (len(np.unique(places_of_leaves)) + 1) * targets > _LARGEST_TABLE:
        raise ValueError(
            f"has {targets} targets for {len(weights_of_leaves)} weights; a table of them may have {_LARGEST_TABLE} elements"
        )
    if len(targets_of_leaves) != len(weights_of_leaves):
        raise ValueError(f"has {len(targets_of_leaves)} targets for {len(weights_of_leaves)} weights")
    if len(targets_of_leaves) and not 0 <= targets_of_leaves.min() <= targets_of_leaves.max() < targets:
        raise ValueError(f"gives a weight to target {int(targets_of_leaves.max())} of {targets}")
    if len(bases) not in (0, targets):
        raise ValueError(f"has {len(bases)} base values for {targets} targets")
    # Both ways of the leaves behind the last node lead back to them.
    places = np.arange(max(count, int(places_of_leaves.max(initial=-1)) + 1))
    tables = {
        name: np.concatenate([values, (places if name.endswith("places") else 0 * places)[count:].astype(values.dtype)])
        for name, values in nodes.items()
    }
    depth = _measure_depth(tables["true_places"], tables["false_places"], np.asarray(roots, dtype=np.int64))
    tables["weight_rows"], tables["weights"] = _tabulate_weights(leaves, len(places), targets, aggregate)
    tables["member_rows"], tables["members"] = _tabulate_members(tables["modes"], membership_values)
    tables["roots"] = np.asarray(roots, np.int64)
    tables["base_values"] = np.asarray(bases if len(bases) else (0.0,) * targets, np.float64)
    # As lists, because no other device takes a host array by accident.
    arrays = {name: bring(xp, values, values.dtype) for name, values in tables.items()}
    return Forest(
        depth=depth, modes_used=tuple(np.unique(modes).tolist()), aggregate=aggregate, post_transform=post_transform, **arrays
    )


def _measure_depth(true_places: Array, false_places: Array, roots: Array) -> int:
    """Returns after how many steps every way has ended."""
    count = len(true_places)
    for places in (true_places, false_places, roots):
        if len(places) and not 0 <= places.min() <= places.max() < count:
            raise ValueError(f"leads to place {int(places.max())} of {count}")
    reached = np.unique(roots)
    for depth in range(count + 1):
        following = np.unique(np.concatenate([true_places[reached], false_places[reached]]))
        following = following[(true_places[following] != following) | (false_places[following] != following)]
        if not len(following):
            return depth + 1
        reached = following
    raise ValueError("leads from a node back to itself")


def _tabulate_weights(leaves: Leaves, places: int, targets: int, aggregate: str) -> tuple[Array, Array]:
    """Returns the row of each place, and the rows of weights (rows, targets)."""
    owners, rows = np.unique(leaves[0], return_inverse=True)
    weight_rows = np.zeros(places, dtype=np.int64)
    weight_rows[owners] = np.arange(len(owners)) + 1
    combine = _EXTREMES.get(aggregate, "add")
    weights = np.full((len(owners) + 1, targets), 0.0 if combine == "add" else np.nan)
    getattr(np, combine).at(weights, (rows + 1, leaves[1]), leaves[2])
    return weight_rows, weights


def _tabulate_members(modes: Array, membership_values: Any) -> tuple[Array, Array]:
    """Returns the row of each place in a table of sets, filled up with NaN, which equals nothing.

    Each node of mode MEMBER has a list of values that ends at a NaN.
    """
    values = np.asarray(() if membership_values is None else membership_values).reshape(-1).astype(np.float64)
    owners, ends = np.flatnonzero(modes == _MEMBER), np.flatnonzero(np.isnan(values)).tolist()
    if len(ends) != len(owners) or (ends or [-1])[-1] != len(values) - 1:
        raise ValueError(
            f"has {len(owners)} nodes of mode MEMBER; its membership_values need as many lists, each with a NaN at its end"
        )
    member_rows = np.zeros(len(modes), dtype=np.int64)
    member_rows[owners] = np.arange(len(owners)) + 1
    lists = [values[begin + 1 : end] for begin, end in pairwise((-1, *ends))]
    members = np.full((len(owners) + 1, max(map(len, lists), default=0) or 1), np.nan)
    for row, numbers in enumerate(lists, 1):
        members[row, : len(numbers)] = numbers
    return member_rows, members


_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_EXTREMES = {"MIN": "fmin", "MAX": "fmax"}
"""The functions that pass over NaN."""
_COMPARISONS = (operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne)
"""In the order of `_MODES`."""


def find_leaves(xp: Namespace, forest: Forest, x: Array) -> Array:
    """Returns the leaf that each row of x reaches in each tree, int64 (rows, trees)."""
    places = xp.zeros((x.shape[0], 1), dtype=np.int64) + forest.roots
    rows = xp.arange(x.shape[0]).reshape((-1, 1))
    for _ in range(forest.depth):
        values = x[rows, xp.take(forest.features, places)]
        splits = xp.take(forest.splits, places)
        goes_true = xp.zeros(values.shape, dtype=bool)
        for mode in forest.modes_used:
            if mode == _MEMBER:
                matches = xp.any(forest.members[xp.take(forest.member_rows, places)] == values[..., None], axis=-1)
            else:
                matches = _COMPARISONS[mode](values, splits)
            goes_true = goes_true | (matches & (xp.take(forest.modes, places) == mode))
        goes_true = goes_true | (xp.take(forest.missing_is_true, places) & (values != values))
        places = xp.where(goes_true, xp.take(forest.true_places, places), xp.take(forest.false_places, places))
    return places


def aggregate_trees(xp: Namespace, forest: Forest, x: Array) -> Array:
    """Returns the sum, mean, minimum or maximum of the leaves' weights, float64 (rows, targets); base values are added at the end.

    A target to which no leaf on the way gives a weight is 0 before the base value.
    """
    leaves = xp.take(forest.weight_rows, find_leaves(xp, forest, x))
    extreme = _EXTREMES.get(forest.aggregate)
    combine = getattr(xp, extreme or "add")
    total = reduce(combine, (forest.weights[leaves[:, tree]] for tree in range(leaves.shape[1])))
    if extreme is not None:
        total = xp.where(xp.isnan(total), 0.0, total)
    if forest.aggregate == "AVERAGE":
        total = total / leaves.shape[1]
    return total + forest.base_values


def _prepare_ensemble(
    xp: Namespace,
    _: InputTypes,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Integers,
    leaf_weights: Any,
    membership_values: Any = None,
    n_targets: int = 1,
    nodes_falseleafs: Integers,
    nodes_falsenodeids: Integers,
    nodes_featureids: Integers,
    nodes_hitrates: Any = None,
    nodes_missing_value_tracks_true: Integers = (),
    nodes_modes: Any,
    nodes_splits: Any,
    nodes_trueleafs: Integers,
    nodes_truenodeids: Integers,
    post_transform: int = 0,
    tree_roots: Integers,
) -> Forest:
    refuse_transform(n_targets, POST_TRANSFORMS[post_transform])
    count, missing = len(nodes_featureids), nodes_missing_value_tracks_true
    modes, splits, weights = (np.asarray(values).reshape(-1) for values in (nodes_modes, nodes_splits, leaf_weights))
    lists = {"nodes_modes": modes, "nodes_splits": splits, "nodes_truenodeids": nodes_truenodeids, "nodes_trueleafs": nodes_trueleafs,
             "nodes_falsenodeids": nodes_falsenodeids, "nodes_falseleafs": nodes_falseleafs,
             "nodes_missing_value_tracks_true": missing or nodes_featureids}  # fmt: skip
    _require_lengths(count, lists)
    # The leaves follow the nodes, so that an index is the position of a row in the forest. A tree with a single leaf is a node with this
    # leaf as both branches.
    true_places, false_places = (
        np.asarray(ids, dtype=np.int64) + np.where(np.asarray(are_leaves, dtype=bool), count, 0)
        for ids, are_leaves in ((nodes_truenodeids, nodes_trueleafs), (nodes_falsenodeids, nodes_falseleafs))
    )
    nodes = _tabulate_nodes(nodes_featureids, modes, splits, true_places, false_places, missing)
    leaves = np.arange(len(weights)) + count, np.asarray(leaf_targetids, dtype=np.int64), weights.astype(np.float64)
    return build_forest(
        xp, nodes, leaves, roots=tree_roots, targets=n_targets,
        aggregate=_AGGREGATES[aggregate_function], post_transform=POST_TRANSFORMS[post_transform], membership_values=membership_values,
    )  # fmt: skip


@ml_kernel(
    "TreeEnsemble",
    since=(5,),
    dtypes=frozenset({"float16", "float32", "float64"}),
    choices={"aggregate_function": (0, 1, 2, 3), "post_transform": (0, 1, 2, 3, 4)},
    prepare=_prepare_ensemble,
)
def tree_ensemble(xp: Namespace, x: Array, *, prepared: Forest) -> Array:
    """Returns the weights of the leaves that each row reaches, aggregated by target."""
    return transform_scores(xp, aggregate_trees(xp, prepared, as_rows(xp, x)), prepared.post_transform).astype(x.dtype)


def _prepare_tree_regressor(
    xp: Namespace,
    types: InputTypes,
    *,
    aggregate_function: str = "SUM",
    base_values: Floats = (),
    base_values_as_tensor: Any = None,
    n_targets: int = 1,
    post_transform: str = "NONE",
    target_ids: Integers,
    target_nodeids: Integers,
    target_treeids: Integers,
    target_weights: Floats = (),
    target_weights_as_tensor: Any = None,
    **of_nodes: Any,
) -> Forest:
    refuse_transform(n_targets, post_transform)
    nodes, roots, places_of_tree = link_nodes(**of_nodes)
    weights = read_floats(target_weights, target_weights_as_tensor, "target_weights")
    leaves = gather_leaf_weights(places_of_tree, target_treeids, target_nodeids, target_ids, weights)
    # A decision path of skl2onnx has equal weights in a leaf, one for each class. As in ONNX Runtime, the first weight counts.
    if n_targets == 1:
        _, first = np.unique(leaves[0], return_index=True)
        leaves = leaves[0][first], leaves[1][first], leaves[2][first]
    bases = read_floats(base_values, base_values_as_tensor, "base_values")
    return build_forest(
        xp, nodes, leaves, roots=roots, targets=n_targets, bases=bases, aggregate=aggregate_function,
        post_transform=post_transform,
    )  # fmt: skip


@ml_kernel(
    "TreeEnsembleRegressor",
    since=(1, 3),
    dtypes=NUMERIC,
    choices={"aggregate_function": _AGGREGATES, "post_transform": POST_TRANSFORMS},
    prepare=_prepare_tree_regressor,
    shared=_NODES,
    unread=UNREAD_HITRATES,
)
def tree_ensemble_regressor(xp: Namespace, x: Array, *, prepared: Forest) -> Array:
    """Returns the result of TreeEnsemble-5 plus the base values, as float32."""
    return transform_scores(xp, aggregate_trees(xp, prepared, as_rows(xp, x)), prepared.post_transform).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ClassifierForest:
    """A forest, its labels, and the rule for the score of the first of two classes: "" if both classes have scores."""

    forest: Forest
    labels: Array
    opposite: str


def _prepare_tree_classifier(
    xp: Namespace,
    _: InputTypes,
    *,
    base_values: Floats = (),
    base_values_as_tensor: Any = None,
    class_ids: Integers,
    class_nodeids: Integers,
    class_treeids: Integers,
    class_weights: Floats = (),
    class_weights_as_tensor: Any = None,
    classlabels_int64s: Integers = (),
    classlabels_strings: Texts = (),
    post_transform: str = "NONE",
    **of_nodes: Any,
) -> ClassifierForest:
    labels = read_labels(classlabels_int64s, classlabels_strings)
    nodes, roots, places_of_tree = link_nodes(**of_nodes)
    weights = read_floats(class_weights, class_weights_as_tensor, "class_weights")
    bases = read_floats(base_values, base_values_as_tensor, "base_values")
    opposite = _choose_opposite(labels, class_ids, weights, bases, post_transform)
    forest = build_forest(
        xp, nodes, gather_leaf_weights(places_of_tree, class_treeids, class_nodeids, class_ids, weights), roots=roots,
        targets=1 if opposite else len(labels), bases=bases, aggregate="SUM", post_transform=post_transform,
    )  # fmt: skip
    return ClassifierForest(forest, labels, opposite)


def _choose_opposite(labels: Array, class_ids: Integers, weights: Array, bases: Array, post_transform: str) -> str:
    """Returns how the first of two classes follows from the only score: "complement", "negative", or "" if both classes have scores.

    Raises: ValueError for attributes that engines read in different ways.
    """
    if len(labels) == 1:
        raise ValueError("has one class label, and ONNX does not say what the other class is")
    if len(labels) > 2 or len(set(class_ids)) != 1:
        return ""
    if class_ids[0] != 0:
        raise ValueError("weighs the second of two classes alone, which engines read in different ways")
    if len(bases) > 1:
        raise ValueError("has two base values for the one class that it weighs, which engines read in different ways")
    if post_transform == "LOGISTIC":
        return "negative"
    if post_transform == "NONE" and (weights >= 0).all():
        return "complement"
    raise ValueError(
        f"weighs one of two classes with negative weights or {post_transform}, which engines read in different ways; "
        "they agree on LOGISTIC, and on NONE without negative weights"
    )


@ml_kernel(
    "TreeEnsembleClassifier",
    since=(1, 3),
    dtypes=NUMERIC,
    choices={"post_transform": POST_TRANSFORMS},
    outputs=2,
    runs_on_host=True,
    prepare=_prepare_tree_classifier,
    shared=_NODES,
    unread=UNREAD_HITRATES,
)
def tree_ensemble_classifier(xp: Namespace, x: Array, *, prepared: ClassifierForest) -> tuple[Array, Array]:
    """Returns the label of each row and, float32, the scores of all classes."""
    scores = aggregate_trees(xp, prepared.forest, as_rows(xp, x))
    if prepared.opposite:
        scores = np.concatenate([-scores if prepared.opposite == "negative" else 1 - scores, scores], axis=1)
    transformed = transform_scores(xp, scores, prepared.forest.post_transform)
    return prepared.labels[scores.argmax(axis=1)], transformed.astype(np.float32)
