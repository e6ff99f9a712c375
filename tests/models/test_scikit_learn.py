"""Pipelines of scikit-learn, exported by skl2onnx, on every device and split, compared with ONNX Runtime and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed; nox -s models installs it", exc_type=ImportError)
pytest.importorskip("skl2onnx", reason="skl2onnx is not installed; nox -s models installs it", exc_type=ImportError)

from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier

# skl2onnx 1.20 reads attributes that scikit-learn 1.9 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Attribute `prob[AB]_` was deprecated:FutureWarning")

OPSET = {"": 18, "ai.onnx.ml": 3}
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((60, 4)).astype(np.float32)
TWO = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(np.int64)
THREE = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.3)
NAMED = np.array(["low", "mid", "high"])[THREE]
REAL = (X @ [1.0, -2.0, 0.5, 0.0] + X[:, 3] ** 2).astype(np.float32)
TEST = RANDOM.standard_normal((17, 4)).astype(np.float32)

CLASSIFIERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "logistic_two": (lambda: make_pipeline(StandardScaler(), LogisticRegression()), TWO),
    "logistic_three": (lambda: make_pipeline(MinMaxScaler(), LogisticRegression()), THREE),
    "logistic_named": (lambda: make_pipeline(RobustScaler(), LogisticRegression()), NAMED),
    "forest_two": (lambda: RandomForestClassifier(10, max_depth=4, random_state=0), TWO),
    "forest_three": (lambda: RandomForestClassifier(10, max_depth=4, random_state=0), NAMED),
    "tree": (lambda: make_pipeline(PCA(3), DecisionTreeClassifier(max_depth=3, random_state=0)), THREE),
    "boosting_two": (lambda: GradientBoostingClassifier(n_estimators=8, random_state=0), TWO),
    "boosting_three": (lambda: GradientBoostingClassifier(n_estimators=5, random_state=0), THREE),
    "ada_boost": (lambda: AdaBoostClassifier(n_estimators=5, random_state=0), THREE),
    "svc_two": (lambda: make_pipeline(StandardScaler(), SVC()), TWO),
    "svc_three": (lambda: SVC(kernel="poly", degree=2, decision_function_shape="ovo"), THREE),
    "nu_svc": (lambda: NuSVC(kernel="linear"), TWO),
    "linear_svc": (lambda: LinearSVC(), THREE),
    "neighbours": (lambda: KNeighborsClassifier(3), THREE),
    "bayes": (lambda: GaussianNB(), NAMED),
    "perceptron": (lambda: MLPClassifier((8,), max_iter=400, random_state=0, tol=1e-2), THREE),
    "polynomial": (lambda: make_pipeline(Normalizer("l2"), PolynomialFeatures(2), LogisticRegression()), TWO),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CLASSIFIERS))
def test_classifier(check_everywhere: Any, name: str) -> None:
    make, y = CLASSIFIERS[name]
    model = make().fit(X, y)
    options = {id(model): {"zipmap": False}} if not name.startswith(("svc", "linear_svc")) else None
    proto = to_onnx(model, X[:1], target_opset=OPSET, options=options)
    labels = check_everywhere(proto, {"X": TEST})[0]
    assert labels.tolist() == model.predict(TEST).tolist()


REGRESSORS: dict[str, Callable[[], Any]] = {
    "linear": lambda: make_pipeline(StandardScaler(), LinearRegression()),
    "ridge": lambda: make_pipeline(Binarizer(threshold=0.1), Ridge()),
    "forest": lambda: RandomForestRegressor(8, max_depth=4, random_state=0),
    "extra_trees": lambda: ExtraTreesRegressor(8, max_depth=4, random_state=0),
    "boosting": lambda: GradientBoostingRegressor(n_estimators=8, random_state=0),
    "svr": lambda: SVR(),
    "svr_sigmoid": lambda: SVR(kernel="sigmoid", gamma=0.1),
    "gaussian_process": lambda: GaussianProcessRegressor(alpha=0.1),
}


@pytest.mark.parametrize("name", list(REGRESSORS))
def test_regressor(check_everywhere: Any, name: str) -> None:
    model = REGRESSORS[name]().fit(X, REAL)
    (y,) = check_everywhere(to_onnx(model, X[:1], target_opset=OPSET), {"X": TEST})
    np.testing.assert_allclose(y.ravel(), model.predict(TEST).ravel(), rtol=1e-3, atol=1e-3)


def test_probabilities_as_maps(check_everywhere: Any) -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, NAMED)
    labels, maps = check_everywhere(to_onnx(model, X[:1], target_opset=OPSET), {"X": TEST})
    assert [max(row, key=row.__getitem__) for row in maps] == labels.tolist()


@pytest.mark.parametrize("make", [lambda: KMeans(3, n_init=2, random_state=0), lambda: OneClassSVM(gamma=0.2),
                                  lambda: IsolationForest(n_estimators=5, random_state=0)],
                         ids=["k_means", "one_class_svm", "isolation_forest"])  # fmt: skip
def test_without_teacher(check_everywhere: Any, make: Callable[[], Any]) -> None:
    model = make().fit(X)
    labels, _ = check_everywhere(to_onnx(model, X[:1], target_opset=OPSET), {"X": TEST})
    assert labels.ravel().tolist() == model.predict(TEST).tolist()


def test_columns_of_texts_and_numbers_with_gaps(check_everywhere: Any) -> None:
    colours = RANDOM.choice(np.array(["red", "green", "blue"], object), (60, 1))
    numbers = np.where(RANDOM.random((60, 2)) < 0.2, np.nan, X[:, :2]).astype(np.float32)
    pandas_free = np.concatenate([numbers.astype(object), colours], axis=1)
    model = make_pipeline(
        ColumnTransformer([
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), [0, 1]),
            ("colours", OneHotEncoder(handle_unknown="ignore"), [2]),
        ]),
        LogisticRegression(),
    ).fit(pandas_free, TWO)  # fmt: skip
    types = [("numbers", FloatTensorType([None, 2])), ("colours", StringTensorType([None, 1]))]
    proto = to_onnx(model, initial_types=types, target_opset=OPSET, options={id(model): {"zipmap": False}})
    unknown = np.array([["red"], ["violet"], ["blue"], ["green"]], object)
    labels = check_everywhere(proto, {"numbers": numbers[:4], "colours": unknown})[0]
    rows = np.concatenate([numbers[:4].astype(object), unknown], axis=1)
    assert labels.tolist() == model.predict(rows).tolist()


def test_ordinal_encoder(check_everywhere: Any) -> None:
    words = RANDOM.choice(np.array(["a", "b", "c"], object), (20, 2))
    model = OrdinalEncoder().fit(words)
    proto = to_onnx(model, initial_types=[("X", StringTensorType([None, 2]))], target_opset=OPSET)
    (y,) = check_everywhere(proto, {"X": words})
    assert y.tolist() == model.transform(words).tolist()


def set_plain_locale(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with the locale C, because ONNX Runtime requires en_US of the system; English texts do not need it."""
    for node in proto.graph.node:
        if node.op_type == "StringNormalizer":
            node.attribute.append(onnx.helper.make_attribute("locale", "C"))
    return proto


TEXTS = np.array([["the quick brown fox"], ["jumps over the lazy dog"], ["the dog sleeps"], ["a fox runs"]], object)


@pytest.mark.parametrize("vectorizer", [CountVectorizer, TfidfVectorizer])
def test_texts(check_everywhere: Any, vectorizer: Any) -> None:
    model = make_pipeline(vectorizer(ngram_range=(1, 2)), LogisticRegression()).fit(TEXTS.ravel(), [0, 1, 1, 0])
    proto = to_onnx(
        model, initial_types=[("X", StringTensorType([None, 1]))], target_opset=OPSET, options={id(model): {"zipmap": False}}
    )
    labels = check_everywhere(set_plain_locale(proto), {"X": TEXTS})[0]
    assert labels.tolist() == [0, 1, 1, 0]
