"""Softmax and normalizations by machine code, against formulas in float64: odd lengths, many rows, both layouts, NaN and infinity."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hetero_cpu.machine.compiler import find_width
from hetero_cpu.operators import pooling
from hetero_cpu.operators.groups import Group
from hetero_cpu.operators.recipe import Recipe, Site
from hetero_cpu.operators.steps import list_native_steps
from hetero_cpu.operators.weights import PackedWeights
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_core.network.graph import Node
from hetero_core.network.types import TensorType

from ..trial import WIDTHS, run_calls

pytestmark = pytest.mark.skipif(not WIDTHS, reason="no kernels are made for this processor, or llvmlite is not installed")
Array = np.ndarray[Any, Any]
SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def planned_width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans reductions as on a processor with vectors of the width that a test asks for."""
    if "width" in getattr(getattr(request.node, "callspec", None), "params", {}):
        monkeypatch.setattr(pooling, "find_width", lambda: request.node.callspec.params["width"])


def draw_array(seed: int, *shape: int) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def lay_last(array: Array, *, more: int = 0, around: int = 0) -> Array:
    """Returns an image channels last, inside NaN: `more` channels beside it, and `around` pixels on each side."""
    n, c, h, w = array.shape
    memory = np.full((n, h + 2 * around, w + 2 * around, c + more), np.nan, np.float32)
    laid = memory[:, around : around + h, around : around + w, more // 2 : more // 2 + c].transpose(0, 3, 1, 2)
    laid[...] = array
    return laid


def plan(op_type: str, arrays: Mapping[str, Array], *, since_version: int = 17, **attributes: Any) -> Recipe | None:
    node = Node("n", op_type, tuple(arrays), ("y",), attributes=attributes, since_version=since_version)
    types = {name: TensorType("float32", array.shape) for name, array in arrays.items()}
    types["y"] = types["x"]
    site = Site(Group(node), types, {}, arrays, PackedWeights(), workers=2)
    recipe: Recipe | None = list_native_steps(op_type)[-1](site)
    return recipe


def run(recipe: Recipe | None, arrays: Mapping[str, Array], y: Array, width: int) -> Array:
    assert recipe is not None
    run_calls(recipe.bind([arrays[value] for value in recipe.reads], [y], np.empty(0, np.uint8)), width)
    return y


def softmax(x: Array, axis: int) -> Array:
    raised = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
    total: Array = raised / raised.sum(axis=axis, keepdims=True)
    return total


@SETTINGS
@given(
    rows=st.integers(1, 40), length=st.integers(1, 300), scale=st.sampled_from([0.1, 3, 40]), width=st.sampled_from(WIDTHS or (0,))
)
def test_softmax_of_rows_equals_the_formula(rows: int, length: int, scale: float, width: int) -> None:
    arrays = {"x": draw_array(1, rows, length) * np.float32(scale)}
    y = run(plan("Softmax", arrays, axis=-1), arrays, np.empty((rows, length), np.float32), width)
    # x - max is rounded to float32, of which half a unit at 100 is 4e-6.
    np.testing.assert_allclose(y, softmax(arrays["x"], 1), rtol=2e-6 if scale < 40 else 1e-5, atol=1e-37)
    y = run(plan("LogSoftmax", arrays, axis=1), arrays, y, width)
    with np.errstate(divide="ignore"):
        log_softmax = arrays["x"] - arrays["x"].max(axis=1, keepdims=True).astype(np.float64)
        log_softmax -= np.log(np.exp(log_softmax).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(y, log_softmax, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("since_version", "axis", "rows"), [(11, 1, 6), (11, 2, 12), (13, 2, 12)])
def test_softmax_before_version_13_takes_all_axes_from_one_on(since_version: int, axis: int, rows: int, width: int) -> None:
    arrays = {"x": draw_array(2, 6, 2, 5)}
    y = run(plan("Softmax", arrays, since_version=since_version, axis=axis), arrays, np.empty((6, 2, 5), np.float32), width)
    np.testing.assert_allclose(y.reshape(rows, -1), softmax(arrays["x"].reshape(rows, -1), 1), rtol=2e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_softmax_of_nan_and_infinity_equals_numpy(width: int) -> None:
    x = draw_array(3, 5, 37)
    x[0, 5], x[1, 30], x[2, :], x[3, 1:] = np.nan, np.inf, -np.inf, -np.inf
    arrays = {"x": x}
    y = run(plan("Softmax", arrays), arrays, np.empty_like(x), width)
    with np.errstate(invalid="ignore"):
        expected = softmax(x, 1)
    np.testing.assert_allclose(y, expected, rtol=2e-6)


@SETTINGS
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(2, 70), st.integers(1, 5), st.integers(2, 5)),
    more=st.sampled_from([0, 6]),
    around=st.integers(0, 1),
    width=st.sampled_from(WIDTHS or (0,)),
)
def test_softmax_over_channels_of_images_equals_the_formula(shape: Any, more: int, around: int, width: int) -> None:
    arrays = {"x": lay_last(draw_array(4, *shape), more=more, around=around)}
    y = run(plan("Softmax", arrays, axis=1), arrays, lay_last(draw_array(5, *shape), around=1), width)
    np.testing.assert_allclose(y, softmax(np.ascontiguousarray(arrays["x"]), 1), rtol=2e-6)
    assert np.isnan(y.base).sum() == y.base.size - y.size


@SETTINGS
@given(
    rows=st.integers(1, 30),
    length=st.integers(1, 900),
    inputs=st.integers(2, 3),
    shift=st.sampled_from([0, 30]),
    width=st.sampled_from(WIDTHS or (0,)),
)
def test_layer_normalization_equals_the_formula(rows: int, length: int, inputs: int, shift: float, width: int) -> None:
    arrays = {"x": draw_array(6, rows, length) + np.float32(shift), "scale": draw_array(7, length), "bias": draw_array(8, length)}
    arrays = dict(list(arrays.items())[:inputs])
    y = run(plan("LayerNormalization", arrays, epsilon=1e-4), arrays, np.empty((rows, length), np.float32), width)
    x = arrays["x"].astype(np.float64)
    expected = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-4) * arrays["scale"]
    expected = expected + arrays["bias"] if inputs == 3 else expected
    # A mean far from zero costs digits when it is subtracted.
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=3e-6 if shift == 0 else 5e-3 if length < 3 else 1e-4)
    if inputs == 2:
        y = run(plan("RMSNormalization", arrays, epsilon=1e-4), arrays, y, width)
        expected = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-4) * arrays["scale"]
        np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_normalization_of_several_axes_equals_the_formula(width: int) -> None:
    arrays = {"x": draw_array(6, 5, 3, 7), "scale": draw_array(7, 3, 7), "bias": draw_array(8, 3, 7)}
    y = run(plan("LayerNormalization", arrays, axis=1), arrays, np.empty((5, 3, 7), np.float32), width)
    x = arrays["x"].astype(np.float64)
    mean, variance = x.mean(axis=(1, 2), keepdims=True), x.var(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(variance + 1e-5) * arrays["scale"] + arrays["bias"], atol=3e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("around", [None, 0, 1], ids=["plain", "last", "inside"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (3, 4, 70), (2, 39, 6, 4)])
def test_instance_normalization_equals_the_formula(shape: tuple[int, ...], around: int | None, width: int) -> None:
    x = draw_array(9, *shape)
    is_last = around is not None and len(shape) == 4
    arrays = {
        "x": lay_last(x, around=around or 0) if is_last else x,
        "scale": draw_array(7, shape[1]),
        "bias": draw_array(8, shape[1]),
    }
    y = lay_last(np.zeros_like(x), around=1) if is_last else np.empty(shape, np.float32)
    # Of pixels the recipe counts vectors of this processor.
    run(plan("InstanceNormalization", arrays, epsilon=1e-3), arrays, y, find_width() if is_last else width)
    axes, wide = tuple(range(2, len(shape))), (-1, *[1] * (len(shape) - 2))
    x = arrays["x"].astype(np.float64)
    expected = (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + 1e-3)
    np.testing.assert_allclose(y, expected * arrays["scale"].reshape(wide) + arrays["bias"].reshape(wide), atol=3e-6)


@SETTINGS
@given(
    channels=st.integers(2, 150),
    size=st.sampled_from([1, 2, 3, 5]),
    beta=st.sampled_from([0.75, 0.5, 1.0, 0.6]),
    more=st.sampled_from([0, 6]),
    around=st.integers(0, 1),
    width=st.sampled_from(WIDTHS or (0,)),
)
def test_normalization_by_neighbours_equals_the_formula(
    channels: int, size: int, beta: float, more: int, around: int, width: int
) -> None:
    shape = (2, channels, 3, 4)
    arrays = {"x": lay_last(draw_array(10, *shape), more=more, around=around)}
    recipe = plan("LRN", arrays, size=size, alpha=0.3, beta=beta, bias=1.5)
    assert recipe is not None
    assert not recipe.overwrites
    y = run(recipe, arrays, lay_last(draw_array(11, *shape), around=1), width)
    x = arrays["x"].astype(np.float64)
    squares = np.pad(x**2, [(0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)])
    total = sum(squares[:, begin : begin + channels] for begin in range(size))
    np.testing.assert_allclose(y, x / (1.5 + 0.3 / size * total) ** beta, rtol=1e-6)
    assert np.isnan(y.base).sum() == y.base.size - y.size


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("beta", [0.75, 0.5, 1.0])
def test_lrn_is_zero_if_squares_overflow(beta: float, width: int) -> None:
    arrays = {"x": lay_last(np.full((1, 20, 2, 2), 1e25, np.float32))}
    y = run(plan("LRN", arrays, size=3, beta=beta), arrays, lay_last(draw_array(1, 1, 20, 2, 2)), width)
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize(
    ("op_type", "arrays", "attributes"),
    [
        ("Softmax", {"x": draw_array(1, 4, 5, 6)}, {"axis": 1}),
        ("Softmax", {"x": draw_array(1, 4, 5).T}, {"axis": -1}),
        ("Softmax", {"x": np.ones((2, 2))}, {"axis": -1}),
        ("LayerNormalization", {"x": draw_array(1, 4, 5), "scale": draw_array(1, 1)}, {}),
        ("LayerNormalization", {"x": draw_array(1, 4, 5), "scale": draw_array(1, 5)}, {"stash_type": 16}),
        ("LRN", {"x": draw_array(1, 1, 4, 5, 5)}, {"size": 3}),
        ("LRN", {"x": lay_last(draw_array(1, 1, 4, 5, 5))}, {"size": 3, "bias": -1.0}),
    ],
)
def test_rows_that_do_not_lie_in_one_piece_are_refused(op_type: str, arrays: dict[str, Array], attributes: dict[str, Any]) -> None:
    assert plan(op_type, arrays, **attributes) is None


REDUCTIONS = {
    "ReduceL1": lambda x, axis=None: np.abs(x).sum(axis),
    "ReduceL2": lambda x, axis=None: np.sqrt((x * x).sum(axis)),
    "ReduceLogSumExp": lambda x, axis=None: np.log(np.exp(x).sum(axis)),
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceMin": np.min,
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda x, axis=None: (x * x).sum(axis),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op_type", sorted(REDUCTIONS))
@pytest.mark.parametrize("shape", [(1,), (7, 5), (3, 1, 16), (2, 3, 65), (1, 1000), (300, 3)])
def test_reduction_of_neighbouring_axes_equals_float64(op_type: str, shape: tuple[int, ...], width: int) -> None:
    x = draw_array(3, *shape)
    for first, end in combinations(range(len(shape) + 1), 2):
        axes = tuple(range(first, end))
        expected = REDUCTIONS[op_type](x.astype(np.float64), axis=axes)
        y = np.full(expected.shape, np.nan, np.float32)
        run(plan(op_type, {"x": x}, axes=[axis - len(shape) for axis in axes]), {"x": x}, y, width)
        np.testing.assert_allclose(y, expected, rtol=2e-6, atol=2e-5)
    whole = np.full((), np.nan, np.float32)
    run(plan(op_type, {"x": x}), {"x": x}, whole, width)
    np.testing.assert_allclose(whole, REDUCTIONS[op_type](x.astype(np.float64)), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op_type", sorted(REDUCTIONS))
@pytest.mark.parametrize("axis", [0, 1])
def test_reduction_keeps_a_nan_at_any_place(op_type: str, axis: int, width: int) -> None:
    for place in (0, 1, 15, 16, 40, 69, 70):
        x = draw_array(4, 2, 71)
        x[1, place] = np.nan
        x = np.ascontiguousarray(x.T) if axis == 0 else x
        y = run(plan(op_type, {"x": x}, axes=[axis]), {"x": x}, np.zeros(2, np.float32), width)
        assert np.isfinite(y[0])
        assert np.isnan(y[1])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("axis", [0, 1])
def test_logarithm_of_a_sum_of_exponentials_knows_infinities_and_large_numbers(axis: int, width: int) -> None:
    x = np.array([[-np.inf] * 3, [np.inf, 0, -np.inf], [-np.inf, 2, -np.inf], [3e38, 3e38, 0], [-3e38, -3e38, -3e38]], np.float32)
    expected = np.array([-np.inf, np.inf, 2, 3e38, -3e38], np.float32)
    x = np.ascontiguousarray(x.T) if axis == 0 else x
    y = run(plan("ReduceLogSumExp", {"x": x}, axes=[axis]), {"x": x}, np.zeros(5, np.float32), width)
    np.testing.assert_array_equal(y, expected)


def test_reduction_of_axes_apart_or_of_none_is_left_to_others() -> None:
    x = draw_array(5, 4, 6, 3)
    assert plan("ReduceMax", {"x": x}, axes=[0, 2]) is None
    assert plan("ReduceMax", {"x": x}, noop_with_empty_axes=1) is None
