"""When two answers of one network agree: by the tolerance of the type, or because rounding alone makes them differ as much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from hetero_cpu.deviation import is_near, measure_deviation
from hetero_cpu.rounding import blur_value
from hetero_cpu.verification import Verdict, Verifier, is_random

from hetero_core.contract import RunContext
from hetero_core.kernels.program import compile_program
from hetero_core.network.graph import Network
from hetero_core.network.reader import read_network

INF, NAN = np.inf, np.nan


def floats(*elements: float) -> Any:
    return np.array(elements, np.float32)


@pytest.mark.parametrize(
    ("actual", "expected", "wrong"),
    [
        (floats(1, 2), floats(1, 2), 0),
        (floats(1.0001, 2), floats(1, 2), 0),
        (floats(1.001, 2), floats(1, 2), 1),
        (floats(NAN, 2), floats(NAN, 2), 0),
        (floats(NAN, 2), floats(1, 2), 1),
        (floats(1, 2), floats(NAN, 2), 1),
        (floats(INF, -INF), floats(INF, -INF), 0),
        (floats(INF, -INF), floats(INF, INF), 1),
        (floats(INF, 2), floats(1, 2), 1),
        # Zeros alone have no scale.
        (floats(1e-5, 0), floats(0, 0), 0),
        (floats(1e-3, 0), floats(0, 0), 1),
        # A mask does not hide what is beside it.
        (floats(-1e9, 1, 2, 4), floats(-1e9, 1, 2, 3), 1),
        (floats(-1e9 + 64, 1, 2, 3), floats(-1e9, 1, 2, 3), 0),
        (np.array([1, 2]), np.array([1, 2]), 0),
        (np.array([1, 3]), np.array([1, 2]), 1),
        (np.array([True]), np.array([False]), 1),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), 1),
        (np.array([1 + 1j], np.complex64), np.array([1 + 1.1j], np.complex64), 1),
        (np.array([1.01], ml_dtypes.bfloat16), np.array([1], ml_dtypes.bfloat16), 0),
        (np.array([1.5], np.float16), np.array([1], np.float16), 1),
        (np.float32(1), np.float32(1), 0),
        (floats(), floats(), 0),
        ([floats(1), floats(2)], [floats(1), floats(3)], 1),
        ({"a": floats(1)}, {"a": floats(1)}, 0),
        (None, None, 0),
        (None, floats(1), INF),
        ([floats(1)], [], INF),
        ({"a": floats(1)}, {"b": floats(1)}, INF),
        (floats(1, 2), floats(1), INF),
        (np.array([1]), floats(1), INF),
    ],
)
def test_elements_beyond_the_tolerance_are_counted(actual: Any, expected: Any, wrong: float) -> None:
    deviation = measure_deviation(actual, expected)
    assert deviation.wrong == wrong
    assert bool(deviation.text) == bool(wrong)
    assert not (wrong and is_near(actual, expected)), "what is surely equal is not wrong"


def test_arrays_that_differ_by_little_are_surely_equal() -> None:
    expected = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float32)
    assert is_near(expected * np.float32(1 + 1e-6), expected)
    assert is_near(np.zeros(3, np.float32), np.zeros(3, np.float32))
    for other in (
        expected + np.float32(1e-3),
        expected[:4],
        expected.astype(np.float64),
        np.full_like(expected, NAN),
        [expected],
        None,
    ):
        assert not is_near(other, expected)
        assert not is_near(expected, other)


def test_text_names_the_worst_element() -> None:
    deviation = measure_deviation(floats(1, 2.5, 4.25), floats(1, 2, 4))
    assert deviation.text == (
        "expected 2.0, got 2.5 at [1]; 2 of 3 elements are off by more than 0.0001 of its scale, at most by 0.125"
    )
    assert measure_deviation(np.array([[1, 7]]), np.array([[1, 2]])).text == "expected 2, got 7 at [0, 1]; 1 of 2 elements differ"
    assert measure_deviation(np.array([1]), floats(1)).text == "expected float32[1], got int64[1]"


def test_other_roundings_are_small_and_leave_whole_numbers_alone() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    blurred = blur_value(x, np.random.default_rng(1))
    assert (blurred.dtype, blurred.shape) == (x.dtype, x.shape)
    assert 0 < np.abs(blurred - x).max() < 1e-4 * np.abs(x).max()
    for value in (floats(0, 1, -7, INF, NAN), np.arange(5), None, np.array(["a"], object)):
        blurred = blur_value(value, np.random.default_rng(1))
        assert measure_deviation(blurred, value).worst == 0


def read(text: str) -> Network:
    return read_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 19]> {text}'))


def verify(body: str, inputs: list[Any], answers: list[Any]) -> Verdict:
    """Returns what is said of a plan that gives these answers to the network m = x @ w, and what `body` makes of m."""
    outputs, _, nodes = body.partition("=>")
    network = read(f"g (float[64, 30] x, float[30, 50] w) => ({outputs}) {{ m = MatMul (x, w) {nodes} }}")
    names = [spec.name for spec in network.outputs]
    verifier = Verifier("g", names, inputs=["x", "w"])
    return verifier.run(tuple(inputs), RunContext(), lambda: tuple(answers), compile_program(network))


@pytest.fixture
def inputs() -> list[Any]:
    """Two of the 50 columns of w are nearly the same, in every sixteenth row of x the products with them are the largest."""
    random = np.random.default_rng(0)
    x, w = random.standard_normal((64, 30)), random.standard_normal((30, 50))
    w[:, 7] = w[:, 31]
    x[::16] = 3 * w[:, 7]
    return [x.astype(np.float32), w.astype(np.float32)]


def pick_first(m: Any) -> list[Any]:
    return [m.argmax(axis=1)]


def pick_last(m: Any) -> list[Any]:
    return [49 - m[:, ::-1].argmax(axis=1)]


def round_half_away(m: Any) -> list[Any]:
    return [(np.sign(m) * np.floor(np.abs(m) + 0.5)).astype(np.float32)]


ONE_STEP = "int8[64, 50] y => s = Constant <value_float = 0.25> () z = Constant <value = int8 {0}> () y = QuantizeLinear (m, s, z)"


def quantize(m: Any) -> Any:
    return np.clip(np.rint(m / 0.25), -128, 127).astype(np.int8)


def test_ties_may_be_decided_either_way(inputs: list[Any]) -> None:
    m = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
    first, last = pick_first(m), pick_last(m)
    assert 4 <= np.count_nonzero(first[0] != last[0]) < 20
    for answers in (first, last):
        assert not verify("int64[64] y => y = ArgMax <axis = 1, keepdims = 0> (m)", inputs, answers).fault


def test_another_answer_where_there_is_no_tie_is_a_fault(inputs: list[Any]) -> None:
    (y,) = pick_first(inputs[0].astype(np.float64) @ inputs[1].astype(np.float64))
    y[20:] = 0
    verdict = verify("int64[64] y => y = ArgMax <axis = 1, keepdims = 0> (m)", inputs, [y])
    assert verdict.fault.startswith("output 'y': expected ")
    assert "of 64 elements differ" in verdict.fault


def test_one_other_answer_of_a_network_without_ties_is_a_fault(inputs: list[Any]) -> None:
    inputs[1][:, 7] = 0
    (y,) = pick_first(inputs[0].astype(np.float64) @ inputs[1].astype(np.float64))
    margins = np.sort(inputs[0] @ inputs[1], axis=1)
    row = int((margins[:, -1] - margins[:, -2]).argmax())
    y[row] = (y[row] + 1) % 50
    verdict = verify("int64[64] y => y = ArgMax <axis = 1, keepdims = 0> (m)", inputs, [y])
    assert "1 of 64 elements differ" in verdict.fault


def test_near_equal_values_of_topk_may_change_places(inputs: list[Any]) -> None:
    m = inputs[0] @ inputs[1]
    order = np.argsort(-m, axis=1, kind="stable")[:, :5]
    swapped = order.copy()
    for row in range(0, 64, 16):
        places = {int(column): place for place, column in enumerate(order[row])}
        swapped[row, places[7]], swapped[row, places[31]] = 31, 7
    body = "float[64, 5] v, int64[64, 5] y => k = Constant <value = int64[1] {5}> () v, y = TopK <axis = 1> (m, k)"
    assert not verify(body, inputs, [np.take_along_axis(m, swapped, axis=1), swapped]).fault
    wrong = np.roll(order, 1, axis=1)
    assert "output 'v'" in verify(body, inputs, [np.take_along_axis(m, wrong, axis=1), wrong]).fault


def test_one_step_of_int8_at_a_border_is_no_fault_and_two_steps_are(inputs: list[Any]) -> None:
    m = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
    y = quantize(m)
    distance = np.abs(m / 0.25 - np.floor(m / 0.25) - 0.5)
    nearest = np.unravel_index(np.argsort(distance, axis=None)[:3], m.shape)
    moved = y.copy()
    moved[nearest] += np.where(m[nearest] / 0.25 > y[nearest], 1, -1).astype(np.int8)
    assert not verify(ONE_STEP, inputs, [moved]).fault
    wrong = y.copy()
    wrong[10:30] += 2
    assert "of 3200 elements differ" in verify(ONE_STEP, inputs, [wrong]).fault


@pytest.mark.parametrize("operator", ["Round", "Floor", "Ceil"])
def test_what_is_rounded_may_fall_either_way_near_a_border(inputs: list[Any], operator: str) -> None:
    inputs[1][:, 3] = 0
    inputs[1][0, 3] = 1
    border = 2.5 if operator == "Round" else 3.0
    # A product that is not a whole number: so rounding decides.
    inputs[0][:, 0] = border * (1 + np.linspace(-3e-7, 3e-7, 64, dtype=np.float32))
    body = f"float[64, 50] y => y = {operator} (m)"
    m = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
    function: Callable[[Any], Any] = {"Round": np.rint, "Floor": np.floor, "Ceil": np.ceil}[operator]
    y = function(m).astype(np.float32)
    y[::4, 3] = 2 if y[0, 3] == 3 else 3
    assert not verify(body, inputs, [y]).fault
    y[:, 10:20] += 1
    assert verify(body, inputs, [y]).fault


def test_network_that_multiplies_rounding_is_judged_by_its_own_spread(inputs: list[Any]) -> None:
    """The exponential of numbers near 80 multiplies their error by 80; errors of that size are no fault, a column of zeros is."""
    body = "float[64, 50] y => c = Constant <value_float = 12.0> () t = Tanh (m) s = Mul (t, c) d = Exp (s) e = Sum (d, d) y = Mul (e, e)"
    m = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
    y = (2 * np.exp(12 * np.tanh(m * (1 + 2e-6)))) ** 2
    assert not verify(body, inputs, [y.astype(np.float32)]).fault
    y[:, 11] = 0
    assert verify(body, inputs, [y.astype(np.float32)]).fault


def test_input_that_a_plan_writes_is_a_fault_and_is_put_right(inputs: list[Any]) -> None:
    x, before = inputs[0], inputs[0].copy()
    network = read("g (float[64, 30] x) => (float[64, 30] y) { y = Neg (x) }")
    verifier = Verifier("g", ["y"], inputs=["x"])

    def run_plan() -> tuple[Any, ...]:
        x[3, 4] = NAN
        return (-before,)

    verdict = verifier.run((x,), RunContext(), run_plan, compile_program(network))
    assert verdict.fault == "input 'x' was written"
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(verdict.outputs[0], -before)
    assert (verifier.plans, verifier.has_refuted) == (0, True)


def test_error_that_only_the_plan_raises_is_a_fault(inputs: list[Any]) -> None:
    network = read("g (float[64, 30] x) => (float[64, 30] y) { y = Neg (x) }")
    verifier = Verifier("g", ["y"], inputs=["x"])

    def run_plan() -> tuple[Any, ...]:
        raise IndexError("index 7 is out of bounds")

    verdict = verifier.run((inputs[0],), RunContext(), run_plan, compile_program(network))
    assert verdict.fault == "the plan raises IndexError: index 7 is out of bounds"
    np.testing.assert_array_equal(verdict.outputs[0], -inputs[0])


def test_error_that_only_the_toolkit_raises_is_a_fault() -> None:
    network = read("g (float[2] x, int64[1] i) => (float[1] y) { y = Gather (x, i) }")
    verifier = Verifier("g", ["y"], inputs=["x", "i"])
    verdict = verifier.run((floats(1, 2), np.array([5])), RunContext(), lambda: (floats(3),), compile_program(network))
    assert verdict.fault.startswith("the toolkit raises IndexError: ")
    assert isinstance(verdict.error, IndexError)


def test_random_operator_in_a_body_is_found() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] s) { s = RandomNormalLike (x) }, else_branch = b () => (float[2] t) { t = Neg (x) }>
    }"""
    assert is_random(compile_program(read(text)))
    assert not is_random(compile_program(read(text.replace("RandomNormalLike", "Abs"))))
