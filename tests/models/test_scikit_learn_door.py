"""The estimators of hetero_core.frontends.sklearn beside the estimators of scikit-learn whose models they run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed; nox -s models installs it", exc_type=ImportError)
pytest.importorskip("skl2onnx", reason="skl2onnx is not installed; nox -s models installs it", exc_type=ImportError)

import onnx
import pandas
import polars
import scipy.sparse
from skl2onnx import to_onnx
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from hetero_core.frontends.sklearn import HeteroClassifier, HeteroRegressor

# skl2onnx 1.20 reads attributes that scikit-learn 1.9 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Attribute `prob[AB]_` was deprecated:FutureWarning")

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((90, 4))
TWO = X[:, 0] + X[:, 1] ** 2 > 0.5
THREE = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.3)
NAMED = np.array(["low", "mid", "high"])[THREE]
REAL = X @ [1.0, -2.0, 0.5, 0.0] + X[:, 3] ** 2
TEST = RANDOM.standard_normal((25, 4))

CLASSIFIERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "logistic_two": (LogisticRegression, TWO),
    "logistic_three": (lambda: make_pipeline(StandardScaler(), LogisticRegression()), NAMED),
    "forest": (lambda: RandomForestClassifier(8, max_depth=4, random_state=0), NAMED),
    "boosting_two": (lambda: GradientBoostingClassifier(n_estimators=5, random_state=0), TWO),
    "svc_two": (SVC, TWO),
    "svc_three": (SVC, NAMED),
    "linear_svc_two": (LinearSVC, TWO),
    "linear_svc_three": (LinearSVC, NAMED),
    "ridge": (RidgeClassifier, THREE),
    "neighbours": (KNeighborsClassifier, NAMED),
    "perceptron": (lambda: MLPClassifier((8,), max_iter=400, random_state=0, tol=1e-2), THREE),
}


def convert(model: Any, rows: Any = X, **options: Any) -> onnx.ModelProto:
    """Returns the model of a fitted estimator for float32."""
    return to_onnx(model, rows[:1].astype(np.float32), options={id(model): options} if options else None)


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("name", ["logistic_two", "logistic_three", "forest", "neighbours", "perceptron"])
def test_onnx_model_names_its_classes(name: str, zipmap: bool) -> None:
    make, y = CLASSIFIERS[name]
    model = make().fit(X, y if y.dtype != bool else y.astype(np.int64))
    proto = to_onnx(model, X[:1].astype(np.float32), options={id(model): {"zipmap": zipmap}})
    wrapped = HeteroClassifier(proto.SerializeToString(), "CPU")
    assert wrapped.classes_.tolist() == model.classes_.tolist()
    np.testing.assert_allclose(wrapped.predict_proba(TEST), model.predict_proba(TEST), rtol=1e-4, atol=1e-4)
    assert wrapped.predict(TEST).tolist() == model.predict(TEST).tolist()
    assert wrapped.score(TEST, model.predict(TEST)) == 1


@pytest.mark.filterwarnings("ignore:value 'variable' of")  # skl2onnx 1.20 declares one column for a forest of several targets
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("make", [LinearRegression, lambda: RandomForestRegressor(4, max_depth=4, random_state=0)])
def test_regressor_equals_its_estimator(make: Callable[[], Any], targets: int) -> None:
    model = make().fit(X, REAL if targets == 1 else np.stack([REAL, -REAL], 1))
    wrapped = HeteroRegressor(convert(model), "CPU")
    np.testing.assert_allclose(wrapped.predict(TEST), model.predict(TEST), rtol=1e-4, atol=1e-4)
    assert wrapped.score(TEST, model.predict(TEST)) > 0.999


def test_model_selection_takes_it_as_fitted() -> None:
    model = LogisticRegression().fit(X, NAMED)
    wrapped = HeteroClassifier(convert(model, zipmap=False).SerializeToString(), "CPU")
    folds = [rows for _, rows in StratifiedKFold(3).split(X, NAMED)]
    assert cross_val_score(wrapped, X, NAMED, cv=3).tolist() == [model.score(X[rows], NAMED[rows]) for rows in folds]
    for scoring in ("roc_auc_ovr", "neg_log_loss"):
        scores = cross_val_score(make_pipeline(wrapped), X, NAMED, cv=3, scoring=scoring)
        np.testing.assert_allclose(scores, [get_scorer(scoring)(model, X[rows], NAMED[rows]) for rows in folds], rtol=1e-4)
    search = GridSearchCV(wrapped, {"device": ["CPU", "TEMPLATE"]}, cv=2).fit(X, NAMED)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], model.score(X, NAMED), atol=1e-6)
    copy = clone(wrapped)
    assert (copy.model, copy.device) == (wrapped.model, "CPU")
    assert copy.predict(TEST).tolist() == model.predict(TEST).tolist()


def test_it_is_pickled_without_its_networks() -> None:
    wrapped = HeteroClassifier(convert(LogisticRegression().fit(X, NAMED)), "CPU")
    labels = wrapped.predict(TEST).tolist()
    assert pickle.loads(pickle.dumps(wrapped)).predict(TEST).tolist() == labels


FRAME = pandas.DataFrame(
    {
        "age": RANDOM.integers(1, 90, 60),
        "height": RANDOM.standard_normal(60),
        "town": RANDOM.choice(["a", "b", "c"], 60).astype(object),
    }
)
RICH = (FRAME["age"] > 40).to_numpy() ^ (FRAME["town"] == "a").to_numpy()


def test_data_frame_gives_a_column_for_each_input() -> None:
    columns = make_column_transformer((StandardScaler(), ["age", "height"]), (OneHotEncoder(), ["town"]))
    model = make_pipeline(columns, LogisticRegression()).fit(FRAME, RICH)
    proto = to_onnx(model, FRAME[:1].astype({"height": np.float32}), options={id(model): {"zipmap": False}})
    mixed = FRAME[["town", "height", "age"]].assign(more=1)
    wrapped = HeteroClassifier(proto, "CPU")
    np.testing.assert_allclose(wrapped.predict_proba(mixed), model.predict_proba(FRAME), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(wrapped.predict_proba(FRAME.to_numpy()), model.predict_proba(FRAME), rtol=1e-4, atol=1e-5)
    with pytest.raises(KeyError, match="the data frame has no column 'height'"):
        wrapped.predict(FRAME.drop(columns="height"))
    with pytest.raises(ValueError, match="take 3 columns, and X has 2"):
        wrapped.predict(FRAME.to_numpy()[:, :2])


@pytest.mark.parametrize("kind", ["nullable", "category", "missing", "polars"])
def test_frames_of_all_kinds(kind: str) -> None:
    columns = make_column_transformer((StandardScaler(), ["age", "height"]), (OneHotEncoder(handle_unknown="ignore"), ["town"]))
    model = make_pipeline(columns, LogisticRegression()).fit(FRAME, RICH)
    proto = to_onnx(model, FRAME[:1].astype({"height": np.float32}), options={id(model): {"zipmap": False}})
    frame: Any = FRAME.copy()
    if kind == "nullable":
        frame = frame.convert_dtypes()
    elif kind == "category":
        frame = frame.astype({"town": "category"})
    elif kind == "missing":
        frame.loc[[3, 7], "town"] = "none"
    expected = model.predict_proba(frame)
    asked = polars.DataFrame({name: frame[name].tolist() for name in frame}) if kind == "polars" else frame
    np.testing.assert_allclose(HeteroClassifier(proto, "CPU").predict_proba(asked), expected, rtol=1e-4, atol=1e-5)


def test_rows_of_frames_and_sparse_matrices() -> None:
    plain = LogisticRegression().fit(X, NAMED)
    wrapped = HeteroClassifier(convert(plain), "CPU")
    for rows in (pandas.DataFrame(TEST), scipy.sparse.csr_matrix(TEST)):
        assert wrapped.predict(rows).tolist() == plain.predict(TEST).tolist()


def test_floats_are_no_integers() -> None:
    proto = to_onnx(LinearRegression().fit(X, REAL), np.ones((1, 4), np.int64))
    with pytest.raises(TypeError, match="float64 does not convert to int64"):
        HeteroRegressor(proto, "CPU").predict(TEST)
