"""Forests and linear models by machine code against plain walks and sums in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_core import Core

from ..trial import WIDTHS

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")

FEATURES = 5
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")
COMPARE = dict(zip((*MODES, "BRANCH_EQ"), (np.less_equal, np.less, np.greater_equal, np.greater, np.equal), strict=True))
NUMBERS = np.array([-np.inf, -1.0, -0.0, 0.0, 1e-45, 0.5, 1.0, 3e38, np.inf, np.nan], np.float32)


def draw_forest(rng: Any, *, trees: int, depth: int, targets: int, modes: tuple[str, ...], missing: bool) -> dict[str, Any]:
    """Returns the attributes of random trees, some of a single leaf; a leaf has at most a single weight."""
    nodes: dict[str, list[Any]] = {name: [] for name in ("tree", "id", "feature", "mode", "value", "yes", "no", "missing")}
    leaves: dict[str, list[Any]] = {name: [] for name in ("tree", "id", "target", "weight")}
    for tree in range(trees):
        pending, count = [(0, 0)], 1
        while pending:
            node, level = pending.pop()
            is_leaf = level == depth or (level and rng.random() < 0.3) or rng.random() < 0.1
            ways = (0, 0) if is_leaf else (count, count + 1)
            mode = "LEAF" if is_leaf else modes[rng.integers(len(modes))]
            row = (tree, node, rng.integers(FEATURES), mode, rng.choice(NUMBERS), *ways, int(missing and rng.random() < 0.5))
            for values, value in zip(nodes.values(), row, strict=True):
                values.append(value)
            if not is_leaf:
                pending += [(way, level + 1) for way in ways]
                count += 2
            elif rng.random() < 0.9:
                for values, value in zip(leaves.values(), (tree, node, rng.integers(targets), rng.standard_normal()), strict=True):
                    values.append(value)
    return {"nodes": nodes, "leaves": leaves}


def walk(forest: dict[str, Any], x: Any, targets: int) -> Any:
    """Returns the sums of the weights, float64, tree by tree."""
    nodes, leaves = forest["nodes"], forest["leaves"]
    entry = {pair: index for index, pair in enumerate(zip(nodes["tree"], nodes["id"], strict=True))}
    weights = {
        (tree, node): (target, float(np.float32(weight)))
        for tree, node, target, weight in zip(*(leaves[name] for name in ("tree", "id", "target", "weight")), strict=True)
    }
    sums = np.zeros((len(x), targets))
    for tree in sorted(set(nodes["tree"])):
        for row, features in enumerate(x):
            node = 0
            while nodes["mode"][entry[tree, node]] != "LEAF":
                place = entry[tree, node]
                value = features[nodes["feature"][place]]
                is_true = COMPARE[nodes["mode"][place]](value, nodes["value"][place]) or (
                    nodes["missing"][place] and np.isnan(value)
                )
                node = nodes["yes" if is_true else "no"][place]
            target, weight = weights.get((tree, node), (0, 0.0))
            sums[row, target] += weight
    return sums


def make_model(
    op_type: str, outputs: list[Any], attributes: dict[str, Any], features: int = FEATURES, dtype: int = TensorProto.FLOAT
) -> Any:
    node = helper.make_node(op_type, ["x"], [output.name for output in outputs], domain="ai.onnx.ml", **attributes)
    x = helper.make_tensor_value_info("x", dtype, ["rows", features])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "model", [x], outputs), opset_imports=opsets, ir_version=8)


def list_attributes(forest: dict[str, Any], leaf: str) -> dict[str, Any]:
    nodes, leaves = forest["nodes"], forest["leaves"]
    names = {"tree": "treeids", "id": "nodeids", "feature": "featureids", "mode": "modes", "value": "values", "yes": "truenodeids",
             "no": "falsenodeids", "missing": "missing_value_tracks_true"}  # fmt: skip
    ids = {"tree": "treeids", "id": "nodeids", "target": "ids", "weight": "weights"}
    return {f"nodes_{names[name]}": values for name, values in nodes.items()} | {
        f"{leaf}_{ids[name]}": values for name, values in leaves.items()
    }


def list_outputs(*columns: Any, label: int = 0) -> list[Any]:
    scores = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", *columns])
    return [helper.make_tensor_value_info("label", label, ["rows"]), scores] if label else [scores]


def run(model: Any, x: Any, *, is_native: bool = True) -> dict[str, Any]:
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "PERF_COUNT": "YES", "INFERENCE_NUM_THREADS": 2})
        request = network.create_infer_request()
        # The first rows decide nothing for the class.
        request.infer({"x": x[:2]})
        outputs = {name: np.array(array) for name, array in request.infer({"x": x}).items()}
        plans = network.executable._plans
        assert plans
        assert [bool(plan.opened.calls) for plan in plans] == ([True] if is_native else [False] * len(plans))
        return outputs


@pytest.mark.parametrize("rows", [2, 7, 8, 9, 63, 64, 65, 200])
@pytest.mark.parametrize(
    ("trees", "targets", "aggregate", "modes", "missing"),
    [
        (1, 1, "SUM", MODES[:1], False),
        (9, 3, "AVERAGE", MODES, True),
        (17, 1, "AVERAGE", MODES[2:], False),
        (8, 2, "SUM", MODES[:1], True),
    ],
)
def test_regressor_equals_plain_walks(rows: int, trees: int, targets: int, aggregate: str, modes: Any, missing: bool) -> None:
    rng = np.random.default_rng([rows, trees])
    forest = draw_forest(rng, trees=trees, depth=6, targets=targets, modes=modes, missing=missing)
    base = rng.standard_normal(targets).astype(np.float32)
    attributes = {**list_attributes(forest, "target"), "n_targets": targets, "aggregate_function": aggregate, "base_values": base}
    x = rng.choice(NUMBERS, (rows, FEATURES))
    expected = walk(forest, x, targets) / (trees if aggregate == "AVERAGE" else 1) + base
    actual = run(make_model("TreeEnsembleRegressor", list_outputs(targets), attributes), x)
    np.testing.assert_array_equal(actual["y"], expected.astype(np.float32))


def transform(scores: Any, name: str) -> Any:
    if name == "LOGISTIC":
        return 1 / (1 + np.exp(-scores))
    parts = np.exp(scores - scores.max(axis=1, keepdims=True))
    return parts / parts.sum(axis=1, keepdims=True) if name == "SOFTMAX" else scores


@pytest.mark.parametrize("name", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [1, 2, 4])
def test_classifier_gives_labels_and_scores(name: str, classes: int) -> None:
    rng = np.random.default_rng(classes)
    forest = draw_forest(rng, trees=12, depth=4, targets=classes, modes=MODES, missing=True)
    if classes == 1:
        # Engines agree on two classes with one weight only in these forms.
        name = "LOGISTIC" if name == "SOFTMAX" else name
        forest["leaves"]["weight"] = [abs(weight) for weight in forest["leaves"]["weight"]]
    labels = np.arange(max(classes, 2)) * 7 - 3
    attributes = {**list_attributes(forest, "class"), "classlabels_int64s": labels, "post_transform": name}
    x = rng.choice(NUMBERS, (75, FEATURES))
    scores = walk(forest, x, classes)
    if classes == 1:
        scores = np.concatenate([-scores if name == "LOGISTIC" else 1 - scores, scores], axis=1)
    outputs = list_outputs(len(labels), label=TensorProto.INT64)
    actual = run(make_model("TreeEnsembleClassifier", outputs, attributes), x)
    np.testing.assert_array_equal(actual["label"], labels[scores.argmax(axis=1)])
    np.testing.assert_allclose(actual["y"], transform(scores, name), rtol=3e-6, atol=1e-7)


def list_neighbours(dtype: str) -> Any:
    """Returns the thresholds and the numbers of a type beside them."""
    numbers = np.append(NUMBERS, np.float32(16777216.0)).astype(np.float64)
    if dtype != "float64":
        whole = numbers[np.isfinite(numbers) & (np.abs(numbers) < 1e9)].astype(dtype)
        return np.concatenate([whole - 1, whole, whole + 1])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.concatenate([numbers, np.nextafter(numbers, -np.inf), np.nextafter(numbers, np.inf), [1e300, -1e300, 1e-300]])


@pytest.mark.parametrize("rows", [7, 8, 65, 129])
@pytest.mark.parametrize(
    ("dtype", "number"), [("float64", TensorProto.DOUBLE), ("int64", TensorProto.INT64), ("int32", TensorProto.INT32)]
)
@pytest.mark.parametrize("modes", [("BRANCH_LEQ", "BRANCH_GT"), ("BRANCH_LT", "BRANCH_GTE"), ("BRANCH_LEQ", "BRANCH_LT")])
def test_forest_compares_other_types_exactly(modes: tuple[str, ...], dtype: str, number: int, rows: int) -> None:
    rng = np.random.default_rng(rows)
    forest = draw_forest(rng, trees=9, depth=5, targets=2, modes=modes, missing=True)
    forest["nodes"]["value"][::3] = [np.float32(16777216.0)] * len(forest["nodes"]["value"][::3])
    x = rng.choice(list_neighbours(dtype), (rows, FEATURES))
    attributes = {**list_attributes(forest, "target"), "n_targets": 2}
    model = make_model("TreeEnsembleRegressor", list_outputs(2), attributes, dtype=number)
    # Both directions of rounding in the same forest are the toolkit's; whole numbers are compared as float32.
    actual = run(model, x, is_native=dtype != "float64" or modes != ("BRANCH_LEQ", "BRANCH_LT"))
    numbers = x if dtype == "float64" else x.astype(np.float32)
    np.testing.assert_array_equal(actual["y"], walk(forest, numbers, 2).astype(np.float32))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [("float32", TensorProto.FLOAT), ("float64", TensorProto.DOUBLE), ("int64", TensorProto.INT64), ("int32", TensorProto.INT32)],
)
@pytest.mark.parametrize("features", [1, 5, 8, 31])
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor_reads_any_number_of_features(targets: int, features: int, dtype: str, number: int) -> None:
    coefficients = np.arange(1, targets * features + 1).reshape(targets, features)
    attributes = {"coefficients": coefficients.reshape(-1) * 1.0, "intercepts": np.full(targets, 0.5), "targets": targets}
    x = np.random.default_rng(0).integers(-(2**24), 2**24, (65, features)).astype(dtype)
    actual = run(make_model("LinearRegressor", list_outputs(targets), attributes, features, number), x)
    np.testing.assert_array_equal(actual["y"], (x.astype(np.float32).astype(np.float64) @ coefficients.T + 0.5).astype(np.float32))


OF_FLOATS = pytest.mark.parametrize(
    ("dtype", "number"), [("float32", TensorProto.FLOAT), ("float64", TensorProto.DOUBLE)], ids=["float32", "float64"]
)


@OF_FLOATS
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("is_one_class", [0, 1])
@pytest.mark.parametrize("rows", [2, 9, 65])
def test_vector_regressor_equals_float64(kernel: str, is_one_class: int, rows: int, dtype: str, number: int) -> None:
    rng = np.random.default_rng(rows)
    vectors, weights = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, FEATURES), (20,)))
    # The center of the vectors lies far from zero, unless powers of products would lose their digits there.
    center = 40 if kernel in ("LINEAR", "RBF") else 0
    vectors += center
    x = (rng.standard_normal((rows, FEATURES)) + center).astype(dtype)
    attributes = {
        "coefficients": weights, "kernel_type": kernel, "kernel_params": [0.3, 0.5, 3.0], "n_supports": 20, "one_class": is_one_class,
        "rho": [0.25], "support_vectors": vectors.reshape(-1),
    }  # fmt: skip
    y = compare(x, vectors, kernel) @ weights.astype(np.float64) + 0.25
    actual = run(make_model("SVMRegressor", list_outputs(1), attributes, dtype=number), x)
    tolerance = 2e-5 if dtype == "float32" else 1e-7
    largest = np.abs(compare(x, vectors, kernel)).max() if kernel == "POLY" else 1
    expected = np.where(y > 0, 1, -1) if is_one_class else y
    np.testing.assert_allclose(actual["y"][:, 0], expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("kernel", ["POLY", "SIGMOID"])
def test_vectors_far_from_zero_are_the_toolkits(kernel: str) -> None:
    rng = np.random.default_rng(0)
    vectors, weights = rng.standard_normal((20, FEATURES)).astype(np.float32) + 40, rng.standard_normal(20).astype(np.float32)
    x = (rng.standard_normal((9, FEATURES)) + 40).astype(np.float32)
    attributes = {
        "coefficients": weights, "kernel_type": kernel, "kernel_params": [0.3, 0.5, 3.0], "n_supports": 20,
        "rho": [0.25], "support_vectors": vectors.reshape(-1),
    }  # fmt: skip
    actual = run(make_model("SVMRegressor", list_outputs(1), attributes), x, is_native=False)
    expected = compare(x, vectors, kernel) @ weights.astype(np.float64) + 0.25
    np.testing.assert_allclose(actual["y"][:, 0], expected, rtol=1e-6)


def compare(x: Any, vectors: Any, kernel: str) -> Any:
    x, vectors = x.astype(np.float64), vectors.astype(np.float64)
    affine = np.float64(np.float32(0.3)) * x @ vectors.T + 0.5
    return {
        "LINEAR": x @ vectors.T,
        "POLY": affine**3,
        "RBF": np.exp(-0.3 * ((x[:, None] - vectors) ** 2).sum(axis=2)),
        "SIGMOID": np.tanh(affine),
    }[kernel]


@OF_FLOATS
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("has_texts", [False, True])
def test_vector_classifier_counts_votes_of_pairs(kernel: str, classes: int, has_texts: bool, dtype: str, number: int) -> None:
    rng = np.random.default_rng(classes)
    vectors, weights = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((4 * classes, FEATURES), (classes - 1, 4 * classes))
    )
    x = rng.standard_normal((65, FEATURES)).astype(dtype)
    labels = np.array(["a", "b", "c"][:classes], object) if has_texts else np.array([7, -2, 4][:classes])
    attributes = {
        "classlabels_strings" if has_texts else "classlabels_ints": labels.tolist(), "coefficients": weights.reshape(-1),
        "kernel_type": kernel, "kernel_params": [0.3, 0.5, 3.0], "rho": [0.1, -0.2, 0.05][: classes * (classes - 1) // 2],
        "support_vectors": vectors.reshape(-1), "vectors_per_class": [4] * classes,
    }  # fmt: skip
    compared, votes, scores = compare(x, vectors, kernel), np.zeros((65, classes)), []
    parts = [slice(4 * index, 4 * index + 4) for index in range(classes)]
    for first, second in [(0, 1), (0, 2), (1, 2)][: len(attributes["rho"])]:
        score = (
            compared[:, parts[first]] @ weights[second - 1, parts[first]]
            + compared[:, parts[second]] @ weights[first, parts[second]]
        )
        scores.append(score + attributes["rho"][len(scores)])
        votes[:, first] += scores[-1] > 0
        votes[:, second] += scores[-1] <= 0
    scores = [-scores[0], scores[0]] if classes == 2 else scores
    outputs = list_outputs(len(scores), label=TensorProto.STRING if has_texts else TensorProto.INT64)
    actual = run(make_model("SVMClassifier", outputs, attributes, dtype=number), x)
    np.testing.assert_array_equal(actual["label"], labels[votes.argmax(axis=1)])
    tolerance = 1e-5 if dtype == "float32" else 1e-7
    largest = np.abs(compared).max() if kernel == "POLY" else 1
    np.testing.assert_allclose(actual["y"], np.stack(scores, axis=1), rtol=tolerance, atol=tolerance * largest)


@OF_FLOATS
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("rows", [2, 65])
def test_probabilities_of_pairs_are_coupled(classes: int, rows: int, dtype: str, number: int) -> None:
    rng = np.random.default_rng([classes, rows])
    pairs = list(itertools.combinations(range(classes), 2))
    vectors, weights = rng.standard_normal((classes, FEATURES)), rng.standard_normal((classes - 1, classes))
    a, b, rho = -4 * rng.random(len(pairs)), rng.standard_normal(len(pairs)), rng.standard_normal(len(pairs))
    # A row far from all vectors, and pairs that are certain.
    x = np.concatenate([rng.standard_normal((rows - 1, FEATURES)), np.full((1, FEATURES), 30.0)]).astype(dtype)
    b[-1] = 40
    attributes = {
        "classlabels_ints": list(range(classes)), "coefficients": weights.reshape(-1), "kernel_type": "RBF",
        "kernel_params": [0.3, 0.0, 3.0], "rho": rho, "support_vectors": vectors.reshape(-1), "vectors_per_class": [1] * classes,
        "prob_a": a, "prob_b": b,
    }  # fmt: skip
    compared = compare(x, vectors, "RBF")
    odds = np.zeros((rows, classes, classes))
    for index, (first, second) in enumerate(pairs):
        score = compared[:, first] * weights[second - 1, first] + compared[:, second] * weights[first, second] + rho[index]
        odds[:, first, second] = np.clip(1 / (1 + np.exp(score * a[index] + b[index])), 1e-7, 1 - 1e-7)
        odds[:, second, first] = 1 - odds[:, first, second]
    outputs = list_outputs(classes, label=TensorProto.INT64)
    actual = run(make_model("SVMClassifier", outputs, attributes, dtype=number), x)["y"]
    np.testing.assert_allclose(actual.sum(axis=1), 1, atol=1e-6)
    for probabilities, r in zip(actual, odds, strict=True):
        # The least of sum (r_ji p_i - r_ij p_j)**2 with sum p = 1, which libsvm approaches up to 0.005 / classes.
        q = np.diag((r**2).sum(axis=0)) - r * r.T
        p = np.linalg.solve(
            np.block([[q, np.ones((classes, 1))], [np.ones((1, classes)), np.zeros((1, 1))]]), np.eye(classes + 1)[-1]
        )
        np.testing.assert_allclose(q @ probabilities - probabilities @ q @ probabilities, 0, atol=0.005 / classes)
        np.testing.assert_allclose(probabilities, p[:classes], atol=1e-6 if classes == 2 else 0.05)


def test_equality_of_a_forest_is_the_toolkits() -> None:
    rng = np.random.default_rng(0)
    forest = draw_forest(rng, trees=3, depth=3, targets=1, modes=("BRANCH_EQ", "BRANCH_LEQ"), missing=True)
    x = rng.choice(NUMBERS, (20, FEATURES))
    actual = run(make_model("TreeEnsembleRegressor", list_outputs(1), list_attributes(forest, "target")), x, is_native=False)
    np.testing.assert_array_equal(actual["y"], walk(forest, x, 1).astype(np.float32))


@pytest.mark.parametrize("name", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("scores", [1, 2, 5])
@pytest.mark.parametrize("rows", [2, 3, 64, 130])
def test_linear_classifier_equals_float64(name: str, scores: int, rows: int) -> None:
    rng = np.random.default_rng([scores, rows])
    name = "LOGISTIC" if scores == 1 else name
    coefficients, intercepts = (rng.integers(-8, 9, shape).astype(np.float32) / 4 for shape in ((scores, FEATURES), (scores,)))
    labels = np.arange(max(scores, 2)) + 10
    attributes = {
        "coefficients": coefficients.reshape(-1),
        "intercepts": intercepts,
        "classlabels_ints": labels,
        "post_transform": name,
    }
    x = rng.integers(-8, 9, (rows, FEATURES)).astype(np.float32)
    sums = x.astype(np.float64) @ coefficients.T + intercepts
    sums = np.concatenate([-sums, sums], axis=1) if scores == 1 else sums
    actual = run(make_model("LinearClassifier", list_outputs(len(labels), label=TensorProto.INT64), attributes), x)
    np.testing.assert_array_equal(actual["label"], labels[sums.argmax(axis=1)])
    np.testing.assert_allclose(actual["y"], transform(sums, name), rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("features", [1, 5, 8, 31])
@pytest.mark.parametrize("columns", [1, 2, 3, 8])
def test_few_columns_of_float64_are_multiplied(columns: int, features: int) -> None:
    matrix = np.arange(1.0, features * columns + 1).reshape(features, columns)
    node = helper.make_node("MatMul", ["x", "matrix"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.DOUBLE, ["rows", size]) for n, size in (("x", features), ("y", columns)))
    graph = helper.make_graph([node], "model", [x], [y], [numpy_helper.from_array(matrix, "matrix")])
    rows = np.random.default_rng(0).integers(-(2**40), 2**40, (67, features)).astype(np.float64)
    rows[1, -1], rows[66, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = (rows[:, :, None] * matrix).sum(axis=1)
    actual = run(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), rows)
    np.testing.assert_array_equal(actual["y"], expected, strict=True)


@pytest.mark.parametrize("features", [3, 12, 19])
def test_linear_classifier_keeps_nan_and_infinity(features: int) -> None:
    """The label is that of the first NaN, or else of the first of the greatest."""
    coefficients = np.eye(3, features, dtype=np.float32)
    attributes = {"coefficients": coefficients.reshape(-1), "intercepts": [0.5] * 3, "classlabels_ints": [4, 5, 6]}
    x = np.concatenate([np.diag(np.full(features, special, np.float32)) for special in (np.nan, np.inf, -np.inf, 1.0)])
    actual = run(make_model("LinearClassifier", list_outputs(3, label=TensorProto.INT64), attributes, features), x)
    with np.errstate(invalid="ignore"):
        scores = (x.astype(np.float64)[:, None] * coefficients).sum(axis=2) + 0.5
    np.testing.assert_array_equal(actual["y"], scores)
    np.testing.assert_array_equal(actual["label"], scores.argmax(axis=1) + 4)


def test_scaler_is_two_steps_of_arithmetic() -> None:
    offset, scale = np.arange(FEATURES, dtype=np.float32), np.full(1, 0.5, np.float32)
    x = np.random.default_rng(0).standard_normal((9, FEATURES)).astype(np.float32)
    actual = run(make_model("Scaler", list_outputs(FEATURES), {"offset": offset, "scale": scale}), x)
    np.testing.assert_array_equal(actual["y"], (x - offset) * scale)


def test_labels_that_are_texts_are_gathered() -> None:
    coefficients = np.eye(3, FEATURES, dtype=np.float32)
    labels = ["low", "mid", "high"]
    attributes = {"coefficients": coefficients.reshape(-1), "intercepts": [0.0] * 3, "classlabels_strings": labels}
    x = np.random.default_rng(0).standard_normal((70, FEATURES)).astype(np.float32)
    actual = run(make_model("LinearClassifier", list_outputs(3, label=TensorProto.STRING), attributes), x)
    assert actual["label"].tolist() == [labels[index] for index in x[:, :3].argmax(axis=1)]


def test_zip_map_leaves_the_forest_in_the_plan() -> None:
    forest = draw_forest(np.random.default_rng(0), trees=4, depth=3, targets=3, modes=MODES, missing=False)
    attributes = {**list_attributes(forest, "class"), "classlabels_int64s": [4, 5, 6]}
    model = make_model("TreeEnsembleClassifier", list_outputs(3, label=TensorProto.INT64), attributes)
    model.graph.node.append(helper.make_node("ZipMap", ["y"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[4, 5, 6]))
    map_type = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    maps = helper.make_value_info("maps", helper.make_sequence_type_proto(map_type))
    model.graph.output.pop()
    model.graph.output.append(maps)
    x = np.random.default_rng(1).choice(NUMBERS, (20, FEATURES))
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        for rows in (2, 20):
            scores = walk(forest, x[:rows], 3).astype(np.float32)
            expected = [dict(zip((4, 5, 6), row, strict=True)) for row in scores.tolist()]
            assert network.infer({"x": x[:rows]})["maps"] == expected
        (plan,) = network.executable._plans
        assert plan.opened.calls


def test_no_rows_have_no_scores() -> None:
    forest = draw_forest(np.random.default_rng(0), trees=4, depth=3, targets=1, modes=MODES, missing=False)
    model = make_model("TreeEnsembleRegressor", list_outputs(1), list_attributes(forest, "target"))
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        for rows in (0, 1, 3, 0):
            x = np.zeros((rows, FEATURES), np.float32)
            np.testing.assert_array_equal(network.infer({"x": x})["y"], walk(forest, x, 1).astype(np.float32))


@pytest.mark.parametrize("features", [1, 7, 16, 37])
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer_divides_rows_by_their_norms(norm: str, features: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((70, features)).astype(np.float32)
    x[3], x[4], x[5, -1], x[6, 0], x[7, 0], x[8, -1] = 0, -np.abs(x[4]), np.nan, np.inf, np.nan, -np.inf
    wide = x.astype(np.float64)
    sizes = {"MAX": wide.max(axis=1), "L1": np.abs(wide).sum(axis=1), "L2": np.sqrt((wide**2).sum(axis=1))}[norm]
    with np.errstate(invalid="ignore"):
        expected = x / np.where(sizes == 0, 1, sizes)[:, None]
    with Core() as core:
        model = make_model("Normalizer", list_outputs(features), {"norm": norm}, features)
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        np.testing.assert_allclose(network.infer({"x": x})["y"], expected, rtol=1e-6)
        assert network.get_metric("CPU_FOREIGN_STEPS") == 0
