"""The estimators of hetero_core.frontends.sklearn beside the estimators of scikit-learn that they were made from."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed; nox -s models installs it", exc_type=ImportError)
pytest.importorskip("skl2onnx", reason="skl2onnx is not installed; nox -s models installs it", exc_type=ImportError)

import pandas
import polars
import scipy.sparse
from skl2onnx import to_onnx
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import AdaBoostClassifier, GradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from hetero_core.errors import InputNameError, NetworkReadError
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier_equals_its_estimator(name: str, dtype: Any) -> None:
    make, y = CLASSIFIERS[name]
    model = make().fit(X.astype(dtype), y)
    wrapped, rows = HeteroClassifier(model, "CPU"), TEST.astype(dtype)
    labels = wrapped.predict(rows)
    assert labels.dtype == y.dtype
    assert labels.tolist() == model.predict(rows).tolist()
    for method in ("predict_proba", "decision_function"):
        assert hasattr(wrapped, method) == hasattr(model, method)
        # CPU refuses the scores of two classes, which engines read in different ways.
        if hasattr(model, method) and (name, method) != ("boosting_two", "decision_function"):
            expected = getattr(model, method)(rows)
            np.testing.assert_allclose(getattr(wrapped, method)(rows), expected, rtol=1e-4, atol=1e-4)
    assert wrapped.score(rows, labels) == 1


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
    assert not hasattr(wrapped, "decision_function")


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("make", [LinearRegression, lambda: RandomForestRegressor(4, max_depth=4, random_state=0)])
def test_regressor_equals_its_estimator(make: Callable[[], Any], targets: int) -> None:
    model = make().fit(X, REAL if targets == 1 else np.stack([REAL, -REAL], 1))
    wrapped = HeteroRegressor(model, "CPU")
    np.testing.assert_allclose(wrapped.predict(TEST), model.predict(TEST), rtol=1e-4, atol=1e-4)
    assert wrapped.score(TEST, model.predict(TEST)) > 0.999


def test_model_selection_takes_it_as_fitted() -> None:
    model = LogisticRegression().fit(X, NAMED)
    wrapped = HeteroClassifier(model, "CPU")
    folds = [rows for _, rows in StratifiedKFold(3).split(X, NAMED)]
    assert cross_val_score(wrapped, X, NAMED, cv=3).tolist() == [model.score(X[rows], NAMED[rows]) for rows in folds]
    for scoring in ("roc_auc_ovr", "neg_log_loss"):
        scores = cross_val_score(make_pipeline(wrapped), X, NAMED, cv=3, scoring=scoring)
        np.testing.assert_allclose(scores, [get_scorer(scoring)(model, X[rows], NAMED[rows]) for rows in folds], rtol=1e-4)
    search = GridSearchCV(wrapped, {"device": ["CPU", "TEMPLATE"]}, cv=2).fit(X, NAMED)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], model.score(X, NAMED), atol=1e-6)
    copy = clone(wrapped)
    assert (copy.model, copy.device) == (model, "CPU")
    assert copy.predict(TEST).tolist() == model.predict(TEST).tolist()


def test_it_is_pickled_without_its_networks() -> None:
    wrapped = HeteroClassifier(LogisticRegression().fit(X, NAMED), "CPU")
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
    converted = HeteroClassifier(model, "CPU")
    np.testing.assert_allclose(converted.predict_proba(FRAME), model.predict_proba(FRAME), rtol=1e-4, atol=1e-5)
    proto = to_onnx(model, FRAME[:1].astype({"height": np.float32}), options={id(model): {"zipmap": False}})
    mixed = FRAME[["town", "height", "age"]].assign(more=1)
    wrapped = HeteroClassifier(proto, "CPU")
    np.testing.assert_allclose(wrapped.predict_proba(mixed), model.predict_proba(FRAME), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(wrapped.predict_proba(FRAME.to_numpy()), model.predict_proba(FRAME), rtol=1e-4, atol=1e-5)
    with pytest.raises(KeyError, match="the data frame has no column 'height'"):
        wrapped.predict(FRAME.drop(columns="height"))
    with pytest.raises(ValueError, match="take 3 columns, and X has 2"):
        wrapped.predict(FRAME.to_numpy()[:, :2])


def fit_on(frame: pandas.DataFrame) -> Any:
    town = frame.columns[-1]
    columns = make_column_transformer(
        (StandardScaler(), list(frame.columns[:-1])), (OneHotEncoder(handle_unknown="ignore"), [town])
    )
    return make_pipeline(columns, LogisticRegression()).fit(frame, RICH)


@pytest.mark.parametrize("names", [["age", "height", "town"], ["age (years)", "height-cm", "1"], ["a b", "a_b", "a-b"]])
@pytest.mark.parametrize("kind", ["pandas", "nullable", "category", "missing", "polars"])
def test_frames_of_all_kinds_and_names(names: list[str], kind: str) -> None:
    frame = FRAME.set_axis(names, axis=1)
    if kind == "nullable":
        frame = frame.convert_dtypes()
    elif kind == "category":
        frame = frame.astype({names[2]: "category"})
    elif kind == "missing":
        frame.loc[[3, 7], names[2]] = None
    model = fit_on(frame)
    asked: Any = polars.DataFrame({name: frame[name].tolist() for name in names}) if kind == "polars" else frame
    converted = HeteroClassifier(model, "CPU")
    np.testing.assert_allclose(converted.predict_proba(asked), model.predict_proba(frame), rtol=1e-4, atol=1e-5)
    assert converted.predict(asked[names[::-1]]).tolist() == model.predict(frame).tolist()


@pytest.mark.parametrize("columns", [["age", "height"], ["height", "age"], ["town", "height", "age"]])
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        make_pipeline(StandardScaler(), LogisticRegression()),
        RandomForestClassifier(10, random_state=0),
        make_pipeline(make_column_transformer((StandardScaler(), ["age", "height"])), LogisticRegression()),
        make_pipeline(make_column_transformer((StandardScaler(), ["height"]), remainder="passthrough"), LogisticRegression()),
    ],
    ids=["regression", "scaled", "forest", "columns", "a column and the rest"],
)
def test_columns_of_numbers_are_those_of_the_fit_in_its_order(model: Any, columns: list[str]) -> None:
    frame = FRAME.assign(age=FRAME.age.astype(int))
    fitted = clone(model).fit(frame[["age", "height"]], RICH)
    expected = fitted.predict_proba(frame[["age", "height"]])
    for asked in (frame[columns], polars.DataFrame({name: frame[name].tolist() for name in columns})):
        converted = HeteroClassifier(fitted, "CPU")
        np.testing.assert_allclose(converted.predict_proba(asked), expected, rtol=1e-4, atol=1e-5)
        if not hasattr(fitted, "steps") or not hasattr(fitted[0], "transformers"):
            with pytest.raises(InputNameError, match="the data frame has no column 'height'"):
                converted.predict(asked[["age"]])


def test_a_single_column_of_several_is_taken_by_name() -> None:
    frame = FRAME.assign(weight=FRAME.height)[["weight", "height", "age"]]
    columns = make_column_transformer((StandardScaler(), ["age"]))
    model = make_pipeline(columns, LogisticRegression()).fit(frame, RICH)
    converted = HeteroClassifier(model, "CPU")
    for asked in (frame, frame[["age", "weight", "height"]], frame[["height", "age"]]):
        np.testing.assert_allclose(converted.predict_proba(asked), model.predict_proba(frame), rtol=1e-4, atol=1e-5)


def test_columns_without_names_and_sparse_rows() -> None:
    model = make_pipeline(StandardScaler(with_mean=False), LogisticRegression()).fit(pandas.DataFrame(X), NAMED)
    converted = HeteroClassifier(model, "CPU")
    assert converted.predict(pandas.DataFrame(TEST)).tolist() == model.predict(pandas.DataFrame(TEST)).tolist()
    plain = LogisticRegression().fit(X, NAMED)
    assert HeteroClassifier(plain, "CPU").predict(scipy.sparse.csr_matrix(TEST)).tolist() == plain.predict(TEST).tolist()


def test_what_skl2onnx_writes_wrongly_is_refused() -> None:
    model = AdaBoostClassifier(n_estimators=3, random_state=0).fit(X, NAMED)
    with pytest.raises(NetworkReadError, match="mixes float32 and float64 in .*: give X in float32"):
        HeteroClassifier(model, "CPU").predict(TEST)
    assert HeteroClassifier(model, "CPU").predict(TEST.astype(np.float32)).tolist() == model.predict(TEST).tolist()
    machine = SVC().fit(X, NAMED)
    machine.probability = True
    with pytest.raises(NetworkReadError, match="probabilities in place of the scores"):
        HeteroClassifier(machine, "CPU").decision_function(TEST)


def test_texts() -> None:
    texts = ["the quick brown fox", "jumps over the lazy dog", "the dog sleeps", "a fox runs"]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [0, 1, 1, 0])
    rows = np.array(texts, object)
    for each in (rows, texts, pandas.Series(texts)):
        assert HeteroClassifier(model, "CPU").predict(each).tolist() == model.predict(texts).tolist()


def test_floats_are_no_integers() -> None:
    proto = to_onnx(LinearRegression().fit(X, REAL), np.ones((1, 4), np.int64))
    with pytest.raises(TypeError, match="float64 does not convert to int64"):
        HeteroRegressor(proto, "CPU").predict(TEST)
