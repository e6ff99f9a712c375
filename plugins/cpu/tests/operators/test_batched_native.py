"""Machine code for products of two computed operands, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_core.core import Core
from hetero_core.network.graph import Node

from ..conftest import NativeRun

SETTINGS = settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
HALF_ULP = 2.0**-24
# Batches of both operands, and of the result.
BATCHES = (
    ((), (), ()),
    ((3,), (), (3,)),
    ((), (2, 3), (2, 3)),
    ((2, 3), (2, 3), (2, 3)),
    ((2, 1), (1, 3), (2, 3)),
    ((2, 1, 2), (1, 3, 1), (2, 3, 2)),
)


def draw_array(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def lay(array: Any, how: str) -> Any:
    """Returns equal numbers in another layout: C order, last two axes transposed, a part of wider rows, or batch inside the rows."""
    if how == "turned":
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "part":
        wide = np.full((*array.shape[:-1], array.shape[-1] + 5), np.nan, np.float32)
        wide[..., 2:-3] = array
        return wide[..., 2:-3]
    if how == "inside" and array.ndim > 2:
        return np.ascontiguousarray(array.swapaxes(-2, -3)).swapaxes(-2, -3)
    return array


def run_product(native: NativeRun, nodes: list[Node], images: dict[str, Any], constants: dict[str, Any], y: Any) -> int:
    from hetero_cpu.operators.batched import plan_native_batched_mat_mul

    recipe = plan_native_batched_mat_mul(native.make_site(nodes, images, constants, y.shape))
    assert recipe is not None
    return native.run(recipe, images, y)


@SETTINGS
@given(
    batches=st.sampled_from(BATCHES),
    rows=st.sampled_from([1, 2, 5, 14, 23, 40]),
    depth=st.sampled_from([1, 3, 16, 37]),
    columns=st.sampled_from([1, 8, 16, 31, 70]),
    lays=st.tuples(*[st.sampled_from(["plain", "turned", "part", "inside"])] * 2),
    after=st.sampled_from(["", "add", "bias", "relu"]),
)
def test_product_of_any_sizes_and_strides_equals_the_formula(native: NativeRun, **drawn: Any) -> None:
    rows, depth, columns = drawn["rows"], drawn["depth"], drawn["columns"]
    a, b = draw_array(1, *drawn["batches"][0], rows, depth), draw_array(2, *drawn["batches"][1], depth, columns)
    exact, size_of_terms = np.matmul(a.astype(np.float64), b), np.matmul(abs(a).astype(np.float64), abs(b))
    images = {"a": lay(a, drawn["lays"][0]), "b": lay(b, drawn["lays"][1])}
    constants: dict[str, Any] = {}
    nodes = [Node("m", "MatMul", ("a", "b"), ("y0",), since_version=13)]
    if drawn["after"] in ("add", "bias"):
        r = draw_array(3, *(exact.shape if drawn["after"] == "add" else (columns,)))
        images["r"] = r
        if drawn["after"] == "bias":
            constants["r"] = r
        nodes.append(Node("s", "Add", ("y0", "r"), ("y1",), since_version=14))
        exact, size_of_terms = exact + r, size_of_terms + abs(r)
    elif drawn["after"] == "relu":
        nodes.append(Node("n", "Relu", ("y0",), ("y1",), since_version=14))
        exact = np.maximum(exact, 0)
    y = np.full(exact.shape, np.nan, np.float32)
    run_product(native, nodes, images, constants, y)
    assert np.all(abs(y - exact) <= (depth + 2) * HALF_ULP * size_of_terms)


def test_a_large_product_is_cut_into_chunks(native: NativeRun) -> None:
    a, b = draw_array(1, 4, 100, 64), draw_array(2, 4, 64, 200)
    y = np.empty((4, 100, 200), np.float32)
    node = Node("m", "MatMul", ("a", "b"), ("y",), since_version=13)
    assert run_product(native, [node], {"a": a, "b": b}, {}, y) > 1
    np.testing.assert_allclose(y, np.matmul(a.astype(np.float64), b), rtol=1e-4, atol=1e-4)


def test_nan_and_infinity_stay_in_their_rows_and_columns(native: NativeRun) -> None:
    a, b = np.ones((15, 20), np.float32), np.ones((20, 18), np.float32)
    a[3, 2], b[5, 17] = np.nan, np.inf
    y = np.empty((15, 18), np.float32)
    run_product(native, [Node("m", "MatMul", ("a", "b"), ("y",), since_version=13)], {"a": a, "b": b}, {}, y)
    expected = np.full((15, 18), 20.0)
    expected[:, 17], expected[3] = np.inf, np.nan
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("broken", ["strides", "rank", "batches"])
def test_native_step_refuses_operands_without_dense_rows(native: NativeRun, broken: str) -> None:
    from hetero_cpu.operators.batched import plan_native_batched_mat_mul

    a = draw_array(1, 4, 12)[:, ::2] if broken == "strides" else draw_array(1, 6)
    images = {"a": a, "b": draw_array(2, 6, 5)}
    shape: tuple[int, ...] = (4, 5)
    if broken == "batches":
        images, shape = {"a": draw_array(1, 2, 1, 2, 1, 4, 6), "b": draw_array(2, 1, 3, 1, 2, 6, 5)}, (2, 3, 2, 2, 4, 5)
    node = Node("m", "MatMul", ("a", "b"), ("y",), since_version=13)
    assert plan_native_batched_mat_mul(native.make_site([node], images, {}, shape)) is None


def test_constant_right_matrix_is_left_to_the_packing_step(native: NativeRun) -> None:
    from hetero_cpu.operators.batched import plan_native_batched_mat_mul

    node = Node("m", "MatMul", ("a", "b"), ("y",), since_version=13)
    images, w = {"a": draw_array(1, 2, 4, 6)}, draw_array(2, 6, 5)
    assert plan_native_batched_mat_mul(native.make_site([node], images, {"b": w}, (2, 4, 5))) is None
    stack = {"b": np.stack([w, w])}
    assert plan_native_batched_mat_mul(native.make_site([node], images, stack, (2, 4, 5))) is not None


def test_gemm_of_a_computed_matrix_that_is_turned_is_planned_with_fixed_sizes() -> None:
    """Plans are made on arrays without memory, which have fewer methods than NumPy's."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[5,7] x, float[3,7] z) => (float[5,3] y) { y = Gemm<transB = 1>(x, z) }'
    )
    x, z = draw_array(1, 5, 7), draw_array(2, 3, 7)
    with Core() as core:
        network = core.load_network(model, "CPU", {"CPU_KERNELS": "JIT"})
        (y,) = network.infer({"x": x, "z": z}).values()
    np.testing.assert_allclose(y, x.astype(np.float64) @ z.T.astype(np.float64), rtol=1e-5, atol=1e-6)
