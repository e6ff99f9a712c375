"""The tables that tree ensembles are run from: nodes and leaves by place, one list for all trees.

A leaf is a place whose two ways lead back to itself, so that rows which arrive early wait for the others. Built on the host once, when a
node is bound. Raises ValueError, everywhere, for attributes that make no forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_core.kernels.precision import Array, Namespace

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
# A gibibyte of float64: no number in a small file makes the query of a network take more.
_LARGEST_TABLE = 2**27
Place = dict[tuple[int, int], int]
"""(tree, node) -> place."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """One entry for each place on the host; `true_places` and `false_places` may lead to places behind the last node, the leaves."""

    features: Array
    modes: Array
    splits: Array
    true_places: Array
    false_places: Array
    missing_is_true: Array
    members: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Leaves:
    """One entry for each weight: the place of its leaf, its target, its value."""

    places: Array
    targets: Array
    weights: Array


@dataclass(frozen=True, slots=True)
class Forest:
    """The forest as arrays of the device. `depth` is the longest way in steps; `weights` has a row for each leaf, row 0 has none."""

    roots: Array
    depth: int
    modes_used: tuple[int, ...]
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
    has_weight: Array
    base_values: Array
    aggregate: str
    post_transform: str


def link_nodes(
    tree_ids: Sequence[int],
    node_ids: Sequence[int],
    features: Sequence[int],
    modes: Sequence[str],
    splits: Array,
    true_ids: Sequence[int],
    false_ids: Sequence[int],
    missing_is_true: Sequence[int],
) -> tuple[Nodes, tuple[int, ...], Place]:
    """Returns nodes with places instead of ids, the root of each tree (its first node), and the place of each id."""
    count = len(tree_ids)
    lists = {"nodes_nodeids": node_ids, "nodes_featureids": features, "nodes_modes": modes, "nodes_values": splits,
             "nodes_truenodeids": true_ids, "nodes_falsenodeids": false_ids}  # fmt: skip
    for name, values in lists.items():
        if len(values) != count:
            raise ValueError(f"has {len(values)} {name} for {count} nodes")
    place_of_node: Place = {}
    roots: dict[int, int] = {}
    for place, (tree, node) in enumerate(zip(tree_ids, node_ids, strict=True)):
        if (tree, node) in place_of_node:
            raise ValueError(f"has node {node} of tree {tree} twice")
        place_of_node[tree, node] = place
        roots.setdefault(tree, place)
    numbers = np.empty(count, dtype=np.int64)
    true_places, false_places = np.arange(count), np.arange(count)
    for place, mode in enumerate(modes):
        numbers[place] = 0
        if mode == "LEAF":
            continue
        if mode not in _MODES[:-1]:
            raise ValueError(f"has a node of mode '{mode}'")
        numbers[place] = _MODES.index(mode)
        tree = tree_ids[place]
        for ids, places in ((true_ids, true_places), (false_ids, false_places)):
            if (tree, ids[place]) not in place_of_node:
                raise ValueError(f"leads from node {node_ids[place]} of tree {tree} to node {ids[place]}, which it does not have")
            places[place] = place_of_node[tree, ids[place]]
    tracks = np.asarray(missing_is_true or (0,) * count, dtype=bool)
    nodes = Nodes(
        np.asarray(features, dtype=np.int64), numbers, splits.astype(np.float64), true_places, false_places, tracks, [()] * count
    )
    return nodes, tuple(roots.values()), place_of_node


def gather_leaf_weights(
    place_of_node: Place, tree_ids: Sequence[int], node_ids: Sequence[int], targets: Sequence[int], weights: Array
) -> Leaves:
    """Returns the weights with the places of their nodes."""
    if not len(tree_ids) == len(node_ids) == len(targets) == len(weights):
        raise ValueError(f"has {len(tree_ids)} trees, {len(node_ids)} nodes and {len(targets)} targets for {len(weights)} weights")
    missing = [pair for pair in zip(tree_ids, node_ids, strict=True) if pair not in place_of_node]
    if missing:
        raise ValueError(f"gives a weight to node {missing[0][1]} of tree {missing[0][0]}, which it does not have")
    places = [place_of_node[pair] for pair in zip(tree_ids, node_ids, strict=True)]
    return Leaves(np.asarray(places, dtype=np.int64), np.asarray(targets, dtype=np.int64), weights.astype(np.float64))


def build_forest(
    xp: Namespace,
    nodes: Nodes,
    leaves: Leaves,
    *,
    roots: Sequence[int],
    targets: int,
    base_values: Sequence[float],
    aggregate: str,
    post_transform: str,
) -> Forest:
    """Returns the tables on the device."""
    count = len(nodes.features)
    places = max(count, int(leaves.places.max(initial=-1)) + 1)
    _check_lengths(nodes, leaves, count, targets)
    if len(base_values) not in (0, targets):
        raise ValueError(f"has {len(base_values)} base values for {targets} targets")
    true_places, false_places = (_extend(ways, np.arange(places)) for ways in (nodes.true_places, nodes.false_places))
    depth = _measure_depth(true_places, false_places, np.asarray(roots, dtype=np.int64))
    weight_rows, weights, has_weight = _tabulate_weights(leaves, places, targets, aggregate)
    member_rows, members = _tabulate_members(nodes.members, places)
    upload = {
        "roots": (np.asarray(roots), np.int64),
        "features": (_extend(nodes.features, np.zeros(places)), np.int64),
        "modes": (_extend(nodes.modes, np.zeros(places)), np.int64),
        "splits": (_extend(nodes.splits, np.zeros(places)), np.float64),
        "true_places": (true_places, np.int64),
        "false_places": (false_places, np.int64),
        "missing_is_true": (_extend(nodes.missing_is_true, np.zeros(places)), bool),
        "member_rows": (member_rows, np.int64),
        "members": (members, np.float64),
        "weight_rows": (weight_rows, np.int64),
        "weights": (weights, np.float64),
        "has_weight": (has_weight, bool),
        "base_values": (np.asarray(base_values if len(base_values) else (0.0,) * targets), np.float64),
    }
    # As lists, because no device takes a host array by accident.
    arrays = {name: xp.asarray(values.tolist(), dtype=dtype) for name, (values, dtype) in upload.items()}
    return Forest(
        depth=depth,
        modes_used=tuple(sorted({int(mode) for mode in nodes.modes})),
        aggregate=aggregate,
        post_transform=post_transform,
        **arrays,
    )


def _extend(values: Array, whole: Array) -> Array:
    """Returns the values of the nodes, followed by those of the places behind them."""
    return np.concatenate([values, whole[len(values) :].astype(values.dtype)])


def _check_lengths(nodes: Nodes, leaves: Leaves, count: int, targets: int) -> None:
    for what, values in {"modes": nodes.modes, "splits": nodes.splits, "flags": nodes.missing_is_true}.items():
        if len(values) != count:
            raise ValueError(f"has {len(values)} {what} for {count} nodes")
    if count and not 0 <= nodes.modes.min() <= nodes.modes.max() < len(_MODES):
        raise ValueError(f"has a node of mode {int(nodes.modes.max())}")
    if count and nodes.features.min() < 0:
        raise ValueError(f"reads feature {int(nodes.features.min())}")
    if targets < 1 or (len(np.unique(leaves.places)) + 1) * targets > _LARGEST_TABLE:
        raise ValueError(
            f"has {targets} targets for {len(leaves.weights)} weights; a table of them may have {_LARGEST_TABLE} elements"
        )
    if len(leaves.targets) != len(leaves.weights):
        raise ValueError(f"has {len(leaves.targets)} targets for {len(leaves.weights)} weights")
    if len(leaves.targets) and not 0 <= leaves.targets.min() <= leaves.targets.max() < targets:
        raise ValueError(f"gives a weight to target {int(leaves.targets.max())} of {targets}")


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


def _tabulate_weights(leaves: Leaves, places: int, targets: int, aggregate: str) -> tuple[Array, Array, Array]:
    """Returns the row of each place, and the rows: weights (rows, targets) and which of them are given."""
    owners, rows = np.unique(leaves.places, return_inverse=True)
    weight_rows = np.zeros(places, dtype=np.int64)
    weight_rows[owners] = np.arange(len(owners)) + 1
    start = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
    combine: Any = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
    weights = np.full((len(owners) + 1, targets), start)
    has_weight = np.zeros(weights.shape, dtype=bool)
    combine.at(weights, (rows + 1, leaves.targets), leaves.weights)
    has_weight[rows + 1, leaves.targets] = True
    return weight_rows, np.where(has_weight, weights, 0.0), has_weight


def _tabulate_members(members: Sequence[Sequence[float]], places: int) -> tuple[Array, Array]:
    """Returns the row of each place in a table of sets, filled up with NaN, which equals nothing."""
    lists: list[Sequence[float]] = [()]
    member_rows = np.zeros(places, dtype=np.int64)
    for place, values in enumerate(members):
        if len(values):
            member_rows[place] = len(lists)
            lists.append(values)
    table = np.full((len(lists), max(len(values) for values in lists) or 1), np.nan)
    for row, values in enumerate(lists):
        table[row, : len(values)] = values
    return member_rows, table
