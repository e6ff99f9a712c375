"""Tree ensembles: random forests of every mode, aggregate and transform against ONNX Runtime; disputed cases are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hetero_tests.samples import DRAWS
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hetero_core.errors import UnsupportedNodesError
from hetero_core.kernels.program import compile_program
from hetero_core.network.reader import read_network
from hetero_core.testing.compare import assert_same

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
SEEDS = st.integers(0, 2**32 - 1)
# Thresholds and inputs are drawn from these values, so that equality occurs.
VALUES = np.array([-1.0, -0.5, 0.0, 0.5, 1.0], np.float32)


def make_model(op_type: str, version: int, x: np.ndarray[Any, Any], attributes: dict[str, Any]) -> onnx.ModelProto:
    names = ["y", "z"] if "Classifier" in op_type else ["y"]
    node = helper.make_node(op_type, ["x"], names, domain="ai.onnx.ml", **attributes)
    spec = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), [None, None])
    graph = helper.make_graph([node], "g", [spec], [onnx.ValueInfoProto(name=name) for name in names])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run_both(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> tuple[tuple[Any, ...], list[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return compile_program(read_network(model)).run((x,)), list(session.run(None, {"x": x}))


def refuse(model: onnx.ModelProto) -> str:
    with pytest.raises(UnsupportedNodesError) as caught:
        compile_program(read_network(model))
    (reasons,) = caught.value.refusals.values()
    return str(next(iter(reasons.values())))


def draw_rows(random: np.random.Generator, rows: int = 7) -> np.ndarray[Any, Any]:
    x = random.choice(VALUES, (rows, 3))
    x[random.random(x.shape) < 0.1] = np.nan
    return x


def draw_forest(random: np.random.Generator, trees: int, depth: int) -> tuple[dict[str, list[Any]], list[tuple[int, int]]]:
    """Returns the nodes of a random forest as attributes, and its leaves as (tree, node)."""
    columns = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    rows: list[list[Any]] = []
    leaves: list[tuple[int, int]] = []

    def grow(tree: int, level: int) -> int:
        node = sum(1 for row in rows if row[0] == tree)
        row = [tree, node, 0, "LEAF", 0.0, 0, 0, 0]
        rows.append(row)
        if level < depth and (level == 0 or random.random() < 0.7):
            row[2:5] = [int(random.integers(3)), str(random.choice(MODES)), float(random.choice(VALUES))]
            row[5], row[6] = grow(tree, level + 1), grow(tree, level + 1)
            row[7] = int(random.integers(2))
        else:
            leaves.append((tree, node))
        return node

    for tree in range(trees):
        grow(tree, 0)
    return {f"nodes_{name}": [row[index] for row in rows] for index, name in enumerate(columns)}, leaves


@DRAWS
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["SUM", "AVERAGE", "MIN", "MAX"]),
    st.sampled_from(["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]),
    st.booleans(),
    SEEDS,
)
def test_regressor_agrees_with_onnxruntime(
    trees: int, targets: int, aggregate: str, post_transform: str, has_base: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = draw_forest(random, trees, 3)
    # Each leaf has a weight for each target: with missing weights, the minimum of ONNX Runtime depends on the batch size.
    owners = [(*leaf, target) for leaf in leaves for target in range(targets)]
    attributes = {
        **nodes,
        "target_treeids": [owner[0] for owner in owners],
        "target_nodeids": [owner[1] for owner in owners],
        "target_ids": [owner[2] for owner in owners],
        "target_weights": random.standard_normal(len(owners)).tolist(),
        "n_targets": targets,
        "aggregate_function": aggregate,
        "post_transform": post_transform if targets > 1 else "NONE",
    }
    if has_base:
        attributes["base_values"] = random.standard_normal(targets).tolist()
    x = draw_rows(random)
    (result,), (expected,) = run_both(make_model("TreeEnsembleRegressor", 3, x, attributes), x)
    assert_same(result, expected)


@DRAWS
@given(st.integers(1, 4), st.integers(3, 4), st.sampled_from(["NONE", "LOGISTIC", "SOFTMAX"]), st.booleans(), SEEDS)
def test_classifier_of_several_classes_agrees_with_onnxruntime(
    trees: int, classes: int, post_transform: str, has_base: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = draw_forest(random, trees, 3)
    owners = [(*leaf, label) for leaf in leaves for label in range(classes)]
    attributes = {
        **nodes,
        "class_treeids": [owner[0] for owner in owners],
        "class_nodeids": [owner[1] for owner in owners],
        "class_ids": [owner[2] for owner in owners],
        "class_weights": random.standard_normal(len(owners)).tolist(),
        "classlabels_strings": ["a", "b", "c", "d"][:classes],
        "post_transform": post_transform,
    }
    if has_base:
        attributes["base_values"] = random.standard_normal(classes).tolist()
    x = draw_rows(random)
    result, expected = run_both(make_model("TreeEnsembleClassifier", 3, x, attributes), x)
    assert result[0].tolist() == expected[0].tolist()
    assert_same(result[1], expected[1])


@DRAWS
@given(st.integers(1, 4), st.sampled_from(["NONE", "LOGISTIC"]), SEEDS)
def test_classifier_with_a_single_score_agrees_with_onnxruntime(trees: int, post_transform: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    nodes, leaves = draw_forest(random, trees, 3)
    # Weights are probabilities without a transform, and scores of both signs with a transform.
    drawn = random.random(len(leaves)) / trees if post_transform == "NONE" else random.standard_normal(len(leaves))
    weights = drawn if post_transform == "NONE" else [-0.01, *drawn[1:]]
    attributes = {
        **nodes,
        "class_treeids": [tree for tree, _ in leaves],
        "class_nodeids": [node for _, node in leaves],
        "class_ids": [0] * len(leaves),
        "class_weights": [float(weight) for weight in weights],
        "classlabels_int64s": [5, 7],
        "post_transform": post_transform,
        "base_values": [0.125],
    }
    x = draw_rows(random)
    result, expected = run_both(make_model("TreeEnsembleClassifier", 1, x, attributes), x)
    assert result[0].tolist() == expected[0].tolist()
    assert_same(result[1], expected[1])


def flatten_forest(random: np.random.Generator, depth: int, trees: int, dtype: Any) -> tuple[dict[str, Any], list[Any]]:
    """Returns a random forest as attributes of TreeEnsemble-5, and its trees as nested lists."""
    nodes: list[list[Any]] = []
    weights: list[float] = []
    targets: list[int] = []
    members: dict[int, list[float]] = {}

    def grow(level: int) -> tuple[int, bool, Any]:
        if level == depth or (level and random.random() < 0.3):
            weights.append(float(np.dtype(dtype).type(random.standard_normal())))
            targets.append(int(random.integers(2)))
            return len(weights) - 1, True, (targets[-1], weights[-1])
        place = len(nodes)
        mode = int(random.integers(7))
        row = [mode, int(random.integers(3)), float(random.choice(VALUES)), int(random.integers(2))]
        nodes.append(row)
        if mode == 6:
            members[place] = sorted({float(value) for value in random.choice(VALUES[VALUES != 0], 2)})
        true, false = grow(level + 1), grow(level + 1)
        row += [true[0], int(true[1]), false[0], int(false[1])]
        return place, False, (*row[:4], members.get(place, []), true[2], false[2])

    grown = [grow(0) for _ in range(trees)]
    columns = list(zip(*nodes, strict=True))
    listed = [value for place in sorted(members) for value in (*members[place], float("nan"))]
    attributes = {
        "nodes_modes": numpy_helper.from_array(np.array(columns[0], np.uint8), "m"),
        "nodes_featureids": columns[1],
        "nodes_splits": numpy_helper.from_array(np.array(columns[2], dtype), "s"),
        "nodes_missing_value_tracks_true": columns[3],
        "nodes_truenodeids": columns[4],
        "nodes_trueleafs": columns[5],
        "nodes_falsenodeids": columns[6],
        "nodes_falseleafs": columns[7],
        "leaf_targetids": targets,
        "leaf_weights": numpy_helper.from_array(np.array(weights, dtype), "w"),
        "tree_roots": [place for place, _, _ in grown],
        "n_targets": 2,
    }
    if listed:
        attributes["membership_values"] = numpy_helper.from_array(np.array(listed, dtype), "v")
    return attributes, [tree for _, _, tree in grown]


def walk_tree(tree: Any, row: np.ndarray[Any, Any]) -> tuple[int, float]:
    """Returns target and weight of the leaf for a row. Source: the text of TreeEnsemble-5."""
    while len(tree) > 2:
        mode, feature, split, tracks, members, true, false = tree
        value = row[feature]
        holds = (value <= split, value < split, value >= split, value > split, value == split, value != split, value in members)
        tree = true if holds[mode] or (tracks and np.isnan(value)) else false
    target, weight = tree
    return target, weight


@DRAWS
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 3), st.sampled_from([np.float16, np.float32, np.float64]), SEEDS)
def test_tree_ensemble_5_agrees_with_its_definition(depth: int, trees: int, aggregate: int, dtype: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    attributes, forest = flatten_forest(random, depth, trees, dtype)
    x = draw_rows(random).astype(dtype)
    model = make_model("TreeEnsemble", 5, x, {**attributes, "aggregate_function": aggregate})
    (result,) = compile_program(read_network(model)).run((x,))
    expected = np.zeros((len(x), 2))
    for index, row in enumerate(x):
        reached = [walk_tree(tree, row) for tree in forest]
        for target in range(2):
            weights = [weight for owner, weight in reached if owner == target]
            formulas = (lambda w: sum(w) / trees, sum, min, max)
            expected[index, target] = formulas[aggregate](weights) if weights else 0
    assert result.dtype == dtype
    assert_same(result, expected.astype(dtype))


STUMP: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
CLASSES: dict[str, Any] = {
    "class_treeids": [0, 0],
    "class_nodeids": [1, 2],
    "class_ids": [0, 0],
    "class_weights": [-0.25, 0.75],
    "classlabels_int64s": [5, 7],
}
X = np.array([[-1, 0, 0], [1, 0, 0]], np.float32)


def test_two_classes_add_base_values_and_the_greater_wins() -> None:
    attributes = {**STUMP, **CLASSES, "class_treeids": [0] * 4, "class_nodeids": [1, 1, 2, 2], "class_ids": [0, 1, 0, 1],
                  "class_weights": [0.6, 0.4, 0.1, 0.9], "base_values": [0.5, 0.0]}  # fmt: skip
    labels, scores = compile_program(read_network(make_model("TreeEnsembleClassifier", 1, X, attributes))).run((X,))
    assert labels.tolist() == [5, 7]
    assert_same(scores, np.array([[1.1, 0.4], [0.6, 0.9]], np.float32))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"post_transform": "NONE"}, "weighs one of two classes with negative weights or NONE, which engines read in different ways"),
        ({"post_transform": "SOFTMAX"}, "weighs one of two classes with negative weights or SOFTMAX"),
        ({"class_ids": [1, 1], "post_transform": "LOGISTIC"}, "weighs the second of two classes alone"),
        ({"base_values": [0.0, 0.0], "post_transform": "LOGISTIC"}, "has two base values for the one class that it weighs"),
        ({"classlabels_int64s": [1]}, "has one class label, and ONNX does not say what the other class is"),
        ({"nodes_truenodeids": [0, 0, 0], "post_transform": "LOGISTIC"}, "leads from a node back to itself"),
        ({"nodes_truenodeids": [9, 0, 0], "post_transform": "LOGISTIC"},
         "leads from node 0 of tree 0 to node 9, which it does not have"),
        ({"nodes_nodeids": [0, 1, 1], "post_transform": "LOGISTIC"}, "has node 1 of tree 0 twice"),
        ({"nodes_modes": ["BRANCH_NEAR", "LEAF", "LEAF"], "post_transform": "LOGISTIC"}, "has a node of mode 'BRANCH_NEAR'"),
        ({"nodes_values": [0.0], "post_transform": "LOGISTIC"}, "has 1 nodes_values for 3 nodes"),
        ({"class_nodeids": [1, 9], "post_transform": "LOGISTIC"}, "gives a weight to node 9 of tree 0, which it does not have"),
        ({"class_weights": [1.0], "post_transform": "LOGISTIC"}, "has 2 trees, 2 nodes and 2 targets for 1 weights"),
        ({"class_ids": [0, 2], "post_transform": "LOGISTIC"}, "gives a weight to target 2 of 2"),
    ],
)  # fmt: skip
def test_ambiguous_forest_is_refused(changes: dict[str, Any], reason: str) -> None:
    model = make_model("TreeEnsembleClassifier", 1, X, {**STUMP, **CLASSES, **changes})
    assert refuse(model).startswith(f"ai.onnx.ml:TreeEnsembleClassifier-1 {reason}")


@pytest.mark.parametrize("aggregate", ["SUM", "MAX", "MIN", "AVERAGE"])
def test_first_of_several_weights_of_a_leaf_counts_for_a_single_target(aggregate: str) -> None:
    attributes = {**STUMP, "target_treeids": [0] * 4, "target_nodeids": [1, 2, 2, 1], "target_ids": [0] * 4,
                  "target_weights": [5.0, 2.0, 4.0, 7.0], "n_targets": 1, "aggregate_function": aggregate}  # fmt: skip
    (ours,), (theirs,) = run_both(make_model("TreeEnsembleRegressor", 3, X, attributes), X)
    assert sorted(ours.reshape(-1).tolist()) == [2.0, 5.0]
    assert_same(ours, theirs)


def test_regressor_with_both_kinds_of_weights_is_refused() -> None:
    tensor = helper.make_tensor("w", TensorProto.DOUBLE, [2], [1.0, 2.0])
    attributes = {**STUMP, "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
                  "target_weights_as_tensor": tensor}  # fmt: skip
    reason = refuse(make_model("TreeEnsembleRegressor", 3, X, attributes))
    assert reason == "ai.onnx.ml:TreeEnsembleRegressor-3 has both target_weights and target_weights_as_tensor"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n_targets": 2**40}, "has 1099511627776 targets for 2 weights; a table of them may have 134217728 elements"),
        ({"n_targets": 0}, "has 0 targets for 2 weights"),
        ({"nodes_featureids": [-1, 0, 0]}, "reads feature -1"),
    ],
    ids=["many", "none", "feature"],
)
def test_invalid_numbers_of_a_forest_are_refused(changes: dict[str, Any], reason: str) -> None:
    attributes = {**STUMP, "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0]}
    result = refuse(make_model("TreeEnsembleRegressor", 1, X, {**attributes, **changes}))
    assert result.startswith(f"ai.onnx.ml:TreeEnsembleRegressor-1 {reason}")


def test_unknown_mode_of_tree_ensemble_5_is_refused() -> None:
    attributes, _ = flatten_forest(np.random.default_rng(0), 1, 1, np.float32)
    attributes.pop("membership_values", None)
    attributes["nodes_modes"] = numpy_helper.from_array(np.array([9], np.uint8), "m")
    assert "has a node of mode 9" in refuse(make_model("TreeEnsemble", 5, X, attributes))


def test_membership_values_without_an_end_are_refused() -> None:
    random = np.random.default_rng(0)
    attributes, _ = flatten_forest(random, 1, 1, np.float32)
    attributes["nodes_modes"] = numpy_helper.from_array(np.array([6], np.uint8), "m")
    attributes["membership_values"] = numpy_helper.from_array(np.array([1.0], np.float32), "v")
    assert "has 1 nodes of mode MEMBER; its membership_values need as many lists" in refuse(
        make_model("TreeEnsemble", 5, X, attributes)
    )
