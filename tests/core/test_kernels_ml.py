"""Kernels of ai.onnx.ml except trees: comparison with ONNX Runtime, and refusals."""

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
from hetero_core.kernels.registry import find_refusal
from hetero_core.network.graph import Node
from hetero_core.network.reader import read_network
from hetero_core.network.types import TensorType
from hetero_core.testing.compare import assert_same

NAN = float("nan")
X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
WORDS = np.array([["a", "b"], ["c", "?"]], dtype=object)


def make_model(op_type: str, inputs: list[Any], *, outputs: int = 1, version: int = 1, **attributes: Any) -> onnx.ModelProto:
    """Returns a model of a single node; a dict among the inputs becomes a map to float32."""
    names = [f"x{index}" for index in range(len(inputs))]
    node = helper.make_node(op_type, names, [f"y{index}" for index in range(outputs)], domain="ai.onnx.ml", **attributes)
    specs = [helper.make_value_info(name, describe_type(value)) for name, value in zip(names, inputs, strict=True)]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(helper.make_graph([node], "g", specs, results), opset_imports=opsets, ir_version=8)


def describe_type(value: Any) -> onnx.TypeProto:
    if isinstance(value, dict):
        key = TensorProto.STRING if isinstance(next(iter(value)), str) else TensorProto.INT64
        element = TensorProto.STRING if isinstance(next(iter(value.values())), str) else TensorProto.FLOAT
        return helper.make_map_type_proto(key, helper.make_tensor_type_proto(element, []))
    number = TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_type_proto(number, [None] * value.ndim)


def run_kernels(model: onnx.ModelProto, inputs: list[Any]) -> tuple[Any, ...]:
    return compile_program(read_network(model)).run(tuple(inputs))


def run_onnxruntime(model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {f"x{index}": value for index, value in enumerate(inputs)}))


def check_against_onnxruntime(op_type: str, inputs: list[Any], **attributes: Any) -> None:
    model = make_model(op_type, inputs, **attributes)
    result, expected = run_kernels(model, inputs), run_onnxruntime(model, inputs)
    for value, expected_value in zip(result, expected, strict=True):
        assert_same(value, expected_value)


def refuse(op_type: str, inputs: list[Any], **attributes: Any) -> str:
    """Returns the reason of a refusal without the domain of the operator."""
    with pytest.raises(UnsupportedNodesError) as caught:
        compile_program(read_network(make_model(op_type, inputs, **attributes)))
    ((reasons),) = caught.value.refusals.values()
    reason: str = next(iter(reasons.values()))
    return reason.replace("ai.onnx.ml:", "")


LINEAR = {"coefficients": [0.5, -1.0, 0.25, 1.0, 0.5, -0.5], "intercepts": [0.1, -0.2]}
CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "scaler": ("Scaler", [X], {"offset": [0.5, -1.0, 0.0], "scale": [2.0, 0.5, 1.0]}),
    "scaler_of_integers": ("Scaler", [np.array([[1, 2], [3, 4]])], {"offset": [1.0], "scale": [0.5]}),
    "scaler_of_doubles": ("Scaler", [X.astype(np.float64)], {"offset": [1.0], "scale": [0.5]}),
    "normalizer_max": ("Normalizer", [np.array([[-3, 1, 2], [0, 0, 0], [-1, -2, -4]], np.float32)], {"norm": "MAX"}),
    "normalizer_l1": ("Normalizer", [X], {"norm": "L1"}),
    "normalizer_l2": ("Normalizer", [np.array([[3, 4], [0, 0]])], {"norm": "L2"}),
    "binarizer": ("Binarizer", [X], {"threshold": 0.25}),
    "imputer_nan": ("Imputer", [np.array([[1, NAN], [NAN, 2]], np.float32)],
                    {"imputed_value_floats": [9.0, 8.0], "replaced_value_float": NAN}),
    "imputer_integers": ("Imputer", [np.array([[1, 2], [0, 2]])], {"imputed_value_int64s": [9], "replaced_value_int64": 2}),
    "feature_vectorizer": ("FeatureVectorizer", [X, X[:, :1]], {"inputdimensions": [2, 3]}),
    "feature_vectorizer_of_vectors": ("FeatureVectorizer", [X[0], X[1]], {"inputdimensions": [3, 1]}),
    "array_feature_extractor": ("ArrayFeatureExtractor", [X, np.array([[2, 0]])], {}),
    "array_feature_extractor_of_a_vector": ("ArrayFeatureExtractor", [np.array([1, 2, 3]), np.array([2, 0])], {}),
    "array_feature_extractor_of_texts": ("ArrayFeatureExtractor", [WORDS, np.array([1])], {}),
    "one_hot": ("OneHotEncoder", [np.array([[1], [7], [2]])], {"cats_int64s": [2, 1]}),
    "one_hot_truncates": ("OneHotEncoder", [np.array([[1.5], [2.0]], np.float32)], {"cats_int64s": [1, 2]}),
    "one_hot_of_texts": ("OneHotEncoder", [WORDS], {"cats_strings": ["a", "b", "c"]}),
    "label_encoder_1_to_integers": ("LabelEncoder", [WORDS], {"classes_strings": ["c", "a"]}),
    "label_encoder_1_to_texts": ("LabelEncoder", [np.array([1, 9])], {"classes_strings": ["c", "a"]}),
    "label_encoder_2": ("LabelEncoder", [WORDS],
                        {"version": 2, "keys_strings": ["a", "b"], "values_floats": [0.5, 2.0], "default_float": -3.0}),
    "label_encoder_2_defaults": ("LabelEncoder", [np.array([4, 5])], {"version": 2, "keys_int64s": [4], "values_strings": ["x"]}),
    "label_encoder_4": ("LabelEncoder", [np.array([1, NAN, 3], np.float32)],
                        {"version": 4, "keys_floats": [1.0, NAN], "values_int64s": [4, 5], "default_int64": 6}),
    "label_encoder_4_tensors": (
        "LabelEncoder", [WORDS],
        {"version": 4, "keys_tensor": helper.make_tensor("k", TensorProto.STRING, [2], ["a", "c"]),
         "values_tensor": helper.make_tensor("v", TensorProto.INT16, [2], [4, 2]),
         "default_tensor": helper.make_tensor("d", TensorProto.INT16, [1], [42])}),
    "category_mapper_to_integers": ("CategoryMapper", [WORDS],
                                    {"cats_int64s": [4, 5], "cats_strings": ["a", "c"], "default_int64": -7}),
    "category_mapper_to_texts": ("CategoryMapper", [np.array([4, 9])], {"cats_int64s": [4, 5], "cats_strings": ["a", "c"]}),
    "zip_map_of_texts": ("ZipMap", [X], {"classlabels_strings": ["a", "b", "c"]}),
    "zip_map_of_two": ("ZipMap", [X[:, :2]], {"classlabels_strings": ["a", "b"]}),
    "zip_map_of_four": ("ZipMap", [np.concatenate([X, X[:, :1]], axis=1)], {"classlabels_int64s": [4, 5, 7, 9]}),
    "zip_map_of_integers": ("ZipMap", [X[0]], {"classlabels_int64s": [4, 5, 7]}),
    "cast_map_dense": ("CastMap", [{3: 1.5, 1: -2.0}], {}),
    "cast_map_sparse_integers": ("CastMap", [{3: 1.5, 1: -2.0}], {"cast_to": "TO_INT64", "map_form": "SPARSE", "max_map": 5}),
    "dict_vectorizer": ("DictVectorizer", [{"a": 1.0, "b": 2.0, "?": 3.0}], {"string_vocabulary": ["b", "c", "a"]}),
    "linear_classifier": ("LinearClassifier", [X], {"outputs": 2, "classlabels_ints": [5, 7], **LINEAR}),
    "linear_classifier_softmax": ("LinearClassifier", [X],
                                  {"outputs": 2, "classlabels_strings": ["a", "b"], "post_transform": "SOFTMAX", **LINEAR}),
    "linear_classifier_softmax_zero": ("LinearClassifier", [np.concatenate([X, np.array([[1, 0.5, 0]], np.float32)])],
                                       {"outputs": 2, "classlabels_ints": [5, 7], "post_transform": "SOFTMAX_ZERO",
                                        **LINEAR, "intercepts": [0.0, 0.0]}),
    "linear_classifier_of_one_score": ("LinearClassifier", [X],
                                       {"outputs": 2, "classlabels_ints": [5, 7], "coefficients": [1.0, -2.0, 0.5],
                                        "intercepts": [0.1], "post_transform": "LOGISTIC"}),
    "linear_classifier_of_fewer_features": ("LinearClassifier", [X[:, :2]],
                                            {"outputs": 2, "classlabels_ints": [5, 7], "post_transform": "LOGISTIC", **LINEAR}),
    "linear_regressor": ("LinearRegressor", [X], {"targets": 2, **LINEAR}),
    "linear_regressor_logistic": ("LinearRegressor", [X], {"targets": 2, "post_transform": "LOGISTIC", **LINEAR}),
    "linear_regressor_probit": ("LinearRegressor", [np.array([[0.2], [0.5], [0.9]], np.float32)],
                                {"post_transform": "PROBIT", "coefficients": [1.0]}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_operator_agrees_with_onnxruntime(name: str) -> None:
    op_type, inputs, attributes = CASES[name]
    check_against_onnxruntime(op_type, inputs, **attributes)


@DRAWS
@given(
    st.integers(2, 4),
    st.sampled_from(["LINEAR", "POLY", "RBF", "SIGMOID"]),
    st.booleans(),
    st.sampled_from(["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]),
    st.integers(0, 2**32 - 1),
)
def test_svm_classifier_agrees_with_onnxruntime(
    classes: int, kernel_type: str, has_probabilities: bool, post_transform: str, seed: int
) -> None:
    if classes == 2 and not has_probabilities and post_transform.startswith("SOFTMAX"):
        return  # such a model is refused, see below
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 4, classes).tolist()
    pairs = classes * (classes - 1) // 2
    attributes = {
        "classlabels_ints": list(range(5, 5 + classes)),
        # At least a single coefficient is negative; otherwise ONNX Runtime applies a special rule.
        "coefficients": [-0.5, *random.standard_normal((classes - 1) * sum(sizes) - 1).tolist()],
        "support_vectors": random.standard_normal(sum(sizes) * 3).tolist(),
        "vectors_per_class": sizes,
        "rho": random.standard_normal(pairs).tolist(),
        "kernel_type": kernel_type,
        "kernel_params": [0.5, 0.25, 2.0],
        "post_transform": post_transform,
    }
    if has_probabilities:
        attributes |= {"prob_a": (-random.random(pairs)).tolist(), "prob_b": random.standard_normal(pairs).tolist()}
    model = make_model("SVMClassifier", [X], outputs=2, **attributes)
    result, expected = run_kernels(model, [X]), run_onnxruntime(model, [X])
    assert result[0].tolist() == expected[0].tolist()
    # Both iterations stop at an error of 0.005 / classes. ONNX Runtime iterates in float32 and may take a step more or less.
    assert_same(result[1], expected[1], rtol=1e-2 if has_probabilities and classes > 2 else 1e-4)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_svm_probabilities_of_a_row_and_of_many(classes: int) -> None:
    random = np.random.default_rng(classes)
    pairs = classes * (classes - 1) // 2
    x = random.standard_normal((200, 3)).astype(np.float32)
    attributes = {
        "classlabels_ints": list(range(classes)), "coefficients": random.standard_normal((classes - 1) * classes).tolist(),
        "support_vectors": random.standard_normal(classes * 3).tolist(), "vectors_per_class": [1] * classes,
        "rho": random.standard_normal(pairs).tolist(), "kernel_type": "RBF", "kernel_params": [0.5, 0.0, 0.0],
        "prob_a": (-4 * random.random(pairs)).tolist(), "prob_b": random.standard_normal(pairs).tolist(),
    }  # fmt: skip
    model = make_model("SVMClassifier", [X], outputs=2, **attributes)
    _, together = run_kernels(model, [x])
    alone = np.concatenate([run_kernels(model, [row])[1] for row in x[:, None]])
    np.testing.assert_allclose(alone, together, rtol=1e-6)


@DRAWS
@given(st.sampled_from(["LINEAR", "POLY", "RBF", "SIGMOID"]), st.integers(0, 1), st.integers(0, 2**32 - 1))
def test_svm_regressor_agrees_with_onnxruntime(kernel_type: str, one_class: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    check_against_onnxruntime(
        "SVMRegressor", [X], coefficients=random.standard_normal(4).tolist(), n_supports=4, one_class=one_class,
        support_vectors=random.standard_normal(12).tolist(), rho=[0.3], kernel_type=kernel_type, kernel_params=[0.5, 0.3, 3.0],
    )  # fmt: skip


@DRAWS
@given(
    st.integers(2, 4),
    st.integers(1, 4),
    st.sampled_from(["NONE", "LOGISTIC", "SOFTMAX"]),
    st.sampled_from([np.float32, np.float64, np.int64, np.int32]),
    st.integers(0, 2**32 - 1),
)
def test_linear_classifier_agrees_with_a_formula(classes: int, features: int, post_transform: str, dtype: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = (3 * random.standard_normal((4, features))).astype(dtype)
    w, b = random.standard_normal((classes, features)).astype(np.float32), random.standard_normal(classes).astype(np.float32)
    model = make_model(
        "LinearClassifier", [x], outputs=2, classlabels_ints=list(range(classes)), coefficients=w.ravel().tolist(),
        intercepts=b.tolist(), post_transform=post_transform,
    )  # fmt: skip
    labels, scores = run_kernels(model, [x])
    wide = x.astype(np.float64) @ w.astype(np.float64).T + b
    assert labels.tolist() == wide.argmax(axis=1).tolist()
    exponentials = np.exp(wide - wide.max(axis=1, keepdims=True))
    expected = {
        "NONE": wide,
        "LOGISTIC": 1 / (1 + np.exp(-wide)),
        "SOFTMAX": exponentials / exponentials.sum(axis=1, keepdims=True),
    }
    assert_same(scores, expected[post_transform].astype(np.float32))


def test_unknown_category_without_zeros_is_an_error() -> None:
    model = make_model("OneHotEncoder", [WORDS], cats_strings=["a", "b", "c"], zeros=0)
    with pytest.raises(ValueError, match="category '\\?' is unknown, and zeros is 0"):
        run_kernels(model, [WORDS])


def test_key_outside_of_max_map_is_an_error() -> None:
    model = make_model("CastMap", [{7: 1.5}], map_form="SPARSE", max_map=5)
    with pytest.raises(ValueError, match="key 7 of the map is outside of max_map 5"):
        run_kernels(model, [{7: 1.5}])


def test_cast_map_reads_numbers_in_texts_and_keeps_texts() -> None:
    texts = {5: "2.5", 1: "-1"}
    assert run_kernels(make_model("CastMap", [texts]), [texts])[0].tolist() == [[-1, 2.5]]
    assert run_kernels(make_model("CastMap", [texts], cast_to="TO_STRING"), [texts])[0].tolist() == [["-1", "2.5"]]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "one_score": (
        "LinearClassifier",
        {"classlabels_ints": [1, 2], "coefficients": [1.0, 1.0, 1.0], "intercepts": [0.0]},
        "LinearClassifier-1 has one score for two classes without LOGISTIC, which engines read in different ways",
    ),
    "labels_twice": (
        "LinearClassifier",
        {"classlabels_ints": [1, 2], "classlabels_strings": ["a", "b"], **LINEAR},
        "LinearClassifier-1 needs its class labels either as integers or as strings",
    ),
    "coefficients": (
        "LinearClassifier",
        {"classlabels_ints": [1, 2], "coefficients": [1.0, 2.0, 3.0]},
        "LinearClassifier-1 has 3 coefficients and 0 intercepts for 2 scores",
    ),
    "one_target": (
        "LinearRegressor",
        {"coefficients": [1.0], "post_transform": "SOFTMAX"},
        "LinearRegressor-1 transforms its one target by SOFTMAX, which ONNX Runtime leaves out",
    ),
    "imputer": ("Imputer", {}, "Imputer-1 needs its imputed values either as integers or as floats"),
    "norm": ("Normalizer", {"norm": "L3"}, "attribute 'norm' of Normalizer-1 is 'L3'; implemented: L1, L2, MAX"),
    "svm_softmax": (
        "SVMClassifier",
        {"classlabels_ints": [1, 2], "coefficients": [1.0, -1.0], "support_vectors": [0.0] * 6, "vectors_per_class": [1, 1],
         "rho": [0.0], "post_transform": "SOFTMAX"},
        "SVMClassifier-1 has one score for two classes under SOFTMAX, which engines read in different ways",
    ),
    "svm_without_vectors": (
        "SVMClassifier",
        {"classlabels_ints": [1, 2], "coefficients": [1.0, -1.0], "rho": [0.0]},
        "SVMClassifier-1 has vectors_per_class [] for 2 classes; it needs vectors of two and more",
    ),
    "svm_transform": ("SVMRegressor", {"coefficients": [1.0], "rho": [0.0], "post_transform": "LOGISTIC"},
                      "attribute 'post_transform' of SVMRegressor-1 is 'LOGISTIC'; implemented: NONE"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_ambiguous_attributes_are_refused(name: str) -> None:
    op_type, attributes, reason = REFUSED[name]
    assert refuse(op_type, [X], outputs=2 if "Classifier" in op_type else 1, **attributes) == reason


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("kind", ["floats", "int64s", "strings"])
def test_label_encoder_finds_few_and_many_keys(kind: str, count: int) -> None:
    values: dict[str, list[Any]] = {
        "floats": [0.5, -0.0, NAN, 7.0, -float("inf"), 0.25, float("inf")],
        "int64s": [5, -3, 0, 2**60 + 1, 2**60, 9],
        "strings": ["b", "a", "", "no"],
    }
    keys, dtype = values[kind], {"floats": np.float32, "int64s": np.int64, "strings": object}[kind]
    x = np.random.default_rng(count).choice(np.array(keys, dtype), (count, 3))
    known = keys[:-1]
    model = make_model(
        "LabelEncoder", [x], version=4, **{f"keys_{kind}": known}, values_strings=[f"v{place}" for place in range(len(known))]
    )

    def find(key: Any) -> str:
        return next((f"v{place}" for place, each in enumerate(known) if each == key or (each != each and key != key)), "_Unused")

    (labels,) = run_kernels(model, [x])
    assert labels.ravel().tolist() == list(map(find, x.ravel().tolist()))
    assert labels.shape == x.shape


def test_label_encoder_with_two_values_for_one_key_is_refused() -> None:
    reason = refuse("LabelEncoder", [WORDS], version=2, keys_strings=["a", "a"], values_int64s=[1, 2])
    assert reason == "LabelEncoder-2 has two values for key 'a'"


def test_label_encoder_2_with_a_nan_among_its_keys_is_refused() -> None:
    reason = refuse("LabelEncoder", [X], version=2, keys_floats=[1.0, NAN], values_int64s=[1, 2])
    assert reason == "LabelEncoder-2 has a NaN among its keys, which version 2 leaves open"


def test_label_encoder_4_with_bool_values_is_refused() -> None:
    keys, values = (helper.make_tensor(name, kind, [1], [1]) for name, kind in (("k", TensorProto.INT64), ("v", TensorProto.BOOL)))
    node = Node("n", "LabelEncoder", ("x",), ("y",), domain="ai.onnx.ml", opset=4, since_version=4,
                attributes={"keys_tensor": numpy_helper.to_array(keys), "values_tensor": numpy_helper.to_array(values)})  # fmt: skip
    reason = find_refusal(node, [TensorType("int64")])
    assert reason == "ai.onnx.ml:LabelEncoder-4 has attributes that do not fit together: KeyError: 'b'"


def test_map_for_an_operator_on_tensors_is_refused() -> None:
    reason = refuse("Scaler", [{"a": 1.0}], offset=[0.0])
    assert reason == "input 'x0' of Scaler-1 is a map; implemented: float32, float64, int32, int64"


def test_cast_of_numbers_to_texts_is_refused() -> None:
    reason = refuse("CastMap", [{1: 1.0}], cast_to="TO_STRING")
    assert reason == "CastMap-1 does not say how numbers are written for cast_to TO_STRING"
