"""Comparisons, choices, casts, whole numbers, tables of keys and extremes of rows by machine code against NumPy, for all plain types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from hetero_core import Core

from ..trial import WIDTHS

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")

ROWS = (1, 7, 8, 9, 63, 64, 65, 129, 0)
TYPES = {"bool": 9, "int8": 3, "uint8": 2, "int32": 6, "int64": 7, "float32": 1, "float64": 11}
FLOATS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -1.5, 3e9, -3e9, 1e19, 1e-40, 16777217.0]
NUMBERS = {
    "bool": [False, True],
    "int8": [0, 1, -1, 127, -128],
    "uint8": [0, 1, 127, 128, 255],
    "int32": [0, 1, -1, 2**31 - 1, -(2**31), 16777217],
    "int64": [0, 1, -1, 2**63 - 1, -(2**63), 2**31, 2**53 + 1],
    "float32": FLOATS,
    "float64": [*FLOATS, 2**53 + 1, 1e300],
}
COMPARISONS = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
ARITHMETIC = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract}


def list_functions(dtype: str) -> dict[str, Any]:
    """Returns the operators of two inputs of a type with machine code of its own."""
    if dtype == "bool":
        return {**LOGIC, "Equal": np.equal}
    if dtype in ("float32", "int8", "uint8"):
        return COMPARISONS
    return {**COMPARISONS, **ARITHMETIC, **({"Div": np.divide} if dtype == "float64" else {})}


def make_model(nodes: list[Any], inputs: dict[str, tuple[str, Any]], outputs: dict[str, int], constants: Any = ()) -> Any:
    graph = helper.make_graph(
        nodes,
        "tails",
        [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, number, None) for name, number in outputs.items()],
        list(constants),
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check(model: Any, draw: Any, compute: Any) -> None:
    """Compares runs of a model with all numbers of rows; those with rows are machine code alone."""
    rng = np.random.default_rng(0)
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT", "INFERENCE_NUM_THREADS": 2})
        for rows in ROWS:
            feeds = draw(rng, rows)
            with np.errstate(all="ignore"):
                expected = compute(**feeds)
            if not rows:
                assert network.get_metric("CPU_FOREIGN_STEPS") == 0
            actual = network.infer(feeds)
            for name, array in expected.items():
                assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape), (name, rows)
                np.testing.assert_array_equal(actual[name], array, f"{name}, {rows} rows")


@pytest.mark.parametrize("dtype", TYPES)
def test_operators_of_two_inputs_equal_numpy(dtype: str) -> None:
    functions = list_functions(dtype)
    nodes = [helper.make_node(name, ["a", other], [name + other]) for name in functions for other in ("b", "c", "d")]
    nodes.append(helper.make_node("Where", ["m", "a", "d"], ["chosen"]))
    number = TYPES[dtype]
    outputs = {
        f"{name}{other}": number if name in {**ARITHMETIC, "Div": 0} else 9 for name in functions for other in ("b", "c", "d")
    }
    inputs = {"a": (dtype, ["n", 3]), "b": (dtype, ["n", 3]), "c": (dtype, ["n", 1]), "m": ("bool", ["n", 1])}
    if dtype in ("int32", "int64"):
        nodes.append(helper.make_node("Neg", ["a"], ["negated"]))
        outputs["negated"] = number
    constant = np.array(NUMBERS[dtype][1:2], dtype)
    model = make_model(nodes, inputs, {**outputs, "chosen": number}, [numpy_helper.from_array(constant, "d")])

    def draw(rng: Any, rows: int) -> Any:
        arrays = {
            name: rng.choice(np.array(NUMBERS[dtype], dtype), (rows, width)) for name, width in (("a", 3), ("b", 3), ("c", 1))
        }
        return {**arrays, "m": rng.random((rows, 1)) < 0.5}

    def compute(a: Any, m: Any, **others: Any) -> Any:
        others["d"] = constant
        results = {name + other: function(a, b) for name, function in functions.items() for other, b in others.items()}
        results["chosen"] = np.where(m, a, constant)
        return {**results, "negated": -a} if "negated" in outputs else results

    check(model, draw, compute)


@pytest.mark.parametrize("dtype", TYPES)
def test_casts_and_extremes_of_rows_equal_numpy(dtype: str) -> None:
    nodes = [helper.make_node("Cast", ["x"], [target], to=number) for target, number in TYPES.items()]
    outputs = dict(TYPES)
    searches = {"ArgMax": np.argmax, "ArgMin": np.argmin} if dtype != "bool" else {}
    for name in searches:
        for last in (0, 1):
            nodes.append(helper.make_node(name, ["x"], [f"{name}{last}"], axis=1, keepdims=1 - last, select_last_index=last))
            outputs[f"{name}{last}"] = 7
    del outputs[dtype], nodes[list(TYPES).index(dtype)]

    def compute(x: Any) -> Any:
        results = {target: x.astype(target) for target in TYPES if target != dtype}
        for name, search in searches.items():
            results[f"{name}0"] = search(x, axis=1, keepdims=True)
            results[f"{name}1"] = x.shape[1] - 1 - search(x[:, ::-1], axis=1)
        return results

    model = make_model(nodes, {"x": (dtype, ["n", 4])}, outputs)
    check(model, lambda rng, rows: {"x": rng.choice(np.array(NUMBERS[dtype], dtype), (rows, 4))}, compute)


@pytest.mark.parametrize("dtype", sorted(set(TYPES) - {"bool"}))
def test_extremes_along_other_axes_equal_numpy(dtype: str) -> None:
    """Of rows that lie side by side, vectors and what is left of them; and of the channels of images channels last."""
    searches = {"ArgMax": np.argmax, "ArgMin": np.argmin}
    nodes = [helper.make_node("Transpose", ["x"], ["image"], perm=[0, 3, 1, 2])]
    outputs = {}
    for name in searches:
        for value, axis, last in (("x", 1, 1), ("x", -2, 0), ("image", 1, 0)):
            outputs[f"{name}_{value}{axis}"] = 7
            nodes.append(
                helper.make_node(name, [value], [f"{name}_{value}{axis}"], axis=axis, keepdims=last, select_last_index=last)
            )

    def compute(x: Any) -> Any:
        results = {}
        for name, search in searches.items():
            results |= {
                f"{name}_x1": x.shape[1] - 1 - search(x[:, ::-1], axis=1, keepdims=True),
                f"{name}_x-2": search(x, axis=2),
                f"{name}_image1": search(x, axis=3),
            }
        return results

    model = make_model(nodes, {"x": (dtype, ["n", 3, 5, 37])}, outputs)
    check(model, lambda rng, rows: {"x": rng.choice(np.array(NUMBERS[dtype], dtype), (rows, 3, 5, 37))}, compute)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_running_sums_are_added_in_order(dtype: str) -> None:
    """Along rows and along columns, from either end, with and without the own element."""
    drawn = [(axis, exclusive, reverse) for axis in (0, 1, -2, 3) for exclusive in (0, 1) for reverse in (0, 1)]
    nodes = [
        helper.make_node("CumSum", ["x", f"axis{axis}"], [f"y{k}"], exclusive=exclusive, reverse=reverse)
        for k, (axis, exclusive, reverse) in enumerate(drawn)
    ]
    constants = [numpy_helper.from_array(np.array(axis), f"axis{axis}") for axis in (0, 1, -2, 3)]

    def compute(x: Any) -> Any:
        results = {}
        for k, (axis, exclusive, reverse) in enumerate(drawn):
            turned = np.flip(x, axis) if reverse else x
            total = np.zeros_like(np.take(x, 0, axis)) if x.size else None
            expected = np.empty_like(x)
            for place in range(x.shape[axis] if x.size else 0):
                index = (slice(None),) * (axis % 4) + (place,)
                before, total = total, total + turned[index]
                expected[index] = before if exclusive else total
            results[f"y{k}"] = np.flip(expected, axis) if reverse else expected
        return results

    model = make_model(nodes, {"x": (dtype, ["n", 3, 5, 37])}, {f"y{k}": TYPES[dtype] for k in range(len(drawn))}, constants)
    check(model, lambda rng, rows: {"x": rng.choice(np.array(NUMBERS[dtype], dtype), (rows, 3, 5, 37))}, compute)


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize(("dtype", "kind"), [("int64", "int64s"), ("float32", "floats")])
def test_table_of_keys_equals_a_dict(dtype: str, kind: str, count: int) -> None:
    rng = np.random.default_rng(count)
    numbers = np.arange(-2 * count, 2 * count).astype(dtype)
    keys = rng.choice(numbers, count, replace=False)
    values = rng.standard_normal(count).astype(np.float32)
    attributes = {f"keys_{kind}": keys.tolist(), "values_floats": values.tolist(), "default_float": 7.5}
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    value_of_key = dict(zip(keys.tolist(), values, strict=True))
    extremes = [np.nan, np.inf, -np.inf] if dtype == "float32" else [2**63 - 1, -(2**63)]
    pool = np.append(numbers, np.array(extremes, dtype))

    def compute(x: Any) -> Any:
        return {"y": np.array([value_of_key.get(key, 7.5) for key in x.reshape(-1).tolist()], np.float32).reshape(x.shape)}

    check(make_model([node], {"x": (dtype, ["n", 2])}, {"y": 1}), lambda rng, rows: {"x": rng.choice(pool, (rows, 2))}, compute)


def test_labels_are_picked_and_rows_summed() -> None:
    labels, columns = np.array([5, -3, 9], np.int64), np.array([2, -1, 0])
    nodes = [
        helper.make_node("ArgMax", ["x"], ["place"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["labels", "place"], ["label"], domain="ai.onnx.ml"),
        helper.make_node("ArrayFeatureExtractor", ["x", "columns"], ["turned"], domain="ai.onnx.ml"),
        helper.make_node("ReduceSum", ["x", "axis"], ["total"]),
    ]
    constants = {"labels": labels, "columns": columns, "axis": np.array([1])}
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    model = make_model(nodes, {"x": ("float32", ["n", 3])}, {"label": 7, "turned": 1, "total": 1}, tensors)

    def compute(x: Any) -> Any:
        total = x.astype(np.float64).sum(axis=1, keepdims=True).astype(np.float32)
        return {"label": labels[x.argmax(axis=1)].reshape(1, -1), "turned": x[:, columns], "total": total}

    check(model, lambda rng, rows: {"x": rng.integers(-9, 9, (rows, 3)).astype(np.float32)}, compute)


EXACT = {
    "Abs": np.abs, "IsNaN": np.isnan, "Neg": np.negative, "Reciprocal": np.reciprocal, "Relu": lambda x: np.where(x < 0, 0, x),
    "Sqrt": np.sqrt,
}  # fmt: skip


@pytest.mark.parametrize("operator", EXACT)
def test_function_of_a_double_equals_numpy(operator: str) -> None:
    output = "bool" if operator == "IsNaN" else "float64"
    model = make_model([helper.make_node(operator, ["x"], ["y"])], {"x": ("float64", ["n", 3])}, {"y": TYPES[output]})
    pool = np.array(NUMBERS["float64"])
    check(model, lambda rng, rows: {"x": rng.choice(pool, (rows, 3))}, lambda x: {"y": EXACT[operator](x).astype(output)})


def test_sum_of_three_doubles_is_added_in_order() -> None:
    inputs = {name: ("float64", ["n", 3]) for name in "abc"}
    model = make_model([helper.make_node("Sum", list("abc"), ["y"])], inputs, {"y": 11})
    check(model, lambda rng, rows: {name: rng.standard_normal((rows, 3)) for name in "abc"}, lambda a, b, c: {"y": a + b + c})


@pytest.mark.parametrize("operator", ["Exp", "Sigmoid"])
def test_exponential_of_doubles_is_right_to_a_bit(operator: str) -> None:
    special = [np.inf, -np.inf, np.nan, 0.0, 709.78, 709.79, -708.3, -745.13, -746.0, 1e-300]
    x = np.concatenate([np.random.default_rng(0).uniform(-700, 700, 2000), np.linspace(-1, 1, 101), special])
    model = make_model([helper.make_node(operator, ["x"], ["y"])], {"x": ("float64", ["n"])}, {"y": 11})
    (y,) = Core().load_network(model, "CPU", {"CPU_KERNELS": "JIT"}).infer({"x": x}).values()
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        expected = (np.exp(wide) if operator == "Exp" else 1 / (1 + np.exp(-wide))).astype(np.float64)
    # A Sigmoid below -709 is 0.
    np.testing.assert_allclose(y, expected, rtol=4.5e-16, atol=5e-324 if operator == "Exp" else 1e-307)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-7), ("float64", 1e-14)])
@pytest.mark.parametrize("columns", [1, 3, 8])
def test_softmax_of_short_rows_equals_the_formula(dtype: str, columns: int, tolerance: float) -> None:
    x = (10 * np.random.default_rng(columns).standard_normal((70, columns))).astype(dtype)
    x[1, 0], x[2, -1], x[3], x[4, 0] = -800, np.nan, -np.inf, np.inf
    model = make_model([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": (dtype, ["n", columns])}, {"y": TYPES[dtype]})
    network = Core().load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
    (y,) = network.infer({"x": x}).values()
    assert network.get_metric("CPU_FOREIGN_STEPS") == 0
    with np.errstate(all="ignore"):
        wide = np.exp(x.astype(np.longdouble) - x.max(axis=1, keepdims=True))
        np.testing.assert_allclose(y, (wide / wide.sum(axis=1, keepdims=True)).astype(np.float64), rtol=tolerance, atol=1e-300)


def test_squares_and_norms_of_rows() -> None:
    nodes = [
        helper.make_node("ReduceSumSquare", ["x", "axis"], ["squares"], keepdims=0),
        helper.make_node("LpNormalization", ["x"], ["by_two"]),
        helper.make_node("LpNormalization", ["x"], ["by_one"], axis=1, p=1),
    ]
    model = make_model(
        nodes,
        {"x": ("float32", ["n", 4])},
        {"squares": 1, "by_two": 1, "by_one": 1},
        [numpy_helper.from_array(np.array([1]), "axis")],
    )

    def compute(x: Any) -> Any:
        squares = (x.astype(np.float64) ** 2).sum(axis=1).astype(np.float32)
        sizes = {"by_two": np.sqrt(squares)[:, None], "by_one": np.abs(x).sum(axis=1, keepdims=True)}
        return {"squares": squares, **{name: x / np.where(size == 0, np.float32(1), size) for name, size in sizes.items()}}

    check(model, lambda rng, rows: {"x": rng.integers(-3, 3, (rows, 4)).astype(np.float32)}, compute)
