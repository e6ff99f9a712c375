"""Tree ensembles by machine code: eight walks down at once, of eight rows in the same tree, or of a single row in eight trees.

```text
nodes, 16 bytes each: threshold (float32) │ feature in bytes, + 1 if NaN is true │ place if x <= threshold │ place if not   (int32)
leaves:               place of the weights (int32) │ 0 │ the leaf itself │ the leaf itself
```

All comparisons become `x <= threshold`, which is exact in float32: x < t is x <= the number before t, and the ways of x >= t and x > t
change places. Whole numbers are rounded to float32 before, as in the toolkit; float64 in the direction that no comparison notices: up
for `x <= threshold`, down for `x < threshold`, if all thresholds are float32. A walk that has reached its leaf stays there until the
other seven have reached theirs. Weights are summed in float64, in the order of the trees, as the toolkit sums them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from hetero_cpu.machine.calls import Array, NativeCall, address_of
from hetero_cpu.machine.code import ELEMENTS, FLOAT_BYTES, Code, Variable, begin_kernel
from hetero_cpu.machine.compiler import Kernel
from hetero_cpu.machine.terms import Number
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.scores import (
    DOUBLE_BYTES,
    LARGEST,
    NUMBERS,
    ROWS_OF_CHUNK,
    SCORE_PARAMETERS,
    TRANSFORMS,
    Ending,
    emit_scores,
    find_sums,
    list_scores,
    measure_sums,
    prepare_model,
    reads_rows,
)
from hetero_cpu.symbols.sizes import is_open

_PARAMETERS = ("x", "x_row", "nodes", "weights", "roots", "trees", "divisor", *SCORE_PARAMETERS)
"""roots: the places of the roots in bytes, int64, filled up to a multiple of eight with the leaf at place 0, which weighs nothing."""
_WALKS = 8
_NODE_BYTES = 16
_LEQ, _LT, _GTE, _GT = range(4)
_LARGEST_PLACE = (1 << 31) - 1


def plan_trees(site: Site) -> Recipe | None:
    """Returns the recipe of a forest over rows of numbers with sums or means.

    Sources: ONNX-ML TreeEnsemble-5, TreeEnsembleClassifier-3, TreeEnsembleRegressor-3.
    Modes EQ, NEQ and MEMBER, MIN and MAX, PROBIT and SOFTMAX_ZERO, and weights beyond float32 are the toolkit's.
    """
    value = site.node.inputs[0]
    x = site.prototypes[value]
    if not reads_rows(site, NUMBERS):
        return None
    prepared = prepare_model(site)
    labels, opposite = np.zeros(1, np.int64), ""
    is_classifier = len(site.node.outputs) > 1
    has_label = is_classifier and bool(site.node.outputs[0])
    if is_classifier:
        labels, opposite, prepared = prepared.labels, prepared.opposite, prepared.forest
    if prepared.aggregate not in ("SUM", "AVERAGE") or prepared.post_transform not in TRANSFORMS:
        return None
    weights, base = prepared.weights, prepared.base_values
    if opposite:
        # The score of the first class is the negative of the only score, or 1 less the score.
        weights, base = np.concatenate([-weights, weights], axis=1), np.concatenate([-base, base])
        base[0] += opposite == "complement"
    tables = lay_trees(prepared, weights.shape[1])
    features = x.shape[1]
    rounding = "" if x.dtype == np.float32 else choose_rounding(prepared) if x.dtype == np.float64 else "nearest"
    # A feature that x does not have is an error, which the toolkit's kernel raises.
    if (
        tables is None
        or rounding is None
        or (has_label and labels.dtype != np.int64)
        or is_open(features)
        or features <= prepared.features.max()
    ):
        return None
    # Subtracted from 1, a sum with a base value is rounded otherwise.
    if not np.abs(base).max() <= LARGEST or (opposite == "complement" and base[1] != 0):
        return None
    nodes, roots, has_missing = tables
    targets, rows, trees = weights.shape[1], x.shape[0], len(prepared.roots)
    weights, base, labels = map(np.ascontiguousarray, (weights, base, labels))
    divisor = np.full(1, float(trees) if prepared.aggregate == "AVERAGE" else 1.0)
    kernel = _make_kernel((prepared.post_transform, has_label), has_missing, targets == 1)
    rounds = [_make_rounding(x.dtype.name, rounding)] if rounding else []
    sums_bytes, chunks = measure_sums(targets, site.workers), -(-rows // ROWS_OF_CHUNK)

    def bind(reads: Sequence[Array], writes: Sequence[Array], scratch: Array) -> list[NativeCall]:
        own = address_of(scratch) + sums_bytes if rounding else address_of(reads[0])
        calls = [NativeCall(each, (address_of(reads[0]), own, features, rows), chunks, (reads[0], scratch)) for each in rounds]
        numbers = {
            "x": own, "x_row": features * 4, "nodes": address_of(nodes), "weights": address_of(weights),
            "roots": address_of(roots), "trees": trees, "divisor": address_of(divisor),
            **list_scores(writes, labels, base, rows, scratch),
        }  # fmt: skip
        keep = (nodes, weights, roots, labels, base, divisor, scratch, *reads, *writes)
        return [*calls, NativeCall(kernel, tuple(numbers[name] for name in _PARAMETERS), chunks, keep)]

    rounded_bytes = rows * features * FLOAT_BYTES if rounding else 0
    return Recipe((value,), bind, sums_bytes + rounded_bytes, kernels=(*rounds, kernel))


def choose_rounding(forest: Any) -> str | None:
    """Returns how float64 is rounded to float32 for the comparisons of a forest, "up" or "down"; None if neither way keeps them all."""
    inner = ~_find_leaves(forest)
    splits, modes = forest.splits[inner], set(forest.modes[inner].tolist())
    with np.errstate(over="ignore"):
        is_exact = np.isnan(splits) | (splits == splits.astype(np.float32))
    return None if not is_exact.all() else "up" if modes <= {_LEQ, _GT} else "down" if modes <= {_LT, _GTE} else None


@cache
def _make_rounding(dtype: str, direction: str) -> Kernel:
    nbytes, way = ELEMENTS[dtype][1], 1 if direction == "up" else -1

    def emit(name: str, width: int) -> Code:
        code, p, chunk, _ = begin_kernel(name, width, ("x", "y", "features", "rows"))
        begin = chunk * ROWS_OF_CHUNK
        end = (begin + ROWS_OF_CHUNK).at_most(p["rows"])
        with code.loop(begin * p["features"], end * p["features"]) as element:
            x: Any = code.load_element(p["x"] + element * nbytes, dtype)
            y = p["y"] + element * FLOAT_BYTES
            code.store_element(y, code.convert_element(x, "float32"), "float32")
            if direction != "nearest":
                nearest, bits = code.widen(code.load_scalar(y)), code.load_short(y)
                # The next float32 away from zero has the next bits.
                step = (bits >= 0).choose(code.number(way), code.number(-way))
                is_behind = nearest < x if direction == "up" else nearest > x
                code.store_element(y, bits + is_behind.choose(step, code.number(0)), "int32")
        return code.finish()

    return Kernel(f"round_{dtype}_{direction}", emit)


def lay_trees(forest: Any, targets: int) -> tuple[Array, Array, bool] | None:
    """Returns the nodes and the roots of a `Forest` of the toolkit, and whether a NaN may be true; None if no kernel has its modes,
    weights and sizes."""
    if (
        not len(forest.roots)
        or not set(forest.modes_used) <= {_LEQ, _LT, _GTE, _GT}
        or not np.abs(forest.weights).max(initial=0.0) <= LARGEST
    ):
        return None
    true_places, false_places = forest.true_places, forest.false_places
    places = _sort_places(forest)
    leaf_bytes = targets * DOUBLE_BYTES
    if max((len(places) + 1) * _NODE_BYTES, len(forest.weights) * leaf_bytes) > _LARGEST_PLACE:
        return None
    new_place = np.zeros(len(true_places), np.int64)
    new_place[places] = (np.arange(len(places)) + 1) * _NODE_BYTES
    is_leaf = _find_leaves(forest)
    thresholds, turns, missing = _as_limits(forest)
    yes, no = np.where(turns, false_places, true_places), np.where(turns, true_places, false_places)
    nodes = np.zeros((len(places) + 1, 4), np.int32)
    limits = thresholds.view(np.int32)
    nodes[1:, 0] = np.where(is_leaf, forest.weight_rows * leaf_bytes, limits)[places]
    nodes[1:, 1] = np.where(is_leaf, 0, forest.features * 4 + missing)[places]
    nodes[1:, 2], nodes[1:, 3] = new_place[yes[places]], new_place[no[places]]
    inner = ~is_leaf[places]
    own = np.arange(1, len(places) + 1) * _NODE_BYTES
    # Ways lead forward, so that the sum of all steps is zero only if no walk has moved.
    if (np.minimum(nodes[1:, 2], nodes[1:, 3]) <= own)[inner].any():
        return None
    roots = np.zeros(-(-len(forest.roots) // _WALKS) * _WALKS, np.int64)
    roots[: len(forest.roots)] = new_place[forest.roots]
    return nodes, roots, bool(missing[~is_leaf].any())


def _find_leaves(forest: Any) -> Array:
    leaves: Array = (forest.true_places == np.arange(len(forest.true_places))) & (forest.false_places == forest.true_places)
    return leaves


def _sort_places(forest: Any) -> Array:
    """Returns the places that are reached, tree by tree, each tree level by level."""
    trees = np.full(len(forest.true_places), -1)
    levels = np.zeros(len(trees), np.int64)
    reached = np.unique(forest.roots)
    trees[forest.roots] = np.arange(len(forest.roots))
    level = 0
    while len(reached):
        levels[reached] = level
        children = np.concatenate([forest.true_places[reached], forest.false_places[reached]])
        trees[children] = np.tile(trees[reached], 2)
        reached, level = np.unique(children[children != np.tile(reached, 2)]), level + 1
    order = np.lexsort((levels, trees))
    return order[trees[order] >= 0]


def _as_limits(forest: Any) -> tuple[Array, Array, Array]:
    """Returns float32 t for x <= t in the place of each comparison, whether its ways change places, and whether a NaN is true then."""
    turns = (forest.modes == _GTE) | (forest.modes == _GT)
    # The greatest float32 up to a float64.
    with np.errstate(over="ignore"):
        limits = forest.splits.astype(np.float32)
    before = np.nextafter(limits, np.float32(-np.inf))
    excludes = (forest.modes == _LT) | (forest.modes == _GTE)
    # No number is less than minus infinity.
    before = np.where(np.isneginf(limits), np.float32(np.nan), before)
    limits = np.where((limits > forest.splits) | (excludes & (limits == forest.splits)), before, limits)
    # No comparison with NaN holds.
    limits = np.where(turns & np.isnan(forest.splits), np.float32(np.inf), limits).astype(np.float32)
    return limits, turns, forest.missing_is_true ^ turns


@cache
def _make_kernel(ending: Ending, has_missing: bool, has_one_target: bool) -> Kernel:
    def emit(name: str, width: int) -> Code:
        code, p, chunk, worker = begin_kernel(name, width, _PARAMETERS)
        begin = chunk * ROWS_OF_CHUNK
        end = (begin + ROWS_OF_CHUNK).at_most(p["rows"])
        sums = find_sums(p, worker)
        targets = code.number(1) if has_one_target else p["targets"]
        row_bytes = targets * DOUBLE_BYTES
        zero = code.widen(code.constant(0.0, 1))
        with code.loop(0, (end - begin) * targets) as element:
            code.store_double(sums + element * DOUBLE_BYTES, zero)

        def add(leaf: Number, total: Number) -> None:
            weights = p["weights"] + code.load_short(leaf)
            with code.loop(0, targets) as target:
                place = total + target * DOUBLE_BYTES
                code.store_double(place, code.load_double(place) + code.load_double(weights + target * DOUBLE_BYTES))

        full = (end - begin) - (end - begin) % _WALKS
        with code.loop(0, p["trees"]) as tree, code.loop(0, full, _WALKS) as row:
            root = p["nodes"] + code.load_number(p["roots"] + tree * 8)
            lines = [p["x"] + (begin + row + walk) * p["x_row"] for walk in range(_WALKS)]
            for walk, leaf in enumerate(_walk(code, p["nodes"], [root] * _WALKS, lines, has_missing)):
                add(leaf, sums + (row + walk) * row_bytes)
        with code.loop(full, end - begin) as row:
            line = p["x"] + (begin + row) * p["x_row"]
            with code.loop(0, p["trees"], _WALKS) as tree:
                roots = [p["nodes"] + code.load_number(p["roots"] + (tree + walk) * 8) for walk in range(_WALKS)]
                for leaf in _walk(code, p["nodes"], roots, [line] * _WALKS, has_missing):
                    add(leaf, sums + row * row_bytes)
        with code.loop(0, end - begin) as row, code.loop(0, targets) as target:
            place = sums + row * row_bytes + target * DOUBLE_BYTES
            score = code.load_double(place) / code.load_double(p["divisor"]) + code.load_double(p["base"] + target * DOUBLE_BYTES)
            code.store_double(place, score)
        emit_scores(code, p, ending, sums, begin, end)
        return code.finish()

    parts = ["trees", ending[0].lower(), *["label"] * ending[1], *["missing"] * has_missing, *["single"] * has_one_target]
    return Kernel("_".join(parts), emit)


def _walk(code: Code, nodes: Number, roots: list[Number], lines: list[Number], has_missing: bool) -> list[Number]:
    """Returns the addresses of the leaves that rows reach from roots; a row is the address of its features."""
    walks = [code.variable(root) for root in roots]
    with code.repeat() as leave_if:
        _step(code, nodes, walks, lines, has_missing)
        leave_if(_step(code, nodes, walks, lines, has_missing).equals(0))
    return [walk.get() for walk in walks]


def _step(code: Code, nodes: Number, walks: list[Variable], lines: list[Number], has_missing: bool) -> Number:
    """Has each walk go a step down; returns the sum of the ways, which is 0 if all have ended before."""
    moved = code.number(0)
    for walk, line in zip(walks, lines, strict=True):
        node = walk.get()
        feature = code.load_short(node, 4)
        tracks = feature % 2
        x = code.load_scalar(line + (feature - tracks if has_missing else feature))
        way = (x <= code.load_scalar(node)).choose(code.number(8), code.number(12))
        if has_missing:
            way = x.is_nan().choose(12 - tracks * 4, way)
        following = nodes + code.load_short(node + way)
        walk.set(following)
        moved = moved + (following - node)
    return moved
