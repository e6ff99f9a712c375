"""TreeEnsembleClassifier: the scores of a forest as classes.

ONNX leaves open what a forest of two classes means that weighs only one of them, as gradient boosting and binary forests do. What ONNX
Runtime and the reference evaluator agree on is here: weights of the first class id are scores of the second class; without a transform, and
with no negative weight, they are probabilities. The rest is refused. The label is that of the greatest score, the first of equals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.kernels.operators.ml_forests import Forest, build_forest, gather_leaf_weights, link_nodes
from hetero_core.kernels.operators.ml_scores import (
    NUMERIC,
    POST_TRANSFORMS,
    UNREAD_HITRATES,
    InputTypes,
    as_rows,
    read_floats,
    read_labels,
    transform_scores,
)
from hetero_core.kernels.operators.ml_trees import aggregate_trees
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import ml_kernel


@dataclass(frozen=True, slots=True)
class ClassifierForest:
    """A forest, its labels, and what the score of the second class says of the first: "" where both have their own."""

    forest: Forest
    labels: Array
    opposite: str


def _prepare_classifier(
    xp: Namespace,
    input_types: InputTypes,
    *,
    base_values: tuple[float, ...] = (),
    base_values_as_tensor: Any = None,
    class_ids: tuple[int, ...],
    class_nodeids: tuple[int, ...],
    class_treeids: tuple[int, ...],
    class_weights: tuple[float, ...] = (),
    class_weights_as_tensor: Any = None,
    classlabels_int64s: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    nodes_falsenodeids: tuple[int, ...],
    nodes_featureids: tuple[int, ...],
    nodes_missing_value_tracks_true: tuple[int, ...] = (),
    nodes_modes: tuple[str, ...],
    nodes_nodeids: tuple[int, ...],
    nodes_treeids: tuple[int, ...],
    nodes_truenodeids: tuple[int, ...],
    nodes_values: tuple[float, ...] = (),
    nodes_values_as_tensor: Any = None,
    post_transform: str = "NONE",
) -> ClassifierForest:
    labels = read_labels(classlabels_int64s, classlabels_strings)
    nodes, roots, place_of_node = link_nodes(
        nodes_treeids, nodes_nodeids, nodes_featureids, nodes_modes, read_floats(nodes_values, nodes_values_as_tensor, "nodes_values"),
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true,
    )  # fmt: skip
    weights = read_floats(class_weights, class_weights_as_tensor, "class_weights")
    bases = read_floats(base_values, base_values_as_tensor, "base_values")
    opposite = _choose_opposite(labels, class_ids, weights, bases, post_transform)
    forest = build_forest(
        xp,
        nodes,
        gather_leaf_weights(place_of_node, class_treeids, class_nodeids, class_ids, weights),
        roots=roots,
        targets=1 if opposite else len(labels),
        base_values=bases,
        aggregate="SUM",
        post_transform=post_transform,
    )
    return ClassifierForest(forest, labels, opposite)


def _choose_opposite(labels: Array, class_ids: tuple[int, ...], weights: Array, bases: Array, post_transform: str) -> str:
    """Returns how the first of two classes follows from the only score: "complement", "negative", or "" where each has its own.

    Raises: ValueError for what engines read in different ways.
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
    prepare=_prepare_classifier,
    unread=UNREAD_HITRATES,
)
def tree_ensemble_classifier(xp: Namespace, x: Array, *, prepared: ClassifierForest) -> tuple[Array, Array]:
    """Returns the label of each row and, float32, the scores of all classes. Source: ONNX TreeEnsembleClassifier-3."""
    scores = aggregate_trees(xp, prepared.forest, as_rows(xp, x))
    if prepared.opposite:
        scores = np.concatenate([-scores if prepared.opposite == "negative" else 1 - scores, scores], axis=1)
    transformed = transform_scores(xp, scores, prepared.forest.post_transform)
    return prepared.labels[scores.argmax(axis=1)], transformed.astype(np.float32)
