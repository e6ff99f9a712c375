"""What onnx.reference gets wrong in ai.onnx.ml is refused, with the reason; the rest of an operator is not."""

from __future__ import annotations

import onnx.parser
import pytest

from hetero_core import Core

LABELS = "classlabels_ints = [1, 2, 3]"
LINEAR = "coefficients = [1.0, 2.0]"
SVM = f"{LABELS}, coefficients = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0], support_vectors = [1.0, 2.0, 3.0], vectors_per_class = [1, 1, 1]"
TREE = (
    "nodes_treeids = [0], nodes_nodeids = [0], nodes_featureids = [0], nodes_values = [0.0], nodes_truenodeids = [0], "
    'nodes_falsenodeids = [0], nodes_modes = ["LEAF"], class_treeids = [0], class_nodeids = [0], classlabels_int64s = [1, 2]'
)


def refusals_of(text: str, opset: int = 3) -> list[str]:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 20, "ai.onnx.ml": {opset}]> {text}')
    with Core() as core:
        return list(core.query_network(core.read_network(model), "TEMPLATE").refused.values())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (double[2,2] x) => (y) { y = ai.onnx.ml.Scaler<offset = [0.0], scale = [1.0]>(x) }", "is supported for float32"),
        ('g (float[2,2] x) => (y) { y = ai.onnx.ml.Normalizer<norm = "MAX">(x) }', "takes the greatest magnitude"),
        ("g (float[2] x) => (y) { y = ai.onnx.ml.FeatureVectorizer<inputdimensions = [2]>(x) }", "makes a column of a vector"),
        ("g (float[2,1] x) => (y) { y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1]>(x) }", "does not truncate floats"),
        (f'g (float[2,1] x) => (y) {{ y = ai.onnx.ml.LinearRegressor<{LINEAR}, targets = 2, post_transform = "LOGISTIC">(x) }}',
         "is supported without post_transform"),
        (f"g (float[2,2] x) => (y, z) {{ y, z = ai.onnx.ml.LinearClassifier<{LINEAR}, intercepts = [0.0], classlabels_ints = [1, 2]>(x) }}",
         "with one score for two classes"),
        (f"g (float[2,1] x) => (y, z) {{ y, z = ai.onnx.ml.SVMClassifier<{SVM}, rho = [0.0, 0.0, 0.0], prob_a = [1.0, 1.0, 1.0], "
         "prob_b = [0.0, 0.0, 0.0]>(x) }", "with probabilities of 3 classes"),
        (f"g (float[2,1] x) => (y, z) {{ y, z = ai.onnx.ml.TreeEnsembleClassifier<{TREE}, class_ids = [0], class_weights = [-1.0]>(x) }}",
         "that weighs one class alone is supported for the first"),
    ],
    ids=["doubles", "norm", "vector", "floats", "transform", "one_score", "probabilities", "weights"],
)  # fmt: skip
def test_fault_is_refused(text: str, reason: str) -> None:
    (refused,) = refusals_of(text)
    assert reason in refused


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,2] x) => (y) { y = ai.onnx.ml.Scaler<offset = [0.0], scale = [1.0]>(x) }",
        'g (float[2,2] x) => (y) { y = ai.onnx.ml.Normalizer<norm = "L2">(x) }',
        f"g (float[2,1] x) => (y, z) {{ y, z = ai.onnx.ml.TreeEnsembleClassifier<{TREE}, class_ids = [0], class_weights = [1.0]>(x) }}",
        f"g (float[2,1] x) => (y, z) {{ y, z = ai.onnx.ml.SVMClassifier<{SVM}, rho = [0.0, 0.0, 0.0]>(x) }}",
    ],
    ids=["scaler", "normalizer", "trees", "svm"],
)
def test_what_it_does_right_is_not_refused(text: str) -> None:
    assert refusals_of(text) == []


def test_cubic_beyond_the_border_is_refused() -> None:
    text = 'g (float[1,1,4,4] x, float[1,2,2,2] g) => (y) { y = GridSample<mode = "cubic", padding_mode = "border">(x, g) }'
    (refused,) = refusals_of(text)
    assert "onnx.reference moves positions to the border first" in refused
