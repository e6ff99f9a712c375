"""Calls in their barest form: the same elements as NumPy's function gives, wherever they lie, and no copy where none is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hetero_cpu.operators.elementwise.bare_calls import bind_elements, bind_product, flatten_memory, lay_alike, make_number, unite

from hetero_core import Core

Array = np.ndarray[Any, Any]


def draw(*shape: int) -> Array:
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(np.float32)


def last(array: Array) -> Array:
    """The same elements, channels last in memory."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


PLACES: dict[str, Callable[[], tuple[Array, Array, Array]]] = {
    "c_order": lambda: (draw(2, 3, 4), draw(2, 3, 4) + 1, np.empty((2, 3, 4), np.float32)),
    "channels_last": lambda: (last(draw(1, 3, 4, 5)), last(draw(1, 3, 4, 5) + 1), last(draw(1, 3, 4, 5))),
    "two_orders": lambda: (draw(1, 3, 4, 5), last(draw(1, 3, 4, 5) + 1), last(draw(1, 3, 4, 5))),
    "broadcast_row": lambda: (draw(2, 3, 4), draw(4), np.empty((2, 3, 4), np.float32)),
    "one_element": lambda: (draw(2, 3, 4), draw(1, 1), np.empty((2, 3, 4), np.float32)),
    "one_of_one": lambda: (draw(1, 1), draw(1), np.empty((1, 1), np.float32)),
    "no_axes": lambda: (draw(), draw(), np.empty((), np.float32)),
    "strided": lambda: (draw(4, 6)[:, ::2], draw(4, 8)[:, 1:4], np.empty((4, 6), np.float32)[:, ::2]),
}


@pytest.mark.parametrize("function", [np.add, np.divide, np.maximum, np.minimum], ids=lambda function: function.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_elements_are_those_of_the_function(function: Any, place: str) -> None:
    a, b, out = PLACES[place]()
    expected = function(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    bind_elements(function, a, b, out=out)()
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("place", PLACES)
def test_elements_may_be_written_over_what_is_read(place: str) -> None:
    a, b, out = PLACES[place]()
    expected = a.astype(np.float64) - b
    out[...] = a
    bind_elements(np.subtract, out[...], b, out=out)()
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_arrays_that_lie_alike_are_laid_flat_without_a_copy() -> None:
    a, b, out = (last(draw(2, 3, 4, 5)) for _ in range(3))
    laid = lay_alike(a, b, draw(1, 1), out)
    assert [array.shape for array in laid] == [(120,), (120,), (), (120,)]
    assert all(np.shares_memory(array, given) for array, given in zip(laid[:2], (a, b), strict=True))
    assert np.shares_memory(laid[3], out)


def test_only_an_array_over_the_very_same_elements_is_united() -> None:
    block = draw(4, 4)
    assert unite(block[...], block) is block
    for other in (block[1:], block[:, :2], block.T, block.reshape(-1), block.view(np.int32), block.copy()):
        assert unite(other, block) is other


def test_elements_with_gaps_between_are_not_laid_flat() -> None:
    block = draw(4, 6)
    assert flatten_memory(block[:, ::2]).shape == (4, 3)
    assert np.shares_memory(flatten_memory(block.T), block)
    np.testing.assert_array_equal(flatten_memory(block.T), block.reshape(-1))


@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("cut", [slice(None), slice(None, None, 2)])
@pytest.mark.parametrize("shape", [(4, 5, 6), (1, 5, 6), (4, 5, 1), (4, 1, 6), (1, 1, 1), (70, 33, 20)])
def test_product_is_that_of_matrices_in_any_order(shape: tuple[int, int, int], turns: tuple[bool, bool], cut: slice) -> None:
    rows, depth, columns = shape
    a = (draw(depth, rows).T if turns[0] else draw(rows, depth))[cut]
    b = draw(columns, depth).T if turns[1] else draw(depth, columns)
    y = np.full((len(a), columns), np.nan, np.float32)
    bind_product(a, b, y)()
    np.testing.assert_allclose(y, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_product_of_stacks_is_one_for_each_matrix() -> None:
    a, b, y = draw(3, 4, 5), draw(3, 5, 2), np.empty((3, 4, 2), np.float32)
    bind_product(a, b, y)()
    np.testing.assert_allclose(y, np.einsum("nij,njk->nik", a.astype(np.float64), b), rtol=1e-5, atol=1e-6)


def test_number_has_no_axes_and_is_float32() -> None:
    number = make_number(0.1)
    assert (number.shape, number.dtype, float(number)) == ((), np.float32, float(np.float32(0.1)))


@pytest.mark.parametrize("rows", [2, 2000])
@pytest.mark.parametrize("sizes", ["4", "3, 1", "1, 3, 4", "1", "ROWS, 1, 4"])
def test_small_constants_are_broadcast_as_onnx_says(rows: int, sizes: str) -> None:
    """Of a result of up to 16 KiB a constant is written out in full, of a larger one it is not."""
    shape = tuple(int(size) for size in sizes.replace("ROWS", str(rows)).split(","))
    constant = draw(*shape)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{rows}, 3, 4] x) => (float[{rows}, 3, 4] y) {{ a = Sub(c, x) y = Mul(a, c) }}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(constant, "c"))
    x = draw(rows, 3, 4)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
        found = loaded.infer({"x": x})["y"]
        expected = (constant.astype(np.float64) - x) * constant
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        is_widened = rows == 2 and shape not in ((1,), (rows, 3, 4))
        assert loaded.get_metric("CPU_WEIGHT_BYTES") == (rows * 12 * 4 if is_widened else 0)


@pytest.mark.parametrize("size", [5, 8192, 40000])
@pytest.mark.parametrize("bounds", [(0.0, None), (None, 6.0), (0.0, 6.0), (-1.5, -0.5), (2.0, 1.0), (None, None)])
def test_bounds_hold_for_any_number_of_elements_and_nan_stays(size: int, bounds: tuple[float | None, float | None]) -> None:
    """2 and 1 are bounds of which the upper one wins; absent ones are the ends of float32. Source: ONNX Clip-13, min(max(x, low), high)."""
    low, high = bounds
    least, most = (float(end) for end in (np.finfo(np.float32).min, np.finfo(np.float32).max))
    x = (8 * draw(size)).astype(np.float32)
    x[:5] = [np.nan, np.inf, -np.inf, 0.5, -0.0]
    expected = x.astype(np.float64)
    expected = np.where(expected < (least if low is None else low), least if low is None else low, expected)
    expected = np.where(expected > (most if high is None else high), most if high is None else high, expected)
    constants = {name: np.array(bound, np.float32) for name, bound in (("low", low), ("high", high)) if bound is not None}
    inputs = ["x", "low" if low is not None else "", "high" if high is not None else ""]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Clip", inputs, ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [size])],
        [onnx.helper.make_tensor_value_info("y", 1, [size])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    with Core() as core:
        loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
        np.testing.assert_array_equal(loaded.infer({"x": x})["y"], expected.astype(np.float32))
        if bounds == (0.0, None):
            relu = model.graph.node[0]
            relu.CopyFrom(onnx.helper.make_node("Relu", ["x"], ["y"]))
            loaded = core.load_network(model, "CPU", {"CPU_KERNELS": "NUMPY"})
            np.testing.assert_array_equal(loaded.infer({"x": x})["y"], np.where(x < 0, np.float32(0), x))
