"""Exported nearest neighbors and picked columns: a Scan of distances is a CDist, an ArrayFeatureExtractor a Gather; results stay equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hetero_cpu.transforms.models import rewrite_models

from hetero_core import Core

SCAN = """
<ir_version: 10, opset_import: ["" : 18]>
agraph (TYPE[n, 5] x, TYPE[rows, 5] known) => (TYPE[n, 5] state, TYPE[rows, n] y) {
    state, y = Scan <num_scan_inputs = 1, DIRECTION body = inner (TYPE[n, 5] before, TYPE[5] row) => (TYPE[n, 5] after, TYPE[n] sums) {
        after = NEXT (before)
        difference = Sub (SIDES)
        axes = Constant <value_ints = [AXIS]> ()
        SUM
        sums = Identity (squares)
    }> (x, known)
}
"""
PLAIN = {"TYPE": "float", "DIRECTION": "", "NEXT": "Identity", "SIDES": "before, row", "AXIS": "1"}
PLAIN["SUM"] = "squares = ReduceSumSquare <keepdims = 0> (difference, axes)"
MAGNITUDES = "magnitudes = Abs (difference) squares = ReduceSum <keepdims = 0> (magnitudes, axes)"


def make_scan(**changes: str) -> bytes:
    """Returns the model with its marks replaced by those of PLAIN, or by changes."""
    text = SCAN
    for mark, value in (PLAIN | changes).items():
        text = text.replace(mark, value)
    return onnx.parser.parse_model(text).SerializeToString()


def check_scan(model: bytes, rows: int, known: int, expect: Any, dtype: type = np.float32) -> None:
    """Compares the result for drawn rows with `expect(x, known)` in float64."""
    random = np.random.default_rng(rows * 100 + known)
    x, others = (random.standard_normal((count, 5)).astype(dtype) for count in (rows, known))
    state, y = Core().load_network(model, "CPU").infer({"x": x, "known": others}).values()
    expected_state, expected = expect(x.astype(np.float64), others.astype(np.float64))
    np.testing.assert_allclose(state, expected_state, rtol=1e-6)
    np.testing.assert_allclose(y, expected, rtol=1e-5 if dtype is np.float32 else 1e-13, atol=1e-12)


def measure(x: Any, known: Any) -> tuple[Any, Any]:
    """Returns x and the squared distances."""
    return x, ((known[:, None] - x) ** 2).sum(-1)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 400), (700, 90), (27000, 3)])
@pytest.mark.parametrize("changes", [{}, {"SIDES": "row, before"}, {"AXIS": "-1"}, {"TYPE": "double"}])
def test_scan_of_distances_is_a_cdist(changes: dict[str, str], sizes: tuple[int, int]) -> None:
    model = make_scan(**changes)
    operators = rewrite_models(Core().read_network(model)).op_types
    assert "CDist" in operators
    assert "Scan" not in operators
    check_scan(model, *sizes, measure, np.float64 if changes.get("TYPE") == "double" else np.float32)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 400), (700, 90)])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_scan_of_magnitudes_is_a_cdist(kind: str, sizes: tuple[int, int]) -> None:
    model = make_scan(SUM=MAGNITUDES, TYPE=kind)
    assert "CDist" in rewrite_models(Core().read_network(model)).op_types
    check_scan(
        model, *sizes, lambda x, known: (x, np.abs(known[:, None] - x).sum(-1)), np.float64 if kind == "double" else np.float32
    )


@pytest.mark.parametrize("sums", ["squares = ReduceSum <keepdims = 0> (difference, axes)", MAGNITUDES.replace("Abs", "Neg")])
def test_scan_of_other_sums_stays(sums: str) -> None:
    model = make_scan(SUM=sums)
    assert "CDist" not in rewrite_models(Core().read_network(model)).op_types
    sign = -1 if "Neg" in sums else 1
    check_scan(model, 4, 7, lambda x, known: (x, sign * (x - known[:, None]).sum(-1)))




@pytest.mark.parametrize(
    ("categories", "zeros", "is_written"), [([0, 1, 5], 1, True), ([0, 1, 0], 1, False), ([-2, -1, 0, 1, 2, 3, 4], 0, False)]
)
def test_categories_of_numbers_are_compared(categories: list[int], zeros: int, is_written: bool) -> None:
    x = np.array([[0, 4], [1, -2]])
    numbers = ", ".join(map(str, categories))
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18, "ai.onnx.ml": 3]> g (int64[n, 2] x) => (float[n, 2, c] y)
        {{ y = ai.onnx.ml.OneHotEncoder <cats_int64s = [{numbers}], zeros = {zeros}> (x) }}""").SerializeToString()
    assert ("OneHotEncoder" not in rewrite_models(Core().read_network(model)).op_types) is is_written
    if len(set(categories)) == len(categories):
        y = Core().load_network(model, "CPU").infer({"x": x})["y"]
        np.testing.assert_array_equal(y, (x[..., None] == np.array(categories)).astype(np.float32), strict=True)


@pytest.mark.parametrize(
    ("changes", "expect"),
    [
        (
            {"NEXT": "Neg"},
            lambda x, known: (x * (-1) ** len(known), [((x * (-1) ** i - row) ** 2).sum(-1) for i, row in enumerate(known)]),
        ),
        ({"DIRECTION": "scan_input_directions = [1],"}, lambda x, known: measure(x, known[::-1])),
        ({"DIRECTION": "scan_output_directions = [1],"}, lambda x, known: (x, measure(x, known)[1][::-1])),
        ({"SIDES": "before, before"}, lambda x, known: (x, np.zeros((len(known), len(x))))),
    ],
)
def test_scan_of_something_else_stays(changes: dict[str, str], expect: Any) -> None:
    model = make_scan(**changes)
    assert "CDist" not in rewrite_models(Core().read_network(model)).op_types
    check_scan(model, 4, 7, expect)








def check_rewritten(text: str, x: Any, expected: Any, *, absent: str, tolerance: float = 0.0) -> None:
    """Compares a model of one output after the pass, which leaves no operator of this name."""
    model = onnx.parser.parse_model(text).SerializeToString()
    assert absent not in rewrite_models(Core().read_network(model)).op_types
    for kernels in ("JIT", "NUMPY"):
        (y,) = Core().load_network(model, "CPU", {"CPU_KERNELS": kernels}).infer({"x": x}).values()
        assert y.dtype == expected.dtype
        np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize(("missing", "values"), [("nan", [1.5, -2.0, 0.25]), ("7.0", [1.5, -2.0, 0.25]), ("nan", [4.0])])
def test_imputer_is_a_choice(missing: str, values: list[float], rows: int) -> None:
    x = np.random.default_rng(0).choice(np.array([np.nan, 7.0, 1.0, -1.0], np.float32), (rows, 3))
    text = f"""
        <ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
        agraph (float[n, 3] x) => (float[n, 3] y) {{
            y = ai.onnx.ml.Imputer <imputed_value_floats = {values}, replaced_value_float = {missing}> (x)
        }}
    """
    is_missing = np.isnan(x) if missing == "nan" else x == 7
    check_rewritten(text, x, np.where(is_missing, np.array(values, np.float32), x), absent="Imputer")


def test_scaler_behind_an_imputer_is_arithmetic() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
        agraph (float[n, 2] x) => (float[n, 2] y) {
            whole = ai.onnx.ml.Imputer <imputed_value_floats = [1.0, 2.0], replaced_value_float = nan> (x)
            y = ai.onnx.ml.Scaler <offset = [1.0, 0.0], scale = [0.5, 2.0]> (whole)
        }
    """
    x = np.array([[np.nan, 3.0], [5.0, np.nan]], np.float32)
    check_rewritten(text, x, np.array([[0, 6], [2, 4]], np.float32), absent="Scaler")












