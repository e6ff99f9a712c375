"""Tree ensembles of ai.onnx.ml: TreeEnsemble-5, and TreeEnsembleRegressor and TreeEnsembleClassifier before it.

`ml_forests` builds the tables; here all rows walk down all trees at once, one level a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_core.kernels.operators.ml_forests import Forest, Leaves, Nodes, build_forest, gather_leaf_weights, link_nodes
from hetero_core.kernels.operators.ml_scores import (
    NUMERIC,
    POST_TRANSFORMS,
    UNREAD_HITRATES,
    InputTypes,
    as_rows,
    read_floats,
    refuse_transform,
    transform_scores,
)
from hetero_core.kernels.precision import Array, Namespace
from hetero_core.kernels.registry import ml_kernel

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def find_leaves(xp: Namespace, forest: Forest, x: Array) -> Array:
    """Returns the leaf that each row of x reaches in each tree, int64 (rows, trees)."""
    places = xp.zeros((x.shape[0], 1), dtype=np.int64) + forest.roots
    rows = xp.arange(x.shape[0]).reshape((-1, 1))
    for _ in range(forest.depth):
        values = x[rows, xp.take(forest.features, places)]
        splits = xp.take(forest.splits, places)
        goes_true = xp.zeros(values.shape, dtype=bool)
        for mode in forest.modes_used:
            goes_true = goes_true | (_compare(xp, forest, mode, values, splits, places) & (xp.take(forest.modes, places) == mode))
        goes_true = goes_true | (xp.take(forest.missing_is_true, places) & (values != values))
        places = xp.where(goes_true, xp.take(forest.true_places, places), xp.take(forest.false_places, places))
    return places


def _compare(xp: Namespace, forest: Forest, mode: int, values: Array, splits: Array, places: Array) -> Array:
    if mode == 6:
        members = forest.members[xp.take(forest.member_rows, places)]
        return xp.any(members == values[..., None], axis=-1)
    comparisons: tuple[Callable[[], Array], ...] = (
        lambda: values <= splits,
        lambda: values < splits,
        lambda: values >= splits,
        lambda: values > splits,
        lambda: values == splits,
        lambda: values != splits,
    )
    return comparisons[mode]()


def aggregate_trees(xp: Namespace, forest: Forest, x: Array) -> Array:
    """Returns the sum, mean, minimum or maximum of the leaves' weights, float64 (rows, targets); base values are added at the end.

    A target to which no leaf on the way gives a weight is 0 before the base value.
    """
    leaves = xp.take(forest.weight_rows, find_leaves(xp, forest, x))
    extreme = {"MIN": xp.minimum, "MAX": xp.maximum}.get(forest.aggregate)
    total: Array = None
    has_any: Array = None
    for tree in range(leaves.shape[1]):
        weights = forest.weights[leaves[:, tree]]
        if extreme is None:
            total = weights if total is None else total + weights
            continue
        has_weight = forest.has_weight[leaves[:, tree]]
        if total is None:
            total, has_any = weights, has_weight
            continue
        total = xp.where(has_any & has_weight, extreme(total, weights), xp.where(has_weight, weights, total))
        has_any = has_any | has_weight
    if forest.aggregate == "AVERAGE":
        total = total / leaves.shape[1]
    return total + forest.base_values


def _finish(xp: Namespace, forest: Forest, x: Array) -> Array:
    rows = as_rows(xp, x)
    return transform_scores(xp, aggregate_trees(xp, forest, rows), forest.post_transform)


def _prepare_ensemble(
    xp: Namespace,
    input_types: InputTypes,
    *,
    aggregate_function: int = 1,
    leaf_targetids: tuple[int, ...],
    leaf_weights: Any,
    membership_values: Any = None,
    n_targets: int = 1,
    nodes_falseleafs: tuple[int, ...],
    nodes_falsenodeids: tuple[int, ...],
    nodes_featureids: tuple[int, ...],
    nodes_hitrates: Any = None,
    nodes_missing_value_tracks_true: tuple[int, ...] = (),
    nodes_modes: Any,
    nodes_splits: Any,
    nodes_trueleafs: tuple[int, ...],
    nodes_truenodeids: tuple[int, ...],
    post_transform: int = 0,
    tree_roots: tuple[int, ...],
) -> Forest:
    refuse_transform(n_targets, POST_TRANSFORMS[post_transform])
    count = len(nodes_featureids)
    # The leaves follow the nodes, so that one index says where a row stands.
    places = [
        np.asarray(ids, dtype=np.int64) + np.where(np.asarray(are_leaves, dtype=bool), count, 0)
        for ids, are_leaves in ((nodes_truenodeids, nodes_trueleafs), (nodes_falsenodeids, nodes_falseleafs))
    ]
    modes = np.asarray(nodes_modes).reshape(-1)
    nodes = Nodes(
        np.asarray(nodes_featureids, dtype=np.int64),
        modes.astype(np.int64),
        np.asarray(nodes_splits).reshape(-1).astype(np.float64),
        places[0],
        places[1],
        np.asarray(nodes_missing_value_tracks_true or (0,) * count, dtype=bool),
        _split_members(modes, membership_values),
    )
    # A tree of one leaf has a node whose branches are that leaf.
    weights = np.asarray(leaf_weights).reshape(-1).astype(np.float64)
    leaves = Leaves(np.arange(len(weights)) + count, np.asarray(leaf_targetids, dtype=np.int64), weights)
    return build_forest(
        xp, nodes, leaves, roots=tree_roots, targets=n_targets, base_values=(), aggregate=_AGGREGATES[aggregate_function],
        post_transform=POST_TRANSFORMS[post_transform],
    )  # fmt: skip


def _split_members(modes: Array, membership_values: Any) -> list[list[float]]:
    """Returns the members of each node, none but where its mode is MEMBER; each list ends at a NaN."""
    values = [] if membership_values is None else np.asarray(membership_values).reshape(-1).astype(np.float64).tolist()
    lists: list[list[float]] = [[]]
    for value in values:
        if value == value:
            lists[-1].append(value)
        else:
            lists.append([])
    member_nodes = int((modes == 6).sum())
    if len(lists) - 1 != member_nodes or lists[-1]:
        raise ValueError(
            f"has {member_nodes} nodes of mode MEMBER; its membership_values need as many lists, each with a NaN at its end"
        )
    remaining_lists = iter(lists)
    return [next(remaining_lists) if mode == 6 else [] for mode in modes]


@ml_kernel(
    "TreeEnsemble",
    since=(5,),
    dtypes=frozenset({"float16", "float32", "float64"}),
    choices={"aggregate_function": (0, 1, 2, 3), "post_transform": (0, 1, 2, 3, 4)},
    prepare=_prepare_ensemble,
)
def tree_ensemble(xp: Namespace, x: Array, *, prepared: Forest) -> Array:
    """Returns the weights of the leaves that each row reaches, aggregated by target. Source: ONNX TreeEnsemble-5."""
    return _finish(xp, prepared, x).astype(x.dtype)


def _prepare_regressor(
    xp: Namespace,
    input_types: InputTypes,
    *,
    aggregate_function: str = "SUM",
    base_values: tuple[float, ...] = (),
    base_values_as_tensor: Any = None,
    n_targets: int = 1,
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
    target_ids: tuple[int, ...],
    target_nodeids: tuple[int, ...],
    target_treeids: tuple[int, ...],
    target_weights: tuple[float, ...] = (),
    target_weights_as_tensor: Any = None,
) -> Forest:
    refuse_transform(n_targets, post_transform)
    nodes, roots, place_of_node = link_nodes(
        nodes_treeids, nodes_nodeids, nodes_featureids, nodes_modes, read_floats(nodes_values, nodes_values_as_tensor, "nodes_values"),
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true,
    )  # fmt: skip
    leaves = gather_leaf_weights(
        place_of_node, target_treeids, target_nodeids, target_ids,
        read_floats(target_weights, target_weights_as_tensor, "target_weights"),
    )  # fmt: skip
    return build_forest(
        xp, nodes, leaves, roots=roots, targets=n_targets, base_values=read_floats(base_values, base_values_as_tensor, "base_values"),
        aggregate=aggregate_function, post_transform=post_transform,
    )  # fmt: skip


@ml_kernel(
    "TreeEnsembleRegressor",
    since=(1, 3),
    dtypes=NUMERIC,
    choices={"aggregate_function": _AGGREGATES, "post_transform": POST_TRANSFORMS},
    prepare=_prepare_regressor,
    unread=UNREAD_HITRATES,
)
def tree_ensemble_regressor(xp: Namespace, x: Array, *, prepared: Forest) -> Array:
    """Returns what TreeEnsemble-5 does, plus the base values, as float32. Source: ONNX TreeEnsembleRegressor-3."""
    return _finish(xp, prepared, x).astype(np.float32)
