"""Trees of lightgbm and xgboost, converted by onnxmltools, on every device and split, compared with ONNX Runtime and the tools."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxmltools", reason="onnxmltools is not installed; nox -s models installs it")
pytest.importorskip("lightgbm", reason="lightgbm is not installed; nox -s models installs it")
pytest.importorskip("xgboost", reason="xgboost is not installed; nox -s models installs it")

import lightgbm
import onnxmltools as converters
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

# The converters declare outputs of a single row for any number of input rows, and the tools emit warnings about each other.
pytestmark = pytest.mark.filterwarnings("ignore")


def draw_rows() -> tuple[Any, Any]:
    """Returns 200 rows of 6 columns, and for each row a target that depends on the first three columns."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((200, 6)).astype(np.float32)
    return rows, (rows[:, 0] * rows[:, 1] + np.abs(rows[:, 2])).astype(np.float32)


def convert(convert_model: Any, model: Any, **options: Any) -> Any:
    return convert_model(model, initial_types=[("rows", FloatTensorType([None, 6]))], target_opset=15, **options)


@pytest.mark.parametrize("count", [1, 25])
@pytest.mark.parametrize("boosting", ["gbdt", "dart", "goss"])
@pytest.mark.parametrize("objective", ["regression", "poisson", "quantile"])
def test_regression_of_lightgbm(check_everywhere: Any, objective: str, boosting: str, count: int) -> None:
    rows, targets = draw_rows()
    model = lightgbm.LGBMRegressor(objective=objective, boosting_type=boosting, n_estimators=6, verbose=-1, random_state=1)
    model.fit(rows, targets - targets.min())
    (answer,) = check_everywhere(convert(converters.convert_lightgbm, model), {"rows": rows[:count]})
    np.testing.assert_allclose(answer.reshape(-1), model.predict(rows[:count]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("zipmap", [False, True], ids=["arrays", "maps"])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_of_lightgbm(check_everywhere: Any, classes: int, zipmap: bool) -> None:
    rows, targets = draw_rows()
    labels = np.digitize(targets, np.quantile(targets, np.linspace(0, 1, classes + 1)[1:-1]))
    model = lightgbm.LGBMClassifier(n_estimators=5, num_leaves=7, verbose=-1, random_state=1).fit(rows, labels)
    answer, _ = check_everywhere(convert(converters.convert_lightgbm, model, zipmap=zipmap), {"rows": rows[:25]})
    assert answer.tolist() == model.predict(rows[:25]).tolist()


def test_regression_of_xgboost(check_everywhere: Any) -> None:
    rows, targets = draw_rows()
    model = xgboost.XGBRegressor(n_estimators=6, max_depth=3, random_state=1).fit(rows, targets)
    (answer,) = check_everywhere(convert(converters.convert_xgboost, model), {"rows": rows[:25]})
    np.testing.assert_allclose(answer.reshape(-1), model.predict(rows[:25]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_of_xgboost(check_everywhere: Any, classes: int) -> None:
    rows, targets = draw_rows()
    labels = np.digitize(targets, np.quantile(targets, np.linspace(0, 1, classes + 1)[1:-1]))
    model = xgboost.XGBClassifier(n_estimators=6, max_depth=3, random_state=1).fit(rows, labels)
    answer, _ = check_everywhere(convert(converters.convert_xgboost, model), {"rows": rows[:25]})
    assert answer.tolist() == model.predict(rows[:25]).tolist()
