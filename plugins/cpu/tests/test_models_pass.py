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


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
@pytest.mark.parametrize(("zeros", "is_written"), [(1, True), (0, False)])
def test_categories_of_texts_are_numbered(zeros: int, is_written: bool, shape: tuple[int, ...]) -> None:
    x = np.array(["dd", "\u00fc", "other"][: 2 + zeros] + ["dd"] * (1 - zeros), object).reshape(shape)
    sizes = "n" if len(shape) == 1 else f"n, {shape[1]}"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18, "ai.onnx.ml": 3]> g (string[{sizes}] x)
        => (float[{sizes}, 2] y)
        {{ y = ai.onnx.ml.OneHotEncoder <cats_strings = ["\u00fc", "dd"], zeros = {zeros}> (x) }}""").SerializeToString()
    assert ("OneHotEncoder" not in rewrite_models(Core().read_network(model)).op_types) is is_written
    y = Core().load_network(model, "CPU", {"CPU_KERNELS": "JIT"}).infer({"x": x})["y"]
    np.testing.assert_array_equal(y, (x[..., None] == np.array(["\u00fc", "dd"], object)).astype(np.float32), strict=True)


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


@pytest.mark.parametrize(("places", "is_gather"), [([0, 4, 2, 2], True), ([3], True), ([[1, 2]], False)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_feature_extractor_with_constant_places(places: list[Any], is_gather: bool, dtype: type) -> None:
    helper, element = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("ArrayFeatureExtractor", ["x", "places"], ["y"], domain="ai.onnx.ml")],
        "columns",
        [helper.make_tensor_value_info("x", element, ["n", 5])],
        [helper.make_tensor_value_info("y", element, ["n", None])],
        [onnx.numpy_helper.from_array(np.array(places), "places")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    assert ("Gather" in rewrite_models(Core().read_network(model)).op_types) is is_gather
    x = np.arange(35).reshape((7, 5)).astype(dtype)
    (y,) = Core().load_network(model, "CPU").infer({"x": x}).values()
    np.testing.assert_array_equal(y, x[:, np.reshape(places, -1)])


@pytest.mark.parametrize("rows", [0, 1, 9, 33])
@pytest.mark.parametrize("columns", [1, 2, 4, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_product_of_few_columns_is_written_out(columns: int, rows: int, dtype: type) -> None:
    element = "float" if dtype is np.float32 else "double"
    text = f"""
        <ir_version: 10, opset_import: ["" : 18]>
        agraph ({element}[n, {columns}] x) => ({element}[n, 1] y) <int64[1] axes = {{1}}> {{ y = ReduceProd (x, axes) }}
    """
    model = onnx.parser.parse_model(text).SerializeToString()
    operators = rewrite_models(Core().read_network(model)).op_types
    assert ("ReduceProd" in operators) is (columns > 4)
    x = np.random.default_rng(columns).choice([-np.inf, -1.5, 0.0, 0.1, 3.0, np.inf, np.nan], (rows, columns)).astype(dtype)
    (y,) = Core().load_network(model, "CPU").infer({"x": x}).values()
    with np.errstate(invalid="ignore"):
        expected = np.prod(x.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 9, 33])
def test_products_of_a_degree_are_joined(rows: int) -> None:
    terms = [(0,), (2,), (0, 1), (1, 1), (2, 0), (1,), (2, 2, 2)]
    columns = [f"c{i} = ai.onnx.ml.ArrayFeatureExtractor (x, p{i}) p{i}_ = ReduceProd (c{i}, axes)" for i in range(len(terms))]
    places = ", ".join(f"int64[{len(term)}] p{i} = {{{', '.join(map(str, term))}}}" for i, term in enumerate(terms))
    text = f"""
        <ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 1]>
        agraph (float[n, 3] x) => (float[n, 7] y) <int64[1] axes = {{1}}, {places}>
        {{ {" ".join(columns)} y = Concat <axis = 1> ({", ".join(f"p{i}_" for i in range(len(terms)))}) }}
    """
    model = onnx.parser.parse_model(text).SerializeToString()
    rewritten = rewrite_models(Core().read_network(model))
    concat = rewritten.find_producer("y")
    assert concat is not None
    assert len(concat.inputs) == 4
    read = {"y", *(value for node in rewritten.nodes for value in node.reads)}
    assert all(value in read for node in rewritten.nodes for value in node.writes)
    x = np.random.default_rng(rows).choice([-np.inf, -1.5, 0.0, 0.1, 3.0, np.nan], (rows, 3)).astype(np.float32)
    (y,) = Core().load_network(model, "CPU").infer({"x": x}).values()
    with np.errstate(invalid="ignore"):
        expected = np.stack([np.prod(x[:, term].astype(np.float64), axis=1) for term in terms], axis=1)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


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


@pytest.mark.parametrize("element", ["float", "double"])
def test_binarizer_is_a_comparison(element: str) -> None:
    x = np.array([[0.5, 0.25, -1.0, np.nan, np.inf]], np.float32 if element == "float" else np.float64)
    text = f"""
        <ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
        agraph ({element}[n, 5] x) => ({element}[n, 5] y) {{ y = ai.onnx.ml.Binarizer <threshold = 0.25> (x) }}
    """
    check_rewritten(text, x, (x > 0.25).astype(x.dtype), absent="Binarizer")


def test_logarithm_of_a_sum_and_exponential_are_a_softmax() -> None:
    x = 30 * np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    text = """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[n, 3] x) => (float[n, 3] y) <int64[1] axis = {1}, int64[2] column = {-1, 1}> {
            sum = ReduceLogSumExp <keepdims = 0> (x, axis)
            turned = Reshape (sum, column)
            logarithm = Sub (x, turned)
            y = Exp (logarithm)
        }
    """
    parts = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    expected = (parts / parts.sum(axis=1, keepdims=True)).astype(np.float32)
    check_rewritten(text, x, expected, absent="ReduceLogSumExp", tolerance=1e-6)


def test_logarithm_of_another_sum_stays() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[3, 3] x) => (float[3, 3] y) <int64[1] axis = {0}> {
            sum = ReduceLogSumExp (x, axis)
            logarithm = Sub (x, sum)
            y = Exp (logarithm)
        }
    """
    assert "Softmax" not in rewrite_models(Core().read_network(onnx.parser.parse_model(text).SerializeToString())).op_types


def test_computed_summand_of_a_gemm_is_added_apart() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    text = """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[n, 3] x) => (float[n, 2] y) <float[2, 3] w = {1, 2, 3, -1, 0, 4}, int64[1] axis = {1}> {
            squares = ReduceSumSquare (x, axis)
            y = Gemm <alpha = -2.0, transB = 1> (x, w, squares)
        }
    """
    w = np.array([[1, 2, 3], [-1, 0, 4]], np.float32)
    model = onnx.parser.parse_model(text).SerializeToString()
    assert "Add" in rewrite_models(Core().read_network(model)).op_types
    check_rewritten(text, x, -2 * x @ w.T + (x**2).sum(axis=1, keepdims=True), absent="Sub")


def test_factor_of_a_gemm_goes_into_its_weights() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    text = """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, -1, 0, 4}, float[2] c = {8, -4}> {
            y = Gemm <alpha = -2.0, beta = 0.5> (x, w, c)
        }
    """
    w, c = np.array([[1, 2], [3, -1], [0, 4]], np.float32), np.array([8, -4], np.float32)
    with Core() as core:
        network = core.load_network(onnx.parser.parse_model(text), "CPU", {"CPU_KERNELS": "JIT"})
        np.testing.assert_array_equal(network.infer({"x": x})["y"], -2 * x @ w + c / 2)
        assert network.get_metric("CPU_FOREIGN_STEPS") == 0


@pytest.mark.parametrize("points", [1, 16, 75])
@pytest.mark.parametrize("metric", ["cityblock", "euclidean", "sqeuclidean"])
def test_distances_to_constant_points_are_machine_code(metric: str, points: int) -> None:
    rng = np.random.default_rng(points)
    x, b = rng.standard_normal((70, 5)).astype(np.float32), rng.standard_normal((points, 5)).astype(np.float32)
    x[1], x[2, 1], x[3, 2] = b[0], np.nan, np.inf
    b[-1] = b[0]
    node = onnx.helper.make_node("CDist", ["x", "b"], ["y"], domain="com.microsoft", metric=metric)
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 5])
    graph = onnx.helper.make_graph([node], "g", [value], [onnx.ValueInfoProto(name="y")], [onnx.numpy_helper.from_array(b, "b")])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    differences = x[:, None].astype(np.float64) - b
    sums = (np.abs(differences) if metric == "cityblock" else differences**2).sum(axis=2)
    with Core() as core:
        network = core.load_network(
            onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), "CPU", {"CPU_KERNELS": "JIT"}
        )
        for rows in (70, 1):
            (y,) = network.infer({"x": x[:rows]}).values()
            np.testing.assert_allclose(y, (np.sqrt(sums) if metric == "euclidean" else sums)[:rows], rtol=1e-5)
            # Equal points are equally far.
            np.testing.assert_array_equal(y[:, 0], y[:, -1])
        assert network.get_metric("CPU_FOREIGN_STEPS") == 0
        assert network.infer({"x": x[:0]})["y"].shape == (0, points)
